// read.cu - reads blocks of memory in a given order, as fast as the memory allows, and drops them
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "params.h"

// A warp takes 4 KB of the blocks, laid end to end, at a time: eight loads under way in each thread.
extern "C" __global__ void __launch_bounds__(512, 2) read_blocks(const read_params p)
{
    constexpr int DEPTH = 8;
    const int lane = threadIdx.x % 32;
    const long long warps = static_cast<long long>(gridDim.x) * blockDim.x / 32;
    const long long warp = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
    const bool even = (p.block_pieces & (p.block_pieces - 1)) == 0;
    const int shift = 63 - __clzll(p.block_pieces);

    uint32_t seen = 0;
    for (long long first = warp * DEPTH * 32; first < p.pieces; first += warps * DEPTH * 32) {
        uint4 piece[DEPTH];
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            const long long at = min(first + i * 32 + lane, p.pieces - 1);
            const long long block = even ? at >> shift : at / p.block_pieces;
            const long long within = at - block * p.block_pieces;
            piece[i] = __ldcs(reinterpret_cast<const uint4 *>(static_cast<const char *>(p.data) +
                                                              p.order[block] * p.stride) + within);
        }
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            seen ^= piece[i].x ^ piece[i].y ^ piece[i].z ^ piece[i].w;
    }
    // never, but the compiler does not know: so the loads have a use
    if (p.pieces < 0)
        *p.sink = seen;
}

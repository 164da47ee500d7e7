// swapab.cuh - a consumer warpgroup whose M are keys: S^T = K Q^T, softmax over keys, O^T += V^T P^T
// SPDX-License-Identifier: Apache-2.0
//
// The operands' places are swapped as in compute.cuh, so that few query rows waste nothing, but a warpgroup multiplies.
// K and V^T are A and come from registers, where fp8 becomes fp16; Q and P^T are B, in shared memory.  Of every 64
// keys a warp has the scores of 16, and of the output it has a quarter of the dims: weights pass through shared
// memory, no lane holds all dims, and nothing is converted twice.  All warps' weights are relative to one maximum a row.
//
// In an accumulator lane (g, t) of a warp holds in d[4 * j + i] row 8 * j + 2 * t + i % 2 of the query, and key g + i / 2
// * 8 of the warp's 16, or dim 2 * g + i / 2 of 16 of its own.
#pragma once

#include "compute.cuh"
#include "wgmma.cuh"

#include <cfloat>

namespace quire {

enum { BARRIER_SWAPAB = 1 }; // of the warpgroup, which has no other

template <class T>
struct swapab_accumulator {
    static constexpr int PARTS = T::D / 64;   // of 16 dims a warp
    static constexpr int TILES = T::ROWS / 8; // of 8 rows

    float o[PARTS][T::ROWS / 2];
    float sum[TILES][2];   // of this lane's keys' weights

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int i = 0; i < T::ROWS / 2; i++)
                o[part][i] = 0.0f;
#pragma unroll
        for (int j = 0; j < TILES; j++)
            sum[j][0] = sum[j][1] = 0.0f;
    }
};

template <class T>
using swapab_scores = float[T::TILE / 64][T::ROWS / 2];

// The A of either product comes in batches, each of which an ldmatrix brings for two instructions.  As many are under way
// as registers allow.
template <class T>
struct swapab_operands {
    static constexpr int ROOM = T::ROWS == 64 ? 3 : 4, BATCHES = T::TILE * T::D / 2048;
    static constexpr int UNDER_WAY = BATCHES < ROOM ? BATCHES : ROOM;
    u32 a[UNDER_WAY][2][4];

    // Registers for batch nth, whose instructions follow a wgmma_begin.
    __device__ __forceinline__ u32 (&room_for(int nth))[2][4]
    {
        if (nth >= UNDER_WAY)
            wgmma_wait<UNDER_WAY - 1>();
        return a[nth % UNDER_WAY];
    }
    // After those of batch nth.
    __device__ __forceinline__ static void commit(int nth)
    {
        if (UNDER_WAY < BATCHES || nth == BATCHES - 1)
            wgmma_commit();
    }
};

// Where the warpgroup's own arrays stand in shared memory.
template <class T>
struct swapab_memory {
    static constexpr int PANEL = T::ROWS * 128; // of 64 fp16
    static constexpr int OFF_WEIGHTS = T::OFF_OWN + T::ROWS * T::D * 2, OFF_EXCHANGE = OFF_WEIGHTS + T::ROWS * T::TILE * 2;
    u32 query, weights;
    float *exchange; // a number of each row, from every warp
    float *shift;    // of each row, this warp's copy: is added to scores in log2 units, minus what weights are relative to

    static constexpr float NOTHING_SEEN = FLT_MAX; // a shift with which any score exceeds LAG

    __device__ __forceinline__ swapab_memory(unsigned char *smem, int warp)
        : query(smem_address(smem + T::OFF_OWN)), weights(smem_address(smem + OFF_WEIGHTS)),
          exchange(reinterpret_cast<float *>(smem + OFF_EXCHANGE)), shift(exchange + (LAYOUT_SWAPAB_WARPS + warp) * T::ROWS)
    {
    }
};

// The staged query as fp16.  The dims of two steps of the first product are in the order in which load_keys has them.
template <class T>
__device__ __forceinline__ void convert_query(const swapab_memory<T> &own, u32 q_smem)
{
    constexpr int CHUNKS = T::ROW_CHUNKS;
#pragma unroll
    for (int i = threadIdx.x; i < T::ROWS * CHUNKS; i += T::CONSUMERS) {
        const int r = i / CHUNKS, c = i % CHUNKS;
        const uint4 x = load_16(q_smem + c / T::PANEL_CHUNKS * (T::Q_ROWS * T::ROW_BYTES) + T::place(r, c % T::PANEL_CHUNKS));
        const auto place = [&](int chunk) {
            return own.query + chunk / 8 * swapab_memory<T>::PANEL + r * 128 + ((chunk % 8 ^ (r & 7)) * 16);
        };
        const int lo = (c & ~1) * 2 + (c & 1); // of 8 fp16
        store_16(place(lo), make_uint4(e4m3_to_fp16<false>(x.x), e4m3_to_fp16<false>(x.y), e4m3_to_fp16<false>(x.z),
                                       e4m3_to_fp16<false>(x.w)));
        store_16(place(lo + 2), make_uint4(e4m3_to_fp16<true>(x.x), e4m3_to_fp16<true>(x.y), e4m3_to_fp16<true>(x.z),
                                           e4m3_to_fp16<true>(x.w)));
    }
}

// S^T = K Q^T begins, with this warp's keys as compute.cuh's qk takes them: in batches of two steps, of which as many
// are under way as registers allow.
template <class T>
__device__ __forceinline__ void start_scores(swapab_scores<T> &s, swapab_operands<T> &a, u32 k_smem, u32 query, box_shape boxes,
                                             int warp, int lane)
{
    const int row = (lane & 7) + (lane >> 3 & 1) * 8, half = lane >> 4;
    constexpr int BATCHES = T::K_STEPS / 2;
    make_again(query); // descriptors are cheaper to make again than to keep in registers
#pragma unroll
    for (int block = 0; block < T::TILE / 64; block++) {
        const key_block k = find_keys<T>(k_smem, block * 64 + warp * 16, boxes);
#pragma unroll
        for (int batch = 0; batch < BATCHES; batch++) {
            const int c = batch * 2, nth = block * BATCHES + batch;
            u32 (&to)[2][4] = a.room_for(nth);
            u32 x[4];
            load_matrix_x4(x, k.address + (c / T::PANEL_CHUNKS) * k.panel_bytes +
                                  T::place(row, c % T::PANEL_CHUNKS + half));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                to[0][i] = e4m3_to_fp16<false>(x[i]);
                to[1][i] = e4m3_to_fp16<true>(x[i]);
            }
            wgmma_begin();
#pragma unroll
            for (int i = 0; i < 2; i++)
                wgmma<false>(s[block], to[i],
                             matrix_descriptor(query + (c + i) / 4 * swapab_memory<T>::PANEL + (c + i) % 4 * 32, 1024, 0),
                             c + i > 0);
            a.commit(nth);
        }
    }
}

// O^T += V^T P^T begins, with this warp's dims of all keys as compute.cuh's pv takes them; in batches too.  V of keys that
// no row sees becomes 0: it may be NaN, and must not meet a weight of 0.
template <class T>
__device__ __forceinline__ void start_output(swapab_accumulator<T> &acc, swapab_operands<T> &a, u32 v_smem, u32 weights,
                                             const tile_info &tile, box_shape boxes, int warp, int lane)
{
    // a batch is of two parts, or where there is only one of two steps of 16 keys
    constexpr int PARTS = T::D / 64, BATCHES = T::TILE / 16 * PARTS / 2;
    const int row = (lane & 7) + (lane >> 3 & 1) * 8, upper = lane >> 4;
    const bool some_dead = uniform(tile.key0 < tile.lo || tile.key0 + T::TILE > tile.hi);
    make_again(weights);
#pragma unroll
    for (int batch = 0; batch < BATCHES; batch++) {
        const int step = PARTS == 1 ? batch * 2 : batch / (PARTS / 2), part = PARTS == 1 ? 0 : batch % (PARTS / 2) * 2;
        u32 (&to)[2][4] = a.room_for(batch);
        u32 x[4];
        if (PARTS == 1) {
            load_matrix_x4_transposed(x, find_keys<T>(v_smem, (step + upper) * 16, boxes).address + T::place(row, warp));
        } else {
            const key_block v = find_keys<T>(v_smem, step * 16, boxes);
            const int c = warp * PARTS + part;
            load_matrix_x4_transposed(x, v.address + (c / T::PANEL_CHUNKS) * v.panel_bytes +
                                             T::place(row, c % T::PANEL_CHUNKS + upper));
        }
        if (some_dead) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] &= live_pair(tile.key0 + (step + (PARTS == 1 ? i / 2 : 0)) * 16 + i % 2 * 8 + lane % 4 * 2, tile);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            // {V[2t][2g], V[2t][2g+1], V[2t+1][2g], V[2t+1][2g+1]}: bring the pairs of one dim together
            const u32 near = __byte_perm(x[i * 2], 0, 0x3120), far = __byte_perm(x[i * 2 + 1], 0, 0x3120);
            to[i][0] = e4m3_to_fp16<false>(near);
            to[i][1] = e4m3_to_fp16<true>(near);
            to[i][2] = e4m3_to_fp16<false>(far);
            to[i][3] = e4m3_to_fp16<true>(far);
        }
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = PARTS == 1 ? step + i : step;
            wgmma<false>(acc.o[PARTS == 1 ? 0 : part + i], to[i],
                         matrix_descriptor(weights + at / 4 * swapab_memory<T>::PANEL + at % 4 * 32, 1024, 0), true);
        }
        a.commit(batch);
    }
}

// Scores of keys that a row does not see become -inf, by selection.  `first`: this lane's first key.
template <class T>
__device__ __forceinline__ void mask_keys(swapab_scores<T> &s, const row_info *rows, int first, int lane)
{
#pragma unroll
    for (int j = 0; j < swapab_accumulator<T>::TILES; j++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int2 sees = *reinterpret_cast<const int2 *>(&rows[j * 8 + lane % 4 * 2 + c]);
#pragma unroll
            for (int block = 0; block < T::TILE / 64; block++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int key = first + block * 64 + half * 8;
                    float &score = s[block][j * 4 + half * 2 + c];
                    score = key >= sees.x && key < sees.y ? score : -INFINITY;
                }
        }
}

// The largest score of this lane's keys for row c of its two of tile j.
template <class T>
__device__ __forceinline__ float top_score(const swapab_scores<T> &s, int j, int c)
{
    float top = fmaxf(s[0][j * 4 + c], s[0][j * 4 + 2 + c]);
#pragma unroll
    for (int block = 1; block < T::TILE / 64; block++)
        top = fmaxf(top, fmaxf(s[block][j * 4 + c], s[block][j * 4 + 2 + c]));
    return top;
}

// All warps: maxima that weights are relative to rise to TOP below the largest score of the tile.
template <class T>
__device__ __forceinline__ void raise_maxima(swapab_accumulator<T> &acc, const swapab_scores<T> &s,
                                             const swapab_memory<T> &own, float scale, int warp, int lane)
{
    constexpr int TILES = swapab_accumulator<T>::TILES;
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        float most[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            most[c] = top_score<T>(s, j, c);
            most[c] = fmaxf(most[c], __shfl_xor_sync(0xffffffff, most[c], 4));
            most[c] = fmaxf(most[c], __shfl_xor_sync(0xffffffff, most[c], 8));
            most[c] = fmaxf(most[c], __shfl_xor_sync(0xffffffff, most[c], 16));
        }
        if (lane < 4)
            *reinterpret_cast<float2 *>(own.exchange + warp * T::ROWS + j * 8 + lane * 2) = make_float2(most[0], most[1]);
    }
    named_barrier(BARRIER_SWAPAB, T::CONSUMERS);
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int w = 0; w < LAYOUT_SWAPAB_WARPS; w++) {
            const float2 x = *reinterpret_cast<const float2 *>(own.exchange + w * T::ROWS + j * 8 + lane % 4 * 2);
            most[0] = fmaxf(most[0], x.x);
            most[1] = fmaxf(most[1], x.y);
        }
        auto *const shift = reinterpret_cast<float2 *>(own.shift + j * 8 + lane % 4 * 2);
        const float2 from = *shift;
        const float2 to = make_float2(fminf(TOP<false> - most[0] * scale, from.x), fminf(TOP<false> - most[1] * scale, from.y));
        __syncwarp();
        if (lane < 4)
            *shift = to;
        const float shrink[2] = {exp2_approx(to.x - from.x), exp2_approx(to.y - from.y)};
#pragma unroll
        for (int c = 0; c < 2; c++) {
            acc.sum[j][c] *= shrink[c];
#pragma unroll
            for (int part = 0; part < swapab_accumulator<T>::PARTS; part++) {
                acc.o[part][j * 4 + c] *= shrink[c];
                acc.o[part][j * 4 + 2 + c] *= shrink[c];
            }
        }
    }
    __syncwarp();
}

// Scores to weights, in shared memory for the second product; as compute.cuh's softmax.
template <class T>
__device__ __forceinline__ void weigh_keys(swapab_accumulator<T> &acc, swapab_scores<T> &s, const tile_info &tile,
                                           const swapab_memory<T> &own, const row_info *rows, float scale, int warp,
                                           int lane)
{
    constexpr int TILES = swapab_accumulator<T>::TILES, BLOCKS = T::TILE / 64;
    if (tile.flags & TILE_MASKED)
        mask_keys<T>(s, rows, tile.key0 + warp * 16 + lane / 4, lane);
    const float *const shift = own.shift + lane % 4 * 2;
    float excess = -INFINITY;
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        const float2 by = *reinterpret_cast<const float2 *>(shift + j * 8);
        excess = fmaxf(excess, fmaxf(fmaf(top_score<T>(s, j, 0), scale, by.x), fmaf(top_score<T>(s, j, 1), scale, by.y)));
    }
    // Where warps meet here, all have waited for the second product of the tile before.
    if (uniform(named_barrier_any(BARRIER_SWAPAB, T::CONSUMERS, excess > LAG<false>)))
        raise_maxima<T>(acc, s, own, scale, warp, lane);
    const u32 to = own.weights + (lane >> 4) * 1024 + (lane & 7) * 128 + ((warp * 2 + (lane >> 3 & 1)) ^ (lane & 7)) * 16;
#pragma unroll
    for (int j = 0; j < TILES; j += 2) {
        const float2 by[2] = {*reinterpret_cast<const float2 *>(shift + j * 8),
                              *reinterpret_cast<const float2 *>(shift + j * 8 + 8)};
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            u32 w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = (j + i / 2) * 4 + i % 2 * 2;
                const float a = exp2_approx(fmaf(s[block][at], scale, by[i / 2].x));
                const float b = exp2_approx(fmaf(s[block][at + 1], scale, by[i / 2].y));
                acc.sum[j + i / 2][0] += a;
                acc.sum[j + i / 2][1] += b;
                w[i] = pack_16<false>(a, b);
            }
            store_matrix_x4_transposed(to + block * swapab_memory<T>::PANEL + j * 1024, w);
        }
    }
    fence_for_tensor_cores();
}

} // namespace quire

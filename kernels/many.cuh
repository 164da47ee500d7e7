// many.cuh - consumers that are warpgroups, for many query rows: S = Q K^T, softmax, O += P V
// SPDX-License-Identifier: Apache-2.0
//
// A warpgroup owns 64 rows of an item and takes every key of its tiles; K, V and Q stay in shared memory,
// weights go from registers.  While one warpgroup computes weights the other's products keep the tensor
// cores busy: they take turns.  What follows a tile's products is ordered so that P V of a tile and Q K^T of
// the next are issued at once, and waited for once.
#pragma once

#include "compute.cuh"
#include "wgmma.cuh"

namespace quire {

// Lane (g, t) of a warp holds rows g and g + 8, as half 0 and half 1.
template <class T>
struct group_accumulator {
    static constexpr int COLUMNS = T::D < 128 ? T::D : 128; // of one matrix instruction
    static constexpr int PARTS = T::D / COLUMNS;

    float o[PARTS][COLUMNS / 2];
    float max[2]; // that weights are relative to, log2 units
    float sum[2]; // of this lane's weights

    // The lane's four of columns 8 * j to 8 * j + 7.
    __device__ __forceinline__ float *vector(int j) { return o[j / (COLUMNS / 8)] + j % (COLUMNS / 8) * 4; }
    __device__ __forceinline__ const float *vector(int j) const { return o[j / (COLUMNS / 8)] + j % (COLUMNS / 8) * 4; }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; i++)
                o[part][i] = 0.0f;
        max[0] = max[1] = -INFINITY;
        sum[0] = sum[1] = 0.0f;
    }

    __device__ __forceinline__ void add(int j, float4 x, const float (&scale)[2])
    {
        float *const to = vector(j);
        to[0] += x.x * scale[0];
        to[1] += x.y * scale[0];
        to[2] += x.z * scale[1];
        to[3] += x.w * scale[1];
    }

    // Of the lane's rows, that which it keeps in a slot (below).
    __device__ __forceinline__ float2 state(int lane) const
    {
        return lane % 2 ? make_float2(max[1], sum[1]) : make_float2(max[0], sum[0]);
    }

    // Of whole rows now.
    __device__ __forceinline__ void add_lanes()
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 2);
        }
    }
};

// 16 keys of the second product's inner dimension are a block.  Its halves of 8 keys come from one matrix of
// scores, in order, or from two (T::HALVES), where the place of keys depends on the pages.
template <class T>
struct group_scores {
    static constexpr int MATRICES = T::HALVES ? 2 : 1, REGS = T::TILE / 2 / MATRICES;
    float s[MATRICES][REGS];

    // i: of the lane's four in this block and half
    __device__ __forceinline__ float &at(int block, int half, int i)
    {
        return T::HALVES ? s[half][block * 4 + i] : s[0][(block * 2 + half) * 4 + i];
    }
    __device__ __forceinline__ float at(int block, int half, int i) const
    {
        return T::HALVES ? s[half][block * 4 + i] : s[0][(block * 2 + half) * 4 + i];
    }
};

template <class T>
using group_weights = u32[T::TILE / 16][4]; // the A of the second product

// How a tile lies in shared memory, as the matrix instructions take it: distances in bytes, and in keys.
struct tile_matrices {
    u32 half, k_rows8;        // K: from a half's matrix to the other's, between its pieces of 8 keys
    u32 block, v_rows8;       // V: from a block to the next, between its two halves
    u32 panel;                // both: from a panel to the next
    int block_keys, half_keys;
};

template <class T>
__device__ __forceinline__ tile_matrices matrices_of(box_shape boxes)
{
    if constexpr (!T::HALVES) {
        return {0, 1024, 2048, 1024, T::TILE * 128, 16, 8};
    } else {
        const u32 box_rows = 1u << boxes.shift, box_bytes = box_rows * T::ROW_CHUNKS * 16;
        // pages of 16: a block is a page. Larger ones: halves are the halves of the tile
        if (box_rows == 16)
            return {1024, box_bytes, box_bytes, 1024, 2048, 16, 8};
        const u32 half = box_rows == T::TILE ? T::TILE / 2 * 128 : T::TILE * T::ROW_CHUNKS * 8;
        return {half, 1024, 1024, half, box_rows * 128, 8, T::TILE / 2};
    }
}

// Barriers by their hardware number; 0 is __syncthreads, 1 merge.cuh's.
enum { BARRIER_TURN = 2, BARRIER_DEAD_KEYS = 4 };

template <class T>
__device__ __forceinline__ void issue_scores(group_scores<T> &s, u32 q_smem, u32 k_smem,
                                             const tile_matrices &m)
{
    make_again(q_smem); // descriptors are cheaper to make again than to keep in registers
#pragma unroll
    for (int step = 0; step < T::K_STEPS; step++) // of 16 dims, four to a panel
#pragma unroll
        for (int half = 0; half < group_scores<T>::MATRICES; half++)
            wgmma<T::BF16>(s.s[half], matrix_descriptor(q_smem + step / 4 * (T::Q_ROWS * 128) + step % 4 * 32, 1024, 0),
                           matrix_descriptor(k_smem + half * m.half + step / 4 * m.panel + step % 4 * 32, m.k_rows8, 0),
                           step > 0);
}

template <class T>
__device__ __forceinline__ void issue_output(group_accumulator<T> &acc, const group_weights<T> &w, u32 v_smem,
                                             const tile_matrices &m)
{
    using A = group_accumulator<T>;
#pragma unroll
    for (int block = 0; block < T::TILE / 16; block++)
#pragma unroll
        for (int part = 0; part < A::PARTS; part++)
            wgmma<T::BF16>(acc.o[part], w[block],
                           matrix_descriptor(v_smem + part * (A::COLUMNS / 64) * m.panel + block * m.block, m.v_rows8,
                                             m.panel));
}

// Scores of keys that a row does not see become -inf, by selection.  `rows`: the lane's own two.
template <class T>
__device__ __forceinline__ void mask_group_scores(group_scores<T> &s, const tile_matrices &m, const row_info *rows,
                                                  int key0, int lane)
{
    const int first = key0 + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int2 sees = *reinterpret_cast<const int2 *>(rows + r * 8);
        const int lo = sees.x - first, hi = sees.y - first;
        if constexpr (T::HALVES) {
#pragma unroll
            for (int block = 0; block < T::TILE / 16; block++)
#pragma unroll
                for (int half = 0; half < 2; half++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const int key = block * m.block_keys + half * m.half_keys + i;
                        float &score = s.at(block, half, r * 2 + i);
                        score = key >= lo && key < hi ? score : -INFINITY;
                    }
        } else { // the lane has two keys of every eight: a bit each, as predicates are made of many bits at once
            static_assert(T::TILE <= 128);
            const auto before = [](int x) { // the bits of keys before x
                x = clamp(x, 0, T::TILE);
                return static_cast<u32>((u64{1} << (x / 8 * 2 + min(x % 8, 2))) - 1);
            };
            const u32 seen = before(hi) & ~before(lo);
#pragma unroll
            for (int n = 0; n < T::TILE / 4; n++) {
                float &score = s.at(n / 4, n / 2 % 2, r * 2 + n % 2);
                score = seen >> n & 1 ? score : -INFINITY;
            }
        }
    }
}

// As compute.cuh's softmax.
template <class T>
__device__ __forceinline__ void group_softmax(group_weights<T> &w, const group_scores<T> &s,
                                              group_accumulator<T> &acc, float scale)
{
    float top[2];
    bool rise = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float a = -INFINITY, b = -INFINITY; // two chains
#pragma unroll
        for (int block = 0; block < T::TILE / 16; block++) {
            a = fmaxf(a, fmaxf(s.at(block, 0, r * 2), s.at(block, 0, r * 2 + 1)));
            b = fmaxf(b, fmaxf(s.at(block, 1, r * 2), s.at(block, 1, r * 2 + 1)));
        }
        top[r] = fmaxf(a, b);
        rise |= fmaf(top[r], scale, -acc.max[r]) > LAG<T::BF16>;
    }
    if (__any_sync(0xffffffff, rise)) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float to = top[r] * scale;
            to = fmaxf(to, __shfl_xor_sync(0xffffffff, to, 1));
            to = fmaxf(to, __shfl_xor_sync(0xffffffff, to, 2));
            to = fmaxf(to - TOP<T::BF16>, acc.max[r]);
            // nothing seen yet: exp2(-inf + inf) must not be asked for
            const float shrink = acc.max[r] == -INFINITY ? 0.0f : exp2_approx(acc.max[r] - to);
            acc.max[r] = to;
            acc.sum[r] *= shrink;
#pragma unroll
            for (int part = 0; part < group_accumulator<T>::PARTS; part++)
#pragma unroll
                for (int j = 0; j < group_accumulator<T>::COLUMNS / 8; j++) {
                    acc.o[part][j * 4 + r * 2] *= shrink;
                    acc.o[part][j * 4 + r * 2 + 1] *= shrink;
                }
        }
    }
    const float from[2] = {acc.max[0] == -INFINITY ? 0.0f : -acc.max[0], acc.max[1] == -INFINITY ? 0.0f : -acc.max[1]};
#pragma unroll
    for (int block = 0; block < T::TILE / 16; block++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float a = exp2_approx(fmaf(s.at(block, half, r * 2), scale, from[r]));
                const float b = exp2_approx(fmaf(s.at(block, half, r * 2 + 1), scale, from[r]));
                acc.sum[r] += a + b;
                w[block][half * 2 + r] = pack_16<T::BF16>(a, b);
            }
}

// V of keys that no row sees may be NaN, or whatever was there before, and must not meet a weight of 0.  By the
// first warpgroup alone, whose turn to multiply is before the other's: so they need not meet.
template <class T>
__device__ __forceinline__ void clear_dead_keys(const tile_info &tile, u32 v_smem, box_shape boxes)
{
    constexpr int PANELS = T::D * T::ELEM_BYTES / 128;
    const int shift = T::HALVES ? boxes.shift : log2(T::TILE); // of the rows whose panels follow one another
    const int front = clamp(tile.lo - tile.key0, 0, T::TILE), back = clamp(tile.hi - tile.key0, front, T::TILE);
    for (int i = threadIdx.x; i < (front + T::TILE - back) * 8; i += 128) {
        const int r = i / 8 + (i / 8 < front ? 0 : back - front);
        const u32 row = v_smem + (r >> shift << shift) * (PANELS * 128) + (r & ((1 << shift) - 1)) * 128 + i % 8 * 16;
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++)
            store_16(row + (panel * 128 << shift), make_uint4(0, 0, 0, 0));
    }
    fence_for_tensor_cores();
    named_barrier(BARRIER_DEAD_KEYS, 128);
}

// Where a consumer is in the ring.
template <class T>
struct ring_place {
    u32 base;
    control<T> *ctl;
    int stage;
    u32 phase;

    __device__ __forceinline__ u32 k_smem() const { return base + stage * 2 * T::TILE_BYTES; }
    __device__ __forceinline__ u32 v_smem() const { return k_smem() + T::TILE_BYTES; }
    __device__ __forceinline__ u32 k_empty() const { return smem_address(&ctl->k_empty[stage]); }
    __device__ __forceinline__ u32 empty() const { return smem_address(&ctl->empty[stage]); }
    __device__ __forceinline__ tile_info tile() const { return ctl->tiles[stage]; }
    __device__ __forceinline__ void wait_for_k() const { barrier_wait(smem_address(&ctl->k_full[stage]), phase); }
    __device__ __forceinline__ void wait_for_v() const { barrier_wait(smem_address(&ctl->v_full[stage]), phase); }

    __device__ __forceinline__ ring_place next() const
    {
        ring_place n = *this;
        if (++n.stage == T::STAGES) {
            n.stage = 0;
            n.phase ^= 1;
        }
        return n;
    }
};

// From a tile's scores to its weights, and V as the tensor cores may read it.
template <class T>
__device__ __forceinline__ void weigh_tile(group_weights<T> &w, group_scores<T> &s, group_accumulator<T> &acc,
                                           const ring_place<T> &at, const tile_info &tile, const tile_matrices &m,
                                           box_shape boxes, const row_info *rows, float scale, int group, int lane)
{
    if (tile.flags & TILE_MASKED)
        mask_group_scores<T>(s, m, rows, tile.key0, lane);
    group_softmax<T>(w, s, acc, scale);
    at.wait_for_v();
    if (!T::CONVERTS && group == 0 && uniform(tile.key0 < tile.lo || tile.key0 + T::TILE > tile.hi))
        clear_dead_keys<T>(tile, at.v_smem(), boxes);
}

template <int M, int N>
__device__ __forceinline__ void hold(float (&d)[M][N])
{
#pragma unroll
    for (int i = 0; i < M; i++)
        hold(d[i]);
}

} // namespace quire

// compute.cuh - a consumer warp's part of a key tile: S^T = K Q^T, softmax over keys, O^T += V^T P^T
// SPDX-License-Identifier: Apache-2.0
//
// Keys are the M of the matrix instructions and query rows the N, so that few rows waste nothing.
// In mma.m16n8k16's layout, with g = lane / 4 and t = lane % 4, a thread holds of S^T keys g and g+8 of
// rows 2t and 2t+1, and of O^T dims g and g+8 of rows 2t and 2t+1: a row's state is shared by the eight
// lanes of one t.  For fp8 the 16 dims of an output tile are held as 2g and 2g+1 (pv below).
#pragma once

#include "traits.cuh"

namespace quire {

template <class T>
struct accumulator {
    float o[T::N_TILES][T::D_TILES][4];
    float max[T::N_TILES][2]; // of rows 2t, 2t+1: the maximum that weights are relative to, log2 units
    float sum[T::N_TILES][2]; // of this thread's keys' weights

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int n = 0; n < T::N_TILES; n++) {
#pragma unroll
            for (int m = 0; m < T::D_TILES; m++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    o[n][m][i] = 0.0f;
            max[n][0] = max[n][1] = -INFINITY;
            sum[n][0] = sum[n][1] = 0.0f;
        }
    }
};

template <class T>
using query_fragments = u32[T::K_STEPS][T::N_TILES][2];

template <class T>
__device__ __forceinline__ void load_query(query_fragments<T> &q, const unsigned char *q_smem, int first_row, int lane)
{
    // one ldmatrix.x4 brings chunks 4i..4i+3 of 8 rows: two k-steps of 16-bit queries, four of fp8
    const int r = lane & 7, which = lane >> 3;
#pragma unroll
    for (int n = 0; n < T::N_TILES; n++) {
        const int row = first_row + n * 8 + r;
#pragma unroll
        for (int c = 0; c < T::ROW_CHUNKS; c += 4) {
            const int panel = c / T::PANEL_CHUNKS, chunk = c % T::PANEL_CHUNKS + which;
            u32 v[4];
            load_matrix_x4(v, smem_address(q_smem) + panel * T::Q_ROWS * T::ROW_BYTES + T::place(row, chunk));
            if constexpr (T::FP8) {
#pragma unroll
                for (int pair = 0; pair < 2; pair++) {
                    q[c + 2 * pair][n][0] = e4m3_to_fp16<false>(v[2 * pair]);
                    q[c + 2 * pair][n][1] = e4m3_to_fp16<false>(v[2 * pair + 1]);
                    q[c + 2 * pair + 1][n][0] = e4m3_to_fp16<true>(v[2 * pair]);
                    q[c + 2 * pair + 1][n][1] = e4m3_to_fp16<true>(v[2 * pair + 1]);
                }
            } else {
                q[c / 2][n][0] = v[0];
                q[c / 2][n][1] = v[1];
                q[c / 2 + 1][n][0] = v[2];
                q[c / 2 + 1][n][1] = v[3];
            }
        }
    }
}

// Where 16 keys of a tile stand: their first row, and the distance between panels.
struct key_block {
    u32 address;
    int panel_bytes;
};

template <class T>
__device__ __forceinline__ key_block find_keys(u32 tile_smem, int key, box_shape boxes)
{
    const int box_rows = 1 << boxes.shift;
    return {tile_smem + static_cast<u32>((key >> boxes.shift) * (T::D * T::ELEM_BYTES << boxes.shift) * boxes.heads +
                                         (key & (box_rows - 1)) * T::ROW_BYTES),
            box_rows * T::ROW_BYTES};
}

template <class T>
__device__ __forceinline__ void qk(float (&s)[T::N_TILES][4], const query_fragments<T> &q, key_block k, int lane)
{
    const int row = (lane & 7) + (lane >> 3 & 1) * 8, half = lane >> 4;
    float odd[T::N_TILES][4]; // a second chain of accumulation
#pragma unroll
    for (int n = 0; n < T::N_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = odd[n][i] = 0.0f;
#pragma unroll
    for (int c = 0; c < T::ROW_CHUNKS; c += 2) {
        u32 a[4];
        load_matrix_x4(a, k.address + (c / T::PANEL_CHUNKS) * k.panel_bytes +
                              T::place(row, c % T::PANEL_CHUNKS + half));
        if constexpr (T::FP8) {
            u32 lo[4], hi[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                lo[i] = e4m3_to_fp16<false>(a[i]);
                hi[i] = e4m3_to_fp16<true>(a[i]);
            }
#pragma unroll
            for (int n = 0; n < T::N_TILES; n++) {
                mma<T::BF16>(s[n], lo, q[c][n]);
                mma<T::BF16>(odd[n], hi, q[c + 1][n]);
            }
        } else {
#pragma unroll
            for (int n = 0; n < T::N_TILES; n++)
                mma<T::BF16>(c / 2 % 2 ? odd[n] : s[n], a, q[c / 2][n]);
        }
    }
#pragma unroll
    for (int n = 0; n < T::N_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] += odd[n][i];
}

// Scores of keys that a row does not see become -inf, by selection.
template <class T>
__device__ __forceinline__ void mask_scores(float (&s)[T::N_TILES][4], const row_info *rows, int key, int lane)
{
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < T::N_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int2 sees = *reinterpret_cast<const int2 *>(&rows[n * 8 + 2 * t + (i & 1)]);
            const int k = key + g + (i >> 1) * 8;
            s[n][i] = k >= sees.x && k < sees.y ? s[n][i] : -INFINITY;
        }
}

// Weights are relative to acc.max, which is set TOP below the largest score, and raised only when a score exceeds
// it by LAG, as that takes time: weights stay below 2^LAG.  fp16 is used up to its end, so that it holds weights with
// all their bits down to 2^-(14 + TOP) of the largest.  In bf16 the sums of the largest V must not overflow: which those
// of 2^-LAG keys never do, whatever their scores, and of keys that are alike those of 2^-TOP.
template <bool BF16>
constexpr float TOP = BF16 ? -14.0f : 11.0f; // log2 units
template <bool BF16>
constexpr float LAG = BF16 ? -7.0f : 15.0f;

// Scores to weights, packed as P^T's fragment.
template <class T, int BLOCKS>
__device__ __forceinline__ void softmax(u32 (&w)[BLOCKS][T::N_TILES][2], const float (&s)[BLOCKS][T::N_TILES][4],
                                        accumulator<T> &acc, float scale)
{
    float top[T::N_TILES][2]; // of this thread's keys
    bool rise = false;
#pragma unroll
    for (int n = 0; n < T::N_TILES; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            top[n][j] = fmaxf(s[0][n][j], s[0][n][j + 2]);
#pragma unroll
            for (int b = 1; b < BLOCKS; b++)
                top[n][j] = fmaxf(top[n][j], fmaxf(s[b][n][j], s[b][n][j + 2]));
            rise |= fmaf(top[n][j], scale, -acc.max[n][j]) > LAG<T::BF16>; // rounded as the weight is
        }
    if (__any_sync(0xffffffff, rise)) {
#pragma unroll
        for (int n = 0; n < T::N_TILES; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float to = top[n][j] * scale;
                to = fmaxf(to, __shfl_xor_sync(0xffffffff, to, 4));
                to = fmaxf(to, __shfl_xor_sync(0xffffffff, to, 8));
                to = fmaxf(to, __shfl_xor_sync(0xffffffff, to, 16));
                to = fmaxf(to - TOP<T::BF16>, acc.max[n][j]);
                // nothing seen yet: exp2(-inf + inf) must not be asked for
                const float shrink = acc.max[n][j] == -INFINITY ? 0.0f : exp2_approx(acc.max[n][j] - to);
                acc.max[n][j] = to;
                acc.sum[n][j] *= shrink;
#pragma unroll
                for (int m = 0; m < T::D_TILES; m++) {
                    acc.o[n][m][j] *= shrink;
                    acc.o[n][m][j + 2] *= shrink;
                }
            }
    }
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int n = 0; n < T::N_TILES; n++) {
            float weight[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float from = acc.max[n][i & 1];
                weight[i] = exp2_approx(fmaf(s[b][n][i], scale, from == -INFINITY ? 0.0f : -from));
                acc.sum[n][i & 1] += weight[i];
            }
            w[b][n][0] = transpose_8x8(pack_16<T::BF16>(weight[0], weight[1]));
            w[b][n][1] = transpose_8x8(pack_16<T::BF16>(weight[2], weight[3]));
        }
}

// `live`: for the keys 2t, 2t+1 and 2t+8, 2t+9 all ones in the halves of keys that some row sees, else 0:
// what lies in the other slots may be NaN, and must not meet a weight of 0.
template <class T>
__device__ __forceinline__ void pv(accumulator<T> &acc, const u32 (&w)[T::N_TILES][2], key_block v,
                                   const u32 (&live)[2], int lane)
{
    if constexpr (T::FP8) {
        const int row = (lane & 7) + (lane >> 3 & 1) * 8, half = lane >> 4;
#pragma unroll
        for (int c = 0; c < T::ROW_CHUNKS; c += 2) {
            u32 r[4];
            load_matrix_x4_transposed(r, v.address + (c / T::PANEL_CHUNKS) * v.panel_bytes +
                                             T::place(row, c % T::PANEL_CHUNKS + half));
#pragma unroll
            for (int h = 0; h < 2; h++) {
                // {V[2t][2g], V[2t][2g+1], V[2t+1][2g], V[2t+1][2g+1]}: bring the pairs of one dim together
                const u32 near = __byte_perm(r[2 * h], 0, 0x3120), far = __byte_perm(r[2 * h + 1], 0, 0x3120);
                const u32 a[4] = {e4m3_to_fp16<false>(near) & live[0], e4m3_to_fp16<true>(near) & live[0],
                                  e4m3_to_fp16<false>(far) & live[1], e4m3_to_fp16<true>(far) & live[1]};
#pragma unroll
                for (int n = 0; n < T::N_TILES; n++)
                    mma<T::BF16>(acc.o[n][c + h], a, w[n]);
            }
        }
    } else {
        const int row = (lane & 7) + (lane >> 4) * 8, half = lane >> 3 & 1;
#pragma unroll
        for (int c = 0; c < T::ROW_CHUNKS; c += 2) {
            u32 a[4];
            load_matrix_x4_transposed(a, v.address + (c / T::PANEL_CHUNKS) * v.panel_bytes +
                                             T::place(row, c % T::PANEL_CHUNKS + half));
            a[0] &= live[0];
            a[1] &= live[0];
            a[2] &= live[1];
            a[3] &= live[1];
#pragma unroll
            for (int n = 0; n < T::N_TILES; n++)
                mma<T::BF16>(acc.o[n][c / 2], a, w[n]);
        }
    }
}

// which halves of the pair of keys (key, key + 1) some row sees
__device__ __forceinline__ u32 live_pair(int key, const tile_info &tile)
{
    return (key >= tile.lo && key < tile.hi ? 0xffffu : 0) |
           (key + 1 >= tile.lo && key + 1 < tile.hi ? 0xffff0000u : 0);
}

struct barrier_phase {
    u32 barrier, parity;
};

// The whole of a warp's slice of one key tile, whose K has landed; V follows it in memory, and may come later.  K is left
// at `k_empty`, if not with V (T::K_LEAVES_FIRST).
template <class T>
__device__ __forceinline__ void attend(accumulator<T> &acc, const query_fragments<T> &q, const tile_info &tile,
                                       u32 k_smem, u32 k_empty, barrier_phase v_full, const row_info *rows, int slice,
                                       box_shape boxes, float scale, int lane)
{
    // two blocks of 16 keys at a time where there are two: their latencies overlap
    constexpr int BLOCKS = T::WARP_KEYS >= 32 ? 2 : 1;
#pragma unroll 1
    for (int key = slice; key < slice + T::WARP_KEYS; key += BLOCKS * 16) {
        const int k0 = tile.key0 + key;
        const bool leaves = T::K_LEAVES_FIRST && key + BLOCKS * 16 == slice + T::WARP_KEYS;
        if (k0 >= tile.hi || k0 + BLOCKS * 16 <= tile.lo) {
            if (leaves)
                barrier_arrive_warp(k_empty, lane);
            continue;
        }
        float s[BLOCKS][T::N_TILES][4];
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
            qk<T>(s[b], q, find_keys<T>(k_smem, key + b * 16, boxes), lane);
        if (leaves)
            barrier_arrive_warp(k_empty, lane);
        u32 live[BLOCKS][2];
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
            live[b][0] = live[b][1] = 0xffffffff;
        if (tile.flags & TILE_MASKED) {
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                mask_scores<T>(s[b], rows, k0 + b * 16, lane);
                live[b][0] = live_pair(k0 + b * 16 + lane % 4 * 2, tile);
                live[b][1] = live_pair(k0 + b * 16 + lane % 4 * 2 + 8, tile);
            }
        }
        u32 w[BLOCKS][T::N_TILES][2];
        softmax<T, BLOCKS>(w, s, acc, scale);
        barrier_wait(v_full.barrier, v_full.parity);
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
            pv<T>(acc, w[b], find_keys<T>(k_smem + T::TILE_BYTES, key + b * 16, boxes), live[b], lane);
    }
    // A tile that no row sees too: V's warps must not fall behind by a phase of their barrier.
    barrier_wait(v_full.barrier, v_full.parity);
}

} // namespace quire

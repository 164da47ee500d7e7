// ptx.h - the functions of kernels/ptx.cuh for a CPU
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/round.h"
#include "emulator/cuda.h"

namespace quire {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

#define QUIRE_DYNAMIC_SHARED(name) unsigned char *const name = emulator_shared()

inline u32 smem_address(const void *p) { return emulator_shared_address(p); }

// ---- barriers ----

inline void barrier_init(u32 bar, u32 count) { emulator_barrier_init(bar, count); }
inline void barrier_init_fence() {}
inline void barrier_arrive(u32 bar) { emulator_barrier_arrive(bar, 0); }
inline void barrier_arrive_expect(u32 bar, u32 bytes) { emulator_barrier_arrive(bar, bytes); }
inline void barrier_arrive_after_copies(u32 bar) { emulator_arrive_after_copies(bar); }
inline bool barrier_test(u32 bar, u32 parity) { return emulator_barrier_test(bar, parity); }
inline void barrier_wait(u32 bar, u32 parity) { emulator_barrier_wait(bar, parity); }
inline void named_barrier(int id, int threads) { emulator_named_barrier(id, threads, true, false); }
inline bool named_barrier_any(int id, int threads, bool yes) { return emulator_named_barrier(id, threads, true, yes); }
inline void named_barrier_arrive(int id, int threads) { emulator_named_barrier(id, threads, false, false); }

// ---- shared memory, and copies into it ----

inline uint4 load_16(u32 from)
{
    uint4 v;
    std::memcpy(&v, emulator_shared_at(from, 16, 16, "ld.shared"), 16);
    return v;
}

inline void store_16(u32 to, uint4 v) { std::memcpy(emulator_shared_at(to, 16, 16, "st.shared"), &v, 16); }

inline void copy_async_16(u32 to, const void *from, u32 valid_bytes) { emulator_copy_16(to, from, valid_bytes); }
inline void wait_for_copies() {} // barriers tell of them too

inline void copy_box(u32 to, const void *map, u32 bar, int slot, int panel, int head, int page, u64)
{
    const int at[] = {0, slot, panel, head, page};
    emulator_copy_box(to, map, bar, at);
}

inline u64 cache_policy_evict_first() { return 0; }
inline u64 cache_policy_evict_normal() { return 0; }
inline void prefetch_box(const void *, int, int, int, int) {}
inline void prefetch_map(const void *) {}

// ---- programmatic dependent launch ----

inline void wait_for_previous_grid() { emulator_wait_for_previous_grid(); }
inline void let_next_grid_start() { emulator_let_next_grid_start(); }

// ---- matrices ----

// Lane l gives the address of row l % 8 of matrix l / 8, and gets of each matrix the pair of elements
// (l / 4, l % 4 * 2), or transposed.
struct matrix_rows {
    u32 address, (*r)[4];
};

template <bool TRANSPOSED>
inline void load_matrices(u32 (&r)[4], u32 address)
{
    matrix_rows mine = {address, &r};
    emulator_meet(EMULATOR_WARP, TRANSPOSED ? "ldmatrix.trans" : "ldmatrix", &mine, [](void *const *all, int) {
        std::uint16_t rows[32][8];
        for (int l = 0; l < 32; l++)
            std::memcpy(rows[l], emulator_shared_at(static_cast<matrix_rows *>(all[l])->address, 16, 16, "ldmatrix"),
                        16);
        for (int l = 0; l < 32; l++)
            for (int m = 0; m < 4; m++) {
                const int i = l / 4, j = l % 4 * 2;
                const u32 lo = TRANSPOSED ? rows[m * 8 + j][i] : rows[m * 8 + i][j];
                const u32 hi = TRANSPOSED ? rows[m * 8 + j + 1][i] : rows[m * 8 + i][j + 1];
                (*static_cast<matrix_rows *>(all[l])->r)[m] = lo | hi << 16;
            }
    });
}

inline void load_matrix_x4(u32 (&r)[4], u32 address) { load_matrices<false>(r, address); }
inline void load_matrix_x4_transposed(u32 (&r)[4], u32 address) { load_matrices<true>(r, address); }

struct matrix_stores {
    u32 address;
    const u32 (*r)[4];
};

inline void store_matrix_x4_transposed(u32 address, const u32 (&r)[4])
{
    matrix_stores mine = {address, &r};
    emulator_meet(EMULATOR_WARP, "stmatrix.trans", &mine, [](void *const *all, int) {
        std::uint16_t rows[32][8];
        for (int l = 0; l < 32; l++)
            for (int m = 0; m < 4; m++)
                for (int h = 0; h < 2; h++)
                    rows[m * 8 + l % 4 * 2 + h][l / 4] =
                        static_cast<std::uint16_t>((*static_cast<matrix_stores *>(all[l])->r)[m] >> 16 * h);
        for (int l = 0; l < 32; l++)
            std::memcpy(emulator_shared_at(static_cast<matrix_stores *>(all[l])->address, 16, 16, "stmatrix"), rows[l],
                        16);
    });
}

inline u32 transpose_8x8(u32 x)
{
    emulator_meet(EMULATOR_WARP, "movmatrix", &x, [](void *const *all, int) {
        std::uint16_t m[8][8];
        for (int l = 0; l < 32; l++)
            std::memcpy(&m[l / 4][l % 4 * 2], all[l], 4);
        for (int l = 0; l < 32; l++)
            *static_cast<u32 *>(all[l]) = m[l % 4 * 2][l / 4] | static_cast<u32>(m[l % 4 * 2 + 1][l / 4]) << 16;
    });
    return x;
}

template <bool BF16>
inline float value_16(u32 half)
{
    return BF16 ? float_of_bits(half << 16) : emulator_fp16_value[half & 0xffff];
}

struct mma_operands {
    float *c;
    const u32 *a, *b;
};

// Lane (g, t): of A the pairs (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), of B (2t, g), (2t + 8, g) down the
// column, of C (g, 2t), (g, 2t + 1) and those of row g + 8.
template <bool BF16>
inline void mma(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2])
{
    mma_operands mine = {c, a, b};
    emulator_meet(EMULATOR_WARP, "mma", &mine, [](void *const *all, int) {
        float m[16][16], n[16][8];
        for (int l = 0; l < 32; l++) {
            const auto *x = static_cast<mma_operands *>(all[l]);
            const int g = l / 4, t = l % 4;
            for (int i = 0; i < 4; i++)
                for (int h = 0; h < 2; h++)
                    m[g + i % 2 * 8][t * 2 + h + i / 2 * 8] = value_16<BF16>(x->a[i] >> 16 * h & 0xffff);
            for (int i = 0; i < 2; i++)
                for (int h = 0; h < 2; h++)
                    n[t * 2 + h + i * 8][g] = value_16<BF16>(x->b[i] >> 16 * h & 0xffff);
        }
        float sum[16][8] = {};
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < 16; k++)
                for (int j = 0; j < 8; j++)
                    sum[i][j] += m[i][k] * n[k][j];
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++)
                static_cast<mma_operands *>(all[l])->c[i] += sum[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
    });
}

// ---- conversions ----

template <bool BF16>
inline u32 pack_16(float lo, float hi)
{
    return BF16 ? round_to_bf16(lo) | static_cast<u32>(round_to_bf16(hi)) << 16
                : round_to_fp16(lo) | static_cast<u32>(round_to_fp16(hi)) << 16;
}

template <bool HIGH>
inline u32 e4m3_to_fp16(u32 x)
{
    x = HIGH ? x >> 16 : x;
    return emulator_e4m3_as_fp16[x & 0xff] | static_cast<u32>(emulator_e4m3_as_fp16[x >> 8 & 0xff]) << 16;
}

inline u32 pack_e4m3(float lo, float hi) { return round_to_fp8e4m3(lo) | static_cast<u32>(round_to_fp8e4m3(hi)) << 8; }

inline float exp2_approx(float x) { return std::exp2(x); }
inline float divide_approx(float a, float b) { return a / b; }

// ---- memory ----

template <bool EARLY>
inline int load_int(const int *p) { return *p; }

// A thread that polls lets others run.
template <class T>
inline void load_words(T &v, const T *p, bool wanted, T otherwise)
{
    emulator_wait(nullptr, 0, "words from another CTA", 0, 0);
    v = wanted ? *p : otherwise;
}

inline void load_relaxed(float4 &v, const float4 *p, bool wanted) { load_words(v, p, wanted, {1, 1, 1, 1}); }
inline void load_relaxed(float2 &v, const float2 *p, bool wanted) { load_words(v, p, wanted, {1, 1}); }

template <class T>
inline void store_words(T *p, T v)
{
    *p = v;
    emulator_passed_word();
}

inline void store_relaxed(float4 *p, float4 v) { store_words(p, v); }
inline void store_relaxed(float2 *p, float2 v) { store_words(p, v); }

// ---- the compiler ----

inline void make_again(u32 &) {}

} // namespace quire

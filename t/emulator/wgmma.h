// wgmma.h - the instructions of kernels/wgmma.cuh for a CPU
// SPDX-License-Identifier: Apache-2.0
//
// A product is noted when it is asked for and multiplied when it is waited for, from what its operands are then: so
// shared memory or registers that are used again too early spoil it.
#pragma once

#include "emulator/ptx.h"

namespace quire {

inline void fence_for_tensor_cores() {}

// A descriptor's matrix: pieces of eight rows of 128 bytes, panels of pieces; swizzled by the address.
struct shared_matrix {
    u32 address, rows8, panel;

    explicit shared_matrix(u64 descriptor)
        : address(static_cast<u32>(descriptor & 0x3fff) << 4), rows8(static_cast<u32>(descriptor >> 32 & 0x3fff) << 4),
          panel(static_cast<u32>(descriptor >> 16 & 0x3fff) << 4)
    {
        if (descriptor >> 62 != 1)
            emulator_fail("wgmma: descriptor %#llx is not one of a 128-byte swizzle",
                          static_cast<unsigned long long>(descriptor));
        if ((address & 0x380) != 0)
            emulator_fail("wgmma: a matrix at %u, in the middle of eight rows", address);
    }

    static const void *at(u32 a) { return emulator_shared_at(a ^ (a >> 7 & 7) << 4, 16, 16, "wgmma"); }

    // elements k, k + 1, ... k + 15 of row or column r, which lies along K
    template <bool BF16>
    void along_k(float (&to)[16], int r) const
    {
        std::uint16_t x[16];
        const u32 from = address + r / 8 * rows8 + r % 8 * 128;
        for (int i = 0; i < 2; i++)
            std::memcpy(x + i * 8, at(from + i * 16), 16);
        for (int k = 0; k < 16; k++)
            to[k] = value_16<BF16>(x[k]);
    }

    // columns n to n + 7 of row k, which lies along N
    template <bool BF16>
    void along_n(float *to, int k, int n) const
    {
        std::uint16_t x[8];
        std::memcpy(x, at(address + n / 64 * panel + k / 8 * rows8 + k % 8 * 128 + n % 64 * 2), 16);
        for (int i = 0; i < 8; i++)
            to[i] = value_16<BF16>(x[i]);
    }
};

template <bool BF16, int REGS, bool B_ALONG_K>
inline void multiply(emulator_product *const *all)
{
    constexpr int N = REGS * 2;
    static float a[64][16], b[16][N], sum[64][N]; // fibers' stacks are small
    const emulator_product &p = *all[0];
    const shared_matrix right(p.b);
    if (p.a_registers) {
        for (int t = 0; t < 128; t++)
            for (int i = 0; i < 4; i++)
                for (int h = 0; h < 2; h++)
                    a[t / 32 * 16 + t % 32 / 4 + i % 2 * 8][t % 4 * 2 + h + i / 2 * 8] =
                        value_16<BF16>(all[t]->a_registers[i] >> 16 * h & 0xffff);
    } else {
        const shared_matrix left(p.a);
        for (int r = 0; r < 64; r++)
            left.along_k<BF16>(a[r], r);
    }
    if (B_ALONG_K) {
        for (int n = 0; n < N; n++) {
            float column[16];
            right.along_k<BF16>(column, n);
            for (int k = 0; k < 16; k++)
                b[k][n] = column[k];
        }
    } else {
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < N; n += 8)
                right.along_n<BF16>(&b[k][n], k, n);
    }
    for (int r = 0; r < 64; r++) {
        float row[N] = {};
        for (int k = 0; k < 16; k++) {
            const float x = a[r][k];
            for (int n = 0; n < N; n++)
                row[n] += x * b[k][n];
        }
        std::memcpy(sum[r], row, sizeof row);
    }
    for (int t = 0; t < 128; t++)
        for (int i = 0; i < REGS; i++) {
            float &d = all[t]->d[i];
            d = (p.accumulate ? d : 0.0f) +
                sum[t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8][i / 4 * 8 + t % 4 * 2 + i % 2];
        }
}

inline void ask_for(const emulator_product &product)
{
    emulator_thread *t = emulator_self;
    if (t->n_products == EMULATOR_PRODUCTS)
        emulator_fail("wgmma: %d products not waited for", t->n_products);
    t->products[t->n_products++] = product;
}

template <bool BF16, int REGS>
inline void wgmma(float (&d)[REGS], u64 a, u64 b, bool accumulate)
{
    ask_for({multiply<BF16, REGS, true>, d, nullptr, a, b, accumulate});
}

template <bool BF16, int REGS>
inline void wgmma(float (&d)[REGS], const u32 (&a)[4], u64 b)
{
    ask_for({multiply<BF16, REGS, false>, d, a, 0, b, true});
}

template <bool BF16, int REGS>
inline void wgmma(float (&d)[REGS], const u32 (&a)[4], u64 b, bool accumulate)
{
    ask_for({multiply<BF16, REGS, true>, d, a, 0, b, accumulate});
}

inline void wgmma_begin() {}

inline void wgmma_commit()
{
    emulator_thread *t = emulator_self;
    if (t->n_batches == EMULATOR_PRODUCTS)
        emulator_fail("wgmma: %d batches not waited for", t->n_batches);
    t->batch_end[t->n_batches++] = t->n_products;
}

template <int PENDING = 0>
inline void wgmma_wait()
{
    emulator_thread *t = emulator_self;
    const int batches = t->n_batches - PENDING;
    if (batches <= 0)
        return;
    emulator_meet(EMULATOR_WARPGROUP, "wgmma.wait_group", t, [](void *const *all, int) {
        const auto *first = static_cast<emulator_thread *>(all[0]);
        const int done = first->batch_end[first->n_batches - PENDING - 1];
        for (int i = 0; i < done; i++) {
            emulator_product *one[128];
            for (int l = 0; l < 128; l++) {
                auto *other = static_cast<emulator_thread *>(all[l]);
                one[l] = &other->products[i];
                if (i >= other->n_products || one[l]->multiply != one[0]->multiply || one[l]->a != one[0]->a ||
                    one[l]->b != one[0]->b || one[l]->accumulate != one[0]->accumulate)
                    emulator_fail("wgmma: threads %u and %u do not ask for the same", first->thread.x, other->thread.x);
            }
            one[0]->multiply(one);
        }
    });
    const int done = t->batch_end[batches - 1];
    t->n_products -= done;
    std::memmove(t->products, t->products + done, t->n_products * sizeof *t->products);
    t->n_batches = PENDING;
    for (int i = 0; i < PENDING; i++)
        t->batch_end[i] = t->batch_end[batches + i] - done;
}

template <int COUNT>
inline void release_registers() {}
template <int COUNT>
inline void claim_registers() {}
template <int N>
inline void hold(float (&)[N]) {}

} // namespace quire

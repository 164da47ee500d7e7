// wgmma.cuh - the matrix instructions of a warpgroup, compute capability 9.0 only
// SPDX-License-Identifier: Apache-2.0
//
// A warpgroup multiplies 64 rows of A, in shared memory or its registers, with a B in shared memory.  In an
// accumulator of N columns thread t of the warpgroup holds, with g = t % 32 / 4, in d[4 * j + i] row
// t / 32 * 16 + g + i / 2 * 8 and column 8 * j + t % 4 * 2 + i % 2.
#pragma once

#include "ptx.cuh"

// wgmma is tied to this one GPU: neither plain 9.0 nor a later GPU has it
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define QUIRE_ARCH_HAS_WGMMA true
#else
#define QUIRE_ARCH_HAS_WGMMA false
#endif

namespace quire {

// Matrices in shared memory are panels of 128-byte rows, swizzled as the copy engine does.  Eight rows are one
// piece of 1024 bytes, aligned to that; `rows8_bytes`: from a piece to the next.  `panel_bytes`: to the next
// panel, of a matrix whose rows run along K (a B of V's kind); it means nothing where rows run along M or N and
// an instruction stays within a panel.
__device__ __forceinline__ u64 matrix_descriptor(u32 address, u32 rows8_bytes, u32 panel_bytes)
{
    constexpr u64 SWIZZLE_128 = 1ull << 62;
    return SWIZZLE_128 | static_cast<u64>(rows8_bytes >> 4) << 32 | static_cast<u64>(panel_bytes >> 4) << 16 |
           (address & 0x3ffff) >> 4;
}

// The same value in all lanes, and known to be: the compiler serialises wgmma on paths that lanes might not share.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffff, x, 0); }

} // namespace quire

#ifdef QUIRE_EMULATED // on a CPU, for tests
#include "emulator/wgmma.h"
#else

namespace quire {

// What this thread's ordinary accesses to shared memory have seen or left, the tensor cores see too.
__device__ __forceinline__ void fence_for_tensor_cores()
{
#if QUIRE_ARCH_HAS_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#define QUIRE_D8(d, i)                                                                                        \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define QUIRE_D16(d, i) QUIRE_D8(d, i), QUIRE_D8(d, i + 8)
#define QUIRE_D32(d, i) QUIRE_D16(d, i), QUIRE_D16(d, i + 16)
#define QUIRE_NAMES_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define QUIRE_NAMES_16 QUIRE_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define QUIRE_NAMES_32 QUIRE_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define QUIRE_NAMES_64                                                                                   \
    QUIRE_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52," \
                   "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// d = (accumulate ? d : 0) + A B, 64 x N x 16: both with rows along K
#define QUIRE_WGMMA_SHARED(n, type, names, a, b, p)                                                        \
    "{ .reg .pred p; setp.ne.u32 p, " p ", 0; wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type \
    " {" names "}, " a ", " b ", p, 1, 1, 0, 0; }"
// the same: A in registers, B with rows along K
#define QUIRE_WGMMA_MIXED(n, type, names, a, b, p)                                                         \
    "{ .reg .pred p; setp.ne.u32 p, " p ", 0; wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type \
    " {" names "}, {" a "}, " b ", p, 1, 1, 0; }"
// d += A B: A in registers, B with rows along N
#define QUIRE_WGMMA_REGISTERS(n, type, names, a, b)                                                 \
    "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names "}, {" a "}, " b ", 1, 1, 1, 1;"

template <bool BF16, int REGS>
__device__ __forceinline__ void wgmma(float (&d)[REGS], u64 a, u64 b, bool accumulate)
{
#if QUIRE_ARCH_HAS_WGMMA
    const u32 keep = accumulate;
    static_assert(REGS == 16 || REGS == 32 || REGS == 64);
    if constexpr (REGS == 16 && BF16)
        asm volatile(QUIRE_WGMMA_SHARED("32", "bf16", QUIRE_NAMES_16, "%16", "%17", "%18")
                     : QUIRE_D16(d, 0) : "l"(a), "l"(b), "r"(keep));
    else if constexpr (REGS == 16)
        asm volatile(QUIRE_WGMMA_SHARED("32", "f16", QUIRE_NAMES_16, "%16", "%17", "%18")
                     : QUIRE_D16(d, 0) : "l"(a), "l"(b), "r"(keep));
    else if constexpr (REGS == 32 && BF16)
        asm volatile(QUIRE_WGMMA_SHARED("64", "bf16", QUIRE_NAMES_32, "%32", "%33", "%34")
                     : QUIRE_D32(d, 0) : "l"(a), "l"(b), "r"(keep));
    else if constexpr (REGS == 32)
        asm volatile(QUIRE_WGMMA_SHARED("64", "f16", QUIRE_NAMES_32, "%32", "%33", "%34")
                     : QUIRE_D32(d, 0) : "l"(a), "l"(b), "r"(keep));
    else if constexpr (BF16)
        asm volatile(QUIRE_WGMMA_SHARED("128", "bf16", QUIRE_NAMES_64, "%64", "%65", "%66")
                     : QUIRE_D32(d, 0), QUIRE_D32(d, 32) : "l"(a), "l"(b), "r"(keep));
    else
        asm volatile(QUIRE_WGMMA_SHARED("128", "f16", QUIRE_NAMES_64, "%64", "%65", "%66")
                     : QUIRE_D32(d, 0), QUIRE_D32(d, 32) : "l"(a), "l"(b), "r"(keep));
#endif
}

template <bool BF16, int REGS>
__device__ __forceinline__ void wgmma(float (&d)[REGS], const u32 (&a)[4], u64 b)
{
#if QUIRE_ARCH_HAS_WGMMA
    static_assert(REGS == 32 || REGS == 64);
    if constexpr (REGS == 32 && BF16)
        asm volatile(QUIRE_WGMMA_REGISTERS("64", "bf16", QUIRE_NAMES_32, "%32,%33,%34,%35", "%36")
                     : QUIRE_D32(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else if constexpr (REGS == 32)
        asm volatile(QUIRE_WGMMA_REGISTERS("64", "f16", QUIRE_NAMES_32, "%32,%33,%34,%35", "%36")
                     : QUIRE_D32(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else if constexpr (BF16)
        asm volatile(QUIRE_WGMMA_REGISTERS("128", "bf16", QUIRE_NAMES_64, "%64,%65,%66,%67", "%68")
                     : QUIRE_D32(d, 0), QUIRE_D32(d, 32) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
        asm volatile(QUIRE_WGMMA_REGISTERS("128", "f16", QUIRE_NAMES_64, "%64,%65,%66,%67", "%68")
                     : QUIRE_D32(d, 0), QUIRE_D32(d, 32) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

template <bool BF16, int REGS>
__device__ __forceinline__ void wgmma(float (&d)[REGS], const u32 (&a)[4], u64 b, bool accumulate)
{
#if QUIRE_ARCH_HAS_WGMMA
    const u32 keep = accumulate;
    static_assert(!BF16 && (REGS == 8 || REGS == 16 || REGS == 32));
    if constexpr (REGS == 8)
        asm volatile(QUIRE_WGMMA_MIXED("16", "f16", QUIRE_NAMES_8, "%8,%9,%10,%11", "%12", "%13")
                     : QUIRE_D8(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
    else if constexpr (REGS == 16)
        asm volatile(QUIRE_WGMMA_MIXED("32", "f16", QUIRE_NAMES_16, "%16,%17,%18,%19", "%20", "%21")
                     : QUIRE_D16(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
    else
        asm volatile(QUIRE_WGMMA_MIXED("64", "f16", QUIRE_NAMES_32, "%32,%33,%34,%35", "%36", "%37")
                     : QUIRE_D32(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
#endif
}

#undef QUIRE_D8
#undef QUIRE_D16
#undef QUIRE_D32
#undef QUIRE_NAMES_8
#undef QUIRE_NAMES_16
#undef QUIRE_NAMES_32
#undef QUIRE_NAMES_64
#undef QUIRE_WGMMA_SHARED
#undef QUIRE_WGMMA_MIXED
#undef QUIRE_WGMMA_REGISTERS

// Registers a thread of this warpgroup has from here on: fewer than before, or more, once others gave theirs.
template <int COUNT>
__device__ __forceinline__ void release_registers()
{
#if QUIRE_ARCH_HAS_WGMMA
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

template <int COUNT>
__device__ __forceinline__ void claim_registers()
{
#if QUIRE_ARCH_HAS_WGMMA
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

// Before the first wgmma of a batch: registers that it reads have been written.
__device__ __forceinline__ void wgmma_begin()
{
#if QUIRE_ARCH_HAS_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void wgmma_commit()
{
#if QUIRE_ARCH_HAS_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// All that was committed is done, but for the last PENDING batches.
template <int PENDING = 0>
__device__ __forceinline__ void wgmma_wait()
{
#if QUIRE_ARCH_HAS_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#endif
}

// The compiler does not move what it does with these registers to before this point.
template <int N>
__device__ __forceinline__ void hold(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

} // namespace quire

#endif

// ptx.cuh - one instruction a function
// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef QUIRE_EMULATED // on a CPU, for tests
#include "emulator/ptx.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>

namespace quire {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

// Declares the CTA's shared memory, of the size that the launch asks for.
#define QUIRE_DYNAMIC_SHARED(name) extern __shared__ unsigned char name[]

__device__ __forceinline__ u32 smem_address(const void *p)
{
    return static_cast<u32>(__cvta_generic_to_shared(p));
}

// ---- mbarrier ----

__device__ __forceinline__ void barrier_init(u32 bar, u32 count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 bar)
{
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(bar) : "memory");
}

__device__ __forceinline__ bool barrier_test(u32 bar, u32 parity)
{
    u32 done;
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(bar), "r"(parity) : "memory");
#else
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(bar), "r"(parity) : "memory");
#endif
    return done;
}

__device__ __forceinline__ void barrier_wait(u32 bar, u32 parity)
{
    while (!barrier_test(bar, parity)) { }
}

// When this thread's cp.async so far are complete, they arrive at the barrier (as one of its count).
__device__ __forceinline__ void barrier_arrive_after_copies(u32 bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
}

// A barrier among `threads` threads of the CTA (a multiple of 32).
__device__ __forceinline__ void named_barrier(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same; whether any of the threads says `yes`.
__device__ __forceinline__ bool named_barrier_any(int id, int threads, bool yes)
{
    u32 any;
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %3, 0; bar.red.or.pred q, %1, %2, p; selp.u32 %0, 1, 0, q; }"
                 : "=r"(any) : "r"(id), "r"(threads), "r"(static_cast<u32>(yes)) : "memory");
    return any;
}

// Counts for that barrier without waiting at it.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// 16 bytes of shared memory
__device__ __forceinline__ uint4 load_16(u32 from)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
    return v;
}

__device__ __forceinline__ void store_16(u32 to, uint4 v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// ---- copies into shared memory ----

// 16 bytes, of which the last 16 - valid_bytes become zero
__device__ __forceinline__ void copy_async_16(u32 to, const void *from, u32 valid_bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid_bytes)
                 : "memory");
}

// Returns when this thread's copies so far are complete.
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void barrier_arrive_expect(u32 bar, u32 bytes)
{
    asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared.b64 s, [%0], %1; }" ::"r"(bar), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ u64 cache_policy_evict_first()
{
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ u64 cache_policy_evict_normal()
{
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// one box {128 bytes, slots, panels, heads, 1} of page `page`, from head `head`, slot `slot` and panel `panel` on
__device__ __forceinline__ void copy_box(u32 to, const void *map, u32 bar, int slot, int panel, int head, int page,
                                         u64 policy)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;"
                 ::"r"(to), "l"(map), "r"(0), "r"(slot), "r"(panel), "r"(head), "r"(page), "r"(bar), "l"(policy)
                 : "memory");
}

// the same box into L2 only
__device__ __forceinline__ void prefetch_box(const void *map, int slot, int panel, int head, int page)
{
    asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];"
                 ::"l"(map), "r"(0), "r"(slot), "r"(panel), "r"(head), "r"(page) : "memory");
}

__device__ __forceinline__ void prefetch_map(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
#endif

// ---- programmatic dependent launch: no-ops where the GPU has none ----

// Returns when the grids before this one are complete and their writes are visible.
__device__ __forceinline__ void wait_for_previous_grid()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_grid_start()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- matrices ----

__device__ __forceinline__ void load_matrix_x4(u32 (&r)[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ void load_matrix_x4_transposed(u32 (&r)[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// Lane l gives the address of row l % 8 of matrix l / 8, and its pair of elements of each matrix's transpose.
__device__ __forceinline__ void store_matrix_x4_transposed(u32 address, const u32 (&r)[4])
{
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
                 ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
#endif
}

// transposes an 8x8 matrix of 16-bit elements held by the warp
__device__ __forceinline__ u32 transpose_8x8(u32 x)
{
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// c += a (16x16) * b (16x8), fp32 accumulation
template <bool BF16>
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2])
{
    if constexpr (BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// ---- conversions ----

// {lo, hi} to two 16-bit floats, lo in the low half
template <bool BF16>
__device__ __forceinline__ u32 pack_16(float lo, float hi)
{
    u32 r;
    if constexpr (BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

// the two e4m3 bytes in the low (HIGH: high) half of x to two fp16, exactly; NaN stays NaN
template <bool HIGH>
__device__ __forceinline__ u32 e4m3_to_fp16(u32 x)
{
#if __CUDA_ARCH__ >= 890
    u32 r;
    if constexpr (HIGH)
        asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h; }" : "=r"(r) : "r"(x));
    else
        asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l; }" : "=r"(r) : "r"(x));
    return r;
#else
    // e4m3's exponent and mantissa, moved to fp16's place, are 2^-8 of the value, denormals included
    const u32 pair = __byte_perm(x, 0, HIGH ? 0x3424 : 0x1404);   // bytes into the tops of halves
    const u32 magnitude = (pair & 0x7f007f00u) >> 1;
    const u32 nan = __vcmpeq2(pair & 0x7f007f00u, 0x7f007f00u) & 0x7fff7fffu;
    const __half2 scaled = __hmul2(*reinterpret_cast<const __half2 *>(&magnitude), __float2half2_rn(256.0f));
    return *reinterpret_cast<const u32 *>(&scaled) | (pair & 0x80008000u) | nan;
#endif
}

// two floats to two e4m3 bytes, lo in the low byte; saturates, NaN stays NaN
__device__ __forceinline__ u32 pack_e4m3(float lo, float hi)
{
#if __CUDA_ARCH__ >= 890
    unsigned short r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
    return r;
#else
    auto one = [](float v) -> u32 {
        const u32 bits = __float_as_uint(v), sign = bits >> 24 & 0x80;
        const float a = fabsf(v);
        if (a != a)
            return 0x7f;
        if (a >= 448.0f)
            return sign | 0x7e;
        if (a < 0.015625f)                                         // denormal: steps of 2^-9
            return sign | static_cast<u32>(__float2int_rn(a * 512.0f));
        const u32 b = __float_as_uint(a), rounded = b + 0x7ffff + (b >> 20 & 1);
        const u32 code = (rounded >> 20) - (120 << 3);
        return sign | (code > 0x7e ? 0x7e : code);
    };
    return one(lo) | one(hi) << 8;
#endif
}

__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Within 2 units in the last place for |b| from 2^-126 to 2^126, where a / b would be a call of many instructions.
__device__ __forceinline__ float divide_approx(float a, float b)
{
    float y;
    asm("div.approx.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

// ---- metadata ----

// EARLY: before the work before this launch is complete.  Then it comes from L2 and leaves nothing in L1,
// where a later load would find what stood there before that work wrote it.
template <bool EARLY>
__device__ __forceinline__ int load_int(const int *p)
{
    int v;
    if constexpr (EARLY)
        asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    else
        asm volatile("ld.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// ---- words that pass between CTAs: relaxed, at the scope of the GPU ----

// 1.0 in every place if not `wanted`; no branch, so that many are under way at once
__device__ __forceinline__ void load_relaxed(float4 &v, const float4 *p, bool wanted)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0;\n"
                 "mov.b32 %0, 0f3F800000; mov.b32 %1, 0f3F800000; mov.b32 %2, 0f3F800000; mov.b32 %3, 0f3F800000;\n"
                 "@p ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4]; }"
                 : "=&f"(v.x), "=&f"(v.y), "=&f"(v.z), "=&f"(v.w) : "l"(p), "r"(static_cast<u32>(wanted)) : "memory");
}

__device__ __forceinline__ void load_relaxed(float2 &v, const float2 *p, bool wanted)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; mov.b32 %0, 0f3F800000; mov.b32 %1, 0f3F800000;\n"
                 "@p ld.relaxed.gpu.global.v2.f32 {%0,%1}, [%2]; }"
                 : "=&f"(v.x), "=&f"(v.y) : "l"(p), "r"(static_cast<u32>(wanted)) : "memory");
}

__device__ __forceinline__ void store_relaxed(float2 *p, float2 v)
{
    asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1,%2};" ::"l"(p), "f"(v.x), "f"(v.y) : "memory");
}

__device__ __forceinline__ void store_relaxed(float4 *p, float4 v)
{
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z),
                 "f"(v.w) : "memory");
}

// ---- the compiler ----

// x is not what it was, for all the compiler knows: what depends on it is computed again, not kept in registers.
__device__ __forceinline__ void make_again(u32 &x) { asm volatile("" : "+r"(x)); }

} // namespace quire

#endif

namespace quire {

// A warp's lanes are done with what the barrier guards: one arrival for all of them, after __syncwarp.
// compute-sanitizer's racecheck sees only the arriving lane's accesses, so a build for it has all arrive.
#ifdef QUIRE_RACECHECK
constexpr u32 WARP_ARRIVALS = 32;
#else
constexpr u32 WARP_ARRIVALS = 1;
#endif

__device__ __forceinline__ void barrier_arrive_warp(u32 bar, int lane)
{
    __syncwarp();
    if (lane < WARP_ARRIVALS)
        barrier_arrive(bar);
}

} // namespace quire

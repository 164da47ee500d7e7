// cuda.h - what kernels/ uses of CUDA C++ beside the instructions of ptx.cuh and wgmma.cuh, for a CPU
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "emulator/emulator.h"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_FEAT_SM90_ALL 1

#define threadIdx (emulator_self->thread)
#define blockIdx (emulator_self->block)
#define blockDim (emulator_self->threads)
#define gridDim (emulator_self->grid)

struct alignas(8) int2 { int x, y; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#define QUIRE_MIN_MAX(type)                                      \
    inline type min(type a, type b) { return b < a ? b : a; }    \
    inline type max(type a, type b) { return a < b ? b : a; }
QUIRE_MIN_MAX(int)
QUIRE_MIN_MAX(unsigned)
QUIRE_MIN_MAX(std::uint64_t)
QUIRE_MIN_MAX(long long)
#undef QUIRE_MIN_MAX

inline unsigned __float_as_uint(float x)
{
    unsigned u;
    std::memcpy(&u, &x, sizeof u);
    return u;
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }

inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector)
{
    const std::uint64_t bytes = static_cast<std::uint64_t>(b) << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++)
        r |= static_cast<unsigned>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return r;
}

// ---- threads that meet ----

namespace emulator {

inline void whole_warp(unsigned mask)
{
    if (mask != 0xffffffff)
        emulator_fail("a warp's lanes by the mask %#x", mask);
}

template <class T>
struct lane_value {
    T mine, result;
    int from; // the lane whose value this lane gets
};

template <class T>
inline T shuffle(unsigned mask, const char *what, T value, int from)
{
    whole_warp(mask);
    lane_value<T> v = {value, value, from};
    emulator_meet(EMULATOR_WARP, what, &v, [](void *const *all, int count) {
        for (int i = 0; i < count; i++) {
            auto *to = static_cast<lane_value<T> *>(all[i]);
            to->result = static_cast<lane_value<T> *>(all[to->from])->mine;
        }
    });
    return v.result;
}

struct vote {
    bool mine, any, all;
    unsigned ballot; // of the first 32
};

inline vote cast(emulator_scope scope, const char *what, bool mine)
{
    vote v = {mine, false, true, 0};
    emulator_meet(scope, what, &v, [](void *const *all, int count) {
        vote sum = {false, false, true, 0};
        for (int i = 0; i < count; i++) {
            const bool yes = static_cast<vote *>(all[i])->mine;
            sum.any |= yes;
            sum.all &= yes;
            if (i < 32)
                sum.ballot |= static_cast<unsigned>(yes) << i;
        }
        for (int i = 0; i < count; i++)
            *static_cast<vote *>(all[i]) = sum;
    });
    return v;
}

} // namespace emulator

template <class T>
inline T __shfl_sync(unsigned mask, T value, int lane)
{
    return emulator::shuffle(mask, "shfl", value, lane & 31);
}

template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits)
{
    return emulator::shuffle(mask, "shfl.xor", value, emulator_self->lane ^ (bits & 31));
}

template <class T>
inline T __shfl_up_sync(unsigned mask, T value, int by)
{
    const int from = emulator_self->lane - by;
    return emulator::shuffle(mask, "shfl.up", value, from < 0 ? emulator_self->lane : from);
}

inline unsigned __ballot_sync(unsigned mask, bool yes)
{
    emulator::whole_warp(mask);
    return emulator::cast(EMULATOR_WARP, "ballot", yes).ballot;
}

inline bool __any_sync(unsigned mask, bool yes)
{
    emulator::whole_warp(mask);
    return emulator::cast(EMULATOR_WARP, "any", yes).any;
}

inline bool __all_sync(unsigned mask, bool yes)
{
    emulator::whole_warp(mask);
    return emulator::cast(EMULATOR_WARP, "all", yes).all;
}

inline unsigned __reduce_max_sync(unsigned mask, unsigned value)
{
    emulator::whole_warp(mask);
    emulator_meet(EMULATOR_WARP, "redux.max", &value, [](void *const *all, int count) {
        unsigned most = 0;
        for (int i = 0; i < count; i++)
            most = max(most, *static_cast<unsigned *>(all[i]));
        for (int i = 0; i < count; i++)
            *static_cast<unsigned *>(all[i]) = most;
    });
    return value;
}

inline unsigned __reduce_add_sync(unsigned mask, unsigned value)
{
    emulator::whole_warp(mask);
    emulator_meet(EMULATOR_WARP, "redux.add", &value, [](void *const *all, int count) {
        unsigned sum = 0;
        for (int i = 0; i < count; i++)
            sum += *static_cast<unsigned *>(all[i]);
        for (int i = 0; i < count; i++)
            *static_cast<unsigned *>(all[i]) = sum;
    });
    return value;
}

inline void __syncwarp() { emulator_meet(EMULATOR_WARP, "syncwarp", nullptr, nullptr); }
inline void __syncthreads() { emulator_meet(EMULATOR_CTA, "syncthreads", nullptr, nullptr); }
inline bool __syncthreads_and(bool yes) { return emulator::cast(EMULATOR_CTA, "syncthreads_and", yes).all; }

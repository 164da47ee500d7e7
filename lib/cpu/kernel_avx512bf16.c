/* kernel_avx512bf16.c - AVX-512 with the bf16 dot product and byte permutations
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#ifdef __x86_64__

#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx2,fma,f16c")
#endif

#include <stddef.h>
#include <stdint.h>

#include "cpu/vec_avx512.h"
#include "cpu/fp8_avx512.h"

typedef __m512bh vec_bf16;

VEC vec_bf16 b_load(const void *p)
{
    return (vec_bf16)_mm512_loadu_si512(p);
}

VEC vec_bf16 b_spread(const void *p)
{
    return (vec_bf16)v_spread(p);
}

VEC vec v_dot(vec sum, vec_bf16 a, vec_bf16 b)
{
    return _mm512_dpbf16_ps(sum, a, b);
}

/* Two vectors of bf16 from 64 codes: in each 128-bit part the first eight, and the last eight. */
VEC void b_pair_of_fp8(__m512i codes, vec_bf16 *a, vec_bf16 *b)
{
    __m512i low, high;

    fp8_bytes(codes, &low, &high);
    *a = (vec_bf16)_mm512_unpacklo_epi8(low, high);
    *b = (vec_bf16)_mm512_unpackhi_epi8(low, high);
}

#define FP8_PLACE(vector, part, lane) (16 * (part) + (vector) / 2 * 8 + 2 * (lane) + (vector) % 2)
/* 64 elements: of every 16, vectors 0 and 1 hold the even and the odd ones of the first eight, 2 and 3 of the last. */
VEC void v_tile_fp8(const void *p, vec *v)
{
    vec_bf16 a, b;

    b_pair_of_fp8(_mm512_loadu_si512(p), &a, &b);
    v_pair_of_bf16((__m512i)a, &v[0], &v[1]);
    v_pair_of_bf16((__m512i)b, &v[2], &v[3]);
}

/* GCC 12 else loads anew for every use, and then waits for loads. */
VEC vec_bf16 b_load_once(const void *p)
{
    __m512i v = _mm512_loadu_si512(p);

    __asm__("" : "+v"(v));
    return (vec_bf16)v;
}

VEC void b_pair_fp8(const void *p, vec_bf16 *a, vec_bf16 *b)
{
    b_pair_of_fp8(_mm512_loadu_si512(p), a, b);
}

/* 16 elements of each of four keys that lie `stride` bytes apart: a part for each key, of the first eight, and of the
 * last eight. */
VEC void b_four_keys_fp8(const char *p, size_t stride, vec_bf16 *a, vec_bf16 *b)
{
    __m512i codes = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p));

    codes = _mm512_inserti32x4(codes, _mm_loadu_si128((const __m128i *)(p + stride)), 1);
    codes = _mm512_inserti32x4(codes, _mm_loadu_si128((const __m128i *)(p + 2 * stride)), 2);
    codes = _mm512_inserti32x4(codes, _mm_loadu_si128((const __m128i *)(p + 3 * stride)), 3);
    b_pair_of_fp8(codes, a, b);
}

VEC void b_store_fp8(const void *p, uint16_t *to)
{
    vec_bf16 a, b;

    b_pair_fp8(p, &a, &b);
    _mm512_storeu_si512(to, (__m512i)a);
    _mm512_storeu_si512(to + 2 * LANES, (__m512i)b);
}

static _Bool kernel_is_available(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16");
}

#define BF16_DOT 1
#define KERNEL kernel_avx512bf16
#define KERNEL_NAME "avx512bf16"
#include "cpu/kernel_impl.h"

#ifdef __clang__
#pragma clang attribute pop
#endif

#else
typedef int no_x86_64; /* a C file is not empty */
#endif

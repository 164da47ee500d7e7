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

#include <stdint.h>

#include "cpu/vec_avx512.h"

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

/* Every e4m3 value is a bf16 value.  The low and the high byte of 0x00 to 0x7f as bf16:
 * (e + 120) << 7 | m << 4 from 0x08 on, m * 2^-9 below, NaN at 0x7f. */
#define LOW8 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0
#define HIGH8(x) x, x, x, x, x, x, x, x
#define HIGH16(x) HIGH8(x), HIGH8(x)
static const uint8_t low_bytes[128] __attribute__((aligned(64))) = {
    0x00, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0,
    LOW8, LOW8, LOW8, LOW8, LOW8, LOW8,
    0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xc0,
};
static const uint8_t high_bytes[128] __attribute__((aligned(64))) = {
    0x00, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, HIGH8(0x3c),
    HIGH16(0x3d), HIGH16(0x3e), HIGH16(0x3f), HIGH16(0x40), HIGH16(0x41), HIGH16(0x42),
    HIGH8(0x43), 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x7f,
};

/* Two vectors of bf16 from 64 codes: in each 128-bit part the first eight, and the last eight. */
VEC void b_pair_of_fp8(__m512i codes, vec_bf16 *a, vec_bf16 *b)
{
    __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(low_bytes), codes, _mm512_load_si512(low_bytes + 64));
    __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(high_bytes), codes, _mm512_load_si512(high_bytes + 64));

    high = _mm512_ternarylogic_epi64(high, codes, _mm512_set1_epi8((char)0x80), 0xf8); /* high | (codes & sign) */
    *a = (vec_bf16)_mm512_unpacklo_epi8(low, high);
    *b = (vec_bf16)_mm512_unpackhi_epi8(low, high);
}

VEC void b_pair_fp8(const void *p, vec_bf16 *a, vec_bf16 *b)
{
    b_pair_of_fp8(_mm512_loadu_si512(p), a, b);
}

VEC void b_store_fp8(const void *p, uint16_t *to)
{
    vec_bf16 a, b;

    b_pair_fp8(p, &a, &b);
    _mm512_storeu_si512(to, (__m512i)a);
    _mm512_storeu_si512(to + 2 * LANES, (__m512i)b);
}

/* Where code i of 64 has to stand for the four vectors below to come out in order: in part l, the bytes
 * 2t, 2t+1, 2t+8, 2t+9 become element 4l+t of vectors 0 to 3. */
#define PART(l)                                                                                    \
    4 * l, 16 + 4 * l, 4 * l + 1, 17 + 4 * l, 4 * l + 2, 18 + 4 * l, 4 * l + 3, 19 + 4 * l,        \
        32 + 4 * l, 48 + 4 * l, 33 + 4 * l, 49 + 4 * l, 34 + 4 * l, 50 + 4 * l, 35 + 4 * l, 51 + 4 * l
static const uint8_t places[64] __attribute__((aligned(64))) = {PART(0), PART(1), PART(2), PART(3)};

VEC void v_tile_fp8(const void *p, vec *v)
{
    __m512i codes = _mm512_permutexvar_epi8(_mm512_load_si512(places), _mm512_loadu_si512(p));
    vec_bf16 a, b;

    b_pair_of_fp8(codes, &a, &b);
    v_pair_of_bf16((__m512i)a, &v[0], &v[1]);
    v_pair_of_bf16((__m512i)b, &v[2], &v[3]);
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

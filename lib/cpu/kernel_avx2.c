/* kernel_avx2.c - AVX2 with FMA and F16C
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#ifdef __x86_64__

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include <cpuid.h>
#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LANES 8
#define TILE_VECTORS 2
#define PAIRED_FP16 0
#define EIGHT_ROWS 0
#define WHOLE_BLOCKS 1
#define VEC static inline __attribute__((always_inline))

typedef __m256 vec;

VEC vec v_load(const float *p) { return _mm256_loadu_ps(p); }

/* A load that is not repeated for each use. */
VEC vec v_load_once(const float *p)
{
    vec a = _mm256_loadu_ps(p);

    __asm__("" : "+x"(a));
    return a;
}

VEC void v_store(float *p, vec a) { _mm256_storeu_ps(p, a); }
VEC vec v_set1(float x) { return _mm256_set1_ps(x); }
VEC vec v_add(vec a, vec b) { return _mm256_add_ps(a, b); }
VEC vec v_sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
VEC vec v_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
VEC vec v_div(vec a, vec b) { return _mm256_div_ps(a, b); }
VEC vec v_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
VEC vec v_max(vec a, vec b) { return _mm256_max_ps(a, b); }

VEC vec v_or_zero(vec a)
{
    return _mm256_and_ps(a, _mm256_cmp_ps(a, _mm256_set1_ps(-__builtin_inff()), _CMP_NEQ_UQ));
}

VEC vec v_round(vec a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

VEC vec v_ldexp(vec a, vec n, vec x)
{
    __m256i scale = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    vec y = _mm256_mul_ps(a, _mm256_castsi256_ps(scale));

    /* a is NaN where x is, and NaN times whatever became of n is NaN */
    return _mm256_and_ps(y, _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ));
}

VEC vec v_swap(vec a, const int n)
{
    return n == 1 ? _mm256_permute_ps(a, 0xb1) : n == 2 ? _mm256_permute_ps(a, 0x4e) : _mm256_permute2f128_ps(a, a, 1);
}

/* Not by vhaddps, which is three instructions to the processor and the slower for it. */
VEC vec v_quad(const vec *a)
{
    vec p = _mm256_add_ps(_mm256_unpacklo_ps(a[0], a[1]), _mm256_unpackhi_ps(a[0], a[1]));
    vec q = _mm256_add_ps(_mm256_unpacklo_ps(a[2], a[3]), _mm256_unpackhi_ps(a[2], a[3]));

    return _mm256_add_ps(_mm256_shuffle_ps(p, q, 0x44), _mm256_shuffle_ps(p, q, 0xee));
}

VEC vec v_join(const vec *q)
{
    return _mm256_add_ps(_mm256_permute2f128_ps(q[0], q[1], 0x20), _mm256_permute2f128_ps(q[0], q[1], 0x31));
}

VEC void v_pair_bf16(const void *p, vec *a, vec *b)
{
    __m256i u = _mm256_loadu_si256(p);

    *a = _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
    *b = _mm256_castsi256_ps(_mm256_and_si256(u, _mm256_set1_epi32((int)0xffff0000)));
}

VEC void v_pair_fp16(const void *p, vec *a, vec *b)
{
    *a = _mm256_cvtph_ps(_mm_loadu_si128(p));
    *b = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1));
}

/* e4m3 is fp16 with four exponent bits fewer at the top, that is, times HALVES_SCALE, but for its NaN.  Codes at even
 * and at odd places are moved there by themselves, which leaves the even ones of 32 before the odd ones.  Returns
 * whether there is a NaN, for which `nans` has to be set. */
#define HALVES_SCALE 256.0f
VEC bool h_move(const bool nans, const char *from, size_t count, uint16_t *to)
{
    __m256i mask = _mm256_set1_epi16((short)0xbf80), sign = _mm256_set1_epi16((short)0x8000);
    __m256i most = _mm256_setzero_si256(), most_unsigned = most, found;

    for (size_t i = 0; i < count; i += 32) {
        __m256i codes = _mm256_loadu_si256((const __m256i *)(from + i));
        __m256i half[2] = {_mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 1), _mm256_srai_epi16(codes, 1)};

        most = _mm256_max_epi8(most, codes);
        most_unsigned = _mm256_max_epu8(most_unsigned, codes);
        for (int k = 0; k < 2; k++) {
            half[k] = _mm256_and_si256(half[k], mask);
            if (nans) /* all bits */
                half[k] = _mm256_or_si256(half[k], _mm256_cmpeq_epi16(_mm256_or_si256(half[k], sign), mask));
            _mm256_storeu_si256((__m256i *)(to + i + 16 * k), half[k]);
        }
    }
    found = _mm256_or_si256(_mm256_cmpeq_epi8(most, _mm256_set1_epi8(0x7f)),
                            _mm256_cmpeq_epi8(most_unsigned, _mm256_set1_epi8(-1)));
    return !_mm256_testz_si256(found, found);
}

static void h_from_fp8(const char *from, size_t count, uint16_t *to)
{
    if (h_move(false, from, count, to))
        h_move(true, from, count, to);
}

/* The even ones of 32 elements are in the first two of four vectors. */
#define FP8_PLACE(v, p, l) (16 * ((v) & 1) + 8 * (p) + 2 * (l) + (v) / 2)

static _Bool kernel_is_available(void)
{
    unsigned a, b, c = 0, d;

    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
           (c & bit_F16C) != 0;
}

#define BF16_DOT 0
#define KERNEL kernel_avx2
#define KERNEL_NAME "avx2"
#include "cpu/kernel_impl.h"

#ifdef __clang__
#pragma clang attribute pop
#endif

#else
typedef int no_x86_64; /* a C file is not empty */
#endif

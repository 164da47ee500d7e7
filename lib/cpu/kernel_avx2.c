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

#define LANES 8
#define TILE_VECTORS 2
#define PAIRED_FP16 0
#define EIGHT_ROWS 0
#define VEC static inline __attribute__((always_inline))

typedef __m256 vec;

VEC vec v_load(const float *p) { return _mm256_loadu_ps(p); }
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

VEC vec v_quad(const vec *a)
{
    return _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
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

/* e4m3 is fp16 with four exponent bits fewer at the top, that is, times 2^8, but for its NaN. */
VEC void v_pair_fp8(const void *p, vec *a, vec *b)
{
    __m256i u = _mm256_cvtepi8_epi16(_mm_loadu_si128(p));
    __m256i half = _mm256_and_si256(_mm256_slli_epi16(u, 7), _mm256_set1_epi16((short)0xbf80));
    __m256i code = _mm256_and_si256(u, _mm256_set1_epi16(0x7f));
    __m256i nan = _mm256_cmpeq_epi16(code, _mm256_set1_epi16(0x7f));
    vec scale = _mm256_set1_ps(256.0f);

    half = _mm256_or_si256(half, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
    *a = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), scale);
    *b = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), scale);
}

VEC void v_tile_fp8(const void *p, vec *a)
{
    v_pair_fp8(p, &a[0], &a[1]);
}

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

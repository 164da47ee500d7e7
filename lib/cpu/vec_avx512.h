/* vec_avx512.h - kernel_impl.h's vector of 16 floats
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#define LANES 16
#define TILE_VECTORS 4
#define PAIRED_FP16 0
#define EIGHT_ROWS 1
#define WHOLE_BLOCKS 0
#define VEC static inline __attribute__((always_inline))

typedef __m512 vec;

VEC vec v_load(const float *p) { return _mm512_loadu_ps(p); }
VEC void v_store(float *p, vec a) { _mm512_storeu_ps(p, a); }
VEC vec v_set1(float x) { return _mm512_set1_ps(x); }
VEC vec v_add(vec a, vec b) { return _mm512_add_ps(a, b); }
VEC vec v_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
VEC vec v_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
VEC vec v_div(vec a, vec b) { return _mm512_div_ps(a, b); }
VEC vec v_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
/* On Zen 4 a broadcast into a register takes a pipe that multiplies, one that is an operand takes none.  GCC 12 makes
 * one register of all uses. */
VEC vec v_fma_spread(vec a, const float *b, vec c)
{
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(a), "m"(*b));
    return c;
}

VEC vec v_max(vec a, vec b) { return _mm512_max_ps(a, b); }

VEC vec v_or_zero(vec a)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, _mm512_set1_ps(-__builtin_inff()), _CMP_NEQ_UQ), a);
}

VEC vec v_round(vec a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

VEC vec v_ldexp(vec a, vec n, vec x)
{
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), a, n);
}

VEC vec v_swap(vec a, const int n)
{
    return n == 1   ? _mm512_permute_ps(a, 0xb1)
           : n == 2 ? _mm512_permute_ps(a, 0x4e)
           : n == 4 ? _mm512_shuffle_f32x4(a, a, 0xb1)
                    : _mm512_shuffle_f32x4(a, a, 0x4e);
}

VEC vec v_quad(const vec *a)
{
    vec p = _mm512_add_ps(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1]));
    vec q = _mm512_add_ps(_mm512_unpacklo_ps(a[2], a[3]), _mm512_unpackhi_ps(a[2], a[3]));

    return _mm512_add_ps(_mm512_shuffle_ps(p, q, 0x44), _mm512_shuffle_ps(p, q, 0xee));
}

/* Even 128-bit parts plus odd ones. */
VEC vec v_add_parts(vec a, vec b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

VEC vec v_join(const vec *q)
{
    return v_add_parts(v_add_parts(q[0], q[1]), v_add_parts(q[2], q[3]));
}

VEC vec v_pair_sums(vec a, vec b)
{
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

/* As a double: an integer would come through a general register, which is one of the vector pipes' work. */
typedef double eight_bytes __attribute__((may_alias, aligned(1)));

VEC vec v_spread(const void *p)
{
    return _mm512_castpd_ps(_mm512_set1_pd(*(const eight_bytes *)p));
}

VEC void v_pair_of_bf16(__m512i u, vec *a, vec *b)
{
    *a = _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
    *b = _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000)));
}

VEC void v_pair_bf16(const void *p, vec *a, vec *b)
{
    v_pair_of_bf16(_mm512_loadu_si512(p), a, b);
}

VEC void v_pair_fp16(const void *p, vec *a, vec *b)
{
    *a = _mm512_cvtph_ps(_mm256_loadu_si256(p));
    *b = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p + 1));
}

/* e4m3 is fp16 with four exponent bits fewer at the top, that is, times 2^8, but for its NaN. */
VEC void v_pair_fp8(const void *p, vec *a, vec *b)
{
    __m512i u = _mm512_cvtepi8_epi16(_mm256_loadu_si256(p));
    __m512i half = _mm512_and_si512(_mm512_slli_epi16(u, 7), _mm512_set1_epi16((short)0xbf80));
    __m512i code = _mm512_and_si512(u, _mm512_set1_epi16(0x7f));
    vec scale = _mm512_set1_ps(256.0f);

    half = _mm512_mask_mov_epi16(half, _mm512_cmpeq_epi16_mask(code, _mm512_set1_epi16(0x7f)),
                                 _mm512_set1_epi16(0x7e00));
    *a = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(half)), scale);
    *b = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1)), scale);
}

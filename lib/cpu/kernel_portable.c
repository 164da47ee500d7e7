/* kernel_portable.c - vectors of 4 floats in the compiler's own terms: SSE2, or what there is
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "bf16 pairs are taken from little-endian words"
#endif

#define LANES 4
#define TILE_VECTORS 2
#define PAIRED_FP16 1
#define EIGHT_ROWS 0
#define WHOLE_BLOCKS 0
#define VEC static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(16)));
typedef int32_t bits __attribute__((vector_size(16))); /* comparisons give 0 or -1 in these */

VEC vec v_load(const float *p)
{
    vec a;

    memcpy(&a, p, sizeof a);
    return a;
}

VEC bits v_bits_of(int32_t x) { return (bits){x, x, x, x}; }
VEC void v_store(float *p, vec a) { memcpy(p, &a, sizeof a); }
VEC vec v_set1(float x) { return (vec){x, x, x, x}; }
VEC vec v_add(vec a, vec b) { return a + b; }
VEC vec v_sub(vec a, vec b) { return a - b; }
VEC vec v_mul(vec a, vec b) { return a * b; }
VEC vec v_div(vec a, vec b) { return a / b; }
VEC vec v_fma(vec a, vec b, vec c) { return a * b + c; }

VEC vec v_select(bits where, vec a, vec b)
{
    return (vec)((where & (bits)a) | (~where & (bits)b));
}

VEC vec v_max(vec a, vec b) { return v_select(a > b, a, b); }
VEC vec v_or_zero(vec a) { return (vec)((bits)a & ~(bits)(a == v_set1(-__builtin_inff()))); }

/* Up to 2^22: beyond 2^23 there are no fractions, so the addition rounds. */
VEC vec v_round(vec a)
{
    vec shift = v_set1(0x1.8p23f);

    return (a + shift) - shift;
}

VEC vec v_ldexp(vec a, vec n, vec x)
{
    bits small = x < v_set1(-126.0f);
    bits scale = ((bits)(v_select(small, v_set1(0.0f), n) + v_set1(0x1.8p23f)) + v_bits_of(127)) << 23;

    /* a is NaN where x is, and NaN times whatever became of n is NaN */
    return (vec)((bits)(a * (vec)scale) & ~small);
}

VEC vec v_swap(vec a, const int n)
{
    return n == 1 ? (vec){a[1], a[0], a[3], a[2]} : (vec){a[2], a[3], a[0], a[1]};
}

VEC vec v_quad(const vec *a)
{
    vec even = {a[0][0], a[1][0], a[2][0], a[3][0]}, odd = {a[0][1], a[1][1], a[2][1], a[3][1]};
    vec even2 = {a[0][2], a[1][2], a[2][2], a[3][2]}, odd2 = {a[0][3], a[1][3], a[2][3], a[3][3]};

    return (even + even2) + (odd + odd2);
}

VEC vec v_join(const vec *q) { return q[0]; }

VEC bits v_words(const void *p)
{
    bits u;

    memcpy(&u, p, sizeof u);
    return u;
}

VEC void v_pair_bf16(const void *p, vec *a, vec *b)
{
    bits u = v_words(p);

    *a = (vec)(u << 16);
    *b = (vec)(u & v_bits_of((int32_t)0xffff0000));
}

/* Sign at bit 31, then exponent and mantissa in place but with a bias smaller by `bias`; `special` is what
 * the largest exponent or code begins with.  Subnormals get one more of exponent and lose it again in a
 * subtraction, which normalises them. */
VEC vec v_widen(bits sign, bits magnitude, int32_t bias, bits special, vec least)
{
    bits subnormal = magnitude < v_bits_of(0x00800000);
    vec normal = (vec)(magnitude + v_bits_of(bias << 23));
    vec small = (vec)(magnitude + v_bits_of((bias + 1) << 23)) - least;

    return (vec)(sign | (bits)v_select(subnormal, small, normal) | special);
}

VEC vec v_from_fp16(bits half)
{
    bits magnitude = (half & v_bits_of(0x7fff)) << 13;
    bits special = (bits)(magnitude >= v_bits_of(0x1f << 23)) & v_bits_of(0x7f800000);

    return v_widen((half & v_bits_of(0x8000)) << 16, magnitude, 112, special, v_set1(0x1p-14f));
}

VEC void v_pair_fp16(const void *p, vec *a, vec *b)
{
    bits u = v_words(p);

    *a = v_from_fp16(u & v_bits_of(0xffff));
    *b = v_from_fp16((u >> 16) & v_bits_of(0xffff));
}

VEC vec v_from_fp8(const uint8_t *p)
{
    bits code = {p[0], p[1], p[2], p[3]};
    bits magnitude = (code & v_bits_of(0x7f)) << 20;
    bits special = (bits)((code & v_bits_of(0x7f)) == v_bits_of(0x7f)) & v_bits_of(0x7fc00000);

    return v_widen((code & v_bits_of(0x80)) << 24, magnitude, 120, special, v_set1(0x1p-6f));
}

VEC void v_pair_fp8(const void *p, vec *a, vec *b)
{
    *a = v_from_fp8(p);
    *b = v_from_fp8((const uint8_t *)p + LANES);
}

VEC void v_tile_fp8(const void *p, vec *a)
{
    v_pair_fp8(p, &a[0], &a[1]);
}

static _Bool kernel_is_available(void)
{
    return 1;
}

#define BF16_DOT 0
#define KERNEL kernel_portable
#define KERNEL_NAME "portable"
#include "cpu/kernel_impl.h"

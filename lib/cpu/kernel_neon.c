/* kernel_neon.c - NEON, which every AArch64 CPU has
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#if defined __aarch64__ && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__

#include <arm_neon.h>

#define LANES 4
#define TILE_VECTORS 4
#define PAIRED_FP16 0
#define EIGHT_ROWS 0
#define WHOLE_BLOCKS 0
#define VEC static inline __attribute__((always_inline))

typedef float32x4_t vec;

VEC vec v_load(const float *p) { return vld1q_f32(p); }
VEC void v_store(float *p, vec a) { vst1q_f32(p, a); }
VEC vec v_set1(float x) { return vdupq_n_f32(x); }
VEC vec v_add(vec a, vec b) { return vaddq_f32(a, b); }
VEC vec v_sub(vec a, vec b) { return vsubq_f32(a, b); }
VEC vec v_mul(vec a, vec b) { return vmulq_f32(a, b); }
VEC vec v_div(vec a, vec b) { return vdivq_f32(a, b); }
VEC vec v_fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
VEC vec v_max(vec a, vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
VEC vec v_or_zero(vec a) { return vbslq_f32(vceqq_f32(a, v_set1(-__builtin_inff())), v_set1(0.0f), a); }
VEC vec v_round(vec a) { return vrndnq_f32(a); }

VEC vec v_ldexp(vec a, vec n, vec x)
{
    int32x4_t scale = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);

    /* a is NaN where x is, and NaN times whatever became of n is NaN */
    return vbslq_f32(vcltq_f32(x, v_set1(-126.0f)), v_set1(0.0f), v_mul(a, vreinterpretq_f32_s32(scale)));
}

VEC vec v_swap(vec a, const int n)
{
    return n == 1 ? vrev64q_f32(a) : vextq_f32(a, a, 2);
}

VEC vec v_quad(const vec *a)
{
    return vpaddq_f32(vpaddq_f32(a[0], a[1]), vpaddq_f32(a[2], a[3]));
}

VEC vec v_join(const vec *q) { return q[0]; }

VEC void v_pair_bf16(const void *p, vec *a, vec *b)
{
    uint32x4_t u = vreinterpretq_u32_u8(vld1q_u8(p));

    *a = vreinterpretq_f32_u32(vshlq_n_u32(u, 16));
    *b = vreinterpretq_f32_u32(vandq_u32(u, vdupq_n_u32(0xffff0000)));
}

VEC void v_pair_of_fp16(uint16x8_t u, vec *a, vec *b)
{
    float16x8_t half = vreinterpretq_f16_u16(u);

    *a = vcvt_f32_f16(vget_low_f16(half));
    *b = vcvt_high_f32_f16(half);
}

VEC void v_pair_fp16(const void *p, vec *a, vec *b)
{
    v_pair_of_fp16(vreinterpretq_u16_u8(vld1q_u8(p)), a, b);
}

/* e4m3 is fp16 with four exponent bits fewer at the top, that is, times 2^8, but for its NaN. */
VEC void v_pair_fp8(const void *p, vec *a, vec *b)
{
    uint16x8_t u = vreinterpretq_u16_s16(vmovl_s8(vld1_s8(p)));
    uint16x8_t nan = vceqq_u16(vandq_u16(u, vdupq_n_u16(0x7f)), vdupq_n_u16(0x7f));
    uint16x8_t half = vandq_u16(vshlq_n_u16(u, 7), vdupq_n_u16(0xbf80));
    vec scale = v_set1(256.0f);

    v_pair_of_fp16(vorrq_u16(half, vandq_u16(nan, vdupq_n_u16(0x7e00))), a, b);
    *a = v_mul(*a, scale);
    *b = v_mul(*b, scale);
}

VEC void v_tile_fp8(const char *p, vec *a)
{
    v_pair_fp8(p, &a[0], &a[1]);
    v_pair_fp8(p + 2 * LANES, &a[2], &a[3]);
}

static _Bool kernel_is_available(void)
{
    return 1;
}

#define BF16_DOT 0
#define KERNEL kernel_neon
#define KERNEL_NAME "neon"
#include "cpu/kernel_impl.h"

#else
typedef int no_neon; /* a C file is not empty */
#endif

/* round.h - float to the output types, to nearest even
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_CPU_ROUND_H
#define QUIRE_CPU_ROUND_H

#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint16_t round_to_bf16(float x)
{
    uint32_t u = float_bits(x);

    if ((u & 0x7fffffff) > 0x7f800000) /* NaN: keep one bit of its mantissa */
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline uint16_t round_to_fp16(float x)
{
    uint32_t u = float_bits(x), sign = u >> 16 & 0x8000;

    u &= 0x7fffffff;
    if (u > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (u >= 0x477ff000) /* 65520, halfway between the largest and what would follow */
        return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000) /* below 2^-14: 0.5 has the spacing of the subnormals, so the addition rounds */
        return (uint16_t)(sign | (float_bits(float_of_bits(u) + 0.5f) - float_bits(0.5f)));
    return (uint16_t)(sign | ((u - 0x38000000 + 0xfff + (u >> 13 & 1)) >> 13));
}

/* Saturates: Inf, and all that rounds beyond 448, is 448. */
static inline uint8_t round_to_fp8e4m3(float x)
{
    uint32_t u = float_bits(x), sign = u >> 24 & 0x80, code;

    u &= 0x7fffffff;
    if (u > 0x7f800000)
        return (uint8_t)(sign | 0x7f);
    if (u < 0x3c800000) { /* below 2^-6: 2^14 has the spacing of the subnormals */
        code = float_bits(float_of_bits(u) + 16384.0f) - float_bits(16384.0f);
    } else {
        code = (u - 0x3c000000 + 0x7ffff + (u >> 20 & 1)) >> 20;
        code = code < 0x7e ? code : 0x7e;
    }
    return (uint8_t)(sign | code);
}

#endif

/* fp8_avx512.h - e4m3 to bf16 with byte permutations (VBMI)
 * SPDX-License-Identifier: Apache-2.0 */
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

/* The low and the high bytes of 64 codes as bf16. */
VEC void fp8_bytes(__m512i codes, __m512i *low, __m512i *high)
{
    __m512i magnitude = _mm512_permutex2var_epi8(_mm512_load_si512(high_bytes), codes,
                                                 _mm512_load_si512(high_bytes + 64));

    *low = _mm512_permutex2var_epi8(_mm512_load_si512(low_bytes), codes, _mm512_load_si512(low_bytes + 64));
    *high = _mm512_ternarylogic_epi64(magnitude, codes, _mm512_set1_epi8((char)0x80), 0xf8); /* or the sign */
}

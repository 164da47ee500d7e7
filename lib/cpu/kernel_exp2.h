/* kernel_exp2.h - powers of two, over the vector of kernel_impl.h
 *
 * SPDX-License-Identifier: Apache-2.0 */

/* 2^x for x up to 1, to a unit in the last place; 1 at 0; 0 below -126; NaN for NaN. */
INLINE vec v_exp2(vec x)
{
    vec n = v_round(x), f = v_sub(x, n), y = v_set1(0x1.4413896d0f1d1p-13f);

    y = v_fma(y, f, v_set1(0x1.5f089016280d7p-10f));
    y = v_fma(y, f, v_set1(0x1.3b2a5304529c7p-7f));
    y = v_fma(y, f, v_set1(0x1.c6af6cdbbdd09p-5f));
    y = v_fma(y, f, v_set1(0x1.ebfbe00e63ba0p-3f));
    y = v_fma(y, f, v_set1(0x1.62e4302fc626ep-1f));
    y = v_fma(y, f, v_set1(1.0f));
    return v_ldexp(y, n, x);
}

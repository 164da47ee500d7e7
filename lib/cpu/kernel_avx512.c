/* kernel_avx512.c - AVX-512 as every CPU with AVX512BW, DQ and VL has it
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#ifdef __x86_64__

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif

#include "cpu/vec_avx512.h"

VEC void v_tile_fp8(const char *p, vec *a)
{
    v_pair_fp8(p, &a[0], &a[1]);
    v_pair_fp8(p + 2 * LANES, &a[2], &a[3]);
}

static _Bool kernel_is_available(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#define BF16_DOT 0
#define KERNEL kernel_avx512
#define KERNEL_NAME "avx512"
#include "cpu/kernel_impl.h"

#ifdef __clang__
#pragma clang attribute pop
#endif

#else
typedef int no_x86_64; /* a C file is not empty */
#endif

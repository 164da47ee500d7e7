/* fatbins.h - the embedded kernels
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_FATBINS_H
#define QUIRE_FATBINS_H

#include <stdint.h>

/* _(NAME) for every kernels/NAME.cu of kernels/local.mk; a name in one list only fails the link. */
#define FATBINS(_) \
    _(read) \
    _(decode_fp16_d64) _(decode_fp16_d128) _(decode_fp16_d256) \
    _(decode_bf16_d64) _(decode_bf16_d128) _(decode_bf16_d256) \
    _(decode_fp8e4m3_d64) _(decode_fp8e4m3_d128) _(decode_fp8e4m3_d256)

struct fatbin {
    const char *name;
    const void *data;     /* what cuLibraryLoadData takes */
    const uint64_t *size; /* bytes; the linker knows it, the compiler does not */
};

#define FATBIN_ONE(name) +1
enum { FATBIN_COUNT = 0 FATBINS(FATBIN_ONE) };

extern const struct fatbin fatbins[FATBIN_COUNT];

/* NULL if there is none of that name. */
const struct fatbin *fatbin_find(const char *name);

#endif

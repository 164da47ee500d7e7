/* fatbins.c - the embedded kernels, by name
 * SPDX-License-Identifier: Apache-2.0 */
#include "fatbins.h"

#include <string.h>

/* embed.S defines these. */
#define DECLARE(name)                           \
    extern const unsigned char fatbin_##name[]; \
    extern const uint64_t fatbin_##name##_size;
FATBINS(DECLARE)

#define ROW(name) {#name, fatbin_##name, &fatbin_##name##_size},
const struct fatbin fatbins[FATBIN_COUNT] = {FATBINS(ROW)};

const struct fatbin *fatbin_find(const char *name)
{
    for (int i = 0; i < FATBIN_COUNT; i++)
        if (strcmp(fatbins[i].name, name) == 0)
            return &fatbins[i];
    return NULL;
}

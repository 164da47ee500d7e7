/* The embedded kernels are whole.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>

#include "cuda/fatbins.h"
#include "tap.h"

/* What nvcc -fatbin writes: magic, version, bytes of this header, bytes that follow it. */
struct header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t payload_bytes;
};

int main(void)
{
    plan(0);
    ok(FATBIN_COUNT > 0, "there are kernels");
    for (int i = 0; i < FATBIN_COUNT; i++) {
        const struct fatbin *f = &fatbins[i];
        struct header header = {0};

        ok(*f->size > sizeof header, "%s: has contents", f->name);
        if (*f->size > sizeof header)
            memcpy(&header, f->data, sizeof header);
        is_int(0xba55ed50, header.magic, "%s: begins as a fatbin", f->name);
        is_int((long long)*f->size, (long long)(header.header_bytes + header.payload_bytes),
               "%s: is as long as its header says", f->name);
        is_int(0, (long long)((uintptr_t)f->data % 64), "%s: is aligned", f->name);
        ok(fatbin_find(f->name) == f, "%s: is found by its name", f->name);
    }
    ok(fatbin_find("no such kernel") == NULL, "what is not there is not found");
    return done();
}

/* The embedded kernels are whole, and the right code of them is taken.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>

#include "cuda/arch.h"
#include "cuda/fatbins.h"
#include "tap.h"

/* What nvcc -fatbin writes: magic, version, bytes of this header, bytes that follow it. */
struct header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t payload_bytes;
};

/* Which code serves which GPU. */
static void test_choice(void)
{
    static const struct {
        const char *list;
        int capability;
        const char *name;
        int built_for;
    } choices[] = {
        { "80,90a,90+ptx", 75, "", 0 },
        { "80,90a,90+ptx", 80, "sm_80", 80 },
        { "80,90a,90+ptx", 89, "sm_80", 80 },
        { "80,90a,90+ptx", 90, "sm_90a", 90 },
        { "80,90a,90+ptx", 100, "compute_90", 90 },
        { "80,90a,ptx90", 89, "sm_80", 80 },
        { "80,90a,ptx90", 90, "sm_90a", 90 },
        { "80,90a,ptx90", 120, "compute_90", 90 },
        { "ptx90,80", 90, "compute_90", 90 },
        { "90+ptx,90a,80", 90, "sm_90a", 90 },
        { "80", 90, "", 0 },
        { "80+ptx", 86, "sm_80", 80 },
        { "80+ptx", 90, "compute_80", 80 },
        { "80,86", 89, "sm_86", 86 },
        { "80,86", 80, "sm_80", 80 },
        { "90a+ptx", 90, "sm_90a", 90 },
        { "90a+ptx", 100, "", 0 },
        { "100f,90+ptx", 103, "sm_100f", 100 },
        { "100a,90+ptx", 103, "compute_90", 90 },
        { "80+ptx,90+ptx", 120, "compute_90", 90 },
        { "", 90, "", 0 },
    };

    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const struct arch got = arch_choose(choices[i].list, choices[i].capability);

        is_str(choices[i].name, got.name, "of \"%s\", capability %d runs \"%s\"", choices[i].list,
               choices[i].capability, choices[i].name);
        is_int(choices[i].built_for, got.built_for, "... built for %d", choices[i].built_for);
        ok(got.exact == (strchr(got.name, 'a') != NULL), "... %s", got.exact ? "and for no other" : "and later ones");
    }
}

int main(void)
{
    plan(0);
    test_choice();
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

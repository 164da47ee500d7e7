/* arch.c - which of the code that was built runs on a GPU
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch.h"

struct arch arch_choose(const char *list, int capability)
{
    struct arch best = { "", 0, false };
    int best_rank = -1;

    while (*list) {
        const bool only_ptx = strncmp(list, "ptx", 3) == 0;
        char *end;
        const int built = (int)strtol(only_ptx ? list + 3 : list, &end, 10);
        const char letter[2] = { isalpha((unsigned char)*end) ? *end++ : '\0', '\0' };
        const bool ptx = only_ptx || strncmp(end, "+ptx", 4) == 0;
        const bool exact = *letter && *letter != 'f';
        const bool suits = exact ? built == capability : built / 10 == capability / 10 && built <= capability;
        const bool runs = suits && !only_ptx;
        const bool compiles = ptx && (*letter ? suits : built <= capability);
        /* machine code before PTX, later before earlier, tied to the GPU before not */
        const int rank = runs ? 10000 + 2 * built + exact : compiles ? 2 * built : -1;

        if (rank > best_rank) {
            best_rank = rank;
            best.built_for = built;
            best.exact = exact;
            snprintf(best.name, sizeof best.name, "%s_%d%s", runs ? "sm" : "compute", built, letter);
        }
        end += strcspn(end, ",");
        list = end + (*end == ',');
    }
    return best;
}

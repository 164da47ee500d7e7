/* arch.h - which of the code that was built runs on a GPU
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_CUDA_ARCH_H
#define QUIRE_CUDA_ARCH_H

#include <stdbool.h>

struct arch {
    char name[16];  /* "sm_90a"; "compute_90" for PTX, which the driver compiles; "" if nothing runs */
    int built_for;  /* compute capability, 90 for 9.0: what the code may use; 0 if nothing runs */
    bool exact;     /* built for this very GPU ("90a"): the code may use what later ones need not have */
};

/* Chooses as the driver does. `list` is configure's --with-cuda-arch: entries N, ptxN or N+ptx (both) with commas
 * between, N a compute capability that may end in a letter. Machine code of 80 runs on every 8.x from 8.0 on, of 90a on
 * 9.0 only, of 100f on every 10.x from 10.0 on; PTX on its own GPU and all later ones, unless a letter ties it. */
struct arch arch_choose(const char *list, int capability);

#endif

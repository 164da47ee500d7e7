/* select.h - which kernel this process runs, and on how many threads
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_CPU_SELECT_H
#define QUIRE_CPU_SELECT_H

#include "cpu/kernel.h"

/* The kernel: the best that the CPU can run, or the one that the environment variable QUIRE_CPU names, unless
 * it is empty.  Decided once per process.  UNSUPPORTED if QUIRE_CPU names none that runs here. */
quire_status select_kernel(const struct kernel **kernel);

/* How this process, by its kernel and its machine, reads a cache fastest, as measured (doc/cpu.md). */
struct reading {
    bool heads_together; /* KV heads go through a chunk together, whatever the lengths */
    bool into_l2;        /* where rows are few, the AVX-512 kernels ask for memory into the second cache, not the first */
};
const struct reading *select_reading(void);

/* The most threads that a decode of this process will ever use, decided once: workspaces are sized by it. */
int select_max_threads(void);

/* Threads for a decode called now by this thread: OpenMP's, but not above the maximum. */
int select_threads(void);

#endif

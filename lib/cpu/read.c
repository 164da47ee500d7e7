/* read.c - reads blocks of memory with every thread and does nothing with them
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <string.h>

#include "backend.h"
#include "cpu/select.h"

/* One cache line, as a vector: the compiler makes it as many loads as the CPU needs. */
typedef uint64_t line __attribute__((vector_size(64), aligned(16), may_alias));

enum {
    AHEAD = 4096 /* bytes: enough for the latency of memory at the rate of a core; 1 to 8 KB measure alike */
};

/* The xor of all that is read, so that no load can be left out; `next` is where to read after it. */
static uint64_t read_block(const char *block, int64_t bytes, const char *next)
{
    line a = {0}, b = {0};
    uint64_t sum = 0, piece;
    int64_t i = 0;

    for (; i + 128 <= bytes; i += 128) {
        const char *ahead = i + AHEAD < bytes ? block + i + AHEAD : next + (i + AHEAD - bytes);

        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + 64);
        a ^= *(const line *)(block + i);
        b ^= *(const line *)(block + i + 64);
    }
    a ^= b;
    for (int k = 0; k < 8; k++)
        sum ^= a[k];
    for (; i < bytes; i += (int64_t)sizeof piece) {
        memcpy(&piece, block + i, sizeof piece);
        sum ^= piece;
    }
    return sum;
}

quire_status cpu_read_blocks(const struct blocks *b)
{
    uint64_t sum = 0;

#ifdef _OPENMP
#pragma omp parallel for schedule(static) reduction(^ : sum) num_threads(select_threads())
#endif
    for (int64_t i = 0; i < b->order_len; i++) {
        int64_t next = i + 1 < b->order_len ? i + 1 : i;

        sum ^= read_block(b->data + b->order[i] * b->stride, b->bytes, b->data + b->order[next] * b->stride);
    }
    __asm__ volatile("" : : "r"(sum)); /* used, as far as the compiler can know */
    return QUIRE_OK;
}

/* read.c - reads blocks of memory with every thread and does nothing with them
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "backend.h"
#include "cpu/select.h"

/* One cache line, as a vector: the compiler makes it as many loads as the CPU needs. */
typedef uint64_t line __attribute__((vector_size(64), aligned(16), may_alias));

/* Blocks are read in pieces.  Asked for before their use are four pieces in turn, each a quarter further than the
 * next: at the beginning of each the processor has to find a page and to see where it goes, and meanwhile the
 * others keep memory busy.  With one at a time, random blocks of 32 KB come a third slower (doc/cpu.md). */
enum {
    PIECE = 4096,
    STREAMS = 4,
    AHEAD = 2 /* pieces */
};

/* The pieces from here on, the last over and over. */
struct walk {
    const struct blocks *b;
    int64_t block, end, offset;
    const char *window[AHEAD + STREAMS]; /* the next ones, from the one in hand on */
};

static const char *next_piece(struct walk *w)
{
    const char *piece = w->b->data + w->b->order[w->block] * w->b->stride + w->offset;

    if (w->offset + PIECE < w->b->bytes) {
        w->offset += PIECE;
    } else if (w->block + 1 < w->end) {
        w->block++;
        w->offset = 0;
    }
    return piece;
}

/* The xor of all that is read, so that no load can be left out. */
static uint64_t read_piece(const char *const *window, int64_t bytes)
{
    line a = {0}, b = {0};
    uint64_t sum = 0, word;
    int64_t i = 0;

    for (; i + 256 <= bytes; i += 256) {
        const char *piece = window[0] + i;

        for (int s = 0; s < STREAMS; s++)
            __builtin_prefetch(window[AHEAD + s] + (STREAMS - 1 - s) * (bytes / STREAMS) + i / STREAMS);
        a ^= *(const line *)piece;
        b ^= *(const line *)(piece + 64);
        a ^= *(const line *)(piece + 128);
        b ^= *(const line *)(piece + 192);
    }
    a ^= b;
    for (int k = 0; k < 8; k++)
        sum ^= a[k];
    for (; i < bytes; i += (int64_t)sizeof word) {
        memcpy(&word, window[0] + i, sizeof word);
        sum ^= word;
    }
    return sum;
}

/* Blocks [begin, end) of the order. */
static uint64_t read_range(const struct blocks *b, int64_t begin, int64_t end)
{
    struct walk walk = {.b = b, .block = begin, .end = end};
    uint64_t sum = 0;

    if (begin == end || b->bytes == 0)
        return 0;
    for (int s = 0; s < AHEAD + STREAMS; s++)
        walk.window[s] = next_piece(&walk);
    for (int64_t block = begin; block < end; block++) {
        for (int64_t offset = 0; offset < b->bytes; offset += PIECE) {
            sum ^= read_piece(walk.window, b->bytes - offset < PIECE ? b->bytes - offset : PIECE);
            memmove(walk.window, walk.window + 1, sizeof walk.window - sizeof *walk.window);
            walk.window[AHEAD + STREAMS - 1] = next_piece(&walk);
        }
    }
    return sum;
}

quire_status cpu_read_blocks(const struct blocks *b)
{
    uint64_t sum = 0;

#ifdef _OPENMP
#pragma omp parallel reduction(^ : sum) num_threads(select_threads())
    {
        int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();

        sum ^= read_range(b, b->order_len * thread / threads, b->order_len * (thread + 1) / threads);
    }
#else
    sum = read_range(b, 0, b->order_len);
#endif
    __asm__ volatile("" : : "r"(sum)); /* used, as far as the compiler can know */
    return QUIRE_OK;
}

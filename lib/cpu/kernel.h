/* kernel.h - what the arithmetic of one instruction set offers to decode.c
 *
 * Every kernel_*.c defines one struct kernel, all from the one source kernel_impl.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_CPU_KERNEL_H
#define QUIRE_CPU_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cpu/plan.h"
#include "cpu/round.h"

enum {
    PART_BYTES = 8192,  /* of K or V in use, and how far before its use memory is asked for: they fit the L1 cache */
    AHEAD_STREAMS = 4,  /* blocks that are asked for in turn */
    MAX_HEAD_DIM = 256,
    STAGED_BYTES = 2 * PART_BYTES, /* K of a part, converted: of half a part if that is more than one block */
    /* the same with tiles, and behind them weights, and sums: a float for each row and dimension */
    TILED_WEIGHT_BYTES = 16384,
    TILED_BYTES = STAGED_BYTES + TILED_WEIGHT_BYTES + TILE_ROWS * MAX_HEAD_DIM * 4,
    MOST_AHEAD = PART_BYTES / (BLOCK_KEYS * 64) + AHEAD_STREAMS - 1 /* blocks that may be asked for, at most */
};

/* A tile's rows as a kernel sees them.  Rows are taken 8, 4, 2 or 1 at a time, so `padded` is `rows`, or one
 * more where 3 are left over; a padding row is a query of zeros whose result nobody reads. */
struct rows {
    quire_dtype dtype, out_dtype;
    int head_dim;
    int rows, padded;
    int keys;             /* that any of them sees */
    float scale;          /* from dot products to exponents of 2 */
    bool wide_range;      /* set by load_query: values that the bf16 dot instruction would flush */
    void *query;          /* scratch, 64-byte aligned: padded x head_dim floats, twice that for fp8 */
    float *scores;        /* scratch, likewise: rows_of_scores(kernel, padded) x CHUNK_KEYS */
    void *staged;         /* scratch, likewise: kernel->staged_bytes */
};

/* One unit's keys. */
struct chunk {
    /* BLOCK_KEYS rows of K each, then as many of V, then up to MOST_AHEAD of what comes next */
    const char *const *memory;
    int blocks, memory_blocks;
    int block_shift;             /* a block is 2^block_shift bytes */
    /* K and V are gone over several times, by groups of rows and by tiles of dimensions: in parts of so many blocks
       at most.  Memory is asked for as many before its use. */
    int part_blocks;
    bool into_l2;                /* it is asked for into the second cache, and no closer */
    int begin, end;              /* keys that any row sees, counted from the first block's */
    /* per row what it sees of them; NULL if every row sees all */
    const int *row_begin, *row_end;
};

/* A partial result of a tile: out[padded][head_dim], the weighted sum of V in units of partial_unit and in the order in
 * which the kernel keeps dimensions, then max[padded] of the dot products and sum[padded] of the weights, of which the
 * largest is 1. */
static inline size_t partial_floats(int padded, int head_dim)
{
    size_t floats = (size_t)padded * ((size_t)head_dim + 2);

    return (floats + 15) / 16 * 16; /* keeps partials that lie side by side 64-byte aligned */
}

static inline float *partial_max(float *partial, const struct rows *rows)
{
    return partial + (size_t)rows->padded * (size_t)rows->head_dim;
}

static inline float *partial_sum(float *partial, const struct rows *rows)
{
    return partial_max(partial, rows) + rows->padded;
}

/* The largest bf16 numbers, of which two are beyond float32, are why out has a unit: the power of two above the sum of
 * the weights, so that out is below the largest V whatever the number of keys.  As it follows the sum, out is also no
 * smaller than half a mean of V, so that subnormal V keep their digits; but a mean below 2^-142 has no more of them
 * than float32 holds.  A power of two moves no bit of anything between.  Other types are far from both ends. */
static inline float partial_unit(const struct rows *rows, float sum)
{
    if (rows->dtype != QUIRE_DTYPE_BF16 || !(sum >= 1)) /* 0: no key; NaN */
        return 1;
    return 2 * float_of_bits(float_bits(sum) & 0x7f800000);
}

/* The sum is not known before the last key.  So weights are as they are, at most 1, which suits small V, and where a
 * chunk's sums are not finite they are multiplied by this, and V is weighed anew: then their sum is at most 1. */
#define LOWERED (1.0f / CHUNK_KEYS)

static inline int padded_rows(int rows)
{
    return rows % 4 == 3 ? rows + 1 : rows;
}

/* As many rows as tiles have for so many. */
static inline int tiled_rows(int padded)
{
    return padded <= 4 ? 4 : padded <= 8 ? 8 : padded <= 16 ? 16 : 32;
}

struct kernel {
    const char *name;
    bool tiled;           /* works with tiles, which take more scores */
    size_t staged_bytes;  /* a multiple of 64 */
    bool (*available)(void);
    /* Converts the rows' query vectors, source[rows], into rows->query. */
    void (*load_query)(struct rows *rows, const void *const *source);
    /* Computes one chunk's partial result from nothing. */
    void (*chunk)(const struct rows *rows, const struct chunk *chunk, float *partial);
    /* left = left and right together. */
    void (*merge)(const struct rows *rows, float *left, float *right);
    /* Writes out[head_dim] of one row: its sum of weighted V over its sum of weights, times scale. */
    void (*finish)(const struct rows *rows, float *partial, int row, float scale, void *out);
};

static inline int rows_of_scores(const struct kernel *kernel, int padded)
{
    return kernel->tiled ? tiled_rows(padded) : padded;
}

extern const struct kernel kernel_portable;
#ifdef __x86_64__
extern const struct kernel kernel_avx2, kernel_avx512, kernel_avx512bf16;
#endif
#ifdef HAVE_AMX
extern const struct kernel kernel_amx;
#endif
#if defined __aarch64__ && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
extern const struct kernel kernel_neon;
#endif

#endif

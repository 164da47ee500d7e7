/* kernel_amx.c - AVX-512 with AMX tiles: fp8, and bf16 with many rows
 *
 * Scores are K Q^T: 16 keys x 32 dimensions are a tile A, bf16 ones as they lie in the cache, and the query, pairs of
 * dimensions side by side, is B.  The weighted sum is P V: pairs of keys are put side by side into B.  fp8 becomes bf16
 * on the way.  A weight is two bf16 numbers, so that 16 of its bits count, as much as anybody's output.
 * fp16, few rows and few keys are left to kernel_avx512bf16; so are merge and finish, whose order of dimensions this
 * kernel keeps.
 *
 * tdpbf16ps takes subnormal numbers for zero.  Queries that this would harm are left to the other kernel, too
 * (wide_range); a chunk of bf16 with such a V is weighed anew without tiles, and so is one whose result is not finite.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#ifdef HAVE_AMX

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,fma,f16c")
#endif

#include <math.h>
#include <string.h>

#include "cpu/amx.h"
#include "cpu/kernel.h"
#include "cpu/round.h"
#include "cpu/vec_avx512.h"
#include "cpu/fp8_avx512.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

#include "cpu/kernel_ahead.h"
#include "cpu/kernel_exp2.h"

enum {
    STEP_KEYS = 32,                      /* of a tile of weights */
    PART_KEYS = 64,                      /* whose V, 64 dimensions of it, is staged at a time */
    PART_DIMS = 64,
    TILE_BYTES = 1024,
    STEP_LINES = 16,                     /* that are asked for while a step's weights are computed */
    GROUP_ROWS = 16,                     /* the most rows of a tile */
    STEP_VALUE_BYTES = STEP_KEYS * PART_DIMS * 2,
    PART_VALUE_BYTES = PART_KEYS * PART_DIMS * 2,
    STEP_WEIGHT_BYTES = 2 * TILE_BYTES,  /* of a group of rows */
    GROUP_WEIGHT_BYTES = PART_KEYS / STEP_KEYS * STEP_WEIGHT_BYTES,
    PART_WEIGHT_BYTES = TILE_ROWS / GROUP_ROWS * GROUP_WEIGHT_BYTES
};
_Static_assert(2 * PART_VALUE_BYTES <= STAGED_BYTES && 2 * BLOCK_KEYS * MAX_HEAD_DIM * 2 <= STAGED_BYTES,
               "two at a time");
_Static_assert(2 * PART_WEIGHT_BYTES == TILED_WEIGHT_BYTES, "two at a time");

/* Weights of bf16 are scaled away from subnormal numbers: products with small V would else be flushed. */
#define LIFT 0x1p64f

static const uint8_t zeros[2 * MAX_HEAD_DIM] __attribute__((aligned(64)));

/* ---- rows ----------------------------------------------------------------------------------------- */

/* Where this kernel is the faster one (doc/cpu.md). */
static bool takes(const struct rows *rows)
{
    return rows->keys >= PART_KEYS &&
           ((rows->dtype == QUIRE_DTYPE_FP8E4M3 && rows->padded > 2) ||
            (rows->dtype == QUIRE_DTYPE_BF16 && rows->padded > 4 && !rows->wide_range));
}

/* Rows of a group: a vector of scores holds 16 / nr keys. */
static int group_rows(const struct rows *rows)
{
    int all = tiled_rows(rows->padded);

    return all < GROUP_ROWS ? all : GROUP_ROWS;
}

/* Up to eight rows have the high and the low parts of their weights in one tile. */
INLINE int weight_rows(const int nr)
{
    return nr < 16 ? 2 * nr : nr;
}

#include "cpu/amx_score.h"
#include "cpu/amx_weigh.h"

/* ---- query ---------------------------------------------------------------------------------------- */

/* A row as K is staged, fp8 even elements first. */
static void convert_query(const struct rows *rows, const char *from, uint32_t *pairs)
{
    size_t d = (size_t)rows->head_dim;

    if (rows->dtype == QUIRE_DTYPE_BF16) {
        memcpy(pairs, from, d * sizeof(uint16_t));
        return;
    }
    for (size_t x = 0; x < d; x += 64, pairs += 32) {
        __m512i even, odd;

        split_fp8(_mm512_loadu_si512(from + x), &even, &odd);
        _mm512_storeu_si512(pairs, even);
        _mm512_storeu_si512(pairs + 16, odd);
    }
}

/* B of 32 dimensions after the other, of each group: for each pair of dimensions that of every row. */
static void load_query(struct rows *rows, const void *const *source)
{
    int nr = group_rows(rows), pairs = rows->head_dim / 2;

    rows->wide_range = false;
    if (rows->dtype != QUIRE_DTYPE_FP8E4M3 || !takes(rows))
        kernel_avx512bf16.load_query(rows, source); /* sets wide_range */
    if (!takes(rows))
        return;
    for (int first = 0; first < rows->padded; first += nr) {
        uint32_t *to = (uint32_t *)rows->query + first * pairs;

        for (int r = 0; r < nr; r++) {
            uint32_t row[MAX_HEAD_DIM / 2] = {0};

            if (first + r < rows->rows)
                convert_query(rows, source[first + r], row);
            for (int i = 0; i < pairs; i++)
                to[i * nr + r] = row[i];
        }
    }
}

/* ---- a chunk -------------------------------------------------------------------------------------- */

INLINE void chunk_of(const int nr, const bool is_fp8, const struct rows *rows, const struct chunk *chunk,
                     float *partial)
{
    const size_t d = (size_t)rows->head_dim, bytes = is_fp8 ? 1 : 2, sums_floats = GROUP_ROWS * d;
    const int parts = (chunk->end + PART_KEYS - 1) / PART_KEYS, dims = (int)d / PART_DIMS;
    char *staged = rows->staged, *weights = staged + STAGED_BYTES;
    float *sums = (float *)(weights + TILED_WEIGHT_BYTES);
    struct tile_shapes shapes = {.palette = 1};
    struct softmax softmax[TILE_ROWS / GROUP_ROWS];
    vec scale = v_set1(rows->scale);
    __m512i smallest = _mm512_set1_epi16(-1);
    struct feed feed = {.chunk = chunk, .block = 0};
    const char *row[PART_KEYS];
    struct weighing w = {.steps = 0, .sum_bytes = d * sizeof(float)};
    bool plain = true, two = rows->padded > nr;
    int unit = 0;

    feed_next(&feed);
    score_blocks(is_fp8, nr, rows, chunk, staged, &feed);
    for (int first = 0, g = 0; first < rows->padded; first += nr, g++) {
        float *scores = rows->scores + first * CHUNK_KEYS, lanes[LANES];
        vec max;

        hide_keys(nr, rows, first, chunk, scores);
        max = max_of_scores(nr, scores, parts * PART_KEYS * nr);
        softmax[g].base = v_or_zero(max); /* a row of nothing but -Inf has weights of 0 */
        softmax[g].sum = v_set1(0.0f);
        v_store(lanes, max);
        for (int r = 0; r < nr && first + r < rows->padded; r++)
            partial_max(partial, rows)[first + r] = lanes[r];
    }
    for (int i = 0; i < 8; i++) {
        shapes.rows[i] = i < 6 ? (uint8_t)weight_rows(nr) : 16;
        shapes.row_bytes[i] = 64;
    }
    tiles_begin(&shapes);
    for (int part = 0; part <= parts; part++) { /* in the last there is only something left to weigh */
        int steps = part == parts ? 0 : (chunk->end - part * PART_KEYS + STEP_KEYS - 1) / STEP_KEYS;
        char *part_weights = weights + part % 2 * PART_WEIGHT_BYTES;
        int lines;

        steps = steps < PART_KEYS / STEP_KEYS ? steps : PART_KEYS / STEP_KEYS;
        lines = (steps * STEP_KEYS * (int)(d * bytes) / 64 - steps * STEP_LINES * (two ? 2 : 1)) / dims;
        for (int first = 0, g = 0; first < rows->padded; first += nr, g++)
            for (int step = 0; step < steps; step++)
                weigh_scores(nr, !is_fp8,
                             rows->scores + first * CHUNK_KEYS + (part * PART_KEYS + step * STEP_KEYS) * nr, scale,
                             &softmax[g], part_weights + g * GROUP_WEIGHT_BYTES + step * STEP_WEIGHT_BYTES, &feed);
        find_rows(chunk, d * bytes, part * PART_KEYS, steps, row);
        for (int dim = 0; dim < (part == parts ? 1 : dims); dim++, unit++) {
            struct values values = {row, (size_t)dim * PART_DIMS * bytes, steps, staged + unit % 2 * PART_VALUE_BYTES};

            stage_and_weigh(nr, is_fp8, &values, &w, lines, &smallest, &feed);
            if (w.steps > 0 && two) {
                struct values none = {.steps = 0};

                w.sums += sums_floats;
                w.weights += GROUP_WEIGHT_BYTES;
                stage_and_weigh(nr, is_fp8, &none, &w, 0, &smallest, &feed);
            }
            w.values = values.to;
            w.weights = part_weights;
            w.steps = steps;
            w.fresh = part == 0;
            w.sums = sums + dim * PART_DIMS;
        }
    }
    tiles_end();
    for (int first = 0, g = 0; first < rows->padded; first += nr, g++) {
        vec sum = softmax[g].sum;
        float lanes[LANES];

        UNROLL
        for (int n = nr; n < LANES; n *= 2)
            sum = v_add(sum, v_swap(sum, n));
        v_store(lanes, sum);
        for (int r = 0; r < nr && first + r < rows->padded; r++) {
            partial_sum(partial, rows)[first + r] = lanes[r];
            plain &= take_sums(nr, d, sums + (size_t)g * sums_floats + (size_t)r * d,
                               1 / ((is_fp8 ? 1 : LIFT) * partial_unit(rows, lanes[r])),
                               partial + (size_t)(first + r) * d);
        }
    }
    if (!is_fp8 && (!plain || _mm512_cmplt_epu16_mask(smallest, _mm512_set1_epi16(0xff)) != 0) &&
        !weigh_exactly(nr, rows, chunk, 1, partial))
        weigh_exactly(nr, rows, chunk, LOWERED, partial);
}

/* Functions of their own: each gets all registers. */
#define CHUNK(nr, name, is_fp8)                                                                    \
    static void chunk_##name##_##nr(const struct rows *rows, const struct chunk *chunk, float *partial) \
    {                                                                                              \
        chunk_of(nr, is_fp8, rows, chunk, partial);                                                \
    }
CHUNK(4, fp8, true)
CHUNK(8, fp8, true)
CHUNK(16, fp8, true)
CHUNK(8, bf16, false)
CHUNK(16, bf16, false)

static void chunk_partial(const struct rows *rows, const struct chunk *chunk, float *partial)
{
    bool is_fp8 = rows->dtype == QUIRE_DTYPE_FP8E4M3;

    if (!takes(rows))
        kernel_avx512bf16.chunk(rows, chunk, partial);
    else if (group_rows(rows) == 4)
        chunk_fp8_4(rows, chunk, partial);
    else if (group_rows(rows) == 8)
        (is_fp8 ? chunk_fp8_8 : chunk_bf16_8)(rows, chunk, partial);
    else
        (is_fp8 ? chunk_fp8_16 : chunk_bf16_16)(rows, chunk, partial);
}

static void merge_partials(const struct rows *rows, float *left, float *right)
{
    kernel_avx512bf16.merge(rows, left, right);
}

static void finish_row(const struct rows *rows, float *partial, int row, float scale, void *out)
{
    kernel_avx512bf16.finish(rows, partial, row, scale, out);
}

static bool kernel_is_available(void)
{
    return kernel_avx512bf16.available() && tiles_are_available();
}

const struct kernel kernel_amx = {
    .name = "amx",
    .tiled = true,
    .staged_bytes = TILED_BYTES,
    .available = kernel_is_available,
    .load_query = load_query,
    .chunk = chunk_partial,
    .merge = merge_partials,
    .finish = finish_row,
};

#ifdef __clang__
#pragma clang attribute pop
#endif

#else
typedef int no_amx; /* a C file is not empty */
#endif

/* kernel_impl.h - the arithmetic of a decode, written once over a vector type
 *
 * An including file defines for its instruction set
 *
 *     LANES               floats in a vector: 4, 8 or 16
 *     TILE_VECTORS        vectors of V that are weighed at a time for four rows: 2 or 4
 *     PAIRED_FP16         1 if v_pair_fp16 gives even elements, then odd ones; 0 if in order
 *     vec                 the vector, and
 *     v_load v_store v_set1 v_add v_sub v_mul v_fma v_div
 *     v_fma_spread(a, memory, c)   v_fma with the float in memory in each lane, if there are 16 lanes
 *     v_max(a, b)         b where a is NaN
 *     v_or_zero(a)        0 where a is -Inf
 *     v_round             to the nearest integer
 *     v_ldexp(a, n, x)    a * 2^n where x is NaN or at least -126, else 0; n is x rounded
 *     v_swap(a, n)        lane i from lane i ^ n; n is a constant power of two
 *     v_quad(a[4])        in each part of four lanes: the sums of these lanes of a[0] to a[3]
 *     v_join(q[LANES/4])  lane 4i+j is the sum over q[i]'s lanes j of all parts
 *     v_pair_bf16 v_pair_fp16 v_pair_fp8(memory, &a, &b)   2 * LANES elements to two vectors
 *     v_tile_fp8(memory, a[TILE_VECTORS])                  TILE_VECTORS * LANES elements, in order, or if there is
 *     FP8_PLACE(v, p, l)  where the lane l of four of part p of its vector v stands among the elements
 *     EIGHT_ROWS          1 if rows are also taken in groups of eight, for which there are 16 lanes and:
 *     v_spread(memory)    a piece of PIECE_BYTES, over and over
 *     v_pair_sums(a, b)   lane 4i is a[4i] + a[4i+1], the next a[4i+2] + a[4i+3], the next two the same of b
 *     WHOLE_BLOCKS        1 if kernel_blocks.h has the loops, in which fp8 is moved into the bits of fp16 first; for
 *                         which there are:
 *     v_load_once(memory) v_load, which is not repeated for each use
 *     h_from_fp8(from, count, to)   elements times 1 / HALVES_SCALE as fp16, in the order of FP8_PLACE; with it there
 *                         are no v_pair_fp8 and v_tile_fp8
 *     BF16_DOT            1 if there is also, for vectors of 2 * LANES bf16 elements:
 *     vec_bf16            the vector
 *     b_load b_spread b_pair_fp8(memory, &a, &b)  v_dot(sum, a, b)
 *     b_store_fp8(memory, to)       4 * LANES elements as b_pair_fp8 gives them
 *     b_four_keys_fp8(memory, stride, &a, &b)       16 elements of each of four keys, a part of a and b for each
 *     b_load_once(memory) b_load, which is not repeated for each use
 *     KERNEL, KERNEL_NAME, kernel_is_available
 *
 * Dimensions are kept in the order in which a pair of vectors comes out of memory: for bf16, where one
 * load gives even and odd elements by one shift and one mask, even ones first.  Queries pass through the
 * same loads, so that dot products pair what belongs together; finish puts the output in order.
 *
 * Rows are taken in groups of 8 or 4 (for scores, of fp8 if they are 4, two of them at a time), 2 or 1.  Scores,
 * then weights, of a group of nr rows are CHUNK_KEYS * nr floats, the vector of LANES / nr keys after the other;
 * place_of tells where.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "cpu/kernel.h"
#include "cpu/round.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum {
    PIECE_BYTES = 8, /* of a row of the query, in a group of eight: a vector holds a piece of each */
    MOST_SUMS = 4 * TILE_VECTORS /* vectors of sums, of V */
};

#include "cpu/kernel_query.h"
#include "cpu/kernel_ahead.h"
#if EIGHT_ROWS
#include "cpu/kernel_stage.h"
#endif
#include "cpu/kernel_score.h"
#include "cpu/kernel_exp2.h"
#include "cpu/kernel_softmax.h"
#include "cpu/kernel_weigh.h"

/* The loops, and the blocks of K and of V that all rows go over before the next ones. */
#if WHOLE_BLOCKS
#include "cpu/kernel_hold.h"
#include "cpu/kernel_blocks.h"
#define SCORE_ROWS score_blocks_of
#define WEIGH_ROWS weigh_blocks_of
#define SCORE_BLOCKS held_blocks
#define WEIGH_BLOCKS held_blocks
#else
#define SCORE_ROWS score_rows_of
#define WEIGH_ROWS weigh_rows_of
#define SCORE_BLOCKS score_blocks
#define WEIGH_BLOCKS(rows, chunk) (chunk)->part_blocks
#endif

/* ---- a chunk -------------------------------------------------------------------------------------- */

INLINE void score_group(const int nr, const struct rows *rows, int row, const struct chunk *chunk, int begin, int end)
{
#if EIGHT_ROWS
    if (nr >= 8) {
#if BF16_DOT
        if (staged_element(rows) == ELEMENT_BF16_DOT) {
            score_eights_of(nr / 8, ELEMENT_BF16_DOT, rows, row, chunk, begin, end);
            return;
        }
#endif
        score_eights_of(nr / 8, ELEMENT_FLOAT, rows, row, chunk, begin, end);
        return;
    }
#endif
    switch (score_element(rows)) {
    case ELEMENT_BF16: SCORE_ROWS(nr, ELEMENT_BF16, rows, row, chunk, begin, end); break;
    case ELEMENT_FP16: SCORE_ROWS(nr, ELEMENT_FP16, rows, row, chunk, begin, end); break;
#if BF16_DOT
    case ELEMENT_BF16_DOT: SCORE_ROWS(nr, ELEMENT_BF16_DOT, rows, row, chunk, begin, end); break;
    default: SCORE_ROWS(nr, ELEMENT_FP8_DOT, rows, row, chunk, begin, end); break;
#else
    default: SCORE_ROWS(nr, ELEMENT_FP8, rows, row, chunk, begin, end); break;
#endif
    }
}

INLINE void weigh_group(const int nr, const struct rows *rows, int row, const struct chunk *chunk, int begin, int end,
                        float *partial)
{
    switch (element_of(rows->dtype)) {
    case ELEMENT_BF16: WEIGH_ROWS(nr, ELEMENT_BF16, rows, row, chunk, begin, end, partial); break;
    case ELEMENT_FP16: WEIGH_ROWS(nr, ELEMENT_FP16, rows, row, chunk, begin, end, partial); break;
    default: WEIGH_ROWS(nr, ELEMENT_FP8, rows, row, chunk, begin, end, partial); break;
    }
}

/* Functions of their own: each loop gets all registers. */
#define STEPS(nr)                                                                                  \
    static void score_##nr(const struct rows *rows, int row, const struct chunk *chunk, int begin, int end) \
    {                                                                                              \
        score_group(nr, rows, row, chunk, begin, end);                                             \
    }                                                                                              \
    static void weigh_##nr(const struct rows *rows, int row, const struct chunk *chunk, int begin, int end, \
                           float *partial)                                                         \
    {                                                                                              \
        weigh_group(nr, rows, row, chunk, begin, end, partial);                                    \
    }
STEPS(1)
STEPS(2)
STEPS(4)
#if EIGHT_ROWS
STEPS(8)
static void score_16(const struct rows *rows, int row, const struct chunk *chunk, int begin, int end)
{
    score_group(16, rows, row, chunk, begin, end);
}
#endif
#if BF16_DOT
static void score_two_fours(const struct rows *rows, int row, const struct chunk *chunk, int begin, int end)
{
    if (rows->head_dim == 64)
        score_fours(64, rows, row, chunk, begin, end);
    else if (rows->head_dim == 128)
        score_fours(128, rows, row, chunk, begin, end);
    else
        score_fours(256, rows, row, chunk, begin, end);
}
#endif

/* STEP(nr) for each group of nr rows, the first of which is row `row`. */
#if EIGHT_ROWS
#define FOR_EIGHTS(STEP)                                                                           \
    for (; row + 8 <= rows_in_eights(rows); row += 8)                                              \
        STEP(8);
#else
#define FOR_EIGHTS(STEP)
#endif
#define FOR_GROUPS(STEP)                                                                           \
    FOR_EIGHTS(STEP)                                                                               \
    for (; row + 4 <= rows->padded; row += 4)                                                      \
        STEP(4);                                                                                   \
    if (row + 2 == rows->padded)                                                                   \
        STEP(2);                                                                                   \
    else if (row + 1 == rows->padded)                                                              \
        STEP(1)

static void score_part(const struct rows *rows, const struct chunk *chunk, int begin, int end)
{
    int row = 0;

#if WHOLE_BLOCKS
    hold(rows, chunk, 0, begin, end);
#endif
#if EIGHT_ROWS
    if (stages_keys(rows))
        stage_keys(rows, chunk, begin, end);
    for (; row + 16 <= rows_in_eights(rows); row += 16)
        score_16(rows, row, chunk, begin, end);
#endif
#if BF16_DOT
    for (; row + 8 <= rows_in_fours(rows); row += 8)
        score_two_fours(rows, row, chunk, begin, end);
#endif
#define SCORE(nr) score_##nr(rows, row, chunk, begin, end)
    FOR_GROUPS(SCORE);
}

static void end_scores(const struct rows *rows, const struct chunk *chunk, struct softmax *softmax, float *partial)
{
    int row = 0;

#define END_SCORES(nr) end_scores_of(nr, rows, row, chunk, &softmax[row], partial)
    FOR_GROUPS(END_SCORES);
}

static void weights_part(const struct rows *rows, int begin, int end, struct softmax *softmax)
{
    int row = 0;

#define WEIGHTS(nr) weights_of_rows(nr, rows, row, begin, end, &softmax[row])
    FOR_GROUPS(WEIGHTS);
}

static void end_weights(const struct rows *rows, const struct softmax *softmax, float *partial)
{
    int row = 0;

#define END_WEIGHTS(nr) end_weights_of(nr, rows, row, &softmax[row], partial)
    FOR_GROUPS(END_WEIGHTS);
}

static void lower_weights(const struct rows *rows, const struct chunk *chunk)
{
    int row = 0;

#define LOWER_WEIGHTS(nr) lower_weights_of(nr, rows, row, chunk)
    FOR_GROUPS(LOWER_WEIGHTS);
}

static void weigh_part(const struct rows *rows, const struct chunk *chunk, int begin, int end, float *partial)
{
    int row = 0;

#if WHOLE_BLOCKS
    hold(rows, chunk, chunk->blocks, begin, end);
#endif
#define WEIGH(nr) weigh_##nr(rows, row, chunk, begin, end, partial)
    FOR_GROUPS(WEIGH);
}

#undef FOR_GROUPS

/* The end of the part of `blocks` blocks that begins with key `begin`. */
static int part_end(const struct chunk *chunk, int begin, int blocks)
{
    int end = (begin / BLOCK_KEYS + blocks) * BLOCK_KEYS;

    return end < chunk->end ? end : chunk->end;
}

/* Sums of V, weighed by weights times `scale`, in the unit of partial results; whether all are finite.  Four looks side
 * by side, for the sake of the instruction's latency. */
static bool end_sums(const struct rows *rows, float scale, float *partial)
{
    vec zero = v_set1(0.0f), special[4] = {zero, zero, zero, zero};
    float lanes[LANES];
    bool finite = true;

    for (int r = 0; r < rows->padded; r++) {
        float *out = partial + (size_t)r * (size_t)rows->head_dim;
        vec factor = v_set1(1 / (scale * partial_unit(rows, partial_sum(partial, rows)[r])));

        for (int x = 0; x < rows->head_dim; x += 4 * LANES) {
            UNROLL
            for (int k = 0; k < 4; k++) {
                vec sum = v_mul(v_load(out + x + k * LANES), factor);

                special[k] = v_fma(sum, zero, special[k]); /* NaN of Inf and NaN */
                v_store(out + x + k * LANES, sum);
            }
        }
    }
    v_store(lanes, v_add(v_add(special[0], special[1]), v_add(special[2], special[3])));
    for (int i = 0; i < LANES; i++)
        finite &= lanes[i] == 0;
    return finite;
}

/* The weighted sum of V over a chunk; scores become weights on the way, or are weights if softmax is NULL. */
static void weigh_chunk(const struct rows *rows, const struct chunk *chunk, struct softmax *softmax, float *partial)
{
    for (int begin = chunk->begin, end; begin < chunk->end; begin = end) {
        end = part_end(chunk, begin, WEIGH_BLOCKS(rows, chunk));
        if (softmax != NULL)
            weights_part(rows, begin, end, softmax);
        weigh_part(rows, chunk, begin, end, partial);
    }
}

static void chunk_partial(const struct rows *rows, const struct chunk *chunk, float *partial)
{
    struct softmax softmax[TILE_ROWS]; /* of a group at its first row */

    for (int begin = chunk->begin, end; begin < chunk->end; begin = end) {
        end = part_end(chunk, begin, SCORE_BLOCKS(rows, chunk));
        score_part(rows, chunk, begin, end);
    }
    end_scores(rows, chunk, softmax, partial);
    weigh_chunk(rows, chunk, softmax, partial);
    end_weights(rows, softmax, partial);
    if (rows->dtype != QUIRE_DTYPE_BF16 || end_sums(rows, 1, partial))
        return;
    lower_weights(rows, chunk);
    weigh_chunk(rows, chunk, NULL, partial);
    end_sums(rows, LOWERED, partial);
}

/* ---- merge, finish -------------------------------------------------------------------------------- */

/* Both partials' factors come of vectors of LANES rows. */
static void merge_partials(const struct rows *rows, float *left, float *right)
{
    float *left_max = partial_max(left, rows), *left_sum = partial_sum(left, rows);
    const float *right_max = partial_max(right, rows), *right_sum = partial_sum(right, rows);
    size_t d = (size_t)rows->head_dim;
    vec scale = v_set1(rows->scale);

    for (int first = 0; first < rows->padded; first += LANES) {
        int count = rows->padded - first < LANES ? rows->padded - first : LANES;
        float a[LANES] = {0}, b[LANES] = {0}, bases[LANES];
        vec max, base;

        memcpy(a, left_max + first, (size_t)count * sizeof *a);
        memcpy(b, right_max + first, (size_t)count * sizeof *b);
        max = v_max(v_load(a), v_load(b));
        base = v_or_zero(max);
        v_store(bases, max);
        memcpy(left_max + first, bases, (size_t)count * sizeof *bases);
        v_store(a, v_exp2(v_mul(v_sub(v_load(a), base), scale)));
        v_store(b, v_exp2(v_mul(v_sub(v_load(b), base), scale)));
        for (int r = 0; r < count; r++) {
            float sum = left_sum[first + r] * a[r] + right_sum[first + r] * b[r], unit = partial_unit(rows, sum);
            vec wa = v_set1(a[r] * (partial_unit(rows, left_sum[first + r]) / unit));
            vec wb = v_set1(b[r] * (partial_unit(rows, right_sum[first + r]) / unit));
            float *to = left + (size_t)(first + r) * d;
            const float *from = right + (size_t)(first + r) * d;

            left_sum[first + r] = sum;
            for (size_t x = 0; x < d; x += LANES)
                v_store(to + x, v_fma(v_load(from + x), wb, v_mul(v_load(to + x), wa)));
        }
    }
}

/* Puts pairs of even and odd halves back in order. */
static void put_in_order(const float *from, float *to, int head_dim)
{
    for (int x = 0; x < head_dim; x += 2 * LANES) {
        for (int i = 0; i < LANES; i++) {
            to[x + 2 * i] = from[x + i];
            to[x + 2 * i + 1] = from[x + LANES + i];
        }
    }
}

#ifdef FP8_PLACE
static void put_fp8_in_order(const float *from, float *to, int head_dim)
{
    for (int x = 0; x < head_dim; x += 4 * LANES)
        for (int vector = 0; vector < 4; vector++)
            for (int lane = 0; lane < LANES; lane++)
                to[x + FP8_PLACE(vector, lane / 4, lane % 4)] = from[x + LANES * vector + lane];
}
#endif

static void finish_row(const struct rows *rows, float *partial, int row, float scale, void *out)
{
    int d = rows->head_dim;
    float *values = partial + (size_t)row * (size_t)d, ordered[MAX_HEAD_DIM];
    float weights = partial_sum(partial, rows)[row];
    vec sum = v_set1(weights / partial_unit(rows, weights)), factor = v_set1(scale);
    bool paired = rows->dtype == QUIRE_DTYPE_BF16 || (PAIRED_FP16 && rows->dtype == QUIRE_DTYPE_FP16);

    for (int x = 0; x < d; x += LANES)
        v_store(values + x, v_mul(v_div(v_load(values + x), sum), factor));
    if (paired) {
        put_in_order(values, ordered, d);
        values = ordered;
    }
#ifdef FP8_PLACE
    if (rows->dtype == QUIRE_DTYPE_FP8E4M3) {
        put_fp8_in_order(values, ordered, d);
        values = ordered;
    }
#endif
    switch (rows->out_dtype) {
    case QUIRE_DTYPE_BF16:
        for (int x = 0; x < d; x++)
            ((uint16_t *)out)[x] = round_to_bf16(values[x]);
        break;
    case QUIRE_DTYPE_FP16:
        for (int x = 0; x < d; x++)
            ((uint16_t *)out)[x] = round_to_fp16(values[x]);
        break;
    default:
        for (int x = 0; x < d; x++)
            ((uint8_t *)out)[x] = round_to_fp8e4m3(values[x]);
        break;
    }
}

const struct kernel KERNEL = {
    .name = KERNEL_NAME,
    .staged_bytes = EIGHT_ROWS || WHOLE_BLOCKS ? STAGED_BYTES : 0,
    .available = kernel_is_available,
    .load_query = load_query,
    .chunk = chunk_partial,
    .merge = merge_partials,
    .finish = finish_row,
};

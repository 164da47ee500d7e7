/* kernel_impl.h - the arithmetic of a decode, written once over a vector type
 *
 * An including file defines for its instruction set
 *
 *     LANES               floats in a vector: 4, 8 or 16
 *     TILE_VECTORS        vectors of V that are weighed at a time: 2 or 4
 *     PAIRED_FP16         1 if v_pair_fp16 gives even elements, then odd ones; 0 if in order
 *     vec                 the vector, and
 *     v_load v_store v_set1 v_add v_sub v_mul v_fma v_div
 *     v_max(a, b)         b where a is NaN
 *     v_or_zero(a)        0 where a is -Inf
 *     v_round             to the nearest integer
 *     v_ldexp(a, n, x)    a * 2^n where x is NaN or at least -126, else 0; n is x rounded
 *     v_swap(a, n)        lane i from lane i ^ n; n is a constant power of two
 *     v_sums(a[LANES])    lane i is the sum of a[i]
 *     v_pair_bf16 v_pair_fp16 v_pair_fp8(memory, &a, &b)   2 * LANES elements to two vectors
 *     v_tile_fp8(memory, a[TILE_VECTORS])                  TILE_VECTORS * LANES elements, in order
 *     BF16_DOT            1 if there is also, for vectors of 2 * LANES bf16 elements:
 *     vec_bf16            the vector
 *     b_load b_pair_fp8(memory, &a, &b)  v_dot(sum, a, b)
 *     KERNEL, KERNEL_NAME, kernel_is_available
 *
 * Dimensions are kept in the order in which a pair of vectors comes out of memory: for bf16, where one
 * load gives even and odd elements by one shift and one mask, even ones first.  Queries pass through the
 * same loads, so that dot products pair what belongs together; finish puts the output in order.
 *
 * Scores, then weights, of a group of NR rows lie as vectors of NR rows x LANES/NR keys, as v_sums
 * leaves them: lane = row * LANES/NR + key.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "cpu/kernel.h"
#include "cpu/round.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum element {
    ELEMENT_BF16,
    ELEMENT_FP16,
    ELEMENT_FP8,
    ELEMENT_BF16_DOT, /* bf16 and fp8 for the bf16 dot instruction */
    ELEMENT_FP8_DOT
};

INLINE size_t element_bytes(enum element element)
{
    return element == ELEMENT_FP8 || element == ELEMENT_FP8_DOT ? 1 : 2;
}

INLINE void load_pair(enum element element, const char *from, vec *a, vec *b)
{
    if (element == ELEMENT_BF16)
        v_pair_bf16(from, a, b);
    else if (element == ELEMENT_FP16)
        v_pair_fp16(from, a, b);
    else
        v_pair_fp8(from, a, b);
}

INLINE void load_tile(enum element element, const char *from, vec *a)
{
    if (element == ELEMENT_FP8) {
        v_tile_fp8(from, a);
        return;
    }
    UNROLL
    for (int i = 0; i < TILE_VECTORS; i += 2)
        load_pair(element, from + (size_t)i * LANES * element_bytes(element), &a[i], &a[i + 1]);
}

INLINE void ask_for(const char *memory, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(memory + at);
}

/* 2^x for x up to 1, to a unit in the last place; 1 at 0; 0 below -126; NaN for NaN. */
INLINE vec v_exp2(vec x)
{
    vec n = v_round(x), f = v_sub(x, n), y = v_set1(0x1.4413896d0f1d1p-13f);

    y = v_fma(y, f, v_set1(0x1.5f089016280d7p-10f));
    y = v_fma(y, f, v_set1(0x1.3b2a5304529c7p-7f));
    y = v_fma(y, f, v_set1(0x1.c6af6cdbbdd09p-5f));
    y = v_fma(y, f, v_set1(0x1.ebfbe00e63ba0p-3f));
    y = v_fma(y, f, v_set1(0x1.62e4302fc626ep-1f));
    y = v_fma(y, f, v_set1(1.0f));
    return v_ldexp(y, n, x);
}

/* ---- query ---------------------------------------------------------------------------------------- */

static enum element element_of(quire_dtype dtype)
{
    return dtype == QUIRE_DTYPE_BF16 ? ELEMENT_BF16 : dtype == QUIRE_DTYPE_FP16 ? ELEMENT_FP16 : ELEMENT_FP8;
}

#if BF16_DOT
/* The dot instruction takes subnormal numbers for zero.  With no subnormal query element, and none so
 * large that a subnormal key would count, that moves no score by more than 2^-30. */
static bool has_wide_range(const struct rows *rows, const uint16_t *query)
{
    float limit = 0x1p-30f / rows->scale * 0x1p126f / (float)rows->head_dim;
    uint16_t top = float_bits(limit) >> 16;
    bool wide = false;

    for (int i = 0; i < rows->head_dim; i++) {
        uint16_t magnitude = query[i] & 0x7fff;

        wide |= (magnitude > 0 && magnitude < 0x0080) | (magnitude > top && magnitude < 0x7f80);
    }
    return wide;
}
#endif

/* What the keys are multiplied as. */
INLINE enum element score_element(const struct rows *rows)
{
    enum element element = element_of(rows->dtype);

#if BF16_DOT
    if (element == ELEMENT_FP8)
        return ELEMENT_FP8_DOT;
    if (element == ELEMENT_BF16 && !rows->wide_range)
        return ELEMENT_BF16_DOT;
#endif
    return element;
}

static void load_query(struct rows *rows, const void *const *source)
{
    enum element element = element_of(rows->dtype);
    size_t d = (size_t)rows->head_dim, bytes = d * element_bytes(element);

    rows->wide_range = false;
#if BF16_DOT
    if (element == ELEMENT_BF16)
        for (int r = 0; r < rows->rows && !rows->wide_range; r++)
            rows->wide_range = has_wide_range(rows, source[r]);
#endif
    element = score_element(rows);
    for (int r = 0; r < rows->rows; r++) {
        const char *from = source[r];
        float *to = (float *)rows->query + (size_t)r * d;

        switch (element) {
        case ELEMENT_BF16_DOT:
            memcpy((char *)rows->query + (size_t)r * bytes, from, bytes);
            break;
        case ELEMENT_FP8_DOT:
#if BF16_DOT
            for (size_t x = 0; x < d; x += 4 * LANES) {
                uint16_t *half = (uint16_t *)rows->query + (size_t)r * d + x;
                vec_bf16 a, b;

                b_pair_fp8(from + x, &a, &b);
                memcpy(half, &a, sizeof a);
                memcpy(half + 2 * LANES, &b, sizeof b);
            }
#endif
            break;
        case ELEMENT_BF16:
        case ELEMENT_FP16:
        case ELEMENT_FP8:
            for (size_t x = 0; x < d; x += 2 * LANES) {
                vec a, b;

                load_pair(element, from + x * element_bytes(element), &a, &b);
                v_store(to + x, a);
                v_store(to + x + LANES, b);
            }
            break;
        }
    }
    for (int r = rows->rows; r < rows->padded; r++) {
        bool half = element == ELEMENT_BF16_DOT || element == ELEMENT_FP8_DOT;
        size_t row_bytes = d * (half ? sizeof(uint16_t) : sizeof(float));

        memset((char *)rows->query + (size_t)r * row_bytes, 0, row_bytes);
    }
}

/* ---- scores --------------------------------------------------------------------------------------- */

/* LANES dot products: nr rows of the query with LANES/nr keys. */
INLINE vec dot_products(const int nr, const enum element element, const char *keys, const float *query, size_t d)
{
    const int kn = LANES / nr;
    size_t bytes = element_bytes(element), stride = d * bytes;
    vec sums[LANES];

    UNROLL
    for (int i = 0; i < LANES; i++)
        sums[i] = v_set1(0.0f);
    for (size_t x = 0; x < d; x += 2 * LANES) {
        if (nr <= kn) { /* the smaller side stays in registers */
            vec q[2 * LANES];

            UNROLL
            for (int r = 0; r < nr; r++) {
                q[2 * r] = v_load(query + (size_t)r * d + x);
                q[2 * r + 1] = v_load(query + (size_t)r * d + x + LANES);
            }
            UNROLL
            for (int k = 0; k < kn; k++) {
                vec a, b;

                load_pair(element, keys + (size_t)k * stride + x * bytes, &a, &b);
                UNROLL
                for (int r = 0; r < nr; r++)
                    sums[r * kn + k] = v_fma(b, q[2 * r + 1], v_fma(a, q[2 * r], sums[r * kn + k]));
            }
        } else {
            vec a[LANES], b[LANES];

            UNROLL
            for (int k = 0; k < kn; k++)
                load_pair(element, keys + (size_t)k * stride + x * bytes, &a[k], &b[k]);
            UNROLL
            for (int r = 0; r < nr; r++) {
                vec qa = v_load(query + (size_t)r * d + x), qb = v_load(query + (size_t)r * d + x + LANES);

                UNROLL
                for (int k = 0; k < kn; k++)
                    sums[r * kn + k] = v_fma(b[k], qb, v_fma(a[k], qa, sums[r * kn + k]));
            }
        }
    }
    return v_sums(sums);
}

#if BF16_DOT
INLINE vec dot_products_bf16(const int nr, const enum element element, const char *keys, const uint16_t *query,
                             size_t d)
{
    const int kn = LANES / nr;
    size_t bytes = element_bytes(element), stride = d * bytes;
    vec sums[LANES];

    UNROLL
    for (int i = 0; i < LANES; i++)
        sums[i] = v_set1(0.0f);
    for (size_t x = 0; x < d; x += 4 * LANES) {
        vec_bf16 q[2 * LANES];

        UNROLL
        for (int r = 0; r < nr; r++) {
            q[2 * r] = b_load(query + (size_t)r * d + x);
            q[2 * r + 1] = b_load(query + (size_t)r * d + x + 2 * LANES);
        }
        UNROLL
        for (int k = 0; k < kn; k++) {
            const char *from = keys + (size_t)k * stride + x * bytes;
            vec_bf16 a, b;

            if (element == ELEMENT_FP8_DOT) {
                b_pair_fp8(from, &a, &b);
            } else {
                a = b_load(from);
                b = b_load(from + 4 * LANES);
            }
            UNROLL
            for (int r = 0; r < nr; r++)
                sums[r * kn + k] = v_dot(v_dot(sums[r * kn + k], a, q[2 * r]), b, q[2 * r + 1]);
        }
    }
    return v_sums(sums);
}
#endif

/* Scores of nr rows from `row` on, for every key group that holds a visible key. */
INLINE void score_rows(const int nr, const enum element element, const struct rows *rows, int row,
                       const struct chunk *chunk)
{
    const int kn = LANES / nr;
    size_t d = (size_t)rows->head_dim, stride = d * element_bytes(element);
    float *scores = rows->scores + (size_t)row * CHUNK_KEYS;
    bool half = element == ELEMENT_BF16_DOT || element == ELEMENT_FP8_DOT;
    const char *query = (const char *)rows->query + (size_t)row * d * (half ? sizeof(uint16_t) : sizeof(float));
    int key = chunk->begin & -kn;

    while (key < chunk->end) {
        int block = key / BLOCK_KEYS, stop = (block + 1) * BLOCK_KEYS;
        const char *keys = chunk->memory[block];
        const char *ahead = row == 0 && block + AHEAD_BLOCKS < chunk->memory_blocks
                                ? chunk->memory[block + AHEAD_BLOCKS] : NULL;

        stop = stop < chunk->end ? stop : chunk->end;
        for (; key < stop; key += kn) {
            size_t offset = (size_t)(key % BLOCK_KEYS) * stride;
            vec s;

            if (ahead != NULL)
                ask_for(ahead + offset, (size_t)kn * stride);
#if BF16_DOT
            if (half)
                s = dot_products_bf16(nr, element, keys + offset, (const uint16_t *)query, d);
            else
#endif
                s = dot_products(nr, element, keys + offset, (const float *)query, d);
            v_store(scores + (size_t)key * (size_t)nr, s);
        }
    }
}

/* ---- softmax -------------------------------------------------------------------------------------- */

/* Keys that a row does not see, in the groups of which score_rows computed some: score -Inf. */
INLINE void hide_keys(const int nr, const struct rows *rows, int row, const struct chunk *chunk)
{
    const int kn = LANES / nr;
    int first = chunk->begin & -kn, last = (chunk->end + kn - 1) & -kn;
    float *scores = rows->scores + (size_t)row * CHUNK_KEYS;

    for (int r = 0; r < nr; r++) {
        bool own = chunk->row_begin != NULL && row + r < rows->rows;
        int begin = own ? chunk->row_begin[row + r] : chunk->begin;
        int end = own ? chunk->row_end[row + r] : chunk->end;

        for (int key = first; key < begin; key++)
            scores[key / kn * LANES + r * kn + key % kn] = -INFINITY;
        for (int key = end; key < last; key++)
            scores[key / kn * LANES + r * kn + key % kn] = -INFINITY;
    }
}

INLINE vec max_of_keys(const int kn, vec a)
{
    if (kn > 1)
        a = v_max(a, v_swap(a, 1));
    if (kn > 2)
        a = v_max(a, v_swap(a, 2));
#if LANES > 4
    if (kn > 4)
        a = v_max(a, v_swap(a, 4));
#endif
#if LANES > 8
    if (kn > 8)
        a = v_max(a, v_swap(a, 8));
#endif
    return a;
}

INLINE vec sum_of_keys(const int kn, vec a)
{
    if (kn > 1)
        a = v_add(a, v_swap(a, 1));
    if (kn > 2)
        a = v_add(a, v_swap(a, 2));
#if LANES > 4
    if (kn > 4)
        a = v_add(a, v_swap(a, 4));
#endif
#if LANES > 8
    if (kn > 8)
        a = v_add(a, v_swap(a, 8));
#endif
    return a;
}

/* Scores become weights.  The maximum passes over NaN, whose weight is NaN all the same; a row of nothing
 * but -Inf has weights of 0. */
INLINE void weights_of_rows(const int nr, const struct rows *rows, int row, const struct chunk *chunk,
                            float *partial)
{
    const int kn = LANES / nr;
    size_t first = (size_t)(chunk->begin & -kn) * (size_t)nr;
    size_t last = (size_t)((chunk->end + kn - 1) & -kn) * (size_t)nr;
    float *scores = rows->scores + (size_t)row * CHUNK_KEYS, lanes[LANES];
    vec scale = v_set1(rows->scale), max = v_set1(-INFINITY), sum = v_set1(0.0f), base;

    for (size_t i = first; i < last; i += LANES)
        max = v_max(v_load(scores + i), max);
    max = max_of_keys(kn, max);
    base = v_or_zero(max);
    for (size_t i = first; i < last; i += LANES) {
        vec weight = v_exp2(v_mul(v_sub(v_load(scores + i), base), scale));

        sum = v_add(sum, weight);
        v_store(scores + i, weight);
    }
    sum = sum_of_keys(kn, sum);
    v_store(lanes, max);
    for (int r = 0; r < nr; r++)
        partial_max(partial, rows)[row + r] = lanes[r * kn];
    v_store(lanes, sum);
    for (int r = 0; r < nr; r++)
        partial_sum(partial, rows)[row + r] = lanes[r * kn];
}

/* ---- weighted sum of V ---------------------------------------------------------------------------- */

/* V is gone over once per tile of dimensions, so it is taken in parts that stay in the L1 cache. */
enum { PASS_BLOCKS = 4 };

INLINE void weigh_rows(const int nr, const enum element element, const struct rows *rows, int row,
                       const struct chunk *chunk, int begin, int end, float *partial)
{
    const int kn = LANES / nr;
    size_t d = (size_t)rows->head_dim, bytes = element_bytes(element), stride = d * bytes;
    const float *weights = rows->scores + (size_t)row * CHUNK_KEYS;
    float *out = partial + (size_t)row * d;

    for (size_t x = 0; x < d; x += TILE_VECTORS * LANES) {
        vec sums[4 * TILE_VECTORS];

        UNROLL
        for (int i = 0; i < nr * TILE_VECTORS; i++)
            sums[i] = begin == chunk->begin ? v_set1(0.0f)
                                            : v_load(out + (size_t)(i / TILE_VECTORS) * d + x +
                                                     (size_t)(i % TILE_VECTORS) * LANES);
        for (int key = begin; key < end;) {
            int block = key / BLOCK_KEYS, place = chunk->blocks + block;
            int stop = (block + 1) * BLOCK_KEYS < end ? (block + 1) * BLOCK_KEYS : end;
            size_t offset = (size_t)(key % BLOCK_KEYS) * stride + x * bytes;
            const char *values = chunk->memory[place] + offset;
            const char *ahead = row == 0 && place + AHEAD_BLOCKS < chunk->memory_blocks
                                    ? chunk->memory[place + AHEAD_BLOCKS] + offset : NULL;

            for (; key < stop; key++, values += stride) {
                const float *weight = weights + key / kn * LANES + key % kn;
                vec v[TILE_VECTORS];

                if (ahead != NULL) {
                    ask_for(ahead, TILE_VECTORS * LANES * bytes);
                    ahead += stride;
                }
                load_tile(element, values, v);
                UNROLL
                for (int r = 0; r < nr; r++) {
                    vec w = v_set1(weight[r * kn]);

                    UNROLL
                    for (int i = 0; i < TILE_VECTORS; i++)
                        sums[r * TILE_VECTORS + i] = v_fma(v[i], w, sums[r * TILE_VECTORS + i]);
                }
            }
        }
        UNROLL
        for (int i = 0; i < nr * TILE_VECTORS; i++)
            v_store(out + (size_t)(i / TILE_VECTORS) * d + x + (size_t)(i % TILE_VECTORS) * LANES, sums[i]);
    }
}

/* ---- a chunk -------------------------------------------------------------------------------------- */

#define SCORE(nr)                                                                                  \
    static void score_##nr(const struct rows *rows, int row, const struct chunk *chunk)            \
    {                                                                                              \
        switch (score_element(rows)) {                                                             \
        case ELEMENT_BF16: score_rows(nr, ELEMENT_BF16, rows, row, chunk); break;                  \
        case ELEMENT_FP16: score_rows(nr, ELEMENT_FP16, rows, row, chunk); break;                  \
        case ELEMENT_FP8: score_rows(nr, ELEMENT_FP8, rows, row, chunk); break;                    \
        case ELEMENT_BF16_DOT: score_rows(nr, ELEMENT_BF16_DOT, rows, row, chunk); break;          \
        case ELEMENT_FP8_DOT: score_rows(nr, ELEMENT_FP8_DOT, rows, row, chunk); break;            \
        }                                                                                          \
    }

#define WEIGHTS(nr)                                                                                \
    static void weights_##nr(const struct rows *rows, int row, const struct chunk *chunk,          \
                             float *partial)                                                       \
    {                                                                                              \
        hide_keys(nr, rows, row, chunk);                                                           \
        weights_of_rows(nr, rows, row, chunk, partial);                                            \
    }

#define WEIGH(nr)                                                                                  \
    static void weigh_##nr(const struct rows *rows, int row, const struct chunk *chunk, int begin, \
                           int end, float *partial)                                                \
    {                                                                                              \
        switch (element_of(rows->dtype)) {                                                         \
        case ELEMENT_BF16: weigh_rows(nr, ELEMENT_BF16, rows, row, chunk, begin, end, partial); break; \
        case ELEMENT_FP16: weigh_rows(nr, ELEMENT_FP16, rows, row, chunk, begin, end, partial); break; \
        default: weigh_rows(nr, ELEMENT_FP8, rows, row, chunk, begin, end, partial); break;        \
        }                                                                                          \
    }

SCORE(1) SCORE(2) SCORE(4)
WEIGHTS(1) WEIGHTS(2) WEIGHTS(4)
WEIGH(1) WEIGH(2) WEIGH(4)

static void chunk_partial(const struct rows *rows, const struct chunk *chunk, float *partial)
{
    int row = 0;

    for (; row + 4 <= rows->padded; row += 4) {
        score_4(rows, row, chunk);
        weights_4(rows, row, chunk, partial);
    }
    if (row + 2 == rows->padded) {
        score_2(rows, row, chunk);
        weights_2(rows, row, chunk, partial);
    } else if (row + 1 == rows->padded) {
        score_1(rows, row, chunk);
        weights_1(rows, row, chunk, partial);
    }
    for (int begin = chunk->begin, end; begin < chunk->end; begin = end) {
        end = (begin / BLOCK_KEYS + PASS_BLOCKS) * BLOCK_KEYS;
        end = end < chunk->end ? end : chunk->end;
        for (row = 0; row + 4 <= rows->padded; row += 4)
            weigh_4(rows, row, chunk, begin, end, partial);
        if (row + 2 == rows->padded)
            weigh_2(rows, row, chunk, begin, end, partial);
        else if (row + 1 == rows->padded)
            weigh_1(rows, row, chunk, begin, end, partial);
    }
}

/* ---- merge, finish -------------------------------------------------------------------------------- */

/* 2^x of one number, by the same polynomial. */
static float exp2_of(float x)
{
    float lanes[LANES];

    v_store(lanes, v_exp2(v_set1(x)));
    return lanes[0];
}

static void merge_partials(const struct rows *rows, float *left, float *right)
{
    float *left_max = partial_max(left, rows), *left_sum = partial_sum(left, rows);
    const float *right_max = partial_max(right, rows), *right_sum = partial_sum(right, rows);
    size_t d = (size_t)rows->head_dim;

    for (int r = 0; r < rows->padded; r++) {
        float max = left_max[r] > right_max[r] ? left_max[r] : right_max[r];
        float base = max == -INFINITY ? 0.0f : max;
        float a = exp2_of((left_max[r] - base) * rows->scale), b = exp2_of((right_max[r] - base) * rows->scale);
        vec wa = v_set1(a), wb = v_set1(b);

        left_max[r] = max;
        left_sum[r] = left_sum[r] * a + right_sum[r] * b;
        for (size_t x = (size_t)r * d; x < ((size_t)r + 1) * d; x += LANES)
            v_store(left + x, v_fma(v_load(right + x), wb, v_mul(v_load(left + x), wa)));
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

static void finish_row(const struct rows *rows, float *partial, int row, float scale, void *out)
{
    int d = rows->head_dim;
    float *values = partial + (size_t)row * (size_t)d, ordered[256];
    vec sum = v_set1(partial_sum(partial, rows)[row]), factor = v_set1(scale);
    bool paired = rows->dtype == QUIRE_DTYPE_BF16 || (PAIRED_FP16 && rows->dtype == QUIRE_DTYPE_FP16);

    for (int x = 0; x < d; x += LANES)
        v_store(values + x, v_mul(v_div(v_load(values + x), sum), factor));
    if (paired) {
        put_in_order(values, ordered, d);
        values = ordered;
    }
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
    .available = kernel_is_available,
    .load_query = load_query,
    .chunk = chunk_partial,
    .merge = merge_partials,
    .finish = finish_row,
};

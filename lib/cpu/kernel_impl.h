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
 *     v_quad(a[4])        in each part of four lanes: the sums of these lanes of a[0] to a[3]
 *     v_join(q[LANES/4])  lane 4i+j is the sum over q[i]'s lanes j of all parts
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
 * Scores, then weights, of a group of nr rows lie as [CHUNK_KEYS][nr].
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

INLINE bool is_dot(enum element element)
{
    return element == ELEMENT_BF16_DOT || element == ELEMENT_FP8_DOT;
}

/* Of an element of the query, as load_query leaves it. */
INLINE size_t query_bytes(enum element element)
{
    return is_dot(element) ? sizeof(uint16_t) : sizeof(float);
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

/* Memory that is asked for before its use, of AHEAD_STREAMS blocks in turn, each a share further than the
 * next.  Blocks lie anywhere: at the beginning of each the processor has to find its page and to see where
 * it goes, and meanwhile the other blocks keep memory busy. */
struct ahead {
    const char *stream[AHEAD_STREAMS];
};

/* What to ask for while block `at` is used from its byte `done` on. */
INLINE struct ahead look_ahead(const struct chunk *chunk, int at, size_t done, size_t block_bytes)
{
    struct ahead ahead;

    UNROLL
    for (int i = 0; i < AHEAD_STREAMS; i++) {
        int block = at + chunk->part_blocks + i;

        /* past the end of what is known, ask for the last again */
        block = block < chunk->memory_blocks ? block : chunk->memory_blocks - 1;
        ahead.stream[i] = chunk->memory[block] + ((size_t)(AHEAD_STREAMS - 1 - i) * block_bytes + done) / AHEAD_STREAMS;
    }
    return ahead;
}

/* Groups of four rows go over the same K and V one after the other; each asks for its part of what comes
 * next, at every `all`th step. */
struct turn {
    int mine, all; /* all: the largest power of two up to the groups of four; a group beyond has no turn */
};

static struct turn turn_of(const struct rows *rows, int row)
{
    struct turn turn = {row / 4, 1};

    while (turn.all * 8 <= rows->padded)
        turn.all *= 2;
    return turn;
}

INLINE bool is_turn(struct turn turn, int step)
{
    return turn.mine < turn.all && (step & (turn.all - 1)) == 0;
}

INLINE void ask(struct ahead *ahead)
{
    const char *asked = ahead->stream[0];

    __builtin_prefetch(asked);
    UNROLL
    for (int i = 1; i < AHEAD_STREAMS; i++)
        ahead->stream[i - 1] = ahead->stream[i];
    ahead->stream[AHEAD_STREAMS - 1] = asked + 64;
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
        size_t row_bytes = d * query_bytes(element);

        memset((char *)rows->query + (size_t)r * row_bytes, 0, row_bytes);
    }
}

/* ---- scores --------------------------------------------------------------------------------------- */

/* nr rows of the query with kn keys: for each pair a vector whose lanes add up to the dot product. */
INLINE void dot_products(const int nr, const int kn, const enum element element, const size_t d,
                         const char *keys, const void *query, bool asking, struct ahead *ahead, vec *sums)
{
    const size_t bytes = element_bytes(element), stride = d * bytes;

    UNROLL
    for (int i = 0; i < kn * nr; i++)
        sums[i] = v_set1(0.0f);
#if BF16_DOT
    if (is_dot(element)) {
        UNROLL
        for (size_t x = 0; x < d; x += 4 * LANES) {
            vec_bf16 a[4], b[4];

            UNROLL
            for (int k = 0; k < kn; k++) {
                const char *key = keys + (size_t)k * stride + x * bytes;

                if (asking)
                    UNROLL
                    for (size_t i = 0; i < 4 * LANES * bytes; i += 64)
                        ask(ahead);
                if (element == ELEMENT_FP8_DOT) {
                    b_pair_fp8(key, &a[k], &b[k]);
                } else {
                    a[k] = b_load(key);
                    b[k] = b_load(key + 4 * LANES);
                }
            }
            UNROLL
            for (int r = 0; r < nr; r++) {
                const uint16_t *q = (const uint16_t *)query + (size_t)r * d + x;
                vec_bf16 qa = b_load(q), qb = b_load(q + 2 * LANES);

                UNROLL
                for (int k = 0; k < kn; k++)
                    sums[k * nr + r] = v_dot(v_dot(sums[k * nr + r], a[k], qa), b[k], qb);
            }
        }
        return;
    }
#endif
    for (size_t x = 0; x < d; x += 2 * LANES) {
        vec a[4], b[4];

        UNROLL
        for (int k = 0; k < kn; k++) {
            if (asking && x * bytes % 64 == 0)
                ask(ahead);
            load_pair(element, keys + (size_t)k * stride + x * bytes, &a[k], &b[k]);
        }
        UNROLL
        for (int r = 0; r < nr; r++) {
            const float *q = (const float *)query + (size_t)r * d + x;
            vec qa = v_load(q), qb = v_load(q + LANES);

            UNROLL
            for (int k = 0; k < kn; k++)
                sums[k * nr + r] = v_fma(b[k], qb, v_fma(a[k], qa, sums[k * nr + r]));
        }
    }
}

/* Scores of nr rows from `row` on with keys [begin, end) of a part, for every vector that holds one of a
 * visible key.  Few keys at a time, and so nearly in the order of memory: of many rows at once the
 * processor's own prefetching makes less. */
INLINE void score_rows(const int nr, const enum element element, const size_t d, const struct rows *rows,
                       int row, const struct chunk *chunk, int begin, int end)
{
    const int kn = nr < 4 ? 4 / nr : LANES > 4 ? 2 : 1; /* keys that share a load of the query */
    const size_t stride = d * element_bytes(element), block_bytes = BLOCK_KEYS * stride;
    const char *query = (const char *)rows->query + (size_t)row * d * query_bytes(element);
    float *scores = rows->scores + (size_t)row * CHUNK_KEYS;
    int key = begin & -(LANES / nr), part = begin / BLOCK_KEYS;
    struct turn turn = turn_of(rows, row);

    while (key < end) {
        int block = key / BLOCK_KEYS, stop = (block + 1) * BLOCK_KEYS;
        size_t offset = (size_t)(key % BLOCK_KEYS) * stride;
        const char *keys = chunk->memory[block] + offset;
        size_t done = ((size_t)(turn.mine * chunk->part_blocks + block - part) * block_bytes + offset) / (size_t)turn.all;
        struct ahead ahead = look_ahead(chunk, part + (int)(done / block_bytes), done % block_bytes, block_bytes);

        stop = stop < end ? stop : end;
        for (; key < stop; key += LANES / nr) {
            bool asking = is_turn(turn, key / (LANES / nr));
            vec quads[LANES / 4];

            UNROLL
            for (int q = 0; q < LANES / 4; q += kn * nr / 4, keys += (size_t)kn * stride) {
                vec sums[8];

                dot_products(nr, kn, element, d, keys, query, asking, &ahead, sums);
                UNROLL
                for (int i = 0; i < kn * nr / 4; i++)
                    quads[q + i] = v_quad(sums + 4 * i);
            }
            v_store(scores + key * nr, v_join(quads));
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
            scores[key * nr + r] = -INFINITY;
        for (int key = end; key < last; key++)
            scores[key * nr + r] = -INFINITY;
    }
}

/* Over the keys of a vector, whose lanes are nr apart. */
INLINE vec max_of_keys(const int nr, vec a)
{
    UNROLL
    for (int n = nr; n < LANES; n *= 2)
        a = v_max(a, v_swap(a, n));
    return a;
}

INLINE vec sum_of_keys(const int nr, vec a)
{
    UNROLL
    for (int n = nr; n < LANES; n *= 2)
        a = v_add(a, v_swap(a, n));
    return a;
}

/* The maximum passes over NaN, whose weight will be NaN all the same. */
INLINE void max_of_rows(const int nr, const struct rows *rows, int row, const struct chunk *chunk, float *partial)
{
    int first = (chunk->begin & -(LANES / nr)) * nr, end = chunk->end * nr;
    const float *scores = rows->scores + (size_t)row * CHUNK_KEYS;
    float lanes[LANES];
    vec max = v_set1(-INFINITY);

    for (int i = first; i < end; i += LANES)
        max = v_max(v_load(scores + i), max);
    v_store(lanes, max_of_keys(nr, max));
    for (int r = 0; r < nr; r++)
        partial_max(partial, rows)[row + r] = lanes[r];
}

/* Scores of keys [begin, end) become weights, and are added to the rows' sums.  A row of nothing but -Inf
 * has weights of 0. */
INLINE void weights_of_rows(const int nr, const struct rows *rows, int row, const struct chunk *chunk, int begin,
                            int end, float *partial)
{
    float *scores = rows->scores + (size_t)row * CHUNK_KEYS, *sums = partial_sum(partial, rows) + row;
    const float *bases = partial_max(partial, rows) + row;
    float lanes[LANES];
    vec scale = v_set1(rows->scale), sum = v_set1(0.0f), base;

    for (int i = 0; i < LANES; i++)
        lanes[i] = bases[i % nr];
    base = v_or_zero(v_load(lanes));
    for (int i = (begin & -(LANES / nr)) * nr; i < end * nr; i += LANES) {
        vec weight = v_exp2(v_mul(v_sub(v_load(scores + i), base), scale));

        sum = v_add(sum, weight);
        v_store(scores + i, weight);
    }
    v_store(lanes, sum_of_keys(nr, sum));
    for (int r = 0; r < nr; r++)
        sums[r] = begin == chunk->begin ? lanes[r] : sums[r] + lanes[r];
}

/* ---- weighted sum of V ---------------------------------------------------------------------------- */

/* Adds one key's tile of V, weighed for each row. */
INLINE void weigh_key(const int nr, const enum element element, const char *values, const float *weight, vec *sums)
{
    vec v[TILE_VECTORS];

    load_tile(element, values, v);
    UNROLL
    for (int r = 0; r < nr; r++) {
        vec w = v_set1(weight[r]);

        UNROLL
        for (int i = 0; i < TILE_VECTORS; i++)
            sums[r * TILE_VECTORS + i] = v_fma(v[i], w, sums[r * TILE_VECTORS + i]);
    }
}

INLINE void weigh_rows(const int nr, const enum element element, const struct rows *rows, int row,
                       const struct chunk *chunk, int begin, int end, float *partial)
{
    size_t d = (size_t)rows->head_dim, bytes = element_bytes(element), stride = d * bytes;
    size_t tile_bytes = TILE_VECTORS * LANES * bytes, block_bytes = BLOCK_KEYS * stride;
    const float *weights = rows->scores + (size_t)row * CHUNK_KEYS;
    float *out = partial + (size_t)row * d;
    int part = chunk->blocks + begin / BLOCK_KEYS; /* first block of this part */
    struct turn turn = turn_of(rows, row);

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
            const char *values = chunk->memory[place] + (size_t)(key % BLOCK_KEYS) * stride + x * bytes;
            const float *weight = weights + key * nr;
            /* by the order of groups, passes and blocks, so many bytes of the part are done */
            size_t done = (((size_t)turn.mine * stride + x * bytes) * (size_t)chunk->part_blocks +
                           (size_t)(place - part) * tile_bytes) * BLOCK_KEYS / (size_t)turn.all;
            struct ahead ahead = look_ahead(chunk, part + (int)(done / block_bytes), done % block_bytes, block_bytes);

            for (; key + 2 <= stop; key += 2) {
                bool asking = is_turn(turn, key / 2);

                UNROLL
                for (int k = 0; k < 2; k++, values += stride, weight += nr) {
                    if (asking && (tile_bytes >= 64 || k == 0))
                        UNROLL
                        for (size_t i = 0; i < tile_bytes; i += 64)
                            ask(&ahead);
                    weigh_key(nr, element, values, weight, sums);
                }
            }
            for (; key < stop; key++, values += stride, weight += nr)
                weigh_key(nr, element, values, weight, sums);
        }
        UNROLL
        for (int i = 0; i < nr * TILE_VECTORS; i++)
            v_store(out + (size_t)(i / TILE_VECTORS) * d + x + (size_t)(i % TILE_VECTORS) * LANES, sums[i]);
    }
}

/* ---- a chunk -------------------------------------------------------------------------------------- */

/* The bf16 dot instruction leaves so little to do that a loop over a compile-time head size, unrolled, is
 * 10 % faster; elsewhere it would only be much code. */
INLINE void score_rows_of(const int nr, const enum element element, const struct rows *rows, int row,
                          const struct chunk *chunk, int begin, int end)
{
    if (!is_dot(element))
        score_rows(nr, element, (size_t)rows->head_dim, rows, row, chunk, begin, end);
    else if (rows->head_dim == 64)
        score_rows(nr, element, 64, rows, row, chunk, begin, end);
    else if (rows->head_dim == 128)
        score_rows(nr, element, 128, rows, row, chunk, begin, end);
    else
        score_rows(nr, element, 256, rows, row, chunk, begin, end);
}

#if BF16_DOT
#define SCORE_DOT(nr)                                                                              \
    case ELEMENT_BF16_DOT: score_rows_of(nr, ELEMENT_BF16_DOT, rows, row, chunk, begin, end); break; \
    case ELEMENT_FP8_DOT: score_rows_of(nr, ELEMENT_FP8_DOT, rows, row, chunk, begin, end); break; \
    default: break;
#else
#define SCORE_DOT(nr)                                                                              \
    default: score_rows_of(nr, ELEMENT_FP8, rows, row, chunk, begin, end); break;
#endif

#define SCORE(nr)                                                                                  \
    static void score_##nr(const struct rows *rows, int row, const struct chunk *chunk, int begin, \
                           int end, float *partial)                                                \
    {                                                                                              \
        switch (score_element(rows)) {                                                             \
        case ELEMENT_BF16: score_rows_of(nr, ELEMENT_BF16, rows, row, chunk, begin, end); break;   \
        case ELEMENT_FP16: score_rows_of(nr, ELEMENT_FP16, rows, row, chunk, begin, end); break;   \
        SCORE_DOT(nr)                                                                              \
        }                                                                                          \
        if (end == chunk->end) {                                                                   \
            hide_keys(nr, rows, row, chunk);                                                       \
            max_of_rows(nr, rows, row, chunk, partial);                                            \
        }                                                                                          \
    }

#define WEIGH(nr)                                                                                  \
    static void weigh_##nr(const struct rows *rows, int row, const struct chunk *chunk, int begin, \
                           int end, float *partial)                                                \
    {                                                                                              \
        weights_of_rows(nr, rows, row, chunk, begin, end, partial);                                \
        switch (element_of(rows->dtype)) {                                                         \
        case ELEMENT_BF16: weigh_rows(nr, ELEMENT_BF16, rows, row, chunk, begin, end, partial); break; \
        case ELEMENT_FP16: weigh_rows(nr, ELEMENT_FP16, rows, row, chunk, begin, end, partial); break; \
        default: weigh_rows(nr, ELEMENT_FP8, rows, row, chunk, begin, end, partial); break;        \
        }                                                                                          \
    }

SCORE(1) SCORE(2) SCORE(4)
WEIGH(1) WEIGH(2) WEIGH(4)

typedef void step(const struct rows *rows, int row, const struct chunk *chunk, int begin, int end, float *partial);

/* One step for every group of rows, part by part. */
INLINE void for_all_rows(const struct rows *rows, const struct chunk *chunk, float *partial, step *four, step *two,
                         step *one)
{
    for (int begin = chunk->begin, end; begin < chunk->end; begin = end) {
        int row = 0;

        end = (begin / BLOCK_KEYS + chunk->part_blocks) * BLOCK_KEYS;
        end = end < chunk->end ? end : chunk->end;
        for (; row + 4 <= rows->padded; row += 4)
            four(rows, row, chunk, begin, end, partial);
        if (row + 2 == rows->padded)
            two(rows, row, chunk, begin, end, partial);
        else if (row + 1 == rows->padded)
            one(rows, row, chunk, begin, end, partial);
    }
}

static void chunk_partial(const struct rows *rows, const struct chunk *chunk, float *partial)
{
    for_all_rows(rows, chunk, partial, score_4, score_2, score_1);
    for_all_rows(rows, chunk, partial, weigh_4, weigh_2, weigh_1);
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
            vec wa = v_set1(a[r]), wb = v_set1(b[r]);
            float *to = left + (size_t)(first + r) * d;
            const float *from = right + (size_t)(first + r) * d;

            left_sum[first + r] = left_sum[first + r] * a[r] + right_sum[first + r] * b[r];
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

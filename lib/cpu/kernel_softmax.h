/* kernel_softmax.h - maxima of scores, and the weights that scores become
 *
 * Included by kernel_impl.h alone.
 *
 * SPDX-License-Identifier: Apache-2.0 */

/* Of a group of rows, in the lanes in which its scores are: what its scores are taken relative to, and the sums of its
 * weights, not yet added over the keys of a vector. */
struct softmax {
    float base[LANES], sum[LANES];
};

/* Where the scores of nr rows with key `key` begin, and from there the place of row `row`: of four and fewer rows
 * next to each other; of eight in pairs, after each pair that of the next key. */
INLINE int place_of(const int nr, int key)
{
    return nr == 8 ? key / 2 * 16 + key % 2 * 2 : key * nr;
}

INLINE int place_of_row(const int nr, int row)
{
    return nr == 8 ? row / 2 * 4 + row % 2 : row;
}

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
            scores[place_of(nr, key) + place_of_row(nr, r)] = -INFINITY;
        for (int key = end; key < last; key++)
            scores[place_of(nr, key) + place_of_row(nr, r)] = -INFINITY;
    }
}

/* Over the keys of a vector. */
INLINE vec max_of_keys(const int nr, vec a)
{
    if (nr == 8)
        return v_max(a, v_swap(a, 2));
    UNROLL
    for (int n = nr; n < LANES; n *= 2)
        a = v_max(a, v_swap(a, n));
    return a;
}

INLINE vec sum_of_keys(const int nr, vec a)
{
    if (nr == 8)
        return v_add(a, v_swap(a, 2));
    UNROLL
    for (int n = nr; n < LANES; n *= 2)
        a = v_add(a, v_swap(a, n));
    return a;
}

/* The maximum passes over NaN, whose weight will be NaN all the same.  Four maxima side by side, for the sake of
 * the instruction's latency. */
INLINE void max_of_rows(const int nr, const struct rows *rows, int row, const struct chunk *chunk,
                        struct softmax *softmax, float *partial)
{
    int i = (chunk->begin & -(LANES / nr)) * nr, end = chunk->end * nr;
    const float *scores = rows->scores + (size_t)row * CHUNK_KEYS;
    float lanes[LANES];
    vec max[4];

    UNROLL
    for (int k = 0; k < 4; k++)
        max[k] = v_set1(-INFINITY);
    for (; i + 3 * LANES < end; i += 4 * LANES) {
        UNROLL
        for (int k = 0; k < 4; k++)
            max[k] = v_max(v_load(scores + i + k * LANES), max[k]);
    }
    for (; i < end; i += LANES)
        max[0] = v_max(v_load(scores + i), max[0]);
    max[0] = max_of_keys(nr, v_max(v_max(max[0], max[1]), v_max(max[2], max[3])));
    v_store(softmax->base, v_or_zero(max[0])); /* a row of nothing but -Inf has weights of 0 */
    v_store(softmax->sum, v_set1(0.0f));
    v_store(lanes, max[0]);
    for (int r = 0; r < nr; r++)
        partial_max(partial, rows)[row + r] = lanes[place_of_row(nr, r)];
}

/* After all scores of a chunk. */
INLINE void end_scores_of(const int nr, const struct rows *rows, int row, const struct chunk *chunk,
                          struct softmax *softmax, float *partial)
{
    hide_keys(nr, rows, row, chunk);
    max_of_rows(nr, rows, row, chunk, softmax, partial);
}

/* Scores of keys [begin, end) become weights, and are added to the rows' sums. */
INLINE void weights_of_rows(const int nr, const struct rows *rows, int row, int begin, int end,
                            struct softmax *softmax)
{
    float *scores = rows->scores + (size_t)row * CHUNK_KEYS;
    vec scale = v_set1(rows->scale), sum = v_load(softmax->sum), base = v_load(softmax->base);
#if WHOLE_BLOCKS
    vec halves = v_set1(rows->dtype == QUIRE_DTYPE_FP8E4M3 ? HALVES_SCALE : 1.0f); /* V is smaller */
#endif

    for (int i = (begin & -(LANES / nr)) * nr; i < end * nr; i += LANES) {
        vec weight = v_exp2(v_mul(v_sub(v_load(scores + i), base), scale));

        sum = v_add(sum, weight);
#if WHOLE_BLOCKS
        weight = v_mul(weight, halves);
#endif
        v_store(scores + i, weight);
    }
    v_store(softmax->sum, sum);
}

/* Weights become LOWERED ones. */
INLINE void lower_weights_of(const int nr, const struct rows *rows, int row, const struct chunk *chunk)
{
    float *weights = rows->scores + (size_t)row * CHUNK_KEYS;

    for (int i = (chunk->begin & -(LANES / nr)) * nr; i < chunk->end * nr; i += LANES)
        v_store(weights + i, v_mul(v_load(weights + i), v_set1(LOWERED)));
}

/* After all weights of a chunk. */
INLINE void end_weights_of(const int nr, const struct rows *rows, int row, const struct softmax *softmax,
                           float *partial)
{
    float lanes[LANES];

    v_store(lanes, sum_of_keys(nr, v_load(softmax->sum)));
    for (int r = 0; r < nr; r++)
        partial_sum(partial, rows)[row + r] = lanes[place_of_row(nr, r)];
}

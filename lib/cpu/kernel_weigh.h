/* kernel_weigh.h - the weighted sum of V
 *
 * Included by kernel_impl.h alone.
 *
 * SPDX-License-Identifier: Apache-2.0 */

#if LANES < 16
INLINE vec v_fma_spread(vec a, const float *b, vec c)
{
    return v_fma(a, v_set1(*b), c);
}
#endif

/* Rows whose weights go through a register; those of the others are operands of each product.  What makes floats of fp8
 * and fp16 wants the pipes that broadcasts take; but if all weights were operands, there would be more loads than
 * products. */
INLINE int broadcast_rows(enum element element)
{
    return element == ELEMENT_BF16 ? 4 : 2;
}

/* Adds one key's tile of V, weighed for rows [first, last) of a group of nr. */
INLINE void weigh_key(const int nr, const int first, const int last, const int vectors, const enum element element,
                      const char *values, const float *weights, vec *sums)
{
    vec v[MOST_SUMS];

    UNROLL
    for (int i = 0; i < vectors; i += TILE_VECTORS)
        load_tile(element, values + (size_t)i * LANES * element_bytes(element), v + i);
    UNROLL
    for (int r = first; r < last; r++) {
        const float *weight = &weights[place_of_row(nr, r)];
        vec w = v_set1(*weight), *sum = &sums[(r - first) * vectors];

        UNROLL
        for (int i = 0; i < vectors; i++)
            sum[i] = r - first < broadcast_rows(element) ? v_fma(v[i], w, sum[i]) : v_fma_spread(v[i], weight, sum[i]);
    }
}

/* Rows [first, last) of a group of nr, `vectors` vectors of V at a time: as many sums as there are registers for. */
INLINE void weigh_rows(const int nr, const int first, const int last, const int vectors, const enum element element,
                       const struct rows *rows, int row, const struct chunk *chunk, int begin, int end,
                       float *partial)
{
    const size_t tile = (size_t)vectors * LANES;
    size_t d = (size_t)rows->head_dim, bytes = element_bytes(element), stride = d * bytes;
    const float *weights = rows->scores + (size_t)row * CHUNK_KEYS;
    float *out = partial + (size_t)(row + first) * d;
    int part = chunk->blocks + begin / BLOCK_KEYS;
    struct turn turn = turn_of(rows, row + first, 4);

    for (size_t x = 0; x < d; x += tile) {
        vec sums[MOST_SUMS];

        UNROLL
        for (int i = 0; i < (last - first) * vectors; i++)
            sums[i] = begin == chunk->begin
                          ? v_set1(0.0f)
                          : v_load(out + (size_t)(i / vectors) * d + x + (size_t)(i % vectors) * LANES);
        for (int key = begin; key < end;) {
            int block = key / BLOCK_KEYS, stop = (block + 1) * BLOCK_KEYS < end ? (block + 1) * BLOCK_KEYS : end;
            const char *values = chunk->memory[chunk->blocks + block] + (size_t)(key % BLOCK_KEYS) * stride + x * bytes;
            /* by the order of groups, passes and blocks */
            size_t used = (((size_t)turn.mine * stride + x * bytes) * (size_t)chunk->part_blocks +
                           (size_t)(chunk->blocks + block - part) * tile * bytes) * BLOCK_KEYS;
            struct ahead ahead = look_ahead(chunk, turn, part, used, nr < 4);

            for (; key + 2 <= stop; key += 2) {
                bool asking = is_turn(turn, key / 2);

                UNROLL
                for (int k = 0; k < 2; k++, values += stride) {
                    if (asking && (tile * bytes >= 64 || k == 0))
                        UNROLL
                        for (size_t i = 0; i < tile * bytes; i += 64)
                            ask(&ahead);
                    weigh_key(nr, first, last, vectors, element, values, weights + place_of(nr, key + k), sums);
                }
            }
            for (; key < stop; key++, values += stride)
                weigh_key(nr, first, last, vectors, element, values, weights + place_of(nr, key), sums);
        }
        UNROLL
        for (int i = 0; i < (last - first) * vectors; i++)
            v_store(out + (size_t)(i / vectors) * d + x + (size_t)(i % vectors) * LANES, sums[i]);
    }
}

/* All rows of a group.  One or two rows leave registers for more of V at a time, if fp8's tables do not need them. */
INLINE void weigh_rows_of(const int nr, const enum element element, const struct rows *rows, int row,
                          const struct chunk *chunk, int begin, int end, float *partial)
{
    const int all = nr < 4 ? nr : 4, few = TILE_VECTORS;

    if (nr == 1 && rows->head_dim >= 4 * few * LANES)
        weigh_rows(nr, 0, all, 4 * few, element, rows, row, chunk, begin, end, partial);
    else if (nr <= (element == ELEMENT_FP8 ? 1 : 2) && rows->head_dim >= 2 * few * LANES)
        weigh_rows(nr, 0, all, 2 * few, element, rows, row, chunk, begin, end, partial);
    else
        weigh_rows(nr, 0, all, few, element, rows, row, chunk, begin, end, partial);
    if (nr == 8)
        weigh_rows(nr, 4, 8, few, element, rows, row, chunk, begin, end, partial);
}

/* kernel_score.h - dot products of queries and keys
 *
 * Included by kernel_impl.h alone.
 *
 * SPDX-License-Identifier: Apache-2.0 */

/* The blocks of K that all rows go over before the next ones. */
INLINE int score_blocks(const struct rows *rows, const struct chunk *chunk)
{
#if EIGHT_ROWS
    if (stages_keys(rows) && chunk->part_blocks > 1) /* what was converted takes more room */
        return chunk->part_blocks / 2;
#endif
    (void)rows;
    return chunk->part_blocks;
}

/* Rows whose scores are computed together, at most. */
INLINE int widest_group(const struct rows *rows)
{
    int eights = rows_in_eights(rows);

    return eights >= 16 ? 16 : eights > 0 || rows_in_fours(rows) >= 8 ? 8 : 4;
}

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
            vec_bf16 qa[4], qb[4];

            UNROLL
            for (int r = 0; r < nr; r++) {
                const uint16_t *q = (const uint16_t *)query + (size_t)r * d + x;

                qa[r] = b_load_once(q);
                qb[r] = b_load_once(q + 2 * LANES);
            }
            /* key by key, so that fp8 is converted between the products */
            UNROLL
            for (int k = 0; k < kn; k++) {
                const char *key = keys + (size_t)k * stride + x * bytes;
                vec *sum = &sums[k * nr];
                vec_bf16 a, b;

                if (asking)
                    UNROLL
                    for (size_t i = 0; i < 4 * LANES * bytes; i += 64)
                        ask(ahead);
                if (element == ELEMENT_FP8_DOT) {
                    b_pair_fp8(key, &a, &b);
                } else {
                    a = b_load(key);
                    b = b_load(key + 4 * LANES);
                }
                UNROLL
                for (int r = 0; r < nr; r++)
                    sum[r] = v_dot(sum[r], a, qa[r]);
                UNROLL
                for (int r = 0; r < nr; r++)
                    sum[r] = v_dot(sum[r], b, qb[r]);
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
    /* keys that share a load of the query: as many sums as registers allow, to fill the time a dot product takes */
    const int kn = LANES == 16 ? 4 : nr < 4 ? 4 / nr : LANES > 4 ? 2 : 1;
    const size_t stride = d * element_bytes(element);
    const char *query = query_row(rows, d, row);
    float *scores = rows->scores + (size_t)row * CHUNK_KEYS;
    int key = begin & -(LANES / nr);
    struct turn turn = turn_of(rows, row, widest_group(rows));
    int part = begin / BLOCK_KEYS, blocks = score_blocks(rows, chunk);

    while (key < end) {
        int block = key / BLOCK_KEYS, stop = (block + 1) * BLOCK_KEYS;
        size_t offset = (size_t)(key % BLOCK_KEYS) * stride;
        const char *keys = chunk->memory[block] + offset;
        size_t used = ((size_t)(turn.mine * blocks + block - part) << chunk->block_shift) + offset;
        struct ahead ahead = look_ahead(chunk, turn, part, used, nr < 4);

        stop = stop < end ? stop : end;
        for (; key < stop; key += LANES / nr) {
            bool asking = is_turn(turn, key / (LANES / nr));
            vec quads[LANES / 4];

            UNROLL
            for (int q = 0; q < LANES / 4; q += kn * nr / 4, keys += (size_t)kn * stride) {
                vec sums[16];

                dot_products(nr, kn, element, d, keys, query, asking, &ahead, sums);
                UNROLL
                for (int i = 0; i < kn * nr / 4; i++)
                    quads[q + i] = v_quad(sums + 4 * i);
            }
            v_store(scores + key * nr, v_join(quads));
        }
    }
}

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
/* The same for eight rows with fp8, in two groups of four, whole blocks of keys at a time.  A vector holds a piece of
 * each of four keys, and so does that of a row of the query, four times the same: keys are converted once, and only
 * four lanes have to be added in the end. */
INLINE void score_fours(const size_t d, const struct rows *rows, int row, const struct chunk *chunk, int begin, int end)
{
    enum { NR = 8, VECTORS = 2, KN = 4 * VECTORS };
    const size_t query_stride = repeated_bytes(d);
    int part = begin / BLOCK_KEYS;
    struct turn turn = turn_of(rows, row, widest_group(rows));

    for (int key = part * BLOCK_KEYS; key < end; key += KN) {
        int block = key / BLOCK_KEYS;
        size_t offset = (size_t)(key % BLOCK_KEYS) * d;
        const char *keys = chunk->memory[block] + offset;
        const char *query = (const char *)rows->query + (size_t)row * query_stride;
        float *scores = rows->scores + (size_t)row * CHUNK_KEYS + key * 4;
        struct ahead ahead = look_ahead(chunk, turn, part, ((size_t)(block - part) << chunk->block_shift) + offset,
                                        false);
        vec sums[NR * VECTORS];

        UNROLL
        for (int i = 0; i < NR * VECTORS; i++)
            sums[i] = v_set1(0.0f);
        for (size_t x = 0; x < d; x += 16, query += 2 * 4 * LANES) {
            vec_bf16 a[VECTORS], b[VECTORS];

            UNROLL
            for (int i = 0; i < KN * 16 / 64; i++) /* no other rows ask: there are fewer than 16 */
                ask(&ahead);
            UNROLL
            for (int k = 0; k < VECTORS; k++)
                b_four_keys_fp8(keys + (size_t)k * 4 * d + x, d, &a[k], &b[k]);
            UNROLL
            for (int r = 0; r < NR; r++) {
                vec_bf16 qa = b_load_once(query + (size_t)r * query_stride);
                vec_bf16 qb = b_load_once(query + (size_t)r * query_stride + 4 * LANES);

                UNROLL
                for (int k = 0; k < VECTORS; k++)
                    sums[k * NR + r] = v_dot(v_dot(sums[k * NR + r], a[k], qa), b[k], qb);
            }
        }
        UNROLL
        for (int i = 0; i < 2 * VECTORS; i++)
            v_store(scores + i % 2 * 4 * CHUNK_KEYS + i / 2 * LANES, v_quad(sums + 4 * i));
    }
}
#endif

#if EIGHT_ROWS
/* The same for one or two groups of eight rows, whole blocks of keys at a time.  A vector of the query holds one
 * piece of each row, and a piece of a key goes to all of them: so only pairs of lanes have to be added in the
 * end, and sixteen sums leave no gap in the two pipes that multiply. */
INLINE void score_eights(const int groups, const enum element element, const size_t d, const struct rows *rows,
                         int row, const struct chunk *chunk, int begin, int end)
{
    enum { SUMS = 16 };
    const int kn = SUMS / groups;
    const size_t stride = d * element_bytes(element), bytes = element_bytes(element_of(rows->dtype));
    const size_t step = 16 * element_bytes(element); /* of a key, in bytes */
    int part = begin / BLOCK_KEYS;
    struct turn turn = turn_of(rows, row, widest_group(rows));
    int blocks = score_blocks(rows, chunk);
    int asks = turn.mine >> turn.shift == 0 ? (int)((size_t)kn * 16 * bytes / 64) >> turn.shift : 0; /* in a step */

    for (int key = part * BLOCK_KEYS; key < end; key += kn) {
        int block = key / BLOCK_KEYS;
        const char *keys = stages_keys(rows) ? staged_block(element, rows, block, part) : chunk->memory[block];
        const char *query = (const char *)rows->query + (size_t)row * stride;
        float *scores = rows->scores + (size_t)row * CHUNK_KEYS + key * 8;
        vec sums[SUMS];

        size_t used = ((size_t)(turn.mine * blocks + block - part) << chunk->block_shift) +
                      (size_t)(key % BLOCK_KEYS) * d * bytes;
        struct ahead ahead = look_ahead(chunk, turn, part, used, false);

        keys += (size_t)(key % BLOCK_KEYS) * stride;
        UNROLL
        for (int i = 0; i < SUMS; i++)
            sums[i] = v_set1(0.0f);
        for (size_t x = 0; x < stride; x += step) {
            for (int i = 0; i < asks; i++)
                ask(&ahead);
            UNROLL
            for (size_t y = 0; y < step; y += PIECE_BYTES, keys += PIECE_BYTES, query += 8 * PIECE_BYTES) {
                UNROLL
                for (int k = 0; k < kn; k++) {
                    UNROLL
                    for (int g = 0; g < groups; g++) {
                        const char *piece = keys + (size_t)k * stride, *q = query + (size_t)g * 8 * stride;
                        vec *sum = &sums[k * groups + g];

#if BF16_DOT
                        if (element == ELEMENT_BF16_DOT) {
                            *sum = v_dot(*sum, b_spread(piece), b_load(q));
                            continue;
                        }
#endif
                        *sum = v_fma(v_spread(piece), v_load((const float *)q), *sum);
                    }
                }
            }
        }
        UNROLL
        for (int k = 0; k < kn; k += 2) {
            UNROLL
            for (int g = 0; g < groups; g++)
                v_store(scores + g * 8 * CHUNK_KEYS + k * 8,
                        v_pair_sums(sums[k * groups + g], sums[(k + 1) * groups + g]));
        }
    }
}

INLINE void score_eights_of(const int groups, const enum element element, const struct rows *rows, int row,
                            const struct chunk *chunk, int begin, int end)
{
    if (rows->head_dim == 64)
        score_eights(groups, element, 64, rows, row, chunk, begin, end);
    else if (rows->head_dim == 128)
        score_eights(groups, element, 128, rows, row, chunk, begin, end);
    else
        score_eights(groups, element, 256, rows, row, chunk, begin, end);
}
#endif

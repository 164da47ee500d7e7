/* kernel_blocks.h - scores and the weighted sum of V where there are 16 registers of 8 floats
 *
 * The sums of kernel_score.h and kernel_weigh.h, in loops over whole blocks that do little else than multiply: eight
 * sums at a time fill the two pipes for that only if nothing holds them up.
 *
 * Included by kernel_impl.h alone.
 *
 * SPDX-License-Identifier: Apache-2.0 */

enum { BLOCK_SUMS = 8 };

/* Asks for what lies in [at, at + bytes) of the memory that a loop goes over, if at and its steps are multiples of
 * 16. */
INLINE void ask_bytes(const bool asking, struct ahead *ahead, const size_t at, const size_t bytes)
{
    UNROLL
    for (size_t i = at; i < at + bytes; i += 16)
        if (asking && i % 64 == 0)
            ask(ahead);
}

/* nr rows of the query with keys that lie side by side, for as many sums as the rows of v_quad. */
INLINE void block_sums(const int nr, const int kn, const bool asking, const enum element element, const size_t d,
                       const char *keys, const float *query, struct ahead *ahead, vec *sums)
{
    enum { STEP = 64 }; /* dimensions: unrolled, streams are asked in turn without being moved */
    const enum element held = held_as(element);
    const size_t held_bytes = element_bytes(held), step_bytes = 2 * LANES * element_bytes(element);

    for (size_t x = 0; x < d; x += STEP, query += STEP, keys += STEP * held_bytes) {
        UNROLL
        for (size_t y = 0; y < STEP; y += 2 * LANES) {
            vec a[4], b[4];

            UNROLL
            for (int k = 0; k < kn; k++) {
                ask_bytes(asking, ahead, (y / (2 * LANES) * (size_t)kn + (size_t)k) * step_bytes, step_bytes);
                load_pair(held, keys + ((size_t)k * d + y) * held_bytes, &a[k], &b[k]);
            }
            UNROLL
            for (int r = 0; r < nr; r++) {
                vec qa = v_load_once(query + (size_t)r * d + y), qb = v_load_once(query + (size_t)r * d + y + LANES);

                UNROLL
                for (int k = 0; k < kn; k++)
                    sums[k * nr + r] = v_fma(b[k], qb, v_fma(a[k], qa, sums[k * nr + r]));
            }
        }
    }
}

/* Scores of nr rows from `row` on with the blocks that hold keys [begin, end) of a part.  Few keys at a time, as in
 * score_rows. */
INLINE void scores_of_blocks(const int nr, const enum element element, const size_t d, const struct rows *rows, int row,
                         const struct chunk *chunk, int begin, int end)
{
    const int kn = nr < 4 ? 4 / nr : 2;
    const size_t stride = d * element_bytes(held_as(element));
    const float *query = (const float *)query_row(rows, d, row);
    float *scores = rows->scores + (size_t)row * CHUNK_KEYS;
    struct turn turn = turn_of(rows, row, 4);
    int part = begin / BLOCK_KEYS, blocks = held_blocks(rows, chunk);

    for (int block = part; block * BLOCK_KEYS < end; block++) {
        const char *keys = held_block(element, rows, chunk, 0, block, part);
        size_t used = (size_t)(turn.mine * blocks + block - part) << chunk->block_shift;
        struct ahead ahead = look_ahead(chunk, turn, part, used, false);

        for (int key = 0; key < BLOCK_KEYS; key += LANES / nr) {
            vec sums[BLOCK_SUMS], quads[BLOCK_SUMS / 4];

            UNROLL
            for (int i = 0; i < BLOCK_SUMS; i++)
                sums[i] = v_set1(0.0f);
            UNROLL
            for (int i = 0; i < BLOCK_SUMS; i += kn * nr, keys += (size_t)kn * stride) {
                if (is_turn(turn, key / (LANES / nr)))
                    block_sums(nr, kn, true, element, d, keys, query, &ahead, sums + i);
                else
                    block_sums(nr, kn, false, element, d, keys, query, &ahead, sums + i);
            }
            UNROLL
            for (int i = 0; i < BLOCK_SUMS / 4; i++)
                quads[i] = v_quad(sums + 4 * i);
            v_store(scores + (block * BLOCK_KEYS + key) * nr, v_join(quads));
        }
    }
}

INLINE void score_blocks_of(const int nr, const enum element element, const struct rows *rows, int row,
                            const struct chunk *chunk, int begin, int end)
{
    if (rows->head_dim == 64)
        scores_of_blocks(nr, element, 64, rows, row, chunk, begin, end);
    else if (rows->head_dim == 128)
        scores_of_blocks(nr, element, 128, rows, row, chunk, begin, end);
    else
        scores_of_blocks(nr, element, 256, rows, row, chunk, begin, end);
}

/* A tile of V of the keys of a block, weighed for nr rows. */
INLINE void weigh_block(const int nr, const bool asking, const enum element element, const char *values, size_t stride,
                        const float *weights, struct ahead *ahead, vec *sums)
{
    const int vectors = BLOCK_SUMS / nr;
    const int step = nr < 4 ? 2 : BLOCK_KEYS; /* of four rows a line or half is asked for at a time */
    const size_t bytes = (size_t)vectors * LANES * element_bytes(element);

    for (int key = 0; key < BLOCK_KEYS; key += step) {
        UNROLL
        for (int k = 0; k < step; k++, values += stride, weights += nr) {
            ask_bytes(asking, ahead, (size_t)k * bytes, bytes);
            weigh_key(nr, 0, nr, vectors, held_as(element), values, weights, sums);
        }
    }
}

/* The weighted sum of V for keys [begin, end) of a part. */
INLINE void weigh_blocks_of(const int nr, const enum element element, const struct rows *rows, int row,
                            const struct chunk *chunk, int begin, int end, float *partial)
{
    const int vectors = BLOCK_SUMS / nr;
    const size_t tile = (size_t)vectors * LANES, unit_bytes = BLOCK_KEYS * tile * element_bytes(element);
    const size_t d = (size_t)rows->head_dim, held_bytes = element_bytes(held_as(element)), stride = d * held_bytes;
    const float *weights = rows->scores + (size_t)row * CHUNK_KEYS;
    float *out = partial + (size_t)row * d;
    struct turn turn = turn_of(rows, row, 4);
    int part = begin / BLOCK_KEYS, part_blocks = held_blocks(rows, chunk), unit = 0;
    struct ahead ahead = {0};

    for (size_t x = 0; x < d; x += tile) {
        vec sums[BLOCK_SUMS];

        UNROLL
        for (int i = 0; i < BLOCK_SUMS; i++)
            sums[i] = begin == chunk->begin
                          ? v_set1(0.0f)
                          : v_load(out + (size_t)(i / vectors) * d + x + (size_t)(i % vectors) * LANES);
        for (int block = part; block * BLOCK_KEYS < end; block++, unit++) {
            const char *values = held_block(element, rows, chunk, chunk->blocks, block, part) + x * held_bytes;
            int first = block * BLOCK_KEYS, stop = first + BLOCK_KEYS;
            /* by the order of groups, passes and blocks */
            size_t used = unit_bytes *
                          (((size_t)turn.mine * d + x) / tile * (size_t)part_blocks + (size_t)(block - part));

            if (unit == 0 || end - begin < part_blocks * BLOCK_KEYS ||
                (used >> turn.shift & (((size_t)1 << chunk->block_shift) - 1)) == 0)
                ahead = look_ahead(chunk, turn, chunk->blocks + part, used, false);
            if (first < begin || stop > end)
                for (int key = first > begin ? first : begin; key < (stop < end ? stop : end); key++)
                    weigh_key(nr, 0, nr, vectors, held_as(element), values + (size_t)(key - first) * stride,
                              weights + key * nr, sums);
            else if (is_turn(turn, unit))
                weigh_block(nr, true, element, values, stride, weights + first * nr, &ahead, sums);
            else
                weigh_block(nr, false, element, values, stride, weights + first * nr, &ahead, sums);
        }
        UNROLL
        for (int i = 0; i < BLOCK_SUMS; i++)
            v_store(out + (size_t)(i / vectors) * d + x + (size_t)(i % vectors) * LANES, sums[i]);
    }
}

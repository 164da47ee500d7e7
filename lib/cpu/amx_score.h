/* amx_score.h - memory asked for, fp8 to bf16, and dot products of queries and keys, with tiles
 *
 * Included by kernel_amx.c alone.
 *
 * SPDX-License-Identifier: Apache-2.0 */

/* ---- fp8 ------------------------------------------------------------------------------------------ */

/* The even and the odd ones of 64 numbers, as bf16. */
INLINE void split_fp8(__m512i codes, __m512i *even, __m512i *odd)
{
    const __m512i low_half = _mm512_set1_epi16(0x00ff), high_half = _mm512_set1_epi16((short)0xff00);
    __m512i low, high;

    fp8_bytes(codes, &low, &high);
    *even = _mm512_ternarylogic_epi64(low, low_half, _mm512_slli_epi16(high, 8), 0xea); /* (a & b) | c */
    *odd = _mm512_ternarylogic_epi64(high, high_half, _mm512_srli_epi16(low, 8), 0xea);
}

/* ---- memory --------------------------------------------------------------------------------------- */

/* Memory is asked for evenly over all that is computed: who asks faster than lines arrive waits, and while nobody asks
 * none arrive. */
struct feed {
    const struct chunk *chunk;
    struct ahead ahead;
    int block;          /* whose place memory is asked for in */
    size_t offset, end; /* in bytes of each stream */
};

static void feed_next(struct feed *feed)
{
    feed->ahead = look_ahead(feed->chunk, (struct turn){0, 0}, feed->block, 0, false);
    feed->offset = 0;
    feed->end = ((size_t)1 << feed->chunk->block_shift) / AHEAD_STREAMS;
    feed->block++;
}

/* AHEAD_STREAMS lines: a block has a multiple of them. */
INLINE void feed_lines(struct feed *feed)
{
    UNROLL
    for (int i = 0; i < AHEAD_STREAMS; i++)
        __builtin_prefetch(feed->ahead.stream[i] + feed->offset, 0, 2);
    feed->offset += 64;
    if (feed->offset == feed->end)
        feed_next(feed);
}

/* ---- scores --------------------------------------------------------------------------------------- */

/* Tile `t` of four of the query's and of a block of K's 32 dimensions: rows of C are keys.  Up to 128 dimensions of up
 * to 16 rows stay in tiles 4 to 7. */
#define SCORE_TILE(t, a, b, b2)                                                                    \
    do {                                                                                           \
        const char *q = query + (x / 32 + t) * 16 * query_stride;                                  \
                                                                                                   \
        if (!stays)                                                                                \
            TILE_LOAD(b, q, query_stride);                                                         \
        TILE_LOAD(a, keys + 2 * x + 64 * t, 2 * d);                                                \
        TILE_DOT(0, a, b);                                                                         \
        if (two_groups) {                                                                          \
            TILE_LOAD(b2, q + d * query_stride / 2, query_stride);                                 \
            TILE_DOT(3, a, b2);                                                                    \
        }                                                                                          \
    } while (0)

/* Dot products of a block of K, if `keys` is not NULL, with all rows.  Between them, of fp8, the next is staged: from
 * `codes` to `to`, if that is not NULL. */
INLINE void score_block(const bool is_fp8, size_t d, const char *keys, const char *query, size_t query_stride,
                        bool two_groups, bool stays, float *scores, const char *codes, uint16_t *to, struct feed *feed)
{
    if (keys != NULL) {
        TILE_ZERO(0);
        if (two_groups)
            TILE_ZERO(3);
    }
    for (size_t x = 0; x < d; x += 128) {
        UNROLL
        for (int t = 0; t < 4; t++) {
            if (x + 32 * (size_t)t >= d)
                break;
            if (keys != NULL) {
                switch (t) {
                case 0: SCORE_TILE(0, 1, 4, 6); break;
                case 1: SCORE_TILE(1, 2, 5, 7); break;
                case 2: SCORE_TILE(2, 1, 6, 4); break;
                default: SCORE_TILE(3, 2, 7, 5); break;
                }
            }
            if (!is_fp8)
                UNROLL
                for (int i = 0; i < 16 / AHEAD_STREAMS; i++)
                    feed_lines(feed);
            if (!is_fp8 || codes == NULL)
                continue;
            UNROLL
            for (int i = 0; i < 8; i++, codes += 64, to += 64) {
                __m512i evens, odds;

                if (i % AHEAD_STREAMS == 0)
                    feed_lines(feed);
                split_fp8(_mm512_loadu_si512(codes), &evens, &odds);
                _mm512_store_si512(to, evens);
                _mm512_store_si512(to + 32, odds);
            }
        }
    }
    if (keys != NULL) {
        TILE_STORE(0, scores, query_stride);
        if (two_groups)
            TILE_STORE(3, scores + GROUP_ROWS * CHUNK_KEYS, query_stride);
    }
}

INLINE void score_blocks(const bool is_fp8, const int nr, const struct rows *rows, const struct chunk *chunk,
                         char *staged, struct feed *feed)
{
    const size_t query_stride = 4 * (size_t)nr;
    size_t d = (size_t)rows->head_dim, bytes = BLOCK_KEYS * d * 2;
    bool two = rows->padded > GROUP_ROWS, stays = !two && d <= 128;
    const char *query = rows->query;
    struct tile_shapes shapes = {.palette = 1};

    for (int i = 0; i < 8; i++) {
        shapes.rows[i] = 16;
        shapes.row_bytes[i] = i == 1 || i == 2 ? 64 : (uint16_t)query_stride;
    }
    tiles_begin(&shapes);
    if (stays) {
        TILE_LOAD(4, query, query_stride);
        TILE_LOAD(5, query + 16 * query_stride, query_stride);
    }
    if (stays && d == 128) {
        TILE_LOAD(6, query + 32 * query_stride, query_stride);
        TILE_LOAD(7, query + 48 * query_stride, query_stride);
    }
    for (int block = is_fp8 ? -1 : 0; block < chunk->blocks; block++) {
        const char *keys = block < 0 ? NULL : is_fp8 ? staged + (size_t)(block & 1) * bytes : chunk->memory[block];
        const char *codes = is_fp8 && block + 1 < chunk->blocks ? chunk->memory[block + 1] : NULL;

        score_block(is_fp8, d, keys, query, query_stride, two, stays, rows->scores + block * BLOCK_KEYS * nr, codes,
                    (uint16_t *)(staged + (size_t)(~block & 1) * bytes), feed);
    }
}

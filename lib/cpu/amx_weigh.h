/* amx_weigh.h - weights, and the weighted sum of V, with tiles
 *
 * Included by kernel_amx.c alone.
 *
 * SPDX-License-Identifier: Apache-2.0 */

/* ---- weights -------------------------------------------------------------------------------------- */

/* Keys that a row does not see, up to the end of the last part. */
static void hide_keys(const int nr, const struct rows *rows, int first, const struct chunk *chunk, float *scores)
{
    int end = (chunk->end + PART_KEYS - 1) / PART_KEYS * PART_KEYS;

    for (int i = 0; i < chunk->begin * nr; i++)
        scores[i] = -INFINITY;
    for (int i = chunk->end * nr; i < end * nr; i++)
        scores[i] = -INFINITY;
    if (chunk->row_begin == NULL)
        return;
    for (int r = 0; r < nr && first + r < rows->rows; r++) {
        for (int key = chunk->begin; key < chunk->row_begin[first + r]; key++)
            scores[key * nr + r] = -INFINITY;
        for (int key = chunk->row_end[first + r]; key < chunk->end; key++)
            scores[key * nr + r] = -INFINITY;
    }
}

struct softmax {
    vec base, sum; /* lane i: of row i % nr */
};

/* The maximum passes over NaN, whose weight will be NaN all the same. */
INLINE vec max_of_scores(const int nr, const float *scores, int end)
{
    vec max[2] = {v_set1(-INFINITY), v_set1(-INFINITY)};

    for (int i = 0; i < end; i += 2 * LANES) {
        max[0] = v_max(v_load(scores + i), max[0]);
        max[1] = v_max(v_load(scores + i + LANES), max[1]);
    }
    max[0] = v_max(max[0], max[1]);
    UNROLL
    for (int n = nr; n < LANES; n *= 2)
        max[0] = v_max(max[0], v_swap(max[0], n));
    return max[0];
}

/* Four vectors' dwords are exchanged with the four of each 128-bit part. */
INLINE void transpose_dwords(__m512i *a)
{
    __m512i p = _mm512_unpacklo_epi32(a[0], a[1]), q = _mm512_unpackhi_epi32(a[0], a[1]);
    __m512i r = _mm512_unpacklo_epi32(a[2], a[3]), s = _mm512_unpackhi_epi32(a[2], a[3]);

    a[0] = _mm512_unpacklo_epi64(p, r);
    a[1] = _mm512_unpackhi_epi64(p, r);
    a[2] = _mm512_unpacklo_epi64(q, s);
    a[3] = _mm512_unpackhi_epi64(q, s);
}

/* A tile of 16 pairs of weights for each row, from vectors that hold rows in their lanes: `to` gets the rows.  The
 * pairs' order is that of pair_place. */
INLINE void put_weights(const int nr, __m512i *a, char *to)
{
    UNROLL
    for (int v = 0; v < nr; v += 4)
        transpose_dwords(a + v);
    UNROLL
    for (int r = 0; r < 4; r++) {
        if (nr == 4) {
            _mm512_store_si512(to + r * 64, a[r]);
        } else if (nr == 8) {
            _mm512_store_si512(to + r * 64, _mm512_shuffle_i32x4(a[r], a[4 + r], 0x88));
            _mm512_store_si512(to + (4 + r) * 64, _mm512_shuffle_i32x4(a[r], a[4 + r], 0xdd));
        } else {
            __m512i p = _mm512_shuffle_i32x4(a[r], a[4 + r], 0x44), q = _mm512_shuffle_i32x4(a[8 + r], a[12 + r], 0x44);
            __m512i s = _mm512_shuffle_i32x4(a[r], a[4 + r], 0xee), t = _mm512_shuffle_i32x4(a[8 + r], a[12 + r], 0xee);

            _mm512_store_si512(to + r * 64, _mm512_shuffle_i32x4(p, q, 0x88));
            _mm512_store_si512(to + (4 + r) * 64, _mm512_shuffle_i32x4(p, q, 0xdd));
            _mm512_store_si512(to + (8 + r) * 64, _mm512_shuffle_i32x4(s, t, 0x88));
            _mm512_store_si512(to + (12 + r) * 64, _mm512_shuffle_i32x4(s, t, 0xdd));
        }
    }
}

/* Pair `j` of a step joins the keys first_of_pair(j) and, 16 / nr further, the next vector's.  place: where the tiles
 * have it. */
INLINE int first_of_pair(const int nr, int j)
{
    int half = LANES / nr;

    return j / half * 2 * half + j % half;
}

INLINE int pair_place(const int nr, int j)
{
    return nr == 16 ? j : nr == 8 ? j / 8 * 8 + j % 2 * 4 + j / 2 % 4 : j % 4 * 4 + j / 4;
}

/* Upper halves of a and b side by side, a's first. */
INLINE __m512i pair_of(vec a, vec b)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(a), 16), _mm512_castps_si512(b));
}

INLINE vec low_part(vec a)
{
    __m512i high = _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int)0xffff0000));

    return v_sub(a, _mm512_castsi512_ps(high));
}

/* A step's scores become weights, and tiles of weights, lifted or not. */
INLINE void weigh_scores(const int nr, const bool lift, float *scores, vec scale, struct softmax *softmax, char *to,
                         struct feed *feed)
{
    __m512i high[16], low[16];

    UNROLL
    for (int v = 0; v < nr; v++) {
        vec a = v_exp2(v_mul(v_sub(v_load(scores + 2 * v * LANES), softmax->base), scale));
        vec b = v_exp2(v_mul(v_sub(v_load(scores + (2 * v + 1) * LANES), softmax->base), scale));

        v_store(scores + 2 * v * LANES, a);
        v_store(scores + (2 * v + 1) * LANES, b);
        softmax->sum = v_add(softmax->sum, v_add(a, b));
        if (lift) {
            a = v_mul(a, v_set1(LIFT));
            b = v_mul(b, v_set1(LIFT));
        }
        if (v % (nr / (STEP_LINES / AHEAD_STREAMS)) == 0)
            feed_lines(feed);
        high[v] = pair_of(a, b);
        low[v] = pair_of(low_part(a), low_part(b));
    }
    put_weights(nr, high, to);
    put_weights(nr, low, to + nr * 64);
}

/* ---- V -------------------------------------------------------------------------------------------- */

/* V of a pair of keys, 64 dimensions: a row of a tile B for each 16 of them, in kernel_avx512bf16's order. */
INLINE void stage_pair_fp8(const char *first, const char *second, char *to)
{
    __m512i a = _mm512_loadu_si512(first), b = _mm512_loadu_si512(second), even, odd;

    split_fp8(_mm512_unpacklo_epi16(a, b), &even, &odd); /* FP8_PLACE */
    _mm512_store_si512(to, even);
    _mm512_store_si512(to + TILE_BYTES, odd);
    split_fp8(_mm512_unpackhi_epi16(a, b), &even, &odd);
    _mm512_store_si512(to + 2 * TILE_BYTES, even);
    _mm512_store_si512(to + 3 * TILE_BYTES, odd);
}

INLINE void stage_pair_bf16(const char *first, const char *second, char *to, __m512i *smallest)
{
    const __m512i evens = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0d0c0d0c09080908, 0x0504050401000100));
    const __m512i odds = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0f0e0f0e0b0a0b0a, 0x0706070603020302));
    const __m512i one = _mm512_set1_epi16(1);

    UNROLL
    for (int i = 0; i < 2; i++) {
        __m512i a = _mm512_loadu_si512(first + 64 * i), b = _mm512_loadu_si512(second + 64 * i);

        *smallest = _mm512_min_epu16(*smallest, _mm512_sub_epi16(_mm512_add_epi16(a, a), one));
        *smallest = _mm512_min_epu16(*smallest, _mm512_sub_epi16(_mm512_add_epi16(b, b), one));
        _mm512_store_si512(to + 2 * i * TILE_BYTES, _mm512_mask_shuffle_epi8(a, 0xccccccccccccccccu, b, evens));
        _mm512_store_si512(to + (2 * i + 1) * TILE_BYTES, _mm512_mask_shuffle_epi8(b, 0x3333333333333333u, a, odds));
    }
}

/* Where the keys of a part are.  Those that no row sees are zeros; at the beginning they are fewer than a block. */
INLINE void find_rows(const struct chunk *chunk, size_t row_bytes, int first, int steps, const char **row)
{
    int end = first + steps * STEP_KEYS;

    for (int key = first; key < end; key += BLOCK_KEYS) {
        int block = key / BLOCK_KEYS;
        /* past the last there is no key that a row sees */
        const char *values = chunk->memory[chunk->blocks + (block < chunk->blocks ? block : 0)];

        UNROLL
        for (int i = 0; i < BLOCK_KEYS; i++)
            row[key - first + i] = values + (size_t)i * row_bytes;
    }
    for (int key = first; key < chunk->begin; key++)
        row[key - first] = (const char *)zeros;
    for (int key = chunk->end > first ? chunk->end : first; key < end; key++)
        row[key - first] = (const char *)zeros;
}

/* What of V is staged: 64 dimensions from `offset` bytes on of the keys of a part. */
struct values {
    const char *const *row;
    size_t offset;
    int steps;
    char *to;
};

/* An eighth of it: four pairs of keys. */
INLINE void stage_eighth(const int nr, const bool is_fp8, const int eighth, const struct values *values,
                         __m512i *smallest)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        const int j = eighth * 4 + i;
        const int key = j / 16 * STEP_KEYS + first_of_pair(nr, j % 16);
        const char *first = values->row[key] + values->offset, *second = values->row[key + LANES / nr] + values->offset;
        char *to = values->to + j / 16 * STEP_VALUE_BYTES + pair_place(nr, j % 16) * 64;

        if (is_fp8)
            stage_pair_fp8(first, second, to);
        else
            stage_pair_bf16(first, second, to, smallest);
    }
}

/* What staged V is weighed by, and where it is added: sums has a row of d floats for each of the weights' tile. */
struct weighing {
    const char *values, *weights;
    int steps;          /* 0: nothing */
    bool fresh;
    size_t sum_bytes;   /* of a row */
    float *sums;
};

/* 16 dimensions' sums in tile c, of the step whose weights are in tiles a, and if there are more, low. */
#define WEIGH_TILE(c, a, low, b, step)                                                             \
    do {                                                                                           \
        TILE_LOAD(b, w->values + step * STEP_VALUE_BYTES + dim * TILE_BYTES, 64);                  \
        TILE_DOT(c, a, b);                                                                         \
        if (nr == 16)                                                                              \
            TILE_DOT(c, low, b);                                                                   \
    } while (0)

#define WEIGH_DIM(c)                                                                               \
    do {                                                                                           \
        if (step == 0) {                                                                           \
            if (w->fresh)                                                                          \
                TILE_ZERO(c);                                                                      \
            else                                                                                   \
                TILE_LOAD(c, w->sums + 16 * dim, w->sum_bytes);                                    \
            WEIGH_TILE(c, 2, 4, 6, 0);                                                             \
        } else if (w->steps == 2) {                                                                \
            WEIGH_TILE(c, 3, 5, 7, 1);                                                             \
        }                                                                                          \
        if (step == 1)                                                                             \
            TILE_STORE(c, w->sums + 16 * dim, w->sum_bytes);                                       \
    } while (0)

/* An eighth of it: one tile of V.  Tiles in a row are added to the same sums, which is faster. */
INLINE void weigh_eighth(const int nr, const int eighth, const struct weighing *w)
{
    const int dim = eighth / 2, step = eighth % 2;

    if (eighth == 0) {
        TILE_LOAD(2, w->weights, 64);
        TILE_LOAD(3, w->weights + STEP_WEIGHT_BYTES, 64);
        if (nr == 16) {
            TILE_LOAD(4, w->weights + TILE_BYTES, 64);
            TILE_LOAD(5, w->weights + STEP_WEIGHT_BYTES + TILE_BYTES, 64);
        }
    }
    if (dim % 2 == 0)
        WEIGH_DIM(0);
    else
        WEIGH_DIM(1);
}

/* Stages one part, and weighs the one before; asks for `lines` of memory. */
INLINE void stage_and_weigh(const int nr, const bool is_fp8, const struct values *values, const struct weighing *w,
                            int lines, __m512i *smallest, struct feed *feed)
{
    UNROLL
    for (int eighth = 0; eighth < 8; eighth++) {
        if (w->steps > 0)
            weigh_eighth(nr, eighth, w);
        for (int i = eighth * lines / (8 * AHEAD_STREAMS); i < (eighth + 1) * lines / (8 * AHEAD_STREAMS); i++)
            feed_lines(feed);
        if (eighth < 4 * values->steps)
            stage_eighth(nr, is_fp8, eighth, values, smallest);
    }
}

/* One row's sums, times a factor, out of the tiles'; whether all are finite. */
INLINE bool take_sums(const int nr, size_t d, const float *sums, float factor, float *out)
{
    __mmask16 special = 0;

    for (size_t x = 0; x < d; x += LANES) {
        vec sum = v_load(sums + x);

        if (nr < 16)
            sum = v_add(sum, v_load(sums + (size_t)nr * d + x));
        sum = v_mul(sum, v_set1(factor));
        special |= _mm512_fpclass_ps_mask(sum, 0x99); /* NaN, infinities */
        v_store(out + x, sum);
    }
    return special == 0;
}

/* The weighted sum without tiles, for values of bf16 that they cannot take; row by row, and only of keys it sees.
 * Weights are multiplied by `scale`.  Returns whether all sums are finite. */
static bool weigh_exactly(const int nr, const struct rows *rows, const struct chunk *chunk, float scale, float *partial)
{
    size_t d = (size_t)rows->head_dim;
    bool finite = true;

    for (int r = 0; r < rows->rows; r++) {
        int begin = chunk->row_begin != NULL ? chunk->row_begin[r] : chunk->begin;
        int end = chunk->row_end != NULL ? chunk->row_end[r] : chunk->end;
        const float *weights = rows->scores + r / nr * nr * CHUNK_KEYS + r % nr;
        float *out = partial + (size_t)r * d;

        memset(out, 0, d * sizeof *out);
        for (int key = begin; key < end; key++) {
            const char *row = chunk->memory[chunk->blocks + key / BLOCK_KEYS] + (size_t)(key % BLOCK_KEYS) * d * 2;
            vec weight = v_set1(weights[key * nr] * scale), even, odd;

            for (size_t x = 0; x < d; x += 2 * LANES) {
                v_pair_bf16(row + 2 * x, &even, &odd);
                v_store(out + x, v_fma(even, weight, v_load(out + x)));
                v_store(out + x + LANES, v_fma(odd, weight, v_load(out + x + LANES)));
            }
        }
        finite &= take_sums(GROUP_ROWS, d, out, 1 / (scale * partial_unit(rows, partial_sum(partial, rows)[r])), out);
    }
    return finite;
}

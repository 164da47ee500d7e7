/* kernel_query.h - kinds of elements, and the query as the dot products want it
 *
 * Included by kernel_impl.h alone.
 *
 * SPDX-License-Identifier: Apache-2.0 */

enum element {
    ELEMENT_BF16,
    ELEMENT_FP16,
    ELEMENT_FP8,
    ELEMENT_BF16_DOT, /* bf16 and fp8 for the bf16 dot instruction */
    ELEMENT_FP8_DOT,
    ELEMENT_FLOAT     /* what staging leaves */
};

INLINE size_t element_bytes(enum element element)
{
    return element == ELEMENT_FP8 || element == ELEMENT_FP8_DOT ? 1 : element == ELEMENT_FLOAT ? 4 : 2;
}

INLINE bool is_dot(enum element element)
{
    return element == ELEMENT_BF16_DOT || element == ELEMENT_FP8_DOT;
}

/* What the query's elements are, by which the keys are multiplied as `element`. */
INLINE enum element query_element(enum element element)
{
    return is_dot(element) ? ELEMENT_BF16_DOT : ELEMENT_FLOAT;
}

INLINE void load_pair(enum element element, const char *from, vec *a, vec *b)
{
    if (element == ELEMENT_BF16)
        v_pair_bf16(from, a, b);
    else if (element == ELEMENT_FP16)
        v_pair_fp16(from, a, b);
#if !WHOLE_BLOCKS
    else if (element == ELEMENT_FP8)
        v_pair_fp8(from, a, b);
#endif
    else {
        *a = v_load((const float *)from);
        *b = v_load((const float *)from + LANES);
    }
}

INLINE void load_tile(enum element element, const char *from, vec *a)
{
#if !WHOLE_BLOCKS
    if (element == ELEMENT_FP8) {
        v_tile_fp8(from, a);
        return;
    }
#endif
    UNROLL
    for (int i = 0; i < TILE_VECTORS; i += 2)
        load_pair(element, from + (size_t)i * LANES * element_bytes(element), &a[i], &a[i + 1]);
}

/* What memory's elements are when they are multiplied: fp8 may become fp16 first (kernel_hold.h). */
INLINE enum element held_as(enum element element)
{
    return WHOLE_BLOCKS && element == ELEMENT_FP8 ? ELEMENT_FP16 : element;
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

#if EIGHT_ROWS
/* Only bf16 is multiplied as it is (kernel_stage.h): what has to be converted first pays off from 16 rows on. */
static bool stages_keys(const struct rows *rows)
{
    return rows->padded >= 16 && score_element(rows) != ELEMENT_BF16_DOT;
}
#endif

/* How many rows are in groups of eight, which come first. */
static int rows_in_eights(const struct rows *rows)
{
#if EIGHT_ROWS
    return stages_keys(rows) || score_element(rows) == ELEMENT_BF16_DOT ? rows->padded & -8 : 0;
#else
    (void)rows;
    return 0;
#endif
}

/* How many rows score_fours takes, which come first. */
static int rows_in_fours(const struct rows *rows)
{
#if BF16_DOT
    return score_element(rows) == ELEMENT_FP8_DOT && !stages_keys(rows) ? rows->padded & -8 : 0;
#else
    (void)rows;
    return 0;
#endif
}

/* Of a row of the query whose pieces are repeated for score_fours. */
INLINE size_t repeated_bytes(size_t d)
{
    return d * sizeof(uint16_t) * 4;
}

/* Where a row is that neither score_fours nor score_eights takes. */
INLINE char *query_row(const struct rows *rows, size_t d, int row)
{
    size_t repeated = (size_t)rows_in_fours(rows);

    return (char *)rows->query + repeated * repeated_bytes(d) +
           ((size_t)row - repeated) * d * element_bytes(query_element(score_element(rows)));
}

/* `count` elements as K is loaded. */
INLINE void store_as_floats(const enum element element, const char *from, size_t count, float *to)
{
    for (size_t x = 0; x < count; x += 2 * LANES) {
        vec a, b;

        load_pair(element, from + x * element_bytes(element), &a, &b);
        v_store(to + x, a);
        v_store(to + x + LANES, b);
    }
}

static void convert_to_floats(enum element element, const char *from, size_t count, float *to)
{
    switch (element) {
    case ELEMENT_BF16: store_as_floats(ELEMENT_BF16, from, count, to); break;
    case ELEMENT_FP16: store_as_floats(ELEMENT_FP16, from, count, to); break;
#if WHOLE_BLOCKS
    default: {
        uint16_t halves[MAX_HEAD_DIM];

        h_from_fp8(from, count, halves);
        store_as_floats(ELEMENT_FP16, (const char *)halves, count, to);
        for (size_t x = 0; x < count; x += LANES)
            v_store(to + x, v_mul(v_load(to + x), v_set1(HALVES_SCALE * HALVES_SCALE))); /* the keys' scale, too */
        break;
    }
#else
    default: store_as_floats(ELEMENT_FP8, from, count, to); break;
#endif
    }
}

/* One row as dot_products wants it. */
static void convert_query(enum element element, size_t d, const char *from, void *to)
{
    switch (element) {
    case ELEMENT_FP8_DOT:
#if BF16_DOT
        for (size_t x = 0; x < d; x += 4 * LANES)
            b_store_fp8(from + x, (uint16_t *)to + x);
#endif
        break;
    case ELEMENT_BF16:
    case ELEMENT_FP16:
    case ELEMENT_FP8:
        convert_to_floats(element, from, d, to);
        break;
    default:
        memcpy(to, from, d * element_bytes(element));
        break;
    }
}

#if BF16_DOT
/* As score_fours wants a row that b_store_fp8 left: each piece of eight elements, in their order, four times. */
static void repeat_pieces(const char *from, size_t d, char *to)
{
    for (size_t x = 0; x < d; x += 8, to += 64)
        for (int copy = 0; copy < 4; copy++)
            memcpy(to + copy * 16, from + x / 64 * 128 + x / 8 % 2 * 64 + x / 16 % 4 * 16, 16);
}
#endif

/* Rows in groups of eight lie piece by piece (EIGHT_ROWS); those of score_fours have their pieces repeated; the others
 * lie one after the other. */
static void load_query(struct rows *rows, const void *const *source)
{
    size_t d = (size_t)rows->head_dim, bytes;
    enum element element;
    int eights, fours;

    rows->wide_range = false;
#if BF16_DOT
    if (rows->dtype == QUIRE_DTYPE_BF16)
        for (int r = 0; r < rows->rows && !rows->wide_range; r++)
            rows->wide_range = has_wide_range(rows, source[r]);
#endif
    element = score_element(rows);
    eights = rows_in_eights(rows);
    fours = rows_in_fours(rows);
    bytes = d * element_bytes(query_element(element));
    for (int r = 0; r < rows->padded; r++) {
        float row[MAX_HEAD_DIM]; /* if it has to be taken apart */
        char *to = r < eights || r < fours ? (char *)row : query_row(rows, d, r);

        if (r < rows->rows)
            convert_query(element, d, source[r], to);
        else
            memset(to, 0, bytes);
#if BF16_DOT
        if (r < fours)
            repeat_pieces((const char *)row, d, (char *)rows->query + (size_t)r * repeated_bytes(d));
#endif
        if (r < eights)
            for (size_t piece = 0; piece < bytes / PIECE_BYTES; piece++)
                memcpy((char *)rows->query + (size_t)(r & -8) * bytes + (piece * 8 + (size_t)(r & 7)) * PIECE_BYTES,
                       (const char *)row + piece * PIECE_BYTES, PIECE_BYTES);
    }
}

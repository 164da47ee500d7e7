/* kernel_stage.h - K of a part, converted once for all groups of eight rows
 *
 * What groups of eight multiply keys as is either bf16, which the dot product takes as it is, or what the part's K was
 * converted to here: bf16 or float.  The room is of a fixed size and stays in the first cache.
 *
 * Included by kernel_impl.h alone.
 *
 * SPDX-License-Identifier: Apache-2.0 */

INLINE enum element staged_element(const struct rows *rows)
{
    return is_dot(score_element(rows)) ? ELEMENT_BF16_DOT : ELEMENT_FLOAT;
}

/* Where a block of the part that begins with block `part` is, its elements being `element`. */
INLINE const char *staged_block(const enum element element, const struct rows *rows, int block, int part)
{
    size_t bytes = BLOCK_KEYS * (size_t)rows->head_dim * element_bytes(element);

    return (const char *)rows->staged + (size_t)(block - part) * bytes;
}

static void stage_keys(const struct rows *rows, const struct chunk *chunk, int begin, int end)
{
    enum element element = score_element(rows);
    size_t count = BLOCK_KEYS * (size_t)rows->head_dim;
    int part = begin / BLOCK_KEYS;

    for (int block = part; block * BLOCK_KEYS < end; block++) {
        const char *from = chunk->memory[block];
        size_t to = (size_t)(block - part) * count;

#if BF16_DOT
        if (element == ELEMENT_FP8_DOT) {
            for (size_t x = 0; x < count; x += 4 * LANES)
                b_store_fp8(from + x, (uint16_t *)rows->staged + to + x);
            continue;
        }
#endif
        convert_to_floats(element, from, count, (float *)rows->staged + to);
    }
}

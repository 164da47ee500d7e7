/* kernel_hold.h - K and V as kernel_blocks.h multiplies them: fp8 of a part in the bits of fp16, for all rows
 *
 * The room is of a fixed size and stays in the first cache.
 *
 * Included by kernel_impl.h alone.
 *
 * SPDX-License-Identifier: Apache-2.0 */

_Static_assert(PART_BYTES / 2 * sizeof(uint16_t) <= STAGED_BYTES &&
               BLOCK_KEYS * MAX_HEAD_DIM * sizeof(uint16_t) <= STAGED_BYTES, "half a part, or a block");

/* The blocks of K or V that all rows go over before the next ones. */
INLINE int held_blocks(const struct rows *rows, const struct chunk *chunk)
{
    bool moved = held_as(element_of(rows->dtype)) != element_of(rows->dtype);

    return moved && chunk->part_blocks > 1 ? chunk->part_blocks / 2 : chunk->part_blocks; /* they take more room */
}

/* The blocks that hold keys [begin, end) of K or V, `origin` being the first block of it in chunk->memory. */
static void hold(const struct rows *rows, const struct chunk *chunk, int origin, int begin, int end)
{
    size_t count = BLOCK_KEYS * (size_t)rows->head_dim;
    int part = begin / BLOCK_KEYS;

    if (held_as(element_of(rows->dtype)) == element_of(rows->dtype))
        return;
    for (int block = part; block * BLOCK_KEYS < end; block++)
        h_from_fp8(chunk->memory[origin + block], count, (uint16_t *)rows->staged + (size_t)(block - part) * count);
}

/* Where such a block is in the part that begins with block `part`. */
INLINE const char *held_block(const enum element element, const struct rows *rows, const struct chunk *chunk,
                              int origin, int block, int part)
{
    size_t count = BLOCK_KEYS * (size_t)rows->head_dim;

    return held_as(element) == element
               ? chunk->memory[origin + block]
               : (const char *)((const uint16_t *)rows->staged + (size_t)(block - part) * count);
}

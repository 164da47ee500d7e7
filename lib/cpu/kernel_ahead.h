/* kernel_ahead.h - memory that a kernel asks for before it uses it
 *
 * Included by kernel_impl.h alone.
 *
 * SPDX-License-Identifier: Apache-2.0 */

/* Memory that is asked for before its use, of AHEAD_STREAMS blocks in turn, each a share further than the
 * next.  Blocks lie anywhere: at the beginning of each the processor has to find its page and to see where
 * it goes, and meanwhile the other blocks keep memory busy. */
struct ahead {
    const char *stream[AHEAD_STREAMS];
    bool into_l2;
};

/* Groups of rows go over the same K and V one after the other; each asks for its part of what comes next, at every
 * 2^shift-th step. */
struct turn {
    int mine, shift; /* 2^shift: the largest power of two up to the groups; a group beyond has no turn */
};

/* The first rows are in groups of `group`. */
INLINE struct turn turn_of(const struct rows *rows, int row, int group)
{
    struct turn turn = {row / group, 0};

    while (group << (turn.shift + 1) <= rows->padded)
        turn.shift++;
    return turn;
}

INLINE bool is_turn(struct turn turn, int step)
{
    return turn.mine >> turn.shift == 0 && (step & ((1 << turn.shift) - 1)) == 0;
}

/* What to ask for when all groups are through `used` bytes, every group's passes counted, of the part that begins
 * with block `part`.  `few`: whether rows can be as few as chunk->into_l2 is for, so that others have no branch. */
INLINE struct ahead look_ahead(const struct chunk *chunk, struct turn turn, int part, size_t used, const bool few)
{
    size_t done = used >> turn.shift, block_bytes = (size_t)1 << chunk->block_shift;
    int at = part + chunk->part_blocks + (int)(done >> chunk->block_shift);
    struct ahead ahead;

    ahead.into_l2 = few && chunk->into_l2;
    done &= block_bytes - 1;
    UNROLL
    for (int i = 0; i < AHEAD_STREAMS; i++) {
        /* past the end of what is known, ask for the last again */
        int block = at + i < chunk->memory_blocks ? at + i : chunk->memory_blocks - 1;

        ahead.stream[i] = chunk->memory[block] + ((size_t)(AHEAD_STREAMS - 1 - i) * block_bytes + done) / AHEAD_STREAMS;
    }
    return ahead;
}

INLINE void ask(struct ahead *ahead)
{
    const char *asked = ahead->stream[0];

    if (ahead->into_l2)
        __builtin_prefetch(asked, 0, 2);
    else
        __builtin_prefetch(asked);
    UNROLL
    for (int i = 1; i < AHEAD_STREAMS; i++)
        ahead->stream[i - 1] = ahead->stream[i];
    ahead->stream[AHEAD_STREAMS - 1] = asked + 64;
}

/* plan.h - the work of a CPU decode, laid out as one line of units from the live lengths
 *
 * A tile is up to TILE_ROWS query rows of one request: those of one KV head, whose keys are read once for
 * all of them, or those of several KV heads that lie side by side.  A unit is one chunk of a tile's keys.
 * Chunks are counted from the request's start, so that what a unit computes depends on its own request
 * alone: neither threads nor neighbours move a bit.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_CPU_PLAN_H
#define QUIRE_CPU_PLAN_H

#include "problem.h"

enum {
    BLOCK_KEYS = 16,   /* the smallest page: keys that surely lie side by side in memory */
    CHUNK_KEYS = 256,  /* long enough that merging partial results costs nothing beside reading it */
    CHUNK_BLOCKS = CHUNK_KEYS / BLOCK_KEYS,
    TILE_ROWS = 32
};

struct tile {
    int32_t request;
    int32_t kv_head;    /* the first of them */
    int32_t tokens;     /* query tokens of the request */
    int32_t length;     /* its keys */
    int32_t first_row;  /* row = token * group + head within the group */
    int32_t rows;       /* of each head; 0 only past the last request */
    int64_t first_token;          /* of the request, in query and out */
    int32_t key_begin, key_end;   /* keys that any row of the tile sees; equal if there are none */
};

/* The keys that one token of a tile's request sees; begin = end if it sees none. */
void plan_visible(const struct problem *p, const struct tile *tile, int32_t token, int32_t *begin, int32_t *end);

/* A place in the line. */
struct cursor {
    const struct problem *p;
    int32_t heads;      /* KV heads in a tile, of which kv_heads is a multiple */
    struct tile tile;
    int32_t chunk;      /* number, counted from the request's start */
    int64_t start;      /* cost of all units before this one */
};

/* Cost of the whole line with so many heads in a tile, in arbitrary units that stay below 2^50. */
int64_t plan_cost(const struct problem *p, int32_t heads);

/* Cost of a whole chunk of so many rows. */
int64_t plan_chunk_cost(int32_t rows);

/* The first unit whose start is not below `start`. */
struct cursor plan_seek(const struct problem *p, int32_t heads, int64_t start);

void plan_next(struct cursor *at);

static inline bool plan_at_end(const struct cursor *at)
{
    return at->tile.rows == 0;
}

static inline bool tile_is_empty(const struct tile *tile)
{
    return tile->key_begin >= tile->key_end;
}

static inline int32_t tile_first_chunk(const struct tile *tile)
{
    return tile->key_begin / CHUNK_KEYS;
}

/* One past the last; a tile without keys still is one unit, that writes its rows. */
static inline int32_t tile_end_chunk(const struct tile *tile)
{
    return tile_is_empty(tile) ? tile_first_chunk(tile) + 1 : (tile->key_end - 1) / CHUNK_KEYS + 1;
}

#endif

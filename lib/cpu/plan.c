/* plan.c - the line of units: requests, within them sets of KV heads, tiles of rows, chunks of keys
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include "cpu/plan.h"

void plan_visible(const struct problem *p, const struct tile *tile, int32_t token, int32_t *begin, int32_t *end)
{
    int64_t last = (int64_t)tile->length - tile->tokens + token; /* the token's own key */
    int64_t from = 0, to = tile->length;

    if (p->causal)
        to = last + 1;
    if (p->window_left >= 0 && last > p->window_left)
        from = last - p->window_left;
    *begin = (int32_t)from;
    *end = (int32_t)(to > from ? to : from);
}

/* ---- cost ----------------------------------------------------------------------------------------- */

/* What a block costs.  Up to about this many rows reading it takes longer than computing on it. */
static int64_t block_cost(int32_t rows)
{
    enum { ROWS_FOR_FREE = 12 };

    return rows > ROWS_FOR_FREE ? rows : ROWS_FOR_FREE;
}

/* A unit's fixed part is counted as one block. */
static int64_t unit_cost(const struct tile *tile, int32_t chunk)
{
    int64_t begin = (int64_t)chunk * CHUNK_KEYS, end = begin + CHUNK_KEYS;

    if (tile_is_empty(tile))
        return block_cost(tile->rows);
    begin = begin > tile->key_begin ? begin : tile->key_begin;
    end = end < tile->key_end ? end : tile->key_end;
    return ((end - 1) / BLOCK_KEYS - begin / BLOCK_KEYS + 2) * block_cost(tile->rows);
}

int64_t plan_chunk_cost(int32_t rows)
{
    return (CHUNK_BLOCKS + 1) * block_cost(rows);
}

static int64_t tile_cost(const struct tile *tile)
{
    int64_t chunks = tile_end_chunk(tile) - tile_first_chunk(tile);

    if (tile_is_empty(tile))
        return block_cost(tile->rows);
    return ((tile->key_end - 1) / BLOCK_KEYS - tile->key_begin / BLOCK_KEYS + 1 + chunks) * block_cost(tile->rows);
}

/* ---- tiles ---------------------------------------------------------------------------------------- */

static void enter_tile(const struct problem *p, struct tile *tile, int32_t first_row)
{
    int32_t rows = tile->tokens * p->group - first_row, ignored;

    tile->first_row = first_row;
    tile->rows = rows < TILE_ROWS ? rows : TILE_ROWS;
    plan_visible(p, tile, first_row / p->group, &tile->key_begin, &ignored);
    plan_visible(p, tile, (first_row + tile->rows - 1) / p->group, &ignored, &tile->key_end);
}

/* Enters the first tile of the first request from `request` on that has one. */
static void enter_request(const struct problem *p, struct tile *tile, int32_t request)
{
    for (; request < p->batch; request++) {
        tile->request = request;
        tile->kv_head = 0;
        tile->length = p->seq_lens[request];
        tile->first_token = p->packed ? p->qo_indptr[request] : (int64_t)request * p->seq_len_q;
        tile->tokens = p->packed ? p->qo_indptr[request + 1] - p->qo_indptr[request] : p->seq_len_q;
        if (tile->tokens > 0) {
            enter_tile(p, tile, 0);
            return;
        }
    }
    tile->rows = 0;
}

static bool has_next_tile_in_heads(const struct problem *p, const struct tile *tile)
{
    return tile->first_row + tile->rows < tile->tokens * p->group;
}

/* Cost of the tiles of one set of KV heads, of the request whose first tile is `tile`; all cost the same. */
static int64_t heads_cost(const struct problem *p, struct tile tile)
{
    int64_t cost = tile_cost(&tile);

    while (has_next_tile_in_heads(p, &tile)) {
        enter_tile(p, &tile, tile.first_row + tile.rows);
        cost += tile_cost(&tile);
    }
    return cost;
}

/* ---- the line ------------------------------------------------------------------------------------- */

int64_t plan_cost(const struct problem *p, int32_t heads)
{
    struct tile tile;
    int64_t cost = 0;

    for (enter_request(p, &tile, 0); tile.rows > 0; enter_request(p, &tile, tile.request + 1))
        cost += heads_cost(p, tile) * (p->kv_heads / heads);
    return cost;
}

static void next_tile(struct cursor *at)
{
    const struct problem *p = at->p;

    if (has_next_tile_in_heads(p, &at->tile)) {
        enter_tile(p, &at->tile, at->tile.first_row + at->tile.rows);
    } else if (at->tile.kv_head + at->heads < p->kv_heads) {
        at->tile.kv_head += at->heads;
        enter_tile(p, &at->tile, 0);
    } else {
        enter_request(p, &at->tile, at->tile.request + 1);
    }
    if (!plan_at_end(at))
        at->chunk = tile_first_chunk(&at->tile);
}

void plan_next(struct cursor *at)
{
    at->start += unit_cost(&at->tile, at->chunk);
    if (++at->chunk == tile_end_chunk(&at->tile))
        next_tile(at);
}

struct cursor plan_seek(const struct problem *p, int32_t heads, int64_t start)
{
    struct cursor at = {.p = p, .heads = heads};
    int64_t sets = p->kv_heads / heads;

    enter_request(p, &at.tile, 0);
    while (!plan_at_end(&at)) { /* whole requests */
        int64_t each = heads_cost(p, at.tile), done = (start - at.start) / each;

        if (done < sets) {
            at.start += done * each;
            at.tile.kv_head = (int32_t)done * heads;
            break;
        }
        at.start += each * sets;
        enter_request(p, &at.tile, at.tile.request + 1);
    }
    if (plan_at_end(&at))
        return at;
    at.chunk = tile_first_chunk(&at.tile);
    while (at.start < start) { /* tiles of these heads, then chunks of a tile */
        int64_t whole = tile_cost(&at.tile), first = unit_cost(&at.tile, at.chunk);
        int64_t inner, chunks = tile_end_chunk(&at.tile) - at.chunk;

        if (at.start + whole <= start || chunks == 1) {
            at.start += whole;
            next_tile(&at);
            continue;
        }
        at.start += first;
        at.chunk++;
        inner = (start - at.start) / plan_chunk_cost(at.tile.rows);
        if (inner > 0) { /* all but the first and the last chunk cost the same */
            inner = inner < chunks - 2 ? inner : chunks - 2;
            at.start += inner * plan_chunk_cost(at.tile.rows);
            at.chunk += (int32_t)inner;
        }
        while (at.start < start && at.chunk < tile_end_chunk(&at.tile) - 1) {
            at.start += unit_cost(&at.tile, at.chunk);
            at.chunk++;
        }
        if (at.start < start) {
            at.start += unit_cost(&at.tile, at.chunk);
            next_tile(&at);
        }
        break;
    }
    return at;
}

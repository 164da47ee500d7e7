/* decode.c - equal shares of the line of units for each thread, partial results merged along a fixed tree
 *
 * The partial results of a tile's chunks are leaves of a binary tree over chunk numbers: node i of a level
 * joins nodes 2i and 2i+1 below it, and where only one of these holds chunks of the tile it is passed up
 * as it is.  So what is added to what depends on chunk numbers alone.  A thread walks its share in order
 * and merges what it can; what is left of a run of chunks are at most two nodes per level.  Tiles that
 * end in the thread that began them are written at once.  After a barrier, the thread that began a tile
 * merges the nodes that the threads after it left.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <math.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "backend.h"
#include "cpu/kernel.h"
#include "cpu/plan.h"
#include "cpu/select.h"
#include "dtype.h"

enum { MAX_LEVELS = 25, MAX_NODES = 2 * MAX_LEVELS + 1 }; /* 2^31 / CHUNK_KEYS chunks */

struct node {
    int32_t level, index;  /* covers chunks [index << level, (index + 1) << level) */
    float *partial;
};

/* What a thread leaves behind: `inherited` nodes of the tile that its share began in the middle of,
 * then, up to `count`, nodes of the tile that its share ended in the middle of. */
struct run {
    int inherited, count;
    struct node nodes[MAX_NODES];
};

/* ---- workspace ------------------------------------------------------------------------------------ */

/* Per thread: struct run, query, scores, what is converted for many rows, then one partial for each node. */
struct room {
    int padded;                     /* rows of a head at most */
    int heads;                      /* KV heads of a tile at most */
    size_t query, scores, staged, partials; /* offsets */
    size_t query_floats;            /* of one head */
    size_t partial;                 /* floats of one head's partial */
    size_t bytes;
};

static size_t align64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static int tree_levels(int64_t keys)
{
    int levels = 1;

    while ((int64_t)CHUNK_KEYS << (levels - 1) < keys)
        levels++;
    return levels;
}

/* The largest divisor of kv_heads up to `most`. */
static int heads_up_to(const struct problem *p, int most)
{
    while (p->kv_heads % most != 0)
        most--;
    return most;
}

/* It depends on the kernel, which is decided once a process: so a workspace that fits fits every later decode. */
static struct room room_of(const struct problem *p, const struct kernel *kernel)
{
    int64_t all_rows = (int64_t)p->group * p->seq_len_q;
    size_t nodes = 2 * (size_t)tree_levels(p->max_seq_len) + 1, heads;
    struct room room;

    room.padded = padded_rows(all_rows < TILE_ROWS ? (int)all_rows : TILE_ROWS);
    room.heads = heads_up_to(p, TILE_ROWS / room.padded);
    heads = (size_t)room.heads;
    /* kernels that repeat the elements of fp8 take 8 bytes for each */
    room.query_floats = (size_t)room.padded * (size_t)p->head_dim * (p->dtype == QUIRE_DTYPE_FP8E4M3 ? 2 : 1);
    room.partial = partial_floats(room.padded, p->head_dim);
    room.query = align64(sizeof(struct run));
    room.scores = room.query + heads * room.query_floats * sizeof(float);
    room.staged = room.scores + (size_t)rows_of_scores(kernel, room.padded) * CHUNK_KEYS * sizeof(float);
    room.partials = room.staged + kernel->staged_bytes;
    room.bytes = room.partials + nodes * heads * room.partial * sizeof(float);
    return room;
}

quire_status cpu_workspace_size(const struct problem *p, size_t *bytes)
{
    const struct kernel *kernel;
    quire_status status = select_kernel(&kernel);

    if (status == QUIRE_OK) /* 64 more, since a workspace is aligned to 32 only */
        *bytes = room_of(p, kernel).bytes * (size_t)select_max_threads() + 64;
    return status;
}

quire_status cpu_prepare(const struct problem *p)
{
    const struct kernel *kernel;

    (void)p;
    return select_kernel(&kernel);
}

/* ---- one thread's state --------------------------------------------------------------------------- */

struct worker {
    const struct problem *p;
    const struct kernel *kernel;
    struct run *run;
    float *partials;
    size_t partial_floats;       /* of one head */
    int heads;                   /* KV heads of a tile */
    bool into_l2;                /* select_reading's */
    struct tile tile;            /* the tile in hand */
    struct rows rows[TILE_ROWS]; /* of each of its heads */
    int row_begin[TILE_ROWS], row_end[TILE_ROWS];
};

static struct run *run_of(const struct problem *p, const struct room *room, int thread)
{
    uintptr_t base = ((uintptr_t)p->workspace + 63) & ~(uintptr_t)63;

    return (struct run *)(base + (size_t)thread * room->bytes);
}

static struct worker worker_make(const struct problem *p, const struct kernel *kernel, const struct room *room,
                                 int heads, int thread)
{
    struct worker w = {.p = p, .kernel = kernel, .heads = heads, .into_l2 = select_reading()->into_l2};
    char *base = (char *)run_of(p, room, thread);

    w.run = (struct run *)base;
    w.run->inherited = w.run->count = 0;
    w.partials = (float *)(base + room->partials);
    w.partial_floats = room->partial;
    for (int h = 0; h < heads; h++) {
        w.rows[h].dtype = p->dtype;
        w.rows[h].out_dtype = p->out_dtype;
        w.rows[h].head_dim = p->head_dim;
        w.rows[h].scale = fminf(p->bmm1_scale * 1.44269504f, 0x1.fffffep127f);
        w.rows[h].query = (float *)(base + room->query) + (size_t)h * room->query_floats;
        w.rows[h].scores = (float *)(base + room->scores);
        w.rows[h].staged = base + room->staged;
    }
    return w;
}

/* Row of query, out and lse that row r of head h of the tile in hand is. */
static int64_t row_place(const struct worker *w, int h, int r)
{
    int32_t row = w->tile.first_row + r, token = row / w->p->group;
    int64_t head = (int64_t)(w->tile.kv_head + h) * w->p->group + row % w->p->group;

    return (w->tile.first_token + token) * w->p->q_heads + head;
}

static void enter_tile(struct worker *w, const struct tile *tile)
{
    const void *source[TILE_ROWS];
    int64_t row_bytes = (int64_t)w->p->head_dim * dtype_bytes(w->p->dtype);

    w->tile = *tile;
    for (int h = 0; h < w->heads; h++) {
        w->rows[h].rows = tile->rows;
        w->rows[h].padded = padded_rows(tile->rows);
        w->rows[h].keys = tile->key_end - tile->key_begin;
        if (tile_is_empty(tile))
            continue;
        for (int r = 0; r < tile->rows; r++)
            source[r] = (const char *)w->p->query + row_place(w, h, r) * row_bytes;
        w->kernel->load_query(&w->rows[h], source);
    }
}

/* ---- output --------------------------------------------------------------------------------------- */

static void write_hidden_row(const struct problem *p, int64_t place)
{
    size_t row_bytes = (size_t)p->head_dim * (size_t)dtype_bytes(p->out_dtype);

    memset((char *)p->out + (size_t)place * row_bytes, 0, row_bytes);
    if (p->lse != NULL)
        p->lse[place] = -INFINITY;
}

/* Writes the rows of the tile in hand; `partial` is its root, or NULL if no row sees a key. */
static void write_tile(struct worker *w, float *partial)
{
    const struct problem *p = w->p;
    size_t row_bytes = (size_t)p->head_dim * (size_t)dtype_bytes(p->out_dtype);

    for (int r = 0; r < w->tile.rows; r++) {
        int32_t begin, end;

        plan_visible(p, &w->tile, (w->tile.first_row + r) / p->group, &begin, &end);
        for (int h = 0; h < w->heads; h++) {
            const struct rows *rows = &w->rows[h];
            int64_t place = row_place(w, h, r);

            if (begin == end) { /* so is every row of a tile without a partial */
                write_hidden_row(p, place);
                continue;
            }
            float *own = partial + (size_t)h * w->partial_floats;
            if (p->lse != NULL)
                p->lse[place] = (float)((double)partial_max(own, rows)[r] * (double)p->bmm1_scale +
                                        log((double)partial_sum(own, rows)[r]));
            w->kernel->finish(rows, own, r, p->bmm2_scale, (char *)p->out + (size_t)place * row_bytes);
        }
    }
}

/* ---- the tree ------------------------------------------------------------------------------------- */

static void merge_nodes(const struct worker *w, float *left, float *right)
{
    for (int h = 0; h < w->heads; h++)
        w->kernel->merge(&w->rows[h], left + (size_t)h * w->partial_floats, right + (size_t)h * w->partial_floats);
}

/* Takes a node, which follows those on the stack, and merges as far as the stack allows.  Returns the
 * tile's root once it is complete, else NULL with the node on the stack. */
static float *push_node(const struct worker *w, struct node *stack, int *depth, int bottom, struct node node)
{
    int64_t first = tile_first_chunk(&w->tile), end = tile_end_chunk(&w->tile);

    for (;;) {
        int64_t from = (int64_t)node.index << node.level, to = ((int64_t)node.index + 1) << node.level;

        if (from <= first && to >= end)
            return node.partial;
        if (node.index & 1) {
            if (from > first) { /* there is a left sibling: on the stack, or with a thread before */
                struct node *left = &stack[*depth - 1];

                if (*depth == bottom || left->level != node.level || left->index != node.index - 1)
                    break;
                merge_nodes(w, left->partial, node.partial);
                node.partial = left->partial;
                --*depth;
            }
        } else if (to < end) { /* there is a right sibling, still to come */
            break;
        }
        node.level++;
        node.index >>= 1;
    }
    stack[(*depth)++] = node;
    return NULL;
}

/* ---- units ---------------------------------------------------------------------------------------- */

/* The keys of a unit, as counted from its first block's. */
struct extent {
    int64_t base;   /* first block's first key */
    int begin, end;
};

static struct extent unit_extent(const struct cursor *at)
{
    int64_t begin = (int64_t)at->chunk * CHUNK_KEYS, end = begin + CHUNK_KEYS;
    struct extent extent;

    begin = begin > at->tile.key_begin ? begin : at->tile.key_begin;
    end = end < at->tile.key_end ? end : at->tile.key_end;
    extent.base = begin / BLOCK_KEYS * BLOCK_KEYS;
    extent.begin = (int)(begin - extent.base);
    extent.end = (int)(end - extent.base);
    return extent;
}

/* Up to `most` of the blocks of K, or of V, of a unit's KV head. */
static int list_blocks(const struct problem *p, const struct cursor *at, int head, bool of_v, int most,
                       const char **blocks)
{
    const int32_t *pages = p->indices + p->indptr[at->tile.request];
    int64_t stride = of_v ? p->v_page_stride : p->k_page_stride;
    int64_t row_bytes = (int64_t)p->head_dim * dtype_bytes(p->dtype);
    const char *cache = (const char *)(of_v ? p->v : p->k) + (at->tile.kv_head + head) * p->page_size * row_bytes;
    struct extent extent = unit_extent(at);
    int count = (extent.end + BLOCK_KEYS - 1) / BLOCK_KEYS, shift = __builtin_ctz((unsigned)p->page_size);

    count = count < most ? count : most;
    for (int i = 0; i < count; i++) { /* page sizes are powers of two */
        int64_t key = extent.base + (int64_t)i * BLOCK_KEYS;

        blocks[i] = cache + pages[key >> shift] * stride + (key & (p->page_size - 1)) * row_bytes;
    }
    return count;
}

/* Fills what rows see of a chunk whose first block begins at key `base`; false if all see all of it. */
static bool list_visible(struct worker *w, int64_t base, int begin, int end)
{
    int32_t last_row = w->tile.first_row + w->tile.rows - 1, from, to, ignored;

    /* an earlier token sees no later end, a later token no earlier begin */
    plan_visible(w->p, &w->tile, w->tile.first_row / w->p->group, &ignored, &to);
    plan_visible(w->p, &w->tile, last_row / w->p->group, &from, &ignored);
    if (from - base <= begin && to - base >= end)
        return false;
    for (int r = 0; r < w->tile.rows; r++) {

        plan_visible(w->p, &w->tile, (w->tile.first_row + r) / w->p->group, &from, &to);
        from = from - base < begin ? begin : from - base > end ? end : (int)(from - base);
        to = to - base > end ? end : to - base < from ? from : (int)(to - base);
        w->row_begin[r] = from;
        w->row_end[r] = to;
    }
    return true;
}

/* Computes the unit at `at`; `next` is the thread's next unit, or NULL, whose keys will be wanted soon. */
static void compute_unit(struct worker *w, const struct cursor *at, const struct cursor *next, float *partial)
{
    const char *memory[2 * CHUNK_BLOCKS + MOST_AHEAD];
    int block_bytes = BLOCK_KEYS * w->p->head_dim * dtype_bytes(w->p->dtype);
    struct extent extent = unit_extent(at);
    struct chunk chunk = {.memory = memory, .begin = extent.begin, .end = extent.end};

    chunk.block_shift = __builtin_ctz((unsigned)block_bytes); /* head sizes are powers of two, too */
    chunk.part_blocks = block_bytes < PART_BYTES ? PART_BYTES / block_bytes : 1;
    /* with more rows too much is computed for each byte: the way from there to the first cache shows (doc/cpu.md) */
    chunk.into_l2 = w->into_l2 && w->rows->padded <= dtype_bytes(w->p->dtype);
    if (list_visible(w, extent.base, chunk.begin, chunk.end)) {
        chunk.row_begin = w->row_begin;
        chunk.row_end = w->row_end;
    }
    for (int h = 0; h < w->heads; h++) {
        const char **after = memory;
        bool last = h + 1 == w->heads;

        chunk.blocks = list_blocks(w->p, at, h, false, CHUNK_BLOCKS, memory);
        after += chunk.blocks;
        after += list_blocks(w->p, at, h, true, CHUNK_BLOCKS, after);
        if (!last)
            after += list_blocks(w->p, at, h + 1, false, MOST_AHEAD, after);
        else if (next != NULL && !tile_is_empty(&next->tile))
            after += list_blocks(w->p, next, 0, false, MOST_AHEAD, after);
        chunk.memory_blocks = (int)(after - memory);
        w->kernel->chunk(&w->rows[h], &chunk, partial + (size_t)h * w->partial_floats);
    }
}

/* ---- shares --------------------------------------------------------------------------------------- */

static int64_t share_start(int64_t cost, int thread, int threads)
{
    return (cost * thread + threads - 1) / threads;
}

/* First half: all units of the thread's share.  Leaves the worker in its last tile; returns whether that
 * tile began in this share and is not finished. */
static bool walk_share(struct worker *w, int64_t cost, int thread, int threads)
{
    struct run *run = w->run;
    struct cursor at = plan_seek(w->p, w->heads, share_start(cost, thread, threads)), next;
    int64_t end = share_start(cost, thread + 1, threads);
    bool entered = false, owned = false;

    for (; !plan_at_end(&at) && at.start < end; at = next) {
        bool first_unit = at.chunk == tile_first_chunk(&at.tile), more;
        float *partial, *root;

        if (first_unit || !entered) {
            enter_tile(w, &at.tile);
            entered = true;
            owned = first_unit;
            run->inherited = run->count;
        }
        next = at;
        plan_next(&next);
        more = !plan_at_end(&next) && next.start < end;
        if (tile_is_empty(&at.tile)) {
            write_tile(w, NULL);
            owned = false;
            continue;
        }
        partial = w->partials + (size_t)(run->count * w->heads) * w->partial_floats;
        compute_unit(w, &at, more ? &next : NULL, partial);
        root = push_node(w, run->nodes, &run->count, run->inherited, (struct node){0, at.chunk, partial});
        if (root != NULL) {
            write_tile(w, root);
            owned = false;
        }
    }
    if (!owned)
        run->inherited = run->count;
    return owned;
}

#ifdef _OPENMP
/* Second half, of the thread that began a tile which others went on with. */
static void finish_tile(struct worker *w, const struct room *room, int thread, int threads)
{
    struct node stack[MAX_NODES];
    int depth = w->run->count - w->run->inherited;

    memcpy(stack, w->run->nodes + w->run->inherited, (size_t)depth * sizeof *stack);
    for (int t = thread + 1; t < threads; t++) {
        const struct run *run = run_of(w->p, room, t);

        for (int i = 0; i < run->inherited; i++) {
            float *root = push_node(w, stack, &depth, 0, run->nodes[i]);

            if (root != NULL) {
                write_tile(w, root);
                return;
            }
        }
    }
}
#endif

/* Rows of a packed query that belong to no request. */
static void write_rows_past_end(const struct problem *p, int thread, int threads)
{
    int64_t used = p->packed ? p->qo_indptr[p->batch] : p->total_q;
    int64_t rows = (p->total_q - used) * p->q_heads, start = used * p->q_heads;

    for (int64_t i = rows * thread / threads; i < rows * (thread + 1) / threads; i++)
        write_hidden_row(p, start + i);
}

/* Heads go through a chunk together where that saves translations of addresses: where heads share a page of
 * the system, and where a head's pages are so many that the translations would be forgotten before the next
 * head needs their neighbours.  (Where the second begins was measured: doc/cpu.md.)  Otherwise a head at a
 * time is faster, unless select_reading says otherwise.  And there have to be enough units for every thread. */
static int choose_heads(const struct problem *p, const struct room *room, int threads)
{
    enum { SYSTEM_PAGE = 4096, UNITS_PER_THREAD = 16 };
    int many_pages = (room->padded >= 4 ? 16 : 64) * p->kv_heads;
    int64_t chunks = plan_cost(p, 1) / plan_chunk_cost(room->padded), longest = 0;
    int heads = room->heads;

    for (int32_t b = 0; b < p->batch; b++)
        longest = p->seq_lens[b] > longest ? p->seq_lens[b] : longest;
    if (!select_reading()->heads_together && p->page_size * p->head_dim * dtype_bytes(p->dtype) >= SYSTEM_PAGE &&
        longest / p->page_size <= many_pages)
        return 1;
    while (heads > 1 && chunks / heads < (int64_t)UNITS_PER_THREAD * threads)
        heads = heads_up_to(p, heads - 1);
    return heads;
}

quire_status cpu_decode(const struct problem *p)
{
    const struct kernel *kernel;
    quire_status status = select_kernel(&kernel);
    struct room room;
    int threads = select_threads(), heads;
    int64_t cost;

    if (status != QUIRE_OK)
        return status;
    room = room_of(p, kernel);
    heads = choose_heads(p, &room, threads);
    cost = plan_cost(p, heads);
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
    {
        int thread = omp_get_thread_num(), team = omp_get_num_threads();
        struct worker worker = worker_make(p, kernel, &room, heads, thread);
        bool unfinished = walk_share(&worker, cost, thread, team);

        write_rows_past_end(p, thread, team);
#pragma omp barrier
        if (unfinished)
            finish_tile(&worker, &room, thread, team);
    }
#else
    {
        struct worker worker = worker_make(p, kernel, &room, heads, 0);

        walk_share(&worker, cost, 0, 1);
        write_rows_past_end(p, 0, 1);
    }
#endif
    return QUIRE_OK;
}

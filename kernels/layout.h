/* layout.h - a CTA's shared memory, as a chain of offsets; plain C, so that the host asks for the
 * same number of bytes that the kernel lays out
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_LAYOUT_H
#define QUIRE_LAYOUT_H

/* rows of an accumulator in shared memory are padded by a 16-byte vector: the four rows that a warp
 * writes at once fall into different banks.  The pad of a row holds its maximum and its sum. */
#define LAYOUT_ACC_STRIDE(d) ((d) + 4)

#define LAYOUT_TILE_BYTES(elem, d, tile) ((tile) * (d) * (elem))      /* K or V of a stage */
#define LAYOUT_Q_ROWS(rows, keyw, solo) ((solo) ? (rows) * (keyw) : (rows))
#define LAYOUT_Q_BYTES(elem, d, q_rows) ((q_rows) * (d) * (elem))

enum { LAYOUT_MAX_Q_SLOTS = 2, LAYOUT_CONTROL_BYTES = 1024, LAYOUT_ROW_BYTES = 16 };

/* How consumers work: warps that own slices of a tile's keys and meet in shared memory at the end of an item
 * (compute.cuh); warpgroups that own 64 rows each (many.cuh); one warpgroup whose M are keys (swapab.cuh). */
enum { LAYOUT_KEY_SLICES, LAYOUT_ROW_GROUPS, LAYOUT_SWAPAB };
#define LAYOUT_KIND_tma LAYOUT_KEY_SLICES
#define LAYOUT_KIND_wide LAYOUT_KEY_SLICES
#define LAYOUT_KIND_lone LAYOUT_KEY_SLICES
#define LAYOUT_KIND_async LAYOUT_KEY_SLICES
#define LAYOUT_KIND_wgmma LAYOUT_ROW_GROUPS
#define LAYOUT_KIND_swapab LAYOUT_SWAPAB

/* fp8 keys and queries become fp16 in shared memory, for tensor cores that take both operands from there */
#define LAYOUT_CONVERTS(kind, elem) ((kind) == LAYOUT_ROW_GROUPS && (elem) == 1)
#define LAYOUT_ELEM(kind, elem) (LAYOUT_CONVERTS(kind, elem) ? 2 : (elem))
enum { LAYOUT_CONVERTERS = 4, LAYOUT_RAW_SLOTS = 3 }; /* warps; pieces of a tile on their way to each */
#define LAYOUT_RAW_BYTES(kind, elem, d, tile) \
    (LAYOUT_CONVERTS(kind, elem) * LAYOUT_RAW_SLOTS * (tile) * (d) * (elem))

/* the next item's query rows come while this one's are used, unless there is no room */
#define LAYOUT_Q_SLOTS(kind, elem, q_bytes) \
    ((q_bytes) << LAYOUT_CONVERTS(kind, elem) <= 32768 ? LAYOUT_MAX_Q_SLOTS : 1)
/* what describes an item is needed up to its end: longer than a query that consumers hold in registers */
#define LAYOUT_ITEM_SLOTS(kind, q_slots) ((kind) == LAYOUT_KEY_SLICES ? 2 * (q_slots) : (q_slots))

/* queries, and row_infos of their items */
#define LAYOUT_QUERY_BYTES(kind, elem, q_bytes, q_rows)  \
    (LAYOUT_Q_SLOTS(kind, elem, q_bytes) * (q_bytes) +   \
     LAYOUT_ITEM_SLOTS(kind, LAYOUT_Q_SLOTS(kind, elem, q_bytes)) * (q_rows) * LAYOUT_ROW_BYTES)

/* Shared memory that is the consumers' own: a plane of output for each key warp; or the query as fp16, a tile's
 * weights, and what warps tell one another of each row. */
enum { LAYOUT_SWAPAB_WARPS = 4 };
#define LAYOUT_CONSUMER_BYTES(kind, d, rows, tile, keyw)                                    \
    ((kind) == LAYOUT_KEY_SLICES ? (keyw) * (rows) * LAYOUT_ACC_STRIDE(d) * 4               \
     : (kind) == LAYOUT_SWAPAB ? (rows) * ((d) * 2 + (tile) * 2 + 2 * LAYOUT_SWAPAB_WARPS * 4) : 0)

/* Warps that bring K, and as many that bring V: two where registers allow it, as one takes long to issue the
 * copies of small pages; and of a solo tile's heads those that one of them copies. */
#define LAYOUT_COPIERS(shares, d, rows) ((d) <= 128 && ((shares) > 1 || ((shares) && (rows) == 8)) ? 2 : 1)
#define LAYOUT_SOLO_BOX_HEADS(keyw, copiers) ((keyw) / (copiers))

/* consumer warps, and those that produce: a warp or two bring K, as many V, two of them the query.  Where
 * registers are moved from producers to consumer warpgroups, the producers are a whole warpgroup: a third brings the
 * query, a fourth half of it for row groups; or all four bring their quarters of a tile and convert them. */
#define LAYOUT_MOVES_REGISTERS(kind, roww) ((kind) == LAYOUT_SWAPAB || ((kind) == LAYOUT_ROW_GROUPS && (roww) == 8))
#define LAYOUT_THREADS(kind, keyw, roww, copiers) \
    (((keyw) * (roww) + (LAYOUT_MOVES_REGISTERS(kind, roww) ? 4 : 2 * (copiers))) * 32)

/* 128-byte panels in a box of K or V: all of them, or one, so that a panel of the whole tile is one matrix, as
 * suits kernels that the tensor cores limit; larger boxes come faster */
#define LAYOUT_BOX_PANELS(kind, elem, d, rows) \
    ((d) * (elem) <= 128 || ((kind) == LAYOUT_ROW_GROUPS && (rows) > 64) ? 1 : (d) * (elem) / 128)

/* Of a box at an end of what an item sees, so many slots are the least that is read: not by two warpgroups, which
 * arithmetic limits. */
enum { LAYOUT_PART_SLOTS = 16 };
#define LAYOUT_READS_PARTS(kind, roww) ((kind) != LAYOUT_ROW_GROUPS || (roww) < 8)

/* whether two warps can share the copies of K or V: not those of cp.async, and not where tiles are large; 1: if there
 * are few rows, 2: at any number */
#define LAYOUT_SHARES_tma 1
#define LAYOUT_SHARES_wide 2
#define LAYOUT_SHARES_lone 2
#define LAYOUT_SHARES_async 0
#define LAYOUT_SHARES_wgmma 0
#define LAYOUT_SHARES_swapab 0

/* dynamic shared memory of a CTA; the first term is the slack that aligns the ring to 1024 bytes, the
 * period of the copy engine's 128-byte swizzle */
#define LAYOUT_TOTAL_BYTES(kind, elem, d, rows, tile, keyw, stages, solo)                                      \
    (1024 + (stages) * 2 * LAYOUT_TILE_BYTES(LAYOUT_ELEM(kind, elem), d, tile) +                               \
     LAYOUT_RAW_BYTES(kind, elem, d, tile) +                                                                   \
     LAYOUT_QUERY_BYTES(kind, elem, LAYOUT_Q_BYTES(LAYOUT_ELEM(kind, elem), d, LAYOUT_Q_ROWS(rows, keyw, solo)), \
                        LAYOUT_Q_ROWS(rows, keyw, solo)) +                                                     \
     LAYOUT_CONSUMER_BYTES(kind, d, rows, tile, keyw) + LAYOUT_CONTROL_BYTES)

/* a partial result in the workspace: rows of D sums, each with its maximum and weight, which swapab.cuh's warps have
 * a copy of each; and all of a CTA's */
#define LAYOUT_SLOT_FLOATS(d, rows) ((rows) * LAYOUT_ACC_STRIDE(d))
#define LAYOUT_SWAPAB_SLOT_FLOATS(d, rows) ((rows) * ((d) + LAYOUT_SWAPAB_WARPS * 2))
#define LAYOUT_CTA_SLOTS(keyw, solo) ((solo) ? (keyw) : 1)
#define LAYOUT_CTA_FLOATS(kind, d, rows, keyw, solo)                      \
    ((kind) == LAYOUT_SWAPAB ? LAYOUT_SWAPAB_SLOT_FLOATS(d, rows)         \
                             : LAYOUT_SLOT_FLOATS(d, rows) * LAYOUT_CTA_SLOTS(keyw, solo))

#endif

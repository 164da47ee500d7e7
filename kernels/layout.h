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
#define LAYOUT_MERGE_BYTES(d, rows, keyw) ((keyw) * (rows) * LAYOUT_ACC_STRIDE(d) * 4)

enum { LAYOUT_Q_SLOTS = 2, LAYOUT_CONTROL_BYTES = 1024, LAYOUT_ROW_BYTES = 16 };

/* consumer warps, and two that produce: one brings K, the other V and the query */
#define LAYOUT_THREADS(keyw, roww) (((keyw) * (roww) + 2) * 32)

/* dynamic shared memory of a CTA; the first term is the slack that aligns the ring to 1024 bytes, the
 * period of the copy engine's 128-byte swizzle */
#define LAYOUT_TOTAL_BYTES(elem, d, rows, tile, keyw, stages, solo)                                \
    (1024 + (stages) * 2 * LAYOUT_TILE_BYTES(elem, d, tile) +                                      \
     LAYOUT_Q_SLOTS * LAYOUT_Q_ROWS(rows, keyw, solo) * ((d) * (elem) + LAYOUT_ROW_BYTES) +        \
     LAYOUT_MERGE_BYTES(d, rows, keyw) + LAYOUT_CONTROL_BYTES)

/* bytes of a partial result in the workspace: rows of D sums, each with its maximum and weight */
#define LAYOUT_SLOT_FLOATS(d, rows) ((rows) * LAYOUT_ACC_STRIDE(d))

#endif

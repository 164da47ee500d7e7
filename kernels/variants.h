/* variants.h - the decode kernels there are: the one list from which the .cu files instantiate them
 * and lib/policy.c chooses.  Plain C.
 * SPDX-License-Identifier: Apache-2.0
 *
 * A CTA is KEY_WARPS * ROW_WARPS consumer warps and two or four producer warps.  A work item is (request, KV
 * head, tile of ROWS query rows); a consumer warp takes TILE/KEY_WARPS keys of every key tile and
 * ROWS/ROW_WARPS of the rows, in n-tiles of 8.  The ring holds STAGES tiles of K and V.
 *
 * family tma      compute capability 9.0 with 227 KB of shared memory per CTA, and its successors:
 *                 pages come through the copy engine.
 * family wide     as tma, for launches of few items, each cut into many pieces: larger tiles, so that fewer
 *                 pieces are to be merged, by more threads.
 * family lone     as wide, for launches of so few items that CTAs are left, which put the pieces together; where none is
 *                 left, or items are unlike, it does as wide.
 * family wgmma    as tma, on compute capability 9.0 alone, for many query rows: a consumer warpgroup owns 64
 *                 rows and takes all keys.  KEY_WARPS is 1.  fp8 becomes fp16 on its way (convert.cuh).
 * family swapab   as tma, on compute capability 9.0 alone, for fp8 and up to 64 query rows: one consumer warpgroup, with
 *                 keys as M (swapab.cuh).  KEY_WARPS is 4.
 * family async    compute capability 8.0 and up, at most 99 KB: pages come through cp.async.
 *
 * Sizes, from measurements on the H200: 64 KB in flight per SM reach the memory limit, and more make
 * SMs unequal; two CTAs per SM hide the end of an item behind the other CTA's loads while registers
 * allow it (168 per thread for 2 x 5 warps).  Where 8 rows do not fit one warp's registers beside
 * the output (D = 256: 64 accumulators per 8 rows), rows are spread over warps instead.
 *
 * solo: key warps can take a head each instead of a slice of one head's keys, so that a short request's
 * tile is not mostly empty, what adjoins in a small page is read together, and warps need not meet.  It
 * takes shared memory for all the heads' query rows.
 */
#ifndef QUIRE_VARIANTS_H
#define QUIRE_VARIANTS_H

/*       family dtype  elem D   rows tile keyw roww stages ctas/SM solo */
#define QUIRE_VARIANTS_D64_16(V, dtype)                     \
    V(lone,  dtype, 2, 64,  8,  256, 8, 1, 2, 1, 0)         \
    V(wide,  dtype, 2, 64,  8,  256, 8, 1, 2, 1, 0)         \
    V(wide,  dtype, 2, 64,  16, 256, 8, 1, 2, 1, 0)         \
    V(tma,   dtype, 2, 64,  8,  128, 4, 1, 2, 2, 1)         \
    V(tma,   dtype, 2, 64,  16, 128, 4, 1, 2, 2, 0)         \
    V(tma,   dtype, 2, 64,  32, 128, 4, 2, 3, 1, 0)         \
    V(tma,   dtype, 2, 64,  64, 128, 2, 4, 3, 1, 0)         \
    V(wgmma, dtype, 2, 64,  64, 128, 1, 4, 2, 2, 0)         \
    V(wgmma, dtype, 2, 64,  128, 128, 1, 8, 3, 1, 0)        \
    V(async, dtype, 2, 64,  8,  128, 4, 1, 2, 1, 0)         \
    V(async, dtype, 2, 64,  16, 64,  2, 2, 3, 1, 0)
#define QUIRE_VARIANTS_D128_16(V, dtype)                    \
    V(lone,  dtype, 2, 128, 8,  128, 8, 1, 2, 1, 0)         \
    V(wide,  dtype, 2, 128, 8,  128, 8, 1, 2, 1, 0)         \
    V(wide,  dtype, 2, 128, 16, 128, 8, 1, 2, 1, 0)         \
    V(tma,   dtype, 2, 128, 8,  64,  4, 1, 2, 2, 1)         \
    V(tma,   dtype, 2, 128, 16, 64,  4, 1, 2, 2, 0)         \
    V(tma,   dtype, 2, 128, 32, 64,  4, 2, 3, 1, 0)         \
    V(tma,   dtype, 2, 128, 64, 64,  2, 4, 3, 1, 0)         \
    V(wgmma, dtype, 2, 128, 64, 64,  1, 4, 2, 2, 0)         \
    V(wgmma, dtype, 2, 128, 128, 128, 1, 8, 2, 1, 0)        \
    V(async, dtype, 2, 128, 8,  64,  4, 1, 2, 1, 0)         \
    V(async, dtype, 2, 128, 16, 32,  2, 2, 3, 1, 0)
#define QUIRE_VARIANTS_D256_16(V, dtype)                    \
    V(tma,   dtype, 2, 256, 8,  64,  4, 1, 2, 1, 1)         \
    V(tma,   dtype, 2, 256, 16, 64,  4, 2, 2, 1, 0)         \
    V(tma,   dtype, 2, 256, 32, 32,  2, 4, 3, 1, 0)         \
    V(tma,   dtype, 2, 256, 64, 32,  1, 4, 2, 1, 0)         \
    V(wgmma, dtype, 2, 256, 64, 64,  1, 4, 2, 1, 0)         \
    V(wgmma, dtype, 2, 256, 128, 64, 1, 8, 2, 1, 0)         \
    V(async, dtype, 2, 256, 8,  32,  2, 1, 2, 1, 0)         \
    V(async, dtype, 2, 256, 16, 16,  1, 2, 3, 1, 0)
#define QUIRE_VARIANTS_D64_8(V, dtype)                      \
    V(lone,  dtype, 1, 64,  8,  256, 8, 1, 2, 1, 0)         \
    V(wide,  dtype, 1, 64,  8,  256, 8, 1, 2, 1, 0)         \
    V(tma,   dtype, 1, 64,  8,  256, 4, 1, 2, 2, 1)         \
    V(tma,   dtype, 1, 64,  16, 256, 4, 1, 2, 2, 0)         \
    V(tma,   dtype, 1, 64,  32, 256, 4, 2, 3, 1, 0)         \
    V(tma,   dtype, 1, 64,  64, 256, 2, 4, 3, 1, 0)         \
    V(wgmma, dtype, 1, 64,  128, 128, 1, 8, 2, 1, 0)        \
    V(swapab, dtype, 1, 64,  16, 256, 4, 1, 2, 2, 0)        \
    V(swapab, dtype, 1, 64,  32, 128, 4, 1, 4, 2, 0)        \
    V(swapab, dtype, 1, 64,  64, 64,  4, 1, 8, 2, 0)        \
    V(async, dtype, 1, 64,  8,  128, 4, 1, 3, 1, 0)         \
    V(async, dtype, 1, 64,  16, 64,  2, 2, 3, 1, 0)
#define QUIRE_VARIANTS_D128_8(V, dtype)                     \
    V(lone,  dtype, 1, 128, 8,  256, 8, 1, 2, 1, 0)         \
    V(wide,  dtype, 1, 128, 8,  256, 8, 1, 2, 1, 0)         \
    V(tma,   dtype, 1, 128, 8,  128, 4, 1, 2, 2, 1)         \
    V(tma,   dtype, 1, 128, 16, 128, 4, 1, 2, 2, 0)         \
    V(tma,   dtype, 1, 128, 32, 128, 4, 2, 3, 1, 0)         \
    V(tma,   dtype, 1, 128, 64, 128, 2, 4, 3, 1, 0)         \
    V(wgmma, dtype, 1, 128, 128, 128, 1, 8, 2, 1, 0)        \
    V(swapab, dtype, 1, 128, 16, 128, 4, 1, 2, 2, 0)        \
    V(swapab, dtype, 1, 128, 32, 128, 4, 1, 2, 2, 0)        \
    V(swapab, dtype, 1, 128, 64, 64,  4, 1, 4, 2, 0)        \
    V(async, dtype, 1, 128, 8,  64,  4, 1, 3, 1, 0)         \
    V(async, dtype, 1, 128, 16, 32,  2, 2, 3, 1, 0)
#define QUIRE_VARIANTS_D256_8(V, dtype)                     \
    V(tma,   dtype, 1, 256, 8,  64,  4, 1, 2, 2, 0)         \
    V(tma,   dtype, 1, 256, 16, 64,  4, 2, 3, 1, 0)         \
    V(tma,   dtype, 1, 256, 32, 64,  2, 4, 3, 1, 0)         \
    V(tma,   dtype, 1, 256, 64, 32,  1, 4, 2, 1, 0)         \
    V(swapab, dtype, 1, 256, 16, 64,  4, 1, 2, 2, 0)        \
    V(swapab, dtype, 1, 256, 32, 64,  4, 1, 2, 2, 0)        \
    V(async, dtype, 1, 256, 8,  32,  2, 1, 3, 1, 0)         \
    V(async, dtype, 1, 256, 16, 16,  1, 2, 3, 1, 0)

#endif

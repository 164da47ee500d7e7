/* tensor_map.h - the copy engine's descriptions of K and V
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_CUDA_TENSOR_MAP_H
#define QUIRE_CUDA_TENSOR_MAP_H

#include <stdint.h>

#include "driver.h"
#include "kernels/params.h"

/* All that a map depends on. Without holes, as keys are compared by their bytes. */
struct cache_shape {
    const void *base;       /* K's or V's first page, 16-byte aligned */
    int64_t page_stride;    /* bytes, a multiple of 16 */
    int64_t pages;          /* a box of a page id beyond them, or below 0, reads as zeros */
    int32_t kv_heads;
    int32_t page_size;      /* slots */
    int32_t row_bytes;      /* of one slot of one head: 64, or a multiple of 128 */
    int32_t elem_bytes;
    int32_t box_slots;      /* slots of a page that one copy brings */
    int32_t box_panels;     /* and 128-byte panels of them */
    int32_t box_heads;      /* and heads of that page, one after the other */
    int32_t pad;            /* 0 */
};

/* The map for boxes of box_slots slots of one page and of box_heads heads, each cut into panels of 128 bytes that are
 * swizzled in shared memory: coordinates {0, slot, panel, head, page}, or {0, slot / 2, 0, head, page} where two
 * slots of 64 bytes share a panel's row, as the copy engine is slow with rows shorter than 128.
 * Maps are kept in a table that threads share without a lock, as encoding one takes the driver up to a
 * microsecond. DEVICE: the driver does not take the shape. */
quire_status tensor_map_get(const struct driver *driver, const struct cache_shape *shape, struct tensor_map *map);

#endif

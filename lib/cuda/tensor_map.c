/* tensor_map.c - the copy engine's descriptions of K and V
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <stdbool.h>
#include <string.h>

#include "tensor_map.h"

enum {
    SLOTS = 4096, /* a power of 2, so large that the six maps of each of 100 layers seldom meet */
    KEY_WORDS = sizeof(struct cache_shape) / sizeof(uint64_t),
    MAP_WORDS = sizeof(struct tensor_map) / sizeof(uint64_t),
    WORDS = KEY_WORDS + MAP_WORDS
};
_Static_assert(sizeof(struct cache_shape) == 7 * sizeof(uint64_t), "holes would make equal keys differ");
_Static_assert(sizeof(struct tensor_map) == sizeof(CUtensorMap), "params.h and cuda.h disagree");

static quire_status encode(const struct driver *driver, const struct cache_shape *shape, struct tensor_map *map)
{
    enum { PANEL = 128 };
    const int32_t fold = shape->row_bytes < PANEL ? PANEL / shape->row_bytes : 1; /* slots in a row */
    const int32_t row = shape->row_bytes * fold;
    const cuuint64_t extent[] = { (cuuint64_t)(PANEL / shape->elem_bytes), (cuuint64_t)(shape->page_size / fold),
                                  (cuuint64_t)(row / PANEL), (cuuint64_t)shape->kv_heads, (cuuint64_t)shape->pages };
    const cuuint64_t stride[] = { (cuuint64_t)row, PANEL, (cuuint64_t)shape->page_size * (cuuint64_t)shape->row_bytes,
                                  (cuuint64_t)shape->page_stride };
    const cuuint32_t box[] = { (cuuint32_t)(PANEL / shape->elem_bytes), (cuuint32_t)(shape->box_slots / fold),
                               (cuuint32_t)shape->box_panels, (cuuint32_t)shape->box_heads, 1 };
    const cuuint32_t every[] = { 1, 1, 1, 1, 1 };
    CUtensorMap encoded;

    /* L2 promotion off: fetching 256 bytes for 128 costs pages of 16 slots 4 to 8 % of the bandwidth. */
    DRIVER_CALL(driver, cuTensorMapEncodeTiled, &encoded,
                shape->elem_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16, 5,
                (void *)(uintptr_t)shape->base, extent, stride, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    memcpy(map, &encoded, sizeof encoded);
    return QUIRE_OK;
}

/* A slot's version is odd while a thread writes it. A reader that saw the same even version before and
 * after has read one thread's words, else it encodes for itself; a writer that finds another at work
 * leaves the slot to it. Nobody waits. */
static struct slot {
    uint64_t words[WORDS];
    uint32_t version;
} slots[SLOTS];

static bool look_up(struct slot *slot, const uint64_t *key, uint64_t *map)
{
    const uint32_t before = __atomic_load_n(&slot->version, __ATOMIC_ACQUIRE);

    if (before % 2)
        return false;
    for (int i = 0; i < KEY_WORDS; i++)
        if (__atomic_load_n(&slot->words[i], __ATOMIC_RELAXED) != key[i])
            return false;
    for (int i = 0; i < MAP_WORDS; i++)
        map[i] = __atomic_load_n(&slot->words[KEY_WORDS + i], __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&slot->version, __ATOMIC_RELAXED) == before;
}

static void store(struct slot *slot, const uint64_t *key, const uint64_t *map)
{
    uint32_t version = __atomic_load_n(&slot->version, __ATOMIC_RELAXED);

    if (version % 2 || !__atomic_compare_exchange_n(&slot->version, &version, version + 1, false, __ATOMIC_ACQUIRE,
                                                    __ATOMIC_RELAXED))
        return;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    for (int i = 0; i < WORDS; i++)
        __atomic_store_n(&slot->words[i], i < KEY_WORDS ? key[i] : map[i - KEY_WORDS], __ATOMIC_RELAXED);
    __atomic_store_n(&slot->version, version + 2, __ATOMIC_RELEASE);
}

quire_status tensor_map_get(const struct driver *driver, const struct cache_shape *shape, struct tensor_map *map)
{
    uint64_t key[KEY_WORDS], words[MAP_WORDS], hash = 0;
    struct slot *slot;
    quire_status status;

    memcpy(key, shape, sizeof key);
    for (int i = 0; i < KEY_WORDS; i++)
        hash = (hash ^ key[i]) * UINT64_C(0x9e3779b97f4a7c15);
    slot = &slots[hash >> 32 & (SLOTS - 1)];
    if (look_up(slot, key, words)) {
        memcpy(map, words, sizeof words);
        return QUIRE_OK;
    }
    status = encode(driver, shape, map);
    if (status == QUIRE_OK) {
        memcpy(words, map, sizeof words);
        store(slot, key, words);
    }
    return status;
}

// traits.cuh - a variant's numbers, derived from its row of variants.h, and its shared memory
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layout.h"
#include "params.h"
#include "ptx.cuh"

namespace quire {

enum class element { fp16, bf16, fp8e4m3 };

// What the producer tells the consumers of a key tile, beside its keys.
struct tile_info {
    int key0;   // first key of the tile
    int lo, hi; // keys that some row of the item sees
    int flags;  // enum below
};
enum { TILE_LAST = 1, TILE_MASKED = 2 }; // the last of its item in this CTA's share; some row does not see all of it

// One row of an item: what it sees, and where it goes.
struct row_info {
    int lo, hi;
    int out_row; // in query, out and lse; -1: a row that only fills the tile
    int pad;     // to LAYOUT_ROW_BYTES, so that rows are read as vectors
};

// An item, or the piece of one, that a CTA works on.
struct item_info {
    int share;     // the CTA's; negative: it has no work
    int rank;      // of this share among those that hold a piece of the item
    int last_rank;
    bool solo;     // key warp w has head w of the item's to itself, and leaves partial result w of the CTA's
    bool final;    // the CTA's last
    int adders;    // CTAs without a share that put the item together (merge.cuh); 0: its CTA of rank 0 does
    int adder;     // which of them this CTA is; negative: it has a piece
};

enum class kernel_family { tma, wide, lone, wgmma, swapab, async };

template <kernel_family F, element E, int RAW_ELEM, int D_, int ROWS_, int TILE_, int KEY_WARPS_, int ROW_WARPS_,
          int STAGES_, bool SOLO_, int KIND_, int COPIERS_>
struct traits {
    static constexpr bool BF16 = E == element::bf16, FP8 = E == element::fp8e4m3, SOLO = SOLO_;
    static constexpr bool TMA = F != kernel_family::async, WGMMA = F == kernel_family::wgmma;
    static constexpr bool SPARES = F == kernel_family::lone; // CTAs without a share may be adders
    static constexpr bool ALONE = F == kernel_family::wide || SPARES; // at most 32 requests (schedule.cuh)
    static constexpr bool SWAPAB = F == kernel_family::swapab;
    // K's place in a stage of the ring is left before V's, as soon as the scores are there: an arrival more for each tile,
    // which is worth it in one of the kernels whose warps have slices of keys (doc/kernels.md).
    static constexpr bool K_LEAVES_FIRST = WGMMA || SWAPAB || (TMA && !FP8 && D_ == 256 && ROWS_ == 8);
    static constexpr bool CONVERTS = LAYOUT_CONVERTS(KIND_, RAW_ELEM);
    static constexpr int ELEM_BYTES = LAYOUT_ELEM(KIND_, RAW_ELEM); // in shared memory, for the matrix instructions
    static constexpr int D = D_, ROWS = ROWS_, TILE = TILE_, STAGES = STAGES_;
    static constexpr int KEY_WARPS = KEY_WARPS_, ROW_WARPS = ROW_WARPS_;
    static constexpr int CONSUMERS = KEY_WARPS * ROW_WARPS * 32;
    static constexpr int COPIERS = COPIERS_, SOLO_BOX_HEADS = LAYOUT_SOLO_BOX_HEADS(KEY_WARPS, COPIERS);
    static constexpr int THREADS = LAYOUT_THREADS(KIND_, KEY_WARPS, ROW_WARPS, COPIERS);
    static constexpr bool MOVES_REGISTERS = LAYOUT_MOVES_REGISTERS(KIND_, ROW_WARPS);
    static constexpr int QUERY_WARPS = // of the producers, the last ones
        (WGMMA && MOVES_REGISTERS) || (TMA && KIND_ == LAYOUT_KEY_SLICES) ? 2 : 1;
    static constexpr int PRODUCERS = CONVERTS ? LAYOUT_CONVERTERS * 32 // threads
                                     : MOVES_REGISTERS ? 64 + 32 * QUERY_WARPS : 64 * COPIERS;
    // Producers copy what is but a guess (load.cuh). It takes code, which launches of very few items pay more for than it
    // saves, and registers, which kernels of many rows do not have.
    static constexpr bool BOLD = TMA && !SWAPAB && !SPARES && ROWS <= 32;
    static_assert(!BOLD || PRODUCERS == 64 * COPIERS);
    // of each consumer warpgroup, and the producers': together those of a launch's even shares, 3 * 168 or 2 * 128
    static constexpr int CONSUMER_REGISTERS = SWAPAB ? 184 : CONVERTS ? 192 : 208;
    static constexpr int PRODUCER_REGISTERS = SWAPAB ? 72 : CONVERTS ? 120 : 88;
    static constexpr int WARP_KEYS = TILE / KEY_WARPS, WARP_ROWS = ROWS / ROW_WARPS;
    static constexpr int N_TILES = WARP_ROWS / 8;   // of 8 rows
    static constexpr int D_TILES = D / 16;          // of 16 output dims
    static constexpr int K_STEPS = D / 16;          // of 16 dims of QK's inner product

    // In shared memory a key (a query row) is cut into panels of 128 bytes; rows of 64 bytes share 128 bytes
    // with their neighbour.  Within a panel 16-byte chunks are swizzled as the copy engine swizzles them.
    static constexpr int ROW_BYTES = D * ELEM_BYTES < 128 ? D * ELEM_BYTES : 128; // of one row in a panel
    static constexpr int ROW_CHUNKS = D * ELEM_BYTES / 16;                  // over all panels
    static constexpr int PANEL_CHUNKS = ROW_BYTES / 16;
    static constexpr int ACC_STRIDE = LAYOUT_ACC_STRIDE(D);

    // schedule.cuh: units of a tile; of one that half of two warpgroups works on; and of an item besides its tiles,
    // where items are not alike. A warpgroup on its own hides no softmax; where keys are converted, that takes longer.
    // What ends an item is hidden by the loads of the next, but not where the next is of a tile or two.
    static constexpr bool PAIRS = WGMMA && ROWS > 64; // of warpgroups
    static constexpr int UNITS = 4, HALF_UNITS = PAIRS && !CONVERTS ? 3 : UNITS;
    static constexpr int ITEM_UNITS = WGMMA ? (PAIRS ? 1 : 2) * UNITS : 2;
    // Whether the row tiles of a head are worked on at the same keys, which are in L2 then: not where converting keys
    // takes longer than bringing them.
    static constexpr bool IN_STEP = PAIRS && !CONVERTS;

    static constexpr int TILE_BYTES = LAYOUT_TILE_BYTES(ELEM_BYTES, D, TILE);
    static constexpr int Q_ROWS = LAYOUT_Q_ROWS(ROWS, KEY_WARPS, SOLO);
    static constexpr int Q_BYTES = LAYOUT_Q_BYTES(ELEM_BYTES, D, Q_ROWS);
    static constexpr int Q_SLOTS = LAYOUT_Q_SLOTS(KIND_, RAW_ELEM, Q_BYTES);
    static constexpr int ITEM_SLOTS = LAYOUT_ITEM_SLOTS(KIND_, Q_SLOTS);
    static constexpr int BOX_PANELS = LAYOUT_BOX_PANELS(KIND_, RAW_ELEM, D, ROWS);
    static constexpr int BOXES_PER_PAGE = D * RAW_ELEM <= 128 ? 1 : D * RAW_ELEM / 128 / BOX_PANELS;
    static constexpr bool PARTS = TMA && LAYOUT_READS_PARTS(KIND_, ROW_WARPS_);
    static constexpr bool HALVES = WGMMA && BOX_PANELS > 1; // many.cuh
    static constexpr int OFF_RING = 0; // K and V of stage 0, of stage 1, ...
    static constexpr int OFF_RAW = OFF_RING + STAGES * 2 * TILE_BYTES;
    static constexpr int OFF_Q = OFF_RAW + LAYOUT_RAW_BYTES(KIND_, RAW_ELEM, D, TILE);
    static constexpr int OFF_OWN = OFF_Q + Q_SLOTS * Q_BYTES;
    static constexpr int OFF_ROWS = OFF_OWN + LAYOUT_CONSUMER_BYTES(KIND_, D, ROWS, TILE, KEY_WARPS);
    static constexpr int OFF_CONTROL = OFF_ROWS + ITEM_SLOTS * Q_ROWS * LAYOUT_ROW_BYTES;
    static constexpr int TOTAL = LAYOUT_TOTAL_BYTES(KIND_, RAW_ELEM, D, ROWS, TILE, KEY_WARPS, STAGES, SOLO);
    static_assert(OFF_CONTROL + LAYOUT_CONTROL_BYTES + 1024 == TOTAL, "layout.h and traits.cuh agree");
    static_assert(sizeof(row_info) == LAYOUT_ROW_BYTES);
    static_assert(WARP_KEYS % 16 == 0 && WARP_ROWS % 8 == 0 && TILE <= 256);

    // where chunk c of row r stands in its panel, for c below PANEL_CHUNKS
    __device__ static __forceinline__ u32 place(int r, int c)
    {
        return ROW_BYTES == 128 ? r * 128 + ((c ^ (r & 7)) * 16)
                                : (r >> 1) * 128 + (((r & 1) * 4 + c) ^ (r >> 1 & 7)) * 16;
    }
};

// The part of shared memory after the large arrays.
template <class T>
struct control {
    u64 k_full[T::STAGES];           // a tile's K has landed, and its tile_info
    u64 v_full[T::STAGES];
    u64 empty[T::STAGES];            // every consumer warp is done with it,
    u64 k_empty[T::STAGES];          // or with its K (K_LEAVES_FIRST; others release K and V together)
    u64 q_full[T::Q_SLOTS];          // an item's query rows and infos have landed
    u64 q_empty[T::Q_SLOTS];         // every consumer warp has its rows in registers, or is done with the item
    u64 looked_again;                // every warp that finds its share has told whether a guess was wrong,
    bool outdated[32];               // here
    u64 raw_full[T::CONVERTS ? LAYOUT_CONVERTERS : 1][LAYOUT_RAW_SLOTS]; // a piece to be converted has landed
    tile_info tiles[T::STAGES];
    item_info items[T::ITEM_SLOTS];
    u64 share_words[32];             // find_share's
};

// How pages lie in a stage: the slots of every page that a tile touches, in BOXES_PER_PAGE boxes, and where it is
// solo all heads' slots of the page one after the other.
struct box_shape {
    int shift; // log2 of the slots of a page and head that lie together
    int count; // pages per tile
    int heads;
};

__host__ __device__ constexpr int log2(int x) { return x <= 1 ? 0 : 1 + log2(x / 2); }

template <class T>
__device__ __forceinline__ box_shape boxes_of(const decode_params &p, bool solo)
{
    const int shift = min(p.page_shift, solo ? log2(T::WARP_KEYS) : log2(T::TILE));
    return {shift, (solo ? T::WARP_KEYS : T::TILE) >> shift, solo ? T::KEY_WARPS : 1};
}

} // namespace quire

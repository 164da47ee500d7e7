// load.cuh - the producer warps: keep the ring full of K/V tiles, and hand items to the consumers
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schedule.cuh"
#include "wgmma.cuh"

namespace quire {

enum { BARRIER_PRODUCERS = 6 }; // consumers' have lower numbers

// Row r of the rows staged for the item at hand.
template <class T>
__device__ __forceinline__ row_info describe_row(const decode_params &p, const cursor<T> &at, u32 r)
{
    const int row = at.rt * T::ROWS + r % T::ROWS, head = at.head + r / T::ROWS;
    row_info info = {0, 0, -1, 0};
    if (row < at.req.tokens * p.group && head < p.kv_heads) {
        const int token = at.req.tokens == 1 ? 0 : static_cast<u32>(row) / static_cast<u32>(p.group);
        const key_range sees = visible_keys(p, at.req, token);
        info.lo = sees.lo;
        info.hi = sees.hi;
        info.out_row = (at.req.first_token + token) * p.q_heads + head * p.group + row - token * p.group;
    }
    return info;
}

template <class T>
__device__ __forceinline__ item_info describe_item(const cursor<T> &at, const share &mine)
{
    const bool begins = at.item_start >= mine.start;
    item_info info;
    info.share = mine.index;
    info.rank = begins ? 0 : mine.index - mine.of(at.item_start);
    info.last_rank = info.rank + (at.ends() ? 0 : mine.of(at.last_tile_start()) - mine.index);
    info.solo = at.solo;
    info.final = at.item_end() >= mine.end;
    info.adders = T::SPARES ? mine.adders : 0;
    info.adder = T::SPARES ? mine.adder : -1;
    return info;
}

template <class T>
__device__ __forceinline__ tile_info describe_tile(const cursor<T> &at)
{
    const int key0 = at.first_key(at.place(at.tile));
    const bool masked = key0 < at.keys.all.lo || key0 + at.key_count() > at.keys.all.hi;
    const bool last = at.tile + 1 == at.tile_end;
    return {key0, at.keys.some.lo, at.keys.some.hi, (last ? TILE_LAST : 0) | (masked ? TILE_MASKED : 0)};
}

template <class T>
struct producer {
    const decode_params &p;
    unsigned char *smem;
    control<T> *ctl;
    int lane;
    int warp; // even ones bring K, odd ones V: small pages are limited by how fast a warp issues copies; the last
              // one or two bring the query
    share mine;
    cursor<T> at;
    bool early;  // the work before this launch may not be complete yet (settle)
    bool unsure; // what this warp takes for the metadata may still be written by it (run)

    // The box that a lane copies of each tile of the cursor's item, by what is the same for all of them: small pages are
    // limited by how fast a warp goes from a tile to the next.
    struct lane_box {
        int key;    // the first, from the tile's first on
        int shift;  // log2 of its keys
        int end;    // of the keys that some row sees; 0 where the lane has no box
        int panel, head;
        u32 place;  // in K or V of a stage
    };
    lane_box box;

    // A lane's page of a tile. If no row sees a key of the box it is neither looked up nor read; if there are parts of it
    // that no row sees, the others are read one by one.
    struct page {
        bool live, cut;
        int id, key;
    };
    page pg; // of the cursor's tile

    __device__ __forceinline__ bool adds() const { return T::SPARES && mine.adder >= 0; } // the CTA brings no tiles
    __device__ __forceinline__ bool brings_v() const { return warp % 2 == 1; }
    __device__ __forceinline__ bool brings_query() const { return warp >= T::PRODUCERS / 32 - T::QUERY_WARPS; }
    __device__ __forceinline__ int part_of_query() const
    {
        return T::QUERY_WARPS == 1 ? 0 : T::PRODUCERS / 32 - 1 - warp;
    }
    __device__ __forceinline__ bool brings_tiles() const
    {
        static_assert(!T::ALONE || T::PRODUCERS == 64 * T::COPIERS);
        return T::ALONE || warp < 2 * T::COPIERS;
    }

    __device__ __forceinline__ box_shape boxes() const { return boxes_of<T>(p, at.solo); }

    // For the cursor's item. Of a tile's boxes a warp takes every COPIERS-th, or where it is solo every page's, with some of
    // the heads.
    __device__ __forceinline__ void find_box()
    {
        const box_shape shape = boxes();
        const int nth = at.solo ? lane : lane * T::COPIERS + warp / 2;
        const int head = at.solo ? warp / 2 * T::SOLO_BOX_HEADS : 0;
        const key_range sees = at.keys.some;
        box.key = (T::BOXES_PER_PAGE > 1 ? nth & (shape.count - 1) : nth) << shape.shift;
        box.shift = shape.shift;
        box.end = nth < shape.count * T::BOXES_PER_PAGE && sees.lo < sees.hi ? sees.hi : 0;
        box.panel = T::BOXES_PER_PAGE > 1 ? nth / shape.count : 0;
        box.head = at.head + head;
        box.place = (nth * shape.heads + head) * (T::BOX_PANELS * T::ROW_BYTES << shape.shift);
    }

    template <bool EARLY = false>
    __device__ __forceinline__ page find_page(int tile) const
    {
        page found;
        found.key = at.first_key(at.place(tile)) + box.key;
        const int end = found.key + (1 << box.shift);
        found.live = found.key < box.end && end > at.keys.some.lo;
        found.cut = T::PARTS && found.live && box.shift > log2(LAYOUT_PART_SLOTS) &&
                    (found.key + LAYOUT_PART_SLOTS <= at.keys.some.lo || end - LAYOUT_PART_SLOTS >= box.end);
        found.id = found.live ? load_int<EARLY>(p.indices + at.req.first_entry + (found.key >> p.page_shift)) : -1;
        return found;
    }

    // Before the first access to what the work before this launch may write.  All that only the metadata decide is done
    // by then.  To wait again costs less than a branch in kernels of few tiles.
    __device__ __forceinline__ void settle()
    {
        if (T::ALONE || early)
            wait_for_previous_grid();
        early = false;
    }

    // Rows and query of the item at hand, the share's nth.
    __device__ __forceinline__ void copy_query(u32 nth)
    {
        row_info *rows = reinterpret_cast<row_info *>(smem + T::OFF_ROWS) + nth % T::ITEM_SLOTS * T::Q_ROWS;
        const int own = part_of_query();
        const int each = at.heads() * T::ROWS / T::QUERY_WARPS;
        u32 begin = own * each;
        if (T::WGMMA)
            make_again(begin); // fewer registers than what follows from it
        const u32 end = begin + each;
#pragma unroll 1
        for (u32 r = begin + lane; r < end; r += 32)
            rows[r] = describe_row<T>(p, at, r);
        __syncwarp();
        settle();
        const u32 to = smem_address(smem + T::OFF_Q + nth % T::Q_SLOTS * T::Q_BYTES);
        constexpr int CHUNKS = T::ROWS / T::QUERY_WARPS * T::ROW_CHUNKS / 32; // of a lane; 0: of some lanes one
        constexpr int BATCH = CHUNKS < 1 ? 1 : CHUNKS < 4 ? CHUNKS : 4;
#pragma unroll 1
        for (u32 first = begin * T::ROW_CHUNKS + lane; first < end * T::ROW_CHUNKS; first += BATCH * 32) {
            int from[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; k++)
                from[k] = rows[(first + k * 32) / T::ROW_CHUNKS].out_row;
#pragma unroll
            for (int k = 0; k < BATCH; k++) {
                const u32 r = (first + k * 32) / T::ROW_CHUNKS, c = (first + k * 32) % T::ROW_CHUNKS;
                const auto *source = static_cast<const unsigned char *>(p.query) +
                                     (static_cast<long long>(max(from[k], 0)) * T::D * T::ELEM_BYTES + c * 16);
                copy_async_16(to + c / T::PANEL_CHUNKS * (T::Q_ROWS * T::ROW_BYTES) + T::place(r, c % T::PANEL_CHUNKS),
                              source, from[k] >= 0 ? 16 : 0);
            }
        }
    }

    // The item whose query that is, for consumers to begin with.
    __device__ __forceinline__ void announce_item(u32 nth)
    {
        const int slot = nth % T::Q_SLOTS;
        barrier_arrive_after_copies(smem_address(&ctl->q_full[slot]));
        if (lane == 0 && part_of_query() == 0)
            ctl->items[nth % T::ITEM_SLOTS] = describe_item<T>(at, mine);
        if constexpr (T::PAIRS) { // for consumers the fence would come amid their stores, and wait for them
            wait_for_copies();
            fence_for_tensor_cores();
        }
        barrier_arrive_warp(smem_address(&ctl->q_full[slot]), lane);
    }

    // There is no item, and none to come.
    __device__ __forceinline__ void announce_none()
    {
        if (lane == 0)
            ctl->items[0].share = -1;
        barrier_arrive_after_copies(smem_address(&ctl->q_full[0]));
        barrier_arrive_warp(smem_address(&ctl->q_full[0]), lane);
    }

    __device__ __forceinline__ u32 full(int stage) const
    {
        return smem_address(brings_v() ? &ctl->v_full[stage] : &ctl->k_full[stage]);
    }

    __device__ __forceinline__ u32 empty(int stage) const
    {
        return smem_address(T::K_LEAVES_FIRST && !brings_v() ? &ctl->k_empty[stage] : &ctl->empty[stage]);
    }

    __device__ __forceinline__ u32 tile_smem(int stage) const
    {
        return smem_address(smem + T::OFF_RING + (stage * 2 + brings_v()) * T::TILE_BYTES);
    }

    // What consumers are to know of a tile.
    __device__ __forceinline__ void leave_tile(int stage, const tile_info &info) const
    {
        if (warp == 0 && lane == 0)
            ctl->tiles[stage] = info;
    }

#if __CUDA_ARCH__ >= 900
    __device__ __forceinline__ const tensor_map *map(box_kind kind) const { return &p.maps[kind][brings_v()]; }
    __device__ __forceinline__ const tensor_map *map() const { return map(T::SOLO && at.solo ? BOX_SOLO : BOX_TILE); }

    __device__ __forceinline__ int box_heads() const { return T::SOLO && at.solo ? T::SOLO_BOX_HEADS : 1; }

    // In a map.
    __device__ __forceinline__ int row_of(const page &of) const
    {
        return (of.key & ((1 << p.page_shift) - 1)) * T::ROW_BYTES / 128;
    }

    // The parts of a box that hold a key that some row sees: the first, and one past the last.
    __device__ __forceinline__ int first_part(const page &of) const
    {
        return max(at.keys.some.lo - of.key, 0) / LAYOUT_PART_SLOTS;
    }
    __device__ __forceinline__ int parts_end(const page &of) const
    {
        return (min(box.end - of.key, 1 << box.shift) + LAYOUT_PART_SLOTS - 1) / LAYOUT_PART_SLOTS;
    }

    // The parts of a lane's box, by all lanes: one of them after the other would take longer than the bytes.
    __device__ __forceinline__ void copy_parts(u32 to, u32 bar, int of_lane, u64 policy) const
    {
        constexpr u32 ALL = 0xffffffff;
        constexpr int PART_BYTES = LAYOUT_PART_SLOTS * T::ROW_BYTES;
        static_assert(T::BOX_PANELS * T::TILE <= 32 * LAYOUT_PART_SLOTS); // a solo tile has no more parts
        const int id = __shfl_sync(ALL, pg.id, of_lane), row = __shfl_sync(ALL, row_of(pg), of_lane);
        const int first = __shfl_sync(ALL, first_part(pg), of_lane), end = __shfl_sync(ALL, parts_end(pg), of_lane);
        static_assert(T::BOXES_PER_PAGE == 1); // of all panels
        const int shift = log2(T::BOX_PANELS) + (T::SOLO && at.solo ? log2(T::SOLO_BOX_HEADS) : 0);
        const int i = lane & ((1 << shift) - 1), k = first + (lane >> shift);
        to = __shfl_sync(ALL, to, of_lane) + (i * T::ROW_BYTES << box.shift);
        if (k < end)
            copy_box(to + k * PART_BYTES, map(BOX_PART), bar, row + k * (PART_BYTES / 128), i % T::BOX_PANELS,
                     box.head + i / T::BOX_PANELS, id, policy);
    }

    template <bool FIRST>
    __device__ __forceinline__ void copy_tile_tma(int stage, u64 policy)
    {
        const u32 to = tile_smem(stage) + box.place, bar = full(stage);
        const int row = row_of(pg);
        const tensor_map *const from = map();
        if (FIRST)
            settle();
        if (pg.live && !pg.cut)
            copy_box(to, from, bar, row, box.panel, box.head, pg.id, policy);
        if constexpr (T::PARTS)
            for (u32 cut = __ballot_sync(0xffffffff, pg.cut); cut; cut &= cut - 1)
                copy_parts(to, bar, __ffs(cut) - 1, policy);
    }

    // The cursor's, whose copies are under way: what consumers are to know of it, and how many bytes are to come, of which
    // the barrier may have counted some by now.
    __device__ __forceinline__ void expect_tile(int stage)
    {
        constexpr int ROW_BYTES = T::BOX_PANELS * T::ROW_BYTES;
        if (!T::WGMMA)
            leave_tile(stage, describe_tile<T>(at));
        const int boxes = __popc(__ballot_sync(0xffffffff, pg.live && !pg.cut));
        int rows = boxes << box.shift; // of heads that there are none of too
        if (T::PARTS && __any_sync(0xffffffff, pg.cut))
            rows += __reduce_add_sync(0xffffffff, pg.cut ? parts_end(pg) - first_part(pg) : 0) * LAYOUT_PART_SLOTS;
        if (lane == 0)
            barrier_arrive_expect(full(stage), rows * ROW_BYTES * box_heads());
    }

    // Waits until what was copied for a guess has landed, and leaves the first stage's barriers as they were to those
    // who have yet to wait for them: two phases on. Consumers wait for a query first, which no warp may announce before
    // all are here: where all threads find the share anew, they meet in find_share.
    __device__ __forceinline__ void retract()
    {
        wait_for_copies();
        if (mine.index >= 0)
            expect_tile(0);
        else if (lane == 0)
            barrier_arrive(full(0));
        barrier_wait(full(0), 0);
        __syncwarp(); // the next phase ends when all lanes have seen the end of this one
        if (lane == 0)
            barrier_arrive(full(0));
        barrier_wait(full(0), 1);
        if (T::ALONE)
            named_barrier(BARRIER_PRODUCERS, T::PRODUCERS);
    }

    // Not in parts: that would be more code for the first tiles of a CTA, where these are the last of their items.
    __device__ __forceinline__ void prefetch_tile(const page &of) const
    {
        if (of.live && !of.cut)
            prefetch_box(map(), row_of(of), box.panel, box.head, of.id);
    }
#endif

    __device__ __forceinline__ void copy_tile_async(int stage)
    {
        const u32 ring = tile_smem(stage);
        const auto *cache = static_cast<const unsigned char *>(brings_v() ? p.v : p.k);
        const long long stride = brings_v() ? p.v_page_stride : p.k_page_stride;
        const int shift = box.shift, box_rows = 1 << shift, page_rows = 1 << p.page_shift;
#pragma unroll 1
        for (int key = 0; key < T::TILE; key += 16) { // 16 keys of one page, contiguous in memory
            const int b = key >> shift, r0 = key & (box_rows - 1);
            const bool live = __shfl_sync(0xffffffff, pg.live, b);
            const int id = __shfl_sync(0xffffffff, pg.id, b);
            const int slot = (__shfl_sync(0xffffffff, pg.key, b) & (page_rows - 1)) + r0;
            if (!live)
                continue;
            const bool inside = id >= 0 && id < p.pages;
            const auto *from = cache + (inside ? id : 0) * stride +
                ((static_cast<long long>(at.head) << p.page_shift) + slot) * (T::D * T::ELEM_BYTES) + lane * 16;
            const u32 to = ring + b * (box_rows * T::D * T::ELEM_BYTES) + r0 * T::ROW_BYTES;
            const u32 panel_bytes = box_rows * T::ROW_BYTES, bytes = inside ? 16 : 0;
#pragma unroll
            for (int i = 0; i < T::ROW_CHUNKS / 2; i++) {
                const int chunk = i * 32 + lane, r = chunk / T::ROW_CHUNKS, c = chunk % T::ROW_CHUNKS;
                copy_async_16(to + c / T::PANEL_CHUNKS * panel_bytes + T::place(r, c % T::PANEL_CHUNKS),
                              from + i * 512, bytes);
            }
        }
        barrier_arrive_after_copies(full(stage));
        barrier_arrive_warp(full(stage), lane);
    }

    // When the stage is empty. FIRST: of an item.
    template <bool FIRST>
    __device__ __forceinline__ void bring_tile(int stage, u32 phase, u64 policy)
    {
        if constexpr (T::TMA && !T::WGMMA) { // consumers are told of the tile later (expect_tile)
            barrier_wait(empty(stage), phase ^ 1);
        } else { // where keys may come from L2, as those of row tiles in step, there would be no time for it
            const tile_info info = describe_tile<T>(at);
            barrier_wait(empty(stage), phase ^ 1);
            leave_tile(stage, info);
        }
        if constexpr (T::TMA) {
#if __CUDA_ARCH__ >= 900
            copy_tile_tma<FIRST>(stage, policy);
#endif
        } else {
            if (FIRST)
                settle();
            copy_tile_async(stage);
        }
    }

    // Finds the first tile of `mine`, and has L2 fetch the first few: which is right whatever the work before
    // this launch still writes, as what lies in L2 is kept up to date.
    __device__ __forceinline__ void start()
    {
        if (mine.index < 0)
            return;
        if (!at.seek(p, mine))
            mine.index = -1;
        if (mine.index < 0 || !brings_tiles() || adds())
            return;
        find_box();
        pg = find_page<true>(at.tile);
#if __CUDA_ARCH__ >= 900
        if constexpr (T::TMA) {
            // as much as pays, measured: less where the metadata are known and the share is short
            constexpr int SHORT_SHARE = 64; // tiles
            const bool little = p.flags & DECODE_METADATA_STABLE && mine.end - mine.start <= SHORT_SHARE * T::UNITS;
            const int tiles = (little ? 32768 : 65536) / (2 * T::TILE_BYTES);
            page of = pg;
#pragma unroll 1
            for (int tile = at.tile;;) {
                prefetch_tile(of);
                if (++tile >= min(at.tile + tiles, at.tile_end))
                    break;
                of = find_page<true>(tile);
            }
        }
#endif
    }

    // Once more, when the work before this launch is complete: whether what this lane alone has looked at is another now.
    __device__ __forceinline__ bool look_again()
    {
        if (mine.index < 0)
            return false;
        bool other = at.outdated(p, mine);
        if (brings_tiles() && !adds()) {
            const int id = pg.id;
            pg = find_page<true>(at.tile);
            other |= pg.id != id;
        }
        return other;
    }

    // All of the share. If the metadata is a guess (T::BOLD alone) the query and the tile that it begins with are copied
    // before `outdated`, which is told what look_again says, tells whether it was right. If not, nothing is left of it, and
    // true is returned: it is to begin anew.
    template <class F>
    __device__ __forceinline__ bool run(const F &outdated)
    {
        const auto wrong = [&] {
#if __CUDA_ARCH__ >= 900
            if constexpr (T::BOLD)
                if (unsure) {
                    unsure = false;
                    if (outdated(look_again())) {
                        retract();
                        return true;
                    }
                }
#endif
            return false;
        };
        u64 policy = 0;
#if __CUDA_ARCH__ >= 900
        policy = p.flags & DECODE_READ_ONCE ? cache_policy_evict_first() : cache_policy_evict_normal();
#endif
        const bool idle = mine.index < 0, query = brings_query(), tiles = brings_tiles() && !adds() && !idle;
        int stage = 0;
        u32 phase = 0, nth = 0;
        for (bool more = true; more;) { // items
            // Consumers are told of an item as soon as can be; not in all kernels, as code in two places costs more there.
            const bool sure = !T::BOLD || (T::ALONE && !unsure);
            if (query && !idle) {
                barrier_wait(smem_address(&ctl->q_empty[nth % T::Q_SLOTS]), (nth / T::Q_SLOTS & 1) ^ 1);
                copy_query(nth);
                if (sure)
                    announce_item(nth);
            }
            if (tiles)
                bring_tile<true>(stage, phase, policy);
            else
                settle();
            if (wrong())
                return true;
            if (idle) {
                if (query)
                    announce_none();
                break;
            }
            if (query) {
                if (!sure)
                    announce_item(nth);
                nth++;
            }
            if (adds())
                break;
            if (tiles) {
                for (;; bring_tile<false>(stage, phase, policy)) {
#if __CUDA_ARCH__ >= 900
                    if constexpr (T::TMA)
                        expect_tile(stage);
#endif
                    if (++stage == T::STAGES) {
                        stage = 0;
                        phase ^= 1;
                    }
                    if (++at.tile == at.tile_end)
                        break;
                    pg = find_page(at.tile);
                }
            }
            more = at.next_item(p, mine);
            if (tiles && more) {
                find_box();
                pg = find_page(at.tile);
            }
        }
        return false;
    }
};

} // namespace quire

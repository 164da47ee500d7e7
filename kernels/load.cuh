// load.cuh - the producer warps: keep the ring full of K/V tiles, and hand items to the consumers
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schedule.cuh"
#include "wgmma.cuh"

namespace quire {

enum { BARRIER_PRODUCERS = 6 }; // consumers' have lower numbers

// Row r of the rows staged for the item at hand.
template <class T>
__device__ __forceinline__ row_info describe_row(const decode_params &p, const cursor<T> &at, int r)
{
    const int row = at.rt * T::ROWS + r % T::ROWS, head = at.head + r / T::ROWS;
    row_info info = {0, 0, -1, 0};
    if (row < at.req.tokens * p.group && head < p.kv_heads) {
        const int token = at.req.tokens == 1 ? 0 : row / p.group;
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

    // A lane's page of a tile of the cursor's item, and its box in the tile.
    struct page {
        bool live; // holds a key that some row sees; other pages are neither looked up nor read
        int id, panel, slot;
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

    // Of a tile's boxes a warp takes every COPIERS-th, or where it is solo every page's, with some of the heads.
    __device__ __forceinline__ int box_of_lane() const { return at.solo ? lane : lane * T::COPIERS + warp / 2; }
    __device__ __forceinline__ int first_head() const { return at.solo ? warp / 2 * T::SOLO_BOX_HEADS : 0; }

    __device__ __forceinline__ box_shape boxes() const { return boxes_of<T>(p, at.solo); }

    template <bool EARLY = false>
    __device__ __forceinline__ page find_page(int tile) const
    {
        const box_shape shape = boxes();
        const int box = box_of_lane(), which = T::BOXES_PER_PAGE > 1 ? box & (shape.count - 1) : box;
        const int key = at.first_key(at.place(tile)) + (which << shape.shift);
        const key_range sees = at.keys.some;
        page found;
        found.panel = T::BOXES_PER_PAGE > 1 ? box / shape.count : 0;
        found.slot = key & ((1 << p.page_shift) - 1);
        found.live = box < shape.count * T::BOXES_PER_PAGE && key < sees.hi && key + (1 << shape.shift) > sees.lo &&
                     sees.lo < sees.hi;
        found.id = found.live ? load_int<EARLY>(p.indices + at.req.first_entry + (key >> p.page_shift)) : -1;
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

    // Rows and query of the item at hand, into slot `slot`.
    __device__ __forceinline__ void copy_query(int slot)
    {
        row_info *rows = reinterpret_cast<row_info *>(smem + T::OFF_ROWS) + slot * T::Q_ROWS;
        const int own = part_of_query();
        constexpr int EACH = T::ROWS / T::QUERY_WARPS;
        u32 begin = own * EACH;
        if (T::QUERY_WARPS > 1)
            make_again(begin); // fewer registers than what follows from it
        const int end = T::QUERY_WARPS == 1 ? at.heads() * T::ROWS : begin + EACH;
        for (int r = begin + lane; r < end; r += 32)
            rows[r] = describe_row<T>(p, at, r);
        __syncwarp();
        settle();
        const u32 to = smem_address(smem + T::OFF_Q + slot * T::Q_BYTES);
        constexpr int CHUNKS = T::ROWS * T::ROW_CHUNKS / 32, BATCH = CHUNKS < 4 ? CHUNKS : 4; // of a lane
#pragma unroll 1
        for (int first = begin * T::ROW_CHUNKS + lane; first < end * T::ROW_CHUNKS; first += BATCH * 32) {
            int from[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; k++)
                from[k] = rows[(first + k * 32) / T::ROW_CHUNKS].out_row;
#pragma unroll
            for (int k = 0; k < BATCH; k++) {
                const int r = (first + k * 32) / T::ROW_CHUNKS, c = (first + k * 32) % T::ROW_CHUNKS;
                const auto *source = static_cast<const unsigned char *>(p.query) +
                                     (static_cast<long long>(max(from[k], 0)) * T::D * T::ELEM_BYTES + c * 16);
                copy_async_16(to + c / T::PANEL_CHUNKS * (T::Q_ROWS * T::ROW_BYTES) + T::place(r, c % T::PANEL_CHUNKS),
                              source, from[k] >= 0 ? 16 : 0);
            }
        }
    }

    // The item whose query that is, for consumers to begin with.
    __device__ __forceinline__ void announce_item(int slot)
    {
        barrier_arrive_after_copies(smem_address(&ctl->q_full[slot]));
        if (lane == 0 && part_of_query() == 0)
            ctl->items[slot] = describe_item<T>(at, mine);
        if constexpr (T::PAIRS) { // for consumers the fence would come amid their stores, and wait for them
            wait_for_copies();
            fence_for_tensor_cores();
        }
        barrier_arrive_warp(smem_address(&ctl->q_full[slot]), lane);
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

#if __CUDA_ARCH__ >= 900
    __device__ __forceinline__ const tensor_map *map() const
    {
        return brings_v() ? (at.solo ? &p.v_solo_map : &p.v_map) : (at.solo ? &p.k_solo_map : &p.k_map);
    }

    __device__ __forceinline__ int head_bytes() const { return T::BOX_PANELS * T::ROW_BYTES << boxes().shift; }

    __device__ __forceinline__ void copy_tile_tma(int stage, u64 policy)
    {
        settle();
        if (pg.live)
            copy_box(tile_smem(stage) + (box_of_lane() * boxes().heads + first_head()) * head_bytes(), map(), full(stage),
                     pg.slot * T::ROW_BYTES / 128, pg.panel, at.head + first_head(), pg.id, policy);
    }

    // The barrier may have counted some of the bytes by now.
    __device__ __forceinline__ void expect_tile(int stage)
    {
        const int box_bytes = head_bytes() * (at.solo ? T::SOLO_BOX_HEADS : 1); // of heads that there are none of too
        const int copies = __popc(__ballot_sync(0xffffffff, pg.live));
        if (lane == 0)
            barrier_arrive_expect(full(stage), copies * box_bytes);
    }

    // Waits until what was copied for a guess has landed, and leaves the first stage's barriers as they were to those
    // who have yet to wait for them: two phases on. Consumers wait for a query first.
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
        named_barrier(BARRIER_PRODUCERS, T::PRODUCERS);
    }

    __device__ __forceinline__ void prefetch_tile(page of)
    {
        if (of.live)
            prefetch_box(map(), of.slot * T::ROW_BYTES / 128, of.panel, at.head + first_head(), of.id);
    }
#endif

    __device__ __forceinline__ void copy_tile_async(int stage)
    {
        const u32 ring = tile_smem(stage);
        const auto *cache = static_cast<const unsigned char *>(brings_v() ? p.v : p.k);
        const long long stride = brings_v() ? p.v_page_stride : p.k_page_stride;
        const int shift = boxes().shift, box_rows = 1 << shift;
        settle();
#pragma unroll 1
        for (int key = 0; key < T::TILE; key += 16) { // 16 keys of one page, contiguous in memory
            const int b = key >> shift, r0 = key & (box_rows - 1);
            const bool live = __shfl_sync(0xffffffff, pg.live, b);
            const int id = __shfl_sync(0xffffffff, pg.id, b), slot = __shfl_sync(0xffffffff, pg.slot, b) + r0;
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
        pg = find_page<true>(at.tile);
#if __CUDA_ARCH__ >= 900
        if constexpr (T::TMA) {
            prefetch_tile(pg);
            constexpr int TILES = 65536 / (2 * T::TILE_BYTES); // as much as pays, measured
            for (int tile = at.tile + 1; tile < at.tile_end && tile < at.tile + TILES; tile++)
                prefetch_tile(find_page<true>(tile));
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
        if (mine.index < 0) {
            settle();
            if (wrong())
                return true;
            if (brings_query()) {
                if (lane == 0)
                    ctl->items[0].share = -1;
                barrier_arrive_after_copies(smem_address(&ctl->q_full[0]));
                barrier_arrive_warp(smem_address(&ctl->q_full[0]), lane);
            }
            return false;
        }
#if __CUDA_ARCH__ >= 900
        const u64 policy = p.flags & DECODE_READ_ONCE ? cache_policy_evict_first() : cache_policy_evict_normal();
#endif
        int stage = 0, slot = 0;
        u32 phase = 0, q_phase = 0;
        bool first = true;
        for (bool more = true; more;) {
            const bool query = first && brings_query();
            if (query) {
                barrier_wait(smem_address(&ctl->q_empty[slot]), q_phase ^ 1);
                copy_query(slot);
                if (!T::BOLD)
                    announce_item(slot);
            }
            const bool tiles = brings_tiles() && !adds();
            if (tiles) {
                const tile_info info = describe_tile<T>(at);
                barrier_wait(empty(stage), phase ^ 1);
                if (lane == 0 && warp == 0)
                    ctl->tiles[stage] = info;
                if constexpr (T::TMA) {
#if __CUDA_ARCH__ >= 900
                    copy_tile_tma(stage, policy);
#endif
                } else {
                    copy_tile_async(stage);
                }
            } else {
                settle();
            }
            if (wrong())
                return true;
            if (query) {
                if (T::BOLD)
                    announce_item(slot);
                if (++slot == T::Q_SLOTS) {
                    slot = 0;
                    q_phase ^= 1;
                }
            }
            if (adds())
                break;
            if (!tiles) {
                more = at.next_item(p, mine);
                continue;
            }
#if __CUDA_ARCH__ >= 900
            if constexpr (T::TMA)
                expect_tile(stage);
#endif
            if (++stage == T::STAGES) {
                stage = 0;
                phase ^= 1;
            }
            more = at.next_tile(p, mine, first);
            if (more)
                pg = find_page(at.tile);
        }
        return false;
    }
};

} // namespace quire

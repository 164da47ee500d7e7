// load.cuh - the producer warp: keeps the ring full of K/V tiles, and hands items to the consumers
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schedule.cuh"
#include "traits.cuh"

namespace quire {

template <class T>
struct producer {
    const decode_params &p;
    const share &mine;
    unsigned char *smem;
    control<T> *ctl;
    int lane;
    box_shape boxes;
    cursor<T::ROWS, T::TILE> at;

    // This lane's page of the cursor's tile: lanes 0..15 bring K's, 16..31 V's.
    struct page {
        bool live; // holds a key that some row sees; other pages are neither looked up nor read
        int id;
    };

    __device__ __forceinline__ int box() const { return lane & 15; }

    __device__ __forceinline__ page find_page() const
    {
        const int key = at.tile * T::TILE + (box() << boxes.shift);
        page found;
        found.live = box() < boxes.count && key < at.keys.hi && key + (1 << boxes.shift) > at.keys.lo &&
                     at.keys.lo < at.keys.hi;
        found.id = found.live ? p.indices[at.req.first_entry + (key >> p.page_shift)] : -1;
        return found;
    }

    // Rows, query and cut of the item at hand, into slot `slot`.
    __device__ __forceinline__ void stage_item(int slot)
    {
        row_info *rows = reinterpret_cast<row_info *>(smem + T::OFF_ROWS) + slot * T::ROWS;
        const int count = at.req.tokens * p.group;
        for (int r = lane; r < T::ROWS; r += 32) {
            const int row = at.rt * T::ROWS + r;
            row_info info = {0, 0, -1, 0};
            if (row < count) {
                const int token = at.req.tokens == 1 ? 0 : row / p.group;
                const key_range sees = visible_keys(p, at.req, token);
                info.lo = sees.lo;
                info.hi = sees.hi;
                info.out_row = (at.req.first_token + token) * p.q_heads + at.head * p.group + row - token * p.group;
            }
            rows[r] = info;
        }
        __syncwarp();
        const u32 to = smem_address(smem + T::OFF_Q + slot * T::Q_BYTES);
        for (int i = lane; i < T::ROWS * T::ROW_CHUNKS; i += 32) {
            const int r = i / T::ROW_CHUNKS, c = i % T::ROW_CHUNKS, panel = c * 16 / T::ROW_BYTES;
            const int from = rows[r].out_row;
            const auto *source = static_cast<const unsigned char *>(p.query) +
                                 (static_cast<long long>(max(from, 0)) * T::D * T::ELEM_BYTES + c * 16);
            copy_async_16(to + panel * T::ROWS * T::ROW_BYTES + r * T::ROW_BYTES +
                              T::swizzle(r, c % (T::ROW_BYTES / 16)) * 16,
                          source, from >= 0 ? 16 : 0);
        }
        barrier_arrive_after_copies(smem_address(&ctl->q_full[slot]));
        if (lane == 0) {
            item_info info;
            info.begins = at.item_start >= mine.start;
            info.ends = at.item_end() <= mine.end;
            info.rank = info.begins ? 0 : mine.index - mine.of(at.item_start);
            info.last_rank = info.rank + (info.ends ? 0 : mine.of(at.item_end() - 1) - mine.index);
            ctl->items[slot] = info;
            barrier_arrive(smem_address(&ctl->q_full[slot]));
        }
    }

    __device__ __forceinline__ tile_info describe_tile(bool last) const
    {
        const int key0 = at.tile * T::TILE;
        const bool masked = key0 < at.common.lo || key0 + T::TILE > at.common.hi;
        return {key0, at.keys.lo, at.keys.hi, (last ? TILE_LAST : 0) | (masked ? TILE_MASKED : 0)};
    }

#if __CUDA_ARCH__ >= 900
    __device__ __forceinline__ void copy_tile_tma(int stage, page pg, u64 policy)
    {
        const u32 full = smem_address(&ctl->full[stage]);
        const int box_bytes = T::D * T::ELEM_BYTES << boxes.shift;
        const int copies = __popc(__ballot_sync(0xffffffff, pg.live));
        if (lane == 0)
            barrier_arrive_expect(full, copies * box_bytes);
        __syncwarp();
        if (pg.live) {
            const bool is_v = lane >= 16;
            const u32 to = smem_address(smem + T::OFF_RING + stage * 2 * T::TILE_BYTES) + (is_v ? T::TILE_BYTES : 0) +
                           box() * box_bytes;
            const int slot = at.tile * T::TILE & ((1 << p.page_shift) - 1);
            copy_box(to, is_v ? &p.v_map : &p.k_map, full, slot, at.head, pg.id, policy);
        }
    }

    __device__ __forceinline__ void prefetch_tile(page pg)
    {
        if (pg.live)
            prefetch_box(lane >= 16 ? &p.v_map : &p.k_map, at.tile * T::TILE & ((1 << p.page_shift) - 1), at.head,
                         pg.id);
    }
#endif

    __device__ __forceinline__ void copy_tile_async(int stage, page pg)
    {
        const u32 ring = smem_address(smem + T::OFF_RING + stage * 2 * T::TILE_BYTES);
        const int box_rows = 1 << boxes.shift, slot0 = at.tile * T::TILE & ((1 << p.page_shift) - 1);
        const long long head = static_cast<long long>(at.head) << p.page_shift;
        for (int i = lane; i < T::TILE * T::ROW_CHUNKS; i += 32) {
            const int key = i / T::ROW_CHUNKS, c = i % T::ROW_CHUNKS, panel = c * 16 / T::ROW_BYTES;
            const int b = key >> boxes.shift, r = key & (box_rows - 1);
            const bool live = __shfl_sync(0xffffffff, pg.live, b);
            const int id = __shfl_sync(0xffffffff, pg.id, b);
            if (!live)
                continue;
            const bool inside = id >= 0 && id < p.pages;
            const long long page_id = inside ? id : 0;
            const long long within = ((head + slot0 + r) * T::D) * T::ELEM_BYTES + c * 16;
            const u32 to = ring + b * (box_rows * T::D * T::ELEM_BYTES) + panel * box_rows * T::ROW_BYTES +
                           r * T::ROW_BYTES + T::swizzle(r, c % (T::ROW_BYTES / 16)) * 16;
            copy_async_16(to, static_cast<const unsigned char *>(p.k) + page_id * p.k_page_stride + within,
                          inside ? 16 : 0);
            copy_async_16(to + T::TILE_BYTES,
                          static_cast<const unsigned char *>(p.v) + page_id * p.v_page_stride + within,
                          inside ? 16 : 0);
        }
        const u32 full = smem_address(&ctl->full[stage]);
        barrier_arrive_after_copies(full);
        __syncwarp();
        if (lane == 0)
            barrier_arrive(full);
    }

    __device__ __forceinline__ void run()
    {
        at.seek(p, mine);
        page pg = find_page();
#if __CUDA_ARCH__ >= 900
        const u64 policy = p.flags & DECODE_READ_ONCE ? cache_policy_evict_first() : cache_policy_evict_normal();
        if constexpr (T::TMA)
            if (p.flags & DECODE_METADATA_STABLE)
                prefetch_tile(pg);
#endif
        wait_for_previous_grid();
        int stage = 0, slot = 0;
        u32 phase = 0, q_phase = 0;
        bool first = true;
        for (u64 left = mine.end - mine.start; left > 0; left--) {
            const bool last = at.tile + 1 == at.tile_end || left == 1;
            barrier_wait(smem_address(&ctl->empty[stage]), phase ^ 1);
            if (lane == 0)
                ctl->tiles[stage] = describe_tile(last);
            if constexpr (T::TMA) {
#if __CUDA_ARCH__ >= 900
                copy_tile_tma(stage, pg, policy);
#endif
            } else {
                copy_tile_async(stage, pg);
            }
            if (++stage == T::STAGES) {
                stage = 0;
                phase ^= 1;
            }
            if (first) { // after the copy: the tile is on its way meanwhile
                barrier_wait(smem_address(&ctl->q_empty[slot]), q_phase ^ 1);
                stage_item(slot);
                if (++slot == LAYOUT_Q_SLOTS) {
                    slot = 0;
                    q_phase ^= 1;
                }
            }
            if (left > 1) {
                first = ++at.tile == at.tile_end;
                if (first)
                    at.next_item(p);
                pg = find_page();
            }
        }
    }
};

} // namespace quire

// convert.cuh - the producer warps of wgmma kernels for fp8: they bring K, V and the query, and make fp16 of them
// SPDX-License-Identifier: Apache-2.0
//
// wgmma takes both operands from shared memory, and weights are not to be rounded to fp8: so the ring holds fp16,
// as of a 16-bit cache, and each of four warps brings a quarter of a tile's keys to a place of its own, as K0, V0,
// K1, V1, ..., three of them under way, and converts them from there into the ring.  The cursor is at
// the tile after the one that is converted.
#pragma once

#include "load.cuh"
#include "wgmma.cuh"

namespace quire {

template <class T>
struct converter {
    const decode_params &p;
    unsigned char *smem;
    control<T> *ctl;
    int lane, warp;
    share mine;
    cursor<T> at;

    static constexpr int KEYS = T::TILE / LAYOUT_CONVERTERS, CHUNKS = T::D / 16; // of 16 fp8
    static constexpr int RAW_ROW = T::D < 128 ? T::D : 128, RAW_BYTES = KEYS * T::D;
    static constexpr int ROWS = T::ROWS / LAYOUT_CONVERTERS; // of the query
    static_assert(KEYS == 32 && ROWS == 32 && T::D <= 128, "a lane has a row of the query, a key has one panel");

    // A tile as the cursor saw it, for when it is converted.
    struct upcoming {
        tile_info tile;
        bool first; // of its item
        item_info item;
        row_info row; // this lane's
    };
    bool live; // this lane's page of the cursor's tile
    int id, slot;

    __device__ __forceinline__ int shift() const { return min(p.page_shift, log2(KEYS)); } // log2 of a box's slots

    template <bool EARLY = false>
    __device__ __forceinline__ void find_page()
    {
        const int key = at.first_key(at.place(at.tile)) + warp * KEYS + (lane << shift());
        const key_range sees = at.keys.some;
        live = lane < KEYS >> shift() && key < sees.hi && key + (1 << shift()) > sees.lo && sees.lo < sees.hi;
        slot = (key & ((1 << p.page_shift) - 1)) * RAW_ROW / 128;
        id = live ? load_int<EARLY>(p.indices + at.req.first_entry + (key >> p.page_shift)) : -1;
    }

    __device__ __forceinline__ upcoming look(bool first)
    {
        upcoming next;
        next.tile = describe_tile<T>(at);
        next.first = first;
        if (first) {
            next.item = describe_item<T>(at, mine);
            next.row = describe_row<T>(p, at, warp * ROWS + lane);
        }
        return next;
    }

    __device__ __forceinline__ u32 raw_smem(int raw) const
    {
        return smem_address(smem + T::OFF_RAW) + (warp * LAYOUT_RAW_SLOTS + raw) * RAW_BYTES;
    }

    __device__ __forceinline__ void copy(bool is_v, int raw, u64 policy)
    {
#if QUIRE_ARCH_HAS_WGMMA
        const u32 full = smem_address(&ctl->raw_full[warp][raw]);
        const int box_bytes = T::D << shift(), copies = __popc(__ballot_sync(0xffffffff, live));
        if (lane == 0)
            barrier_arrive_expect(full, copies * box_bytes);
        __syncwarp();
        if (live)
            copy_box(raw_smem(raw) + lane * box_bytes, &p.maps[BOX_TILE][is_v], full, slot, 0, at.head, id, policy);
#endif
    }

    // 16 fp8 to 16 fp16, at chunk c of row r of panels `panel_bytes` apart
    __device__ __forceinline__ void store_converted(u32 to, u32 panel_bytes, int r, int c, uint4 x) const
    {
        const u32 row = to + c / 4 * panel_bytes + r * 128;
        store_16(row + ((c % 4 * 2 ^ (r & 7)) * 16),
                 make_uint4(e4m3_to_fp16<false>(x.x), e4m3_to_fp16<true>(x.x), e4m3_to_fp16<false>(x.y),
                            e4m3_to_fp16<true>(x.y)));
        store_16(row + (((c % 4 * 2 + 1) ^ (r & 7)) * 16),
                 make_uint4(e4m3_to_fp16<false>(x.z), e4m3_to_fp16<true>(x.z), e4m3_to_fp16<false>(x.w),
                            e4m3_to_fp16<true>(x.w)));
    }

    // What this warp has written is there for the tensor cores.
    __device__ __forceinline__ void publish(u64 &full) const
    {
        fence_for_tensor_cores();
        barrier_arrive_warp(smem_address(&full), lane);
    }

    // This warp's keys, from place `raw` into K or V of a stage.  V of keys that no row sees becomes zero.
    __device__ __forceinline__ void convert(bool is_v, int raw, u32 raw_phase, const tile_info &tile, int stage)
    {
        barrier_wait(smem_address(&ctl->raw_full[warp][raw]), raw_phase);
        const u32 from = raw_smem(raw);
        const u32 to = smem_address(smem + T::OFF_RING + (stage * 2 + is_v) * T::TILE_BYTES) + warp * (KEYS * 128);
        const int box = shift();
#pragma unroll 2 // as registers allow
        for (int rows = 0; rows < KEYS; rows += 8) { // eight rows and four chunks at a time: no bank is met twice
            const int r = rows + lane % 8, in_box = r & ((1 << box) - 1), key = tile.key0 + warp * KEYS + r;
            const bool dead = is_v && (key < tile.lo || key >= tile.hi);
#pragma unroll
            for (int c = lane / 8; c < CHUNKS; c += 4) {
                const u32 whole = in_box * 128 + (c ^ (in_box & 7)) * 16;
                const u32 half = (in_box >> 1) * 128 + (((in_box & 1) * 4 + c) ^ (in_box >> 1 & 7)) * 16;
                const u32 place = RAW_ROW == 128 ? whole : half; // of a row of the panel, or half of one
                const uint4 x = load_16(from + (r >> box) * (T::D << box) + place);
                store_converted(to, T::TILE * 128, r, c, dead ? make_uint4(0, 0, 0, 0) : x);
            }
        }
        publish(is_v ? ctl->v_full[stage] : ctl->k_full[stage]);
    }

    __device__ __forceinline__ void stage_item(const upcoming &next, int q_slot)
    {
        reinterpret_cast<row_info *>(smem + T::OFF_ROWS)[q_slot * T::Q_ROWS + warp * ROWS + lane] = next.row;
        const u32 to = smem_address(smem + T::OFF_Q + q_slot * T::Q_BYTES) + warp * (ROWS * 128);
#pragma unroll 1
        for (int rows = 0; rows < ROWS; rows += 8) {
            const int r = rows + lane % 8, from = __shfl_sync(0xffffffff, next.row.out_row, r);
#pragma unroll
            for (int c = lane / 8; c < CHUNKS; c += 4) {
                const auto *source = static_cast<const unsigned char *>(p.query) + static_cast<long long>(from) * T::D;
                store_converted(to, T::Q_ROWS * 128, r, c,
                                from >= 0 ? reinterpret_cast<const uint4 *>(source)[c] : make_uint4(0, 0, 0, 0));
            }
        }
        if (lane == 0 && warp == 0)
            ctl->items[q_slot] = next.item;
        publish(ctl->q_full[q_slot]);
    }

    // As producer's.
    __device__ __forceinline__ void start()
    {
        if (mine.index < 0)
            return;
        if (!at.seek(p, mine)) {
            mine.index = -1;
            return;
        }
        find_page<true>();
#if QUIRE_ARCH_HAS_WGMMA
        if (live) {
            prefetch_box(&p.maps[BOX_TILE][0], slot, 0, at.head, id);
            prefetch_box(&p.maps[BOX_TILE][1], slot, 0, at.head, id);
        }
#endif
    }

    __device__ __forceinline__ bool look_again() { return mine.index >= 0 && at.outdated(p, mine); }

    template <class F>
    __device__ __forceinline__ void run(const F &)
    {
        if (mine.index < 0) {
            if (lane == 0 && warp == 0)
                ctl->items[0].share = -1;
            publish(ctl->q_full[0]);
            return;
        }
        u64 policy = 0;
#if QUIRE_ARCH_HAS_WGMMA
        policy = p.flags & DECODE_READ_ONCE ? cache_policy_evict_first() : cache_policy_evict_normal();
#endif
        int stage = 0, q_slot = 0, raw = 0;
        u32 phase = 0, q_phase = 0, raw_phase = 0;
        bool more = true; // the cursor is at a tile
        upcoming now = look(true), next;
        find_page();
        copy(false, 0, policy);
        copy(true, 1, policy);
        const auto advance = [&](int to) { // the cursor, and brings its K
            bool first;
            more = at.next_tile(p, mine, first);
            if (!more)
                return;
            next = look(first);
            find_page();
            copy(false, to, policy);
        };
        const auto step = [&] { // to the next place
            if (++raw == LAYOUT_RAW_SLOTS) {
                raw = 0;
                raw_phase ^= 1;
            }
        };
        advance(2);
        for (;;) {
            if (now.first) {
                barrier_wait(smem_address(&ctl->q_empty[q_slot]), q_phase ^ 1);
                stage_item(now, q_slot);
                if (++q_slot == T::Q_SLOTS) {
                    q_slot = 0;
                    q_phase ^= 1;
                }
            }
            barrier_wait(smem_address(&ctl->k_empty[stage]), phase ^ 1);
            if (lane == 0 && warp == 0)
                ctl->tiles[stage] = now.tile;
            convert(false, raw, raw_phase, now.tile, stage);
            if (more)
                copy(true, raw, policy);
            step();
            barrier_wait(smem_address(&ctl->empty[stage]), phase ^ 1);
            convert(true, raw, raw_phase, now.tile, stage);
            if (!more)
                break;
            now = next;
            advance(raw);
            step();
            if (++stage == T::STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
    }
};

} // namespace quire

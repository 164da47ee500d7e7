// decode.cuh - the decode kernel: producer warps, consumer warps, one launch
// SPDX-License-Identifier: Apache-2.0
//
// The grid depends on the GPU, not on the data; each CTA finds its share of the work in the live
// metadata (schedule.cuh), its producer warps fill a ring of key tiles (load.cuh), its consumer warps own
// fixed slices of every tile (compute.cuh) and meet only where an item ends (merge.cuh).
#pragma once

#include "convert.cuh"
#include "load.cuh"
#include "many_item.cuh"
#include "merge.cuh"
#include "swapab_item.cuh"
#include "variants.h"

#include <type_traits>

namespace quire {

template <class T>
__device__ __forceinline__ void consume(const decode_params &p, unsigned char *smem, control<T> *ctl)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int key_warp = warp % T::KEY_WARPS;
    auto *merge = reinterpret_cast<float *>(smem + T::OFF_OWN);
    int stage = 0;
    u32 phase = 0;
    bool final = false;
    for (u32 nth = 0; !final; nth++) { // items
        const int slot = nth % T::Q_SLOTS, item_slot = nth % T::ITEM_SLOTS;
        const item_info &item = ctl->items[item_slot];
        barrier_wait(smem_address(&ctl->q_full[slot]), nth / T::Q_SLOTS & 1);
        if (item.share < 0)
            break;
        const bool solo = T::SOLO && item.solo;
        const box_shape boxes = boxes_of<T>(p, solo);
        // of a tile: a slice of its keys, or all keys of a head
        const int slice = solo ? 0 : key_warp * T::WARP_KEYS;
        const u32 ring = smem_address(smem + T::OFF_RING) +
                         (solo ? key_warp * (T::D * T::ELEM_BYTES << boxes.shift) : 0);
        const int first_row = solo ? key_warp * T::ROWS : warp / T::KEY_WARPS * T::WARP_ROWS;
        const row_info *rows = reinterpret_cast<const row_info *>(smem + T::OFF_ROWS) + item_slot * T::Q_ROWS;
        query_fragments<T> q;
        load_query<T>(q, smem + T::OFF_Q + slot * T::Q_BYTES, first_row, lane);
        barrier_arrive_warp(smem_address(&ctl->q_empty[slot]), lane);
        accumulator<T> acc;
        acc.clear();
        for (bool last = T::SPARES && item.adder >= 0; !last;) { // key tiles, of which an adder has none
            barrier_wait(smem_address(&ctl->k_full[stage]), phase);
            const tile_info tile = ctl->tiles[stage];
            last = tile.flags & TILE_LAST;
            const u32 k_smem = ring + stage * 2 * T::TILE_BYTES;
            attend<T>(acc, q, tile, k_smem, smem_address(&ctl->k_empty[stage]),
                      {smem_address(&ctl->v_full[stage]), phase}, rows + first_row, slice, boxes, p.scale_log2, lane);
            barrier_arrive_warp(smem_address(&ctl->empty[stage]), lane);
            if (++stage == T::STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
        if constexpr (T::SOLO)
            if (solo)
                finish_solo<T>(p, acc, merge, rows + first_row, item, key_warp, lane);
        if (!solo)
            finish_item<T>(p, acc, merge, rows, item, key_warp, first_row, lane);
        final = item.final;
    }
}

// Rows of a packed query that belong to no request.
template <class T>
__device__ __forceinline__ void clear_unowned_rows(const decode_params &p)
{
    const int out_bytes = T::FP8 && p.flags & DECODE_OUT_FP8 ? 1 : 2;
    const long long first = static_cast<long long>(clamp(p.qo_indptr[p.batch], 0, p.total_q)) * p.q_heads;
    const long long last = static_cast<long long>(p.total_q) * p.q_heads;
    const long long me = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long all = static_cast<long long>(gridDim.x) * blockDim.x;
    const int row_words = T::D * out_bytes / 16;
    auto *out = static_cast<uint4 *>(p.out);
    for (long long i = first * row_words + me; i < last * row_words; i += all)
        out[i] = make_uint4(0, 0, 0, 0);
    if (p.lse)
        for (long long i = first + me; i < last; i += all)
            p.lse[i] = -INFINITY;
}

template <class T>
__device__ __forceinline__ void decode(const decode_params &p)
{
    QUIRE_DYNAMIC_SHARED(raw);
    unsigned char *smem = raw + (-smem_address(raw) & 1023);
    auto *ctl = reinterpret_cast<control<T> *>(smem + T::OFF_CONTROL);
    auto *shared_share = reinterpret_cast<share *>(ctl + 1);
    static_assert(sizeof(control<T>) + sizeof(share) <= LAYOUT_CONTROL_BYTES);

    const int lane = threadIdx.x % 32;
    const bool producing = threadIdx.x - T::CONSUMERS < T::PRODUCERS;
    // With the promise the metadata is read before the work before this launch is complete.  Without it
    // that is done too where it costs little, as a guess, which is checked afterwards: what it leads to is only a
    // prefetch, and if T::BOLD copies into shared memory, which may be for nothing.
    const bool stable = p.flags & DECODE_METADATA_STABLE;
    bool guess = stable || p.batch <= T::THREADS;
    if (!guess)
        wait_for_previous_grid();
    const int own_index = T::ALONE ? min(lane, p.batch - 1) : static_cast<int>(threadIdx.x);
    const bool holds_request = T::ALONE ? producing : p.batch <= T::THREADS && own_index < p.batch;
    raw_request own = {};
    if (holds_request)
        own = load_request<true>(p, own_index);

    constexpr u32 CONVERTED = LAYOUT_CONVERTERS * WARP_ARRIVALS, COPIED = 32 + WARP_ARRIVALS;
    constexpr u32 ARRIVALS = T::CONVERTS ? CONVERTED : T::TMA ? T::COPIERS : COPIED;
    constexpr int WARPS = T::THREADS / 32, FIRST = T::ALONE ? WARPS - T::PRODUCERS / 32 : 0; // who find their share
    if (threadIdx.x == 0) {
        barrier_init(smem_address(&ctl->looked_again), (WARPS - FIRST) * WARP_ARRIVALS);
        for (int i = 0; i < T::STAGES; i++) {
            barrier_init(smem_address(&ctl->k_full[i]), ARRIVALS);
            barrier_init(smem_address(&ctl->v_full[i]), ARRIVALS);
            barrier_init(smem_address(&ctl->empty[i]), T::CONSUMERS / 32 * WARP_ARRIVALS);
            if (T::K_LEAVES_FIRST)
                barrier_init(smem_address(&ctl->k_empty[i]), T::CONSUMERS / 32 * WARP_ARRIVALS);
        }
        for (int i = 0; i < T::Q_SLOTS; i++) {
            barrier_init(smem_address(&ctl->q_full[i]), T::CONVERTS ? CONVERTED : T::QUERY_WARPS * COPIED);
            barrier_init(smem_address(&ctl->q_empty[i]), T::CONSUMERS / 32 * WARP_ARRIVALS);
        }
        if constexpr (T::CONVERTS)
            for (int i = 0; i < LAYOUT_CONVERTERS * LAYOUT_RAW_SLOTS; i++)
                barrier_init(smem_address(&ctl->raw_full[i / LAYOUT_RAW_SLOTS][i % LAYOUT_RAW_SLOTS]), 1);
#if __CUDA_ARCH__ >= 900
        barrier_init_fence();
        if constexpr (T::TMA) {
            prefetch_map(&p.maps[BOX_TILE][0]);
            prefetch_map(&p.maps[BOX_TILE][1]);
        }
#endif
    }
    __syncthreads();

    using source = std::conditional_t<T::CONVERTS, converter<T>, producer<T>>;
    source from = {p, smem, ctl, lane, static_cast<int>(threadIdx.x - T::CONSUMERS) / 32, {}, {}, {}};
    // Producers get as far as their first copy before they wait, if that can be, as all code is slow when it runs first.
    const bool late = !T::CONVERTS && producing && guess && (stable || T::BOLD);
    if constexpr (!T::CONVERTS) {
        from.early = late;
        from.unsure = late && !stable;
    }
    // Whether the metadata is not what it was taken for, asked once by all who find their share together. Producers and
    // consumers ask at different places, for which a barrier of the whole CTA is not meant.
    const auto outdated = [&](bool differs) {
        if (holds_request) {
            const raw_request now = load_request<true>(p, own_index);
            differs |= now != own;
            own = now;
        }
        constexpr u32 ALL = 0xffffffff;
        differs = __any_sync(ALL, differs);
        if (lane == 0)
            ctl->outdated[threadIdx.x / 32] = differs;
        barrier_arrive_warp(smem_address(&ctl->looked_again), lane);
        barrier_wait(smem_address(&ctl->looked_again), 0);
        return __any_sync(ALL, lane >= FIRST && lane < WARPS && ctl->outdated[lane]);
    };
    for (bool again = true; again; guess = false) {
        if constexpr (!T::ALONE)
            find_share<T>(p, shared_share, ctl->share_words, own);
        if (producing) {
            if constexpr (T::ALONE)
                from.mine = find_share_alone<T>(p, own, lane);
            else
                from.mine = *shared_share;
            from.start();
        }
        again = false;
        if constexpr (T::BOLD)
            if (producing) {
                again = from.run(outdated);
                continue;
            }
        if (guess && !late) {
            wait_for_previous_grid();
            if (!stable && (!T::ALONE || producing))
                again = outdated(producing && from.look_again());
        }
    }
    // only now: a grid that starts early may rely on all that came before this one
    if (!late)
        let_next_grid_start();

    if (threadIdx.x >= T::CONSUMERS) {
        if constexpr (T::MOVES_REGISTERS)
            release_registers<T::PRODUCER_REGISTERS>();
        if constexpr (!T::BOLD)
            if (producing)
                from.run(outdated);
    } else {
        if constexpr (T::MOVES_REGISTERS)
            claim_registers<T::CONSUMER_REGISTERS>();
        if constexpr (T::WGMMA)
            consume_in_groups<T>(p, smem, ctl);
        else if constexpr (T::SWAPAB)
            consume_swapped<T>(p, smem, ctl);
        else
            consume<T>(p, smem, ctl);
    }
    if (p.flags & DECODE_PACKED)
        clear_unowned_rows<T>(p);
}

} // namespace quire

// One kernel for each row of the list, named decode_FAMILY_DTYPE_dD_rROWS.
#define QUIRE_RUNS_ON_tma QUIRE_ARCH_HAS_TMA
#define QUIRE_RUNS_ON_wide QUIRE_ARCH_HAS_TMA
#define QUIRE_RUNS_ON_lone QUIRE_ARCH_HAS_TMA
#define QUIRE_RUNS_ON_wgmma QUIRE_ARCH_HAS_WGMMA
#define QUIRE_RUNS_ON_swapab QUIRE_ARCH_HAS_WGMMA
#define QUIRE_RUNS_ON_async true
#define QUIRE_INSTANTIATE(family, dtype, elem, d, rows, tile, keyw, roww, stages, ctas, solo)                    \
    extern "C" __global__ void __launch_bounds__(                                                                \
        LAYOUT_THREADS(LAYOUT_KIND_##family, keyw, roww, LAYOUT_COPIERS(LAYOUT_SHARES_##family, d, rows)), ctas) \
        decode_##family##_##dtype##_d##d##_r##rows(const __grid_constant__ decode_params p)                      \
    {                                                                                                            \
        using T = quire::traits<quire::kernel_family::family, quire::element::dtype, elem, d, rows, tile, keyw,  \
                                roww, stages, solo, LAYOUT_KIND_##family,                                        \
                                LAYOUT_COPIERS(LAYOUT_SHARES_##family, d, rows)>;                                \
        if constexpr (QUIRE_RUNS_ON_##family)                                                                    \
            quire::decode<T>(p);                                                                                 \
    }
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
#define QUIRE_ARCH_HAS_TMA true
#else
#define QUIRE_ARCH_HAS_TMA false
#endif

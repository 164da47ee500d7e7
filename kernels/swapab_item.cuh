// swapab_item.cuh - an item of swapab.cuh's warpgroup: tile after tile, then its results to one, and out
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "many.cuh"
#include "swapab.cuh"

namespace quire {

// ---- the end of an item ----

constexpr int SWAPAB_FAN_IN = 4; // partial results that become one at once

// Neighbours in g swap, so that a lane's vectors are of one row of each eight, 2 * t + g % 2, and of four dims, g / 2 * 4
// and up.  Lane r has the states of rows r, r + 32.
template <class T>
struct swapab_result {
    static constexpr int PARTS = T::D / 64, TILES = T::ROWS / 8, STATES = (T::ROWS + 31) / 32;
    float4 o[TILES][PARTS];
    float2 state[STATES];

    // what the lane with the state of this lane's row of eight j says
    __device__ __forceinline__ float of_row(const float (&x)[STATES], int j, int lane) const
    {
        return __shfl_sync(0xffffffff, x[j / 4], (j % 4 * 8 + lane % 4 * 2 + (lane >> 2 & 1)) % 32);
    }
};

template <class T>
__device__ __forceinline__ void take_result(swapab_result<T> &mine, const swapab_accumulator<T> &acc,
                                            const swapab_memory<T> &own, int warp, int lane)
{
    using R = swapab_result<T>;
    const bool upper = lane & 4;
#pragma unroll
    for (int j = 0; j < R::TILES; j++) {
#pragma unroll
        for (int part = 0; part < R::PARTS; part++) {
            const float *o = acc.o[part] + j * 4;
            const float x = __shfl_xor_sync(0xffffffff, upper ? o[0] : o[1], 4);
            const float y = __shfl_xor_sync(0xffffffff, upper ? o[2] : o[3], 4);
            mine.o[j][part] = upper ? make_float4(x, y, o[1], o[3]) : make_float4(o[0], o[2], x, y);
        }
        float sum[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            sum[c] = acc.sum[j][c];
            sum[c] += __shfl_xor_sync(0xffffffff, sum[c], 4);
            sum[c] += __shfl_xor_sync(0xffffffff, sum[c], 8);
            sum[c] += __shfl_xor_sync(0xffffffff, sum[c], 16);
        }
        if (lane < 4)
            *reinterpret_cast<float2 *>(own.exchange + warp * T::ROWS + j * 8 + lane * 2) = make_float2(sum[0], sum[1]);
    }
    named_barrier(BARRIER_SWAPAB, T::CONSUMERS);
#pragma unroll
    for (int i = 0; i < R::STATES; i++) {
        const int row = (i * 32 + lane) % T::ROWS;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < LAYOUT_SWAPAB_WARPS; w++)
            sum += own.exchange[w * T::ROWS + row];
        const float shift = own.shift[row];
        mine.state[i] = make_float2(shift == swapab_memory<T>::NOTHING_SEEN ? -INFINITY : -shift, sum);
    }
}

// A lane's part of a slot of the workspace: a warp's lanes are side by side, and rows of eight apart, so that only those
// that are somebody's are touched.
template <class T>
struct swapab_slot {
    using R = swapab_result<T>;
    float4 *o;     // vector (j, part) is o[(j * PARTS + part) * CONSUMERS]
    float2 *state; // of row `lane`

    __device__ __forceinline__ swapab_slot(float *partials, int slot, int warp, int lane)
    {
        float *const first = partials + static_cast<long long>(slot) * LAYOUT_SWAPAB_SLOT_FLOATS(T::D, T::ROWS);
        o = reinterpret_cast<float4 *>(first) + warp * 32 + lane;
        state = reinterpret_cast<float2 *>(first + T::ROWS * T::D) + warp * T::ROWS + lane;
    }
    __device__ __forceinline__ float4 *vector(int j, int part) const { return o + (j * R::PARTS + part) * T::CONSUMERS; }
};

// Adds the partial results of shares first, first + step, ..., `count` of them, to `mine`, and puts zeros back.  They are
// all under way at once, tiles of rows as registers allow.  `rows`: of the item.
template <class T>
__device__ __forceinline__ void gather_results(swapab_result<T> &mine, float *partials, int first_share, int step, int count,
                                               int rows, int warp, int lane)
{
    using R = swapab_result<T>;
    constexpr int VECTORS = R::TILES * R::PARTS, ROOM = VECTORS > 8 ? 4 : 8;
    constexpr int AT_ONCE = VECTORS <= ROOM ? R::TILES : ROOM / R::PARTS; // tiles
    const auto slot_of = [&](int i) { return swapab_slot<T>(partials, first_share + i * step, warp, lane); };
    float scale[SWAPAB_FAN_IN - 1][R::STATES] = {}, own_scale[R::STATES] = {}; // from the first tiles on
#pragma unroll
    for (int first = 0; first < R::TILES; first += AT_ONCE) {
        if (first * 8 >= rows)
            break;
        float4 other[SWAPAB_FAN_IN - 1][AT_ONCE][R::PARTS];
        float2 state[SWAPAB_FAN_IN - 1][R::STATES];
        u32 least; // of all words: 0 until every one has arrived
        do {
            least = ~0u;
#pragma unroll
            for (int i = 0; i < SWAPAB_FAN_IN - 1; i++) {
                const swapab_slot<T> from = slot_of(i);
                if (first == 0)
#pragma unroll
                    for (int k = 0; k < R::STATES; k++) {
                        load_relaxed(state[i][k], from.state + k * 32, i < count && k * 32 + lane < rows);
                        least = min(least, least_word(state[i][k]));
                    }
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++)
#pragma unroll
                    for (int part = 0; part < R::PARTS; part++) {
                        load_relaxed(other[i][j][part], from.vector(first + j, part), i < count && (first + j) * 8 < rows);
                        least = min(least, least_word(other[i][j][part]));
                    }
            }
        } while (__any_sync(0xffffffff, !least));
        if (first == 0)
#pragma unroll
            for (int k = 0; k < R::STATES; k++) {
                float top = mine.state[k].x;
#pragma unroll
                for (int i = 0; i < SWAPAB_FAN_IN - 1; i++)
                    top = i < count ? fmaxf(top, state[i][k].x) : top;
                own_scale[k] = rescale(mine.state[k].x, top);
                float sum = mine.state[k].y * own_scale[k];
#pragma unroll
                for (int i = 0; i < SWAPAB_FAN_IN - 1; i++) {
                    scale[i][k] = i < count ? rescale(state[i][k].x, top) : 0.0f;
                    sum += state[i][k].y * scale[i][k];
                    if (i < count && k * 32 + lane < rows)
                        slot_of(i).state[k * 32] = make_float2(0, 0);
                }
                mine.state[k] = make_float2(top, sum);
            }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const float a = mine.of_row(own_scale, first + j, lane);
#pragma unroll
            for (int part = 0; part < R::PARTS; part++) {
                float4 &o = mine.o[first + j][part];
                o = make_float4(o.x * a, o.y * a, o.z * a, o.w * a);
            }
#pragma unroll
            for (int i = 0; i < SWAPAB_FAN_IN - 1; i++) {
                const float b = mine.of_row(scale[i], first + j, lane);
#pragma unroll
                for (int part = 0; part < R::PARTS; part++) {
                    float4 &o = mine.o[first + j][part];
                    const float4 &x = other[i][j][part];
                    o = make_float4(o.x + x.x * b, o.y + x.y * b, o.z + x.z * b, o.w + x.w * b);
                    if (i < count && (first + j) * 8 < rows)
                        *slot_of(i).vector(first + j, part) = make_float4(0, 0, 0, 0);
                }
            }
        }
    }
}

// As merge.cuh's finish_item, for each warp by itself.
template <class T>
__device__ __forceinline__ void finish_swapab_item(const decode_params &p, const swapab_accumulator<T> &acc,
                                                   const swapab_memory<T> &own, const row_info *rows,
                                                   const item_info &item, int warp, int lane)
{
    using R = swapab_result<T>;
    R mine;
    take_result<T>(mine, acc, own, warp, lane);
    int count = 0; // of rows that are somebody's, which come first
#pragma unroll
    for (int i = 0; i < R::STATES; i++)
        count += __popc(__ballot_sync(0xffffffff, i * 32 + lane < T::ROWS && rows[(i * 32 + lane) % T::ROWS].out_row >= 0));
    const int rank = item.rank, last_rank = item.last_rank;
    // As a tree: every fourth adds the three behind it, every sixteenth three of those, and so on.
#pragma unroll 1
    for (int step = 1; rank % (step * SWAPAB_FAN_IN) == 0 && rank + step <= last_rank; step *= SWAPAB_FAN_IN)
        gather_results<T>(mine, p.partials, item.share + step, step, min((last_rank - rank) / step, SWAPAB_FAN_IN - 1), count,
                          warp, lane);
    if (rank > 0) {
        const swapab_slot<T> to(p.partials, item.share, warp, lane);
#pragma unroll
        for (int j = 0; j < R::TILES; j++)
#pragma unroll
            for (int part = 0; part < R::PARTS; part++) {
                const float4 o = mine.o[j][part];
                if (j * 8 < count)
                    store_relaxed(to.vector(j, part),
                                  make_float4(never_zero(o.x), never_zero(o.y), never_zero(o.z), never_zero(o.w)));
            }
#pragma unroll
        for (int i = 0; i < R::STATES; i++)
            if (i * 32 + lane < count)
                store_relaxed(to.state + i * 32, make_float2(never_zero(mine.state[i].x), never_zero(mine.state[i].y)));
        return;
    }
    float max[R::STATES], sum[R::STATES];
#pragma unroll
    for (int i = 0; i < R::STATES; i++) {
        max[i] = mine.state[i].x;
        sum[i] = mine.state[i].y;
    }
#pragma unroll
    for (int j = 0; j < R::TILES; j++) {
        const float2 state = make_float2(mine.of_row(max, j, lane), mine.of_row(sum, j, lane));
        const int row = j * 8 + lane % 4 * 2 + (lane >> 2 & 1);
        if (row < count)
#pragma unroll
            for (int part = 0; part < R::PARTS; part++)
                store_out<T>(p, rows[row].out_row, (warp * R::PARTS + part) * 16 + (lane >> 3) * 4, mine.o[j][part], state);
    }
}

// ---- the warpgroup ----

template <class T>
__device__ __forceinline__ void consume_swapped(const decode_params &p, unsigned char *smem, control<T> *ctl)
{
    const int lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32);
    const box_shape boxes = boxes_of<T>(p, false);
    const swapab_memory<T> own(smem, warp);
    ring_place<T> at = {smem_address(smem + T::OFF_RING), ctl, 0, 0};
    int slot = 0;
    u32 q_phase = 0;
    for (bool final = false; !final;) { // items
        barrier_wait(smem_address(&ctl->q_full[slot]), q_phase);
        if (uniform(ctl->items[slot].share < 0))
            break;
        const row_info *rows = reinterpret_cast<const row_info *>(smem + T::OFF_ROWS) + slot * T::Q_ROWS;
        convert_query<T>(own, smem_address(smem + T::OFF_Q + slot * T::Q_BYTES));
        for (int r = lane; r < T::ROWS; r += 32)
            own.shift[r] = swapab_memory<T>::NOTHING_SEEN;
        fence_for_tensor_cores();
        named_barrier(BARRIER_SWAPAB, T::CONSUMERS);
        swapab_accumulator<T> acc;
        swapab_scores<T> s = {}; // not read, but that the compiler does not know
        swapab_operands<T> k, v;
        acc.clear();
        hold(acc.o);
        // K and V leave the ring as soon as they are in registers
        const auto multiply_keys = [&](const ring_place<T> &place) {
            place.wait_for_k();
            const tile_info tile = place.tile();
            start_scores<T>(s, k, place.k_smem(), own.query, boxes, warp, lane);
            barrier_arrive_warp(place.k_empty(), lane);
            return tile;
        };
        const auto multiply_values = [&](const ring_place<T> &place, const tile_info &tile) {
            named_barrier(BARRIER_SWAPAB, T::CONSUMERS); // all weights are there
            place.wait_for_v();
            start_output<T>(acc, v, place.v_smem(), own.weights, tile, boxes, warp, lane);
            barrier_arrive_warp(place.empty(), lane);
        };
        tile_info tile = multiply_keys(at);
        wgmma_wait();
        hold(s);
        while (!uniform(tile.flags & TILE_LAST)) {
            const ring_place<T> next = at.next();
            weigh_keys<T>(acc, s, tile, own, rows, p.scale_log2, warp, lane);
            hold(acc.o);
            const tile_info next_tile = multiply_keys(next); // first, so that it is done under V's way to registers
            multiply_values(at, tile);
            wgmma_wait();
            hold(s);
            hold(acc.o);
            at = next;
            tile = next_tile;
        }
        weigh_keys<T>(acc, s, tile, own, rows, p.scale_log2, warp, lane);
        hold(acc.o);
        multiply_values(at, tile);
        wgmma_wait();
        hold(acc.o);
        at = at.next();
        finish_swapab_item<T>(p, acc, own, rows, ctl->items[slot], warp, lane);
        final = uniform(ctl->items[slot].final);
        barrier_arrive_warp(smem_address(&ctl->q_empty[slot]), lane);
        if (++slot == T::Q_SLOTS) {
            slot = 0;
            q_phase ^= 1;
        }
    }
}

} // namespace quire

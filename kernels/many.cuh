// many.cuh - consumers that are warpgroups, for many query rows: S = Q K^T, softmax, O += P V
// SPDX-License-Identifier: Apache-2.0
//
// A warpgroup owns 64 rows of an item and takes every key of its tiles; K, V and Q stay in shared memory,
// weights go from registers.  While one warpgroup computes weights the other's products keep the tensor
// cores busy: they take turns.  What follows a tile's products is ordered so that P V of a tile and Q K^T of
// the next are issued at once, and waited for once.
#pragma once

#include "merge.cuh"
#include "wgmma.cuh"

namespace quire {

// Lane (g, t) of a warp holds rows g and g + 8, as half 0 and half 1.
template <class T>
struct group_accumulator {
    static constexpr int COLUMNS = T::D < 128 ? T::D : 128; // of one matrix instruction
    static constexpr int PARTS = T::D / COLUMNS;

    float o[PARTS][COLUMNS / 2];
    float max[2]; // that weights are relative to, log2 units
    float sum[2]; // of this lane's weights

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; i++)
                o[part][i] = 0.0f;
        max[0] = max[1] = -INFINITY;
        sum[0] = sum[1] = 0.0f;
    }
};

// 16 keys of the second product's inner dimension are a block.  Its halves of 8 keys come from one matrix of
// scores, in order, or from two (T::HALVES), where the place of keys depends on the pages.
template <class T>
struct group_scores {
    static constexpr int MATRICES = T::HALVES ? 2 : 1, REGS = T::TILE / 2 / MATRICES;
    float s[MATRICES][REGS];

    // i: of the lane's four in this block and half
    __device__ __forceinline__ float &at(int block, int half, int i)
    {
        return T::HALVES ? s[half][block * 4 + i] : s[0][(block * 2 + half) * 4 + i];
    }
    __device__ __forceinline__ float at(int block, int half, int i) const
    {
        return T::HALVES ? s[half][block * 4 + i] : s[0][(block * 2 + half) * 4 + i];
    }
};

template <class T>
using group_weights = u32[T::TILE / 16][4]; // the A of the second product

// How a tile lies in shared memory, as the matrix instructions take it: distances in bytes, and in keys.
struct tile_matrices {
    u32 half, k_rows8;        // K: from a half's matrix to the other's, between its pieces of 8 keys
    u32 block, v_rows8;       // V: from a block to the next, between its two halves
    u32 panel;                // both: from a panel to the next
    int block_keys, half_keys;
};

template <class T>
__device__ __forceinline__ tile_matrices matrices_of(box_shape boxes)
{
    if constexpr (!T::HALVES) {
        return {0, 1024, 2048, 1024, T::TILE * 128, 16, 8};
    } else {
        const u32 box_rows = 1u << boxes.shift, box_bytes = box_rows * T::ROW_CHUNKS * 16;
        // pages of 16: a block is a page. Larger ones: halves are the halves of the tile
        if (box_rows == 16)
            return {1024, box_bytes, box_bytes, 1024, 2048, 16, 8};
        const u32 half = box_rows == T::TILE ? T::TILE / 2 * 128 : T::TILE * T::ROW_CHUNKS * 8;
        return {half, 1024, 1024, half, box_rows * 128, 8, T::TILE / 2};
    }
}

// Barriers by their hardware number; 0 is __syncthreads, 1 merge.cuh's.  A group that idles may be an item ahead of the
// one that works alone, so that one does not meet itself at the barrier of both.
enum { BARRIER_TURN = 2, BARRIER_DEAD_KEYS = 4, BARRIER_DEAD_KEYS_ALONE = 5 };

template <class T>
__device__ __forceinline__ void issue_scores(group_scores<T> &s, u32 q_smem, u32 k_smem,
                                             const tile_matrices &m)
{
    make_again(q_smem); // descriptors are cheaper to make again than to keep in registers
#pragma unroll
    for (int step = 0; step < T::K_STEPS; step++) // of 16 dims, four to a panel
#pragma unroll
        for (int half = 0; half < group_scores<T>::MATRICES; half++)
            wgmma<T::BF16>(s.s[half], matrix_descriptor(q_smem + step / 4 * (T::Q_ROWS * 128) + step % 4 * 32, 1024, 0),
                           matrix_descriptor(k_smem + half * m.half + step / 4 * m.panel + step % 4 * 32, m.k_rows8, 0),
                           step > 0);
}

template <class T>
__device__ __forceinline__ void issue_output(group_accumulator<T> &acc, const group_weights<T> &w, u32 v_smem,
                                             const tile_matrices &m)
{
    using A = group_accumulator<T>;
#pragma unroll
    for (int block = 0; block < T::TILE / 16; block++)
#pragma unroll
        for (int part = 0; part < A::PARTS; part++)
            wgmma<T::BF16>(acc.o[part], w[block],
                           matrix_descriptor(v_smem + part * (A::COLUMNS / 64) * m.panel + block * m.block, m.v_rows8,
                                             m.panel));
}

// Scores of keys that a row does not see become -inf, by selection.  `rows`: the lane's own two.
template <class T>
__device__ __forceinline__ void mask_group_scores(group_scores<T> &s, const tile_matrices &m, const row_info *rows,
                                                  int key0, int lane)
{
    const int first = key0 + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int2 sees = *reinterpret_cast<const int2 *>(rows + r * 8);
        const int lo = sees.x - first, hi = sees.y - first;
#pragma unroll
        for (int block = 0; block < T::TILE / 16; block++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int key = block * m.block_keys + half * m.half_keys + i;
                    float &score = s.at(block, half, r * 2 + i);
                    score = key >= lo && key < hi ? score : -INFINITY;
                }
    }
}

// As compute.cuh's softmax.
template <class T>
__device__ __forceinline__ void group_softmax(group_weights<T> &w, const group_scores<T> &s,
                                              group_accumulator<T> &acc, float scale)
{
    float top[2];
    bool rise = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float a = -INFINITY, b = -INFINITY; // two chains
#pragma unroll
        for (int block = 0; block < T::TILE / 16; block++) {
            a = fmaxf(a, fmaxf(s.at(block, 0, r * 2), s.at(block, 0, r * 2 + 1)));
            b = fmaxf(b, fmaxf(s.at(block, 1, r * 2), s.at(block, 1, r * 2 + 1)));
        }
        top[r] = fmaxf(a, b);
        rise |= fmaf(top[r], scale, -acc.max[r]) > LAG<T::BF16>;
    }
    if (__any_sync(0xffffffff, rise)) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float to = top[r] * scale;
            to = fmaxf(to, __shfl_xor_sync(0xffffffff, to, 1));
            to = fmaxf(to, __shfl_xor_sync(0xffffffff, to, 2));
            to = fmaxf(to - TOP<T::BF16>, acc.max[r]);
            // nothing seen yet: exp2(-inf + inf) must not be asked for
            const float shrink = acc.max[r] == -INFINITY ? 0.0f : exp2_approx(acc.max[r] - to);
            acc.max[r] = to;
            acc.sum[r] *= shrink;
#pragma unroll
            for (int part = 0; part < group_accumulator<T>::PARTS; part++)
#pragma unroll
                for (int j = 0; j < group_accumulator<T>::COLUMNS / 8; j++) {
                    acc.o[part][j * 4 + r * 2] *= shrink;
                    acc.o[part][j * 4 + r * 2 + 1] *= shrink;
                }
        }
    }
    const float from[2] = {acc.max[0] == -INFINITY ? 0.0f : -acc.max[0], acc.max[1] == -INFINITY ? 0.0f : -acc.max[1]};
#pragma unroll
    for (int block = 0; block < T::TILE / 16; block++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float a = exp2_approx(fmaf(s.at(block, half, r * 2), scale, from[r]));
                const float b = exp2_approx(fmaf(s.at(block, half, r * 2 + 1), scale, from[r]));
                acc.sum[r] += a + b;
                w[block][half * 2 + r] = pack_16<T::BF16>(a, b);
            }
}

// V of keys that no row sees may be NaN, or whatever was there before, and must not meet a weight of 0.  By the
// `threads` consumers that work on the item, before any of them multiplies.
template <class T>
__device__ __forceinline__ void clear_dead_keys(const tile_info &tile, u32 v_smem, box_shape boxes, int threads)
{
    constexpr int PANELS = T::D * T::ELEM_BYTES / 128;
    const int shift = T::HALVES ? boxes.shift : log2(T::TILE); // of the rows whose panels follow one another
    for (int i = threadIdx.x; i < T::TILE * 8; i += threads) {
        const int r = i / 8, key = tile.key0 + r;
        const u32 row = v_smem + (r >> shift << shift) * (PANELS * 128) + (r & ((1 << shift) - 1)) * 128 + i % 8 * 16;
        if (key < tile.lo || key >= tile.hi)
#pragma unroll
            for (int panel = 0; panel < PANELS; panel++)
                store_16(row + (panel * 128 << shift), make_uint4(0, 0, 0, 0));
    }
    fence_for_tensor_cores();
    named_barrier(threads == T::CONSUMERS ? BARRIER_DEAD_KEYS : BARRIER_DEAD_KEYS_ALONE, threads);
}

// A lane's part of the row that it ends with: its own accumulators are of two rows and pairs of dims; neighbours
// swap, so that a lane has one row, and of every 8 dims four in a row.
template <class T>
struct group_row {
    static constexpr int VECTORS = T::D / 8;
    int row;        // of the warp's 16
    int dim;        // of the first vector; the next ones are 8 further each
    row_part<VECTORS> part;
};

template <class T>
__device__ __forceinline__ void take_row(group_row<T> &mine, const group_accumulator<T> &acc, int lane)
{
    using A = group_accumulator<T>;
    const int t = lane % 4;
    const bool upper = t & 1; // keeps half 1, gives half 0
    mine.row = lane / 4 + upper * 8;
    mine.dim = t / 2 * 4;
    auto swap = [&](float lower_half, float upper_half) {
        return __shfl_xor_sync(0xffffffff, upper ? lower_half : upper_half, 1);
    };
#pragma unroll
    for (int j = 0; j < T::D / 8; j++) {
        const float *o = acc.o[j / (A::COLUMNS / 8)] + j % (A::COLUMNS / 8) * 4;
        const float x = swap(o[0], o[2]), y = swap(o[1], o[3]);
        mine.part.o[j] = upper ? make_float4(x, y, o[2], o[3]) : make_float4(o[0], o[1], x, y);
    }
    float sum[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[half] = acc.sum[half];
        sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 2);
    }
    mine.part.state = make_float2(upper ? acc.max[1] : acc.max[0], upper ? sum[1] : sum[0]);
}

// A lane's part of a slot of the workspace: a warp's 16 rows are together, its lanes side by side.
template <class T>
struct lane_slot {
    static constexpr int WARP_FLOATS = LAYOUT_SLOT_FLOATS(T::D, 16);
    float4 *o; // vector j is o[j * 32]
    float2 *state;

    __device__ __forceinline__ lane_slot(float *partials, int slot, int warp, int lane)
    {
        const long long first = static_cast<long long>(slot) * LAYOUT_SLOT_FLOATS(T::D, T::ROWS);
        float *const mine = partials + first + warp * WARP_FLOATS;
        o = reinterpret_cast<float4 *>(mine) + lane;
        state = reinterpret_cast<float2 *>(mine + 16 * T::D) + lane;
    }
};

// Adds the partial result at `from` to `mine`, and puts zeros back.  CHUNK vectors are under way at once.
template <class T>
__device__ __forceinline__ void gather_row(group_row<T> &mine, const lane_slot<T> &from)
{
    constexpr int VECTORS = group_row<T>::VECTORS, CHUNK = VECTORS > 16 ? 4 : VECTORS; // as registers allow
    float2 theirs;
    float scale = 1.0f;
#pragma unroll
    for (int first = 0; first < VECTORS; first += CHUNK) {
        float4 other[CHUNK];
        u32 least; // of all words: 0 until every one has arrived
        for (;;) {
            load_relaxed(theirs, from.state, true);
            least = least_word(theirs);
#pragma unroll
            for (int j = 0; j < CHUNK; j++)
                load_relaxed(other[j], from.o + (first + j) * 32, true);
#pragma unroll
            for (int j = 0; j < CHUNK; j++)
                least = min(least, least_word(other[j]));
            if (least)
                break;
            do // the rest follows soon; to poll all of it would slow down whom we wait for
                load_relaxed(theirs, from.state, true);
            while (!least_word(theirs));
        }
        if (first == 0) {
            scale_part(mine.part, fmaxf(mine.part.state.x, theirs.x));
            scale = rescale(theirs.x, mine.part.state.x);
            mine.part.state.y += theirs.y * scale;
        }
#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
            float4 &o = mine.part.o[first + j];
            o = make_float4(o.x + other[j].x * scale, o.y + other[j].y * scale, o.z + other[j].z * scale,
                            o.w + other[j].w * scale);
            from.o[(first + j) * 32] = make_float4(0, 0, 0, 0);
        }
    }
    *from.state = make_float2(0, 0);
}

// The end of an item for one warp, whose 16 rows begin with `first_row`; as merge.cuh's finish_item.
template <class T>
__device__ __forceinline__ void finish_group_item(const decode_params &p, const group_accumulator<T> &acc,
                                                  const row_info *rows, const item_info &item, int first_row, int lane)
{
    if (rows[first_row].out_row < 0)
        return; // nor has any other CTA results for these rows
    group_row<T> mine;
    take_row<T>(mine, acc, lane);
    const int row = first_row + mine.row;
    const int rank = item.rank, last_rank = item.last_rank;
    // As a binary tree: partial results are large here, and a CTA brings in one in about a microsecond.
#pragma unroll 1
    for (int step = 1; !(rank & step) && rank + step <= last_rank; step *= 2)
        gather_row<T>(mine, lane_slot<T>(p.partials, item.share + step, first_row / 16, lane));
    if (item.rank > 0) {
        const lane_slot<T> to(p.partials, item.share, first_row / 16, lane);
#pragma unroll
        for (int j = 0; j < group_row<T>::VECTORS; j++) {
            const float4 o = mine.part.o[j];
            store_relaxed(to.o + j * 32,
                          make_float4(never_zero(o.x), never_zero(o.y), never_zero(o.z), never_zero(o.w)));
        }
        store_relaxed(to.state, make_float2(never_zero(mine.part.state.x), never_zero(mine.part.state.y)));
    } else if (rows[row].out_row >= 0) {
#pragma unroll
        for (int j = 0; j < group_row<T>::VECTORS; j++)
            store_out<T>(p, rows[row].out_row, mine.dim + j * 8, mine.part.o[j], mine.part.state);
    }
}

// Where a consumer is in the ring.
template <class T>
struct ring_place {
    u32 base;
    control<T> *ctl;
    int stage;
    u32 phase;

    __device__ __forceinline__ u32 k_smem() const { return base + stage * 2 * T::TILE_BYTES; }
    __device__ __forceinline__ u32 v_smem() const { return k_smem() + T::TILE_BYTES; }
    __device__ __forceinline__ u32 k_empty() const { return smem_address(&ctl->k_empty[stage]); }
    __device__ __forceinline__ u32 empty() const { return smem_address(&ctl->empty[stage]); }
    __device__ __forceinline__ tile_info tile() const { return ctl->tiles[stage]; }
    __device__ __forceinline__ void wait_for_k() const { barrier_wait(smem_address(&ctl->k_full[stage]), phase); }
    __device__ __forceinline__ void wait_for_v() const { barrier_wait(smem_address(&ctl->v_full[stage]), phase); }

    __device__ __forceinline__ ring_place next() const
    {
        ring_place n = *this;
        if (++n.stage == T::STAGES) {
            n.stage = 0;
            n.phase ^= 1;
        }
        return n;
    }
};

// From a tile's scores to its weights, and V as the tensor cores may read it.  `threads`: those that do so.
template <class T>
__device__ __forceinline__ void weigh_tile(group_weights<T> &w, group_scores<T> &s, group_accumulator<T> &acc,
                                           const ring_place<T> &at, const tile_info &tile, const tile_matrices &m,
                                           box_shape boxes, const row_info *rows, float scale, int threads, int lane)
{
    if (tile.flags & TILE_MASKED)
        mask_group_scores<T>(s, m, rows, tile.key0, lane);
    group_softmax<T>(w, s, acc, scale);
    at.wait_for_v();
    if (!T::CONVERTS && uniform(tile.key0 < tile.lo || tile.key0 + T::TILE > tile.hi))
        clear_dead_keys<T>(tile, at.v_smem(), boxes, threads);
}

template <int M, int N>
__device__ __forceinline__ void hold(float (&d)[M][N])
{
#pragma unroll
    for (int i = 0; i < M; i++)
        hold(d[i]);
}

template <class T>
__device__ __forceinline__ void consume_in_groups(const decode_params &p, unsigned char *smem, control<T> *ctl)
{
    constexpr int GROUPS = T::ROWS / 64;
    const int lane = threadIdx.x % 32, group = uniform(threadIdx.x / 128), first_row = threadIdx.x / 32 * 16;
    ring_place<T> at = {smem_address(smem + T::OFF_RING), ctl, 0, 0};
    int slot = 0;
    u32 q_phase = 0;
    if (GROUPS == 2 && group == 1)
        named_barrier_arrive(BARRIER_TURN, 256); // the first turn is group 0's
    for (bool final = false; !final;) { // items
        barrier_wait(smem_address(&ctl->q_full[slot]), q_phase);
        if (uniform(ctl->items[slot].share < 0))
            break;
        fence_for_tensor_cores(); // the query came by ordinary copies
        const row_info *rows = reinterpret_cast<const row_info *>(smem + T::OFF_ROWS) + slot * T::Q_ROWS;
        const u32 q_smem = smem_address(smem + T::OFF_Q + slot * T::Q_BYTES) + group * (64 * 128);
        const bool all_groups = GROUPS == 1 || uniform(rows[64].out_row >= 0);
        if (!all_groups && group == 1) { // no row of this group's is anybody's
            for (bool last = false; !last; at = at.next()) {
                at.wait_for_k();
                last = at.tile().flags & TILE_LAST;
                barrier_arrive_warp(at.k_empty(), lane);
                at.wait_for_v();
                barrier_arrive_warp(at.empty(), lane);
            }
        } else {
            const box_shape boxes = boxes_of<T>(p, false);
            const tile_matrices m = matrices_of<T>(boxes);
            const row_info *own = rows + first_row + lane / 4;
            const int threads = all_groups ? T::CONSUMERS : 128;
            const auto take_turn = [&] {
                if (GROUPS == 2 && all_groups)
                    named_barrier(BARRIER_TURN + group, 256);
            };
            const auto pass_turn = [&] {
                if (GROUPS == 2 && all_groups)
                    named_barrier_arrive(BARRIER_TURN + (1 - group), 256);
            };
            group_accumulator<T> acc;
            group_scores<T> s;
            group_weights<T> w;
            acc.clear();
            s = {}; // not read, but that the compiler does not know
            at.wait_for_k();
            tile_info tile = at.tile();
            wgmma_begin();
            issue_scores<T>(s, q_smem, at.k_smem(), m);
            wgmma_commit();
            wgmma_wait();
            hold(s.s);
            barrier_arrive_warp(at.k_empty(), lane);
            while (!uniform(tile.flags & TILE_LAST)) {
                const ring_place<T> next = at.next();
                weigh_tile<T>(w, s, acc, at, tile, m, boxes, own, p.scale_log2, threads, lane);
                if (GROUPS == 2)
                    next.wait_for_k();
                take_turn();
                hold(s.s);
                hold(acc.o);
                wgmma_begin();
                issue_output<T>(acc, w, at.v_smem(), m);
                if (GROUPS == 1) { // memory is the limit: V does not wait for the next K
                    wgmma_commit();
                    next.wait_for_k();
                    wgmma_begin();
                }
                issue_scores<T>(s, q_smem, next.k_smem(), m);
                wgmma_commit();
                pass_turn();
                tile = next.tile();
                if (GROUPS == 1) {
                    wgmma_wait<1>();
                    barrier_arrive_warp(at.empty(), lane);
                }
                wgmma_wait();
                hold(s.s);
                hold(acc.o);
                if (GROUPS == 2)
                    barrier_arrive_warp(at.empty(), lane);
                barrier_arrive_warp(next.k_empty(), lane);
                at = next;
            }
            weigh_tile<T>(w, s, acc, at, tile, m, boxes, own, p.scale_log2, threads, lane);
            take_turn();
            hold(acc.o);
            wgmma_begin();
            issue_output<T>(acc, w, at.v_smem(), m);
            wgmma_commit();
            pass_turn();
            wgmma_wait();
            hold(acc.o);
            barrier_arrive_warp(at.empty(), lane);
            at = at.next();
            finish_group_item<T>(p, acc, rows, ctl->items[slot], first_row, lane);
        }
        final = uniform(ctl->items[slot].final);
        barrier_arrive_warp(smem_address(&ctl->q_empty[slot]), lane);
        if (++slot == T::Q_SLOTS) {
            slot = 0;
            q_phase ^= 1;
        }
    }
}

} // namespace quire

// many_item.cuh - an item of many.cuh's warpgroups: tile after tile, then their results to one, and out
// SPDX-License-Identifier: Apache-2.0
//
// An item's place among the queries is left once its last scores are weighed, so that the next query comes while the
// last product is on its way and results are written.
#pragma once

#include "many.cuh"
#include "merge.cuh"

namespace quire {

// Where a consumer is among the queries.
template <class T>
struct query_place {
    unsigned char *smem;
    control<T> *ctl;
    int slot;
    u32 phase;

    __device__ __forceinline__ u32 q_smem() const { return smem_address(smem + T::OFF_Q + slot * T::Q_BYTES); }
    __device__ __forceinline__ const row_info *rows() const
    {
        return reinterpret_cast<const row_info *>(smem + T::OFF_ROWS) + slot * T::Q_ROWS;
    }
    __device__ __forceinline__ const item_info &item() const { return ctl->items[slot]; }
    __device__ __forceinline__ u32 empty() const { return smem_address(&ctl->q_empty[slot]); }
    __device__ __forceinline__ void wait() const
    {
        barrier_wait(smem_address(&ctl->q_full[slot]), phase);
        if (!T::PAIRS) // whose producers have fenced
            fence_for_tensor_cores(); // the query came by ordinary copies
    }

    __device__ __forceinline__ query_place next() const
    {
        query_place n = *this;
        if (++n.slot == T::Q_SLOTS) {
            n.slot = 0;
            n.phase ^= 1;
        }
        return n;
    }
};

// A lane's part of a slot of the workspace, as its accumulators are: a warp's 16 rows are together, its lanes side by
// side.  Of the states of its two rows an even lane has the first, an odd one the second.
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

// Makes `acc` relative to the larger of its maxima and another part's, whose state in this lane's slot is `theirs`, and
// adds its sums: those of output are to be added with `scale`.
template <class T>
__device__ __forceinline__ void level(group_accumulator<T> &acc, float2 theirs, float (&scale)[2], int lane)
{
    const float2 neighbour = make_float2(__shfl_xor_sync(0xffffffff, theirs.x, 1),
                                         __shfl_xor_sync(0xffffffff, theirs.y, 1));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float2 state = lane % 2 == r ? theirs : neighbour;
        const float top = fmaxf(acc.max[r], state.x), shrink = rescale(acc.max[r], top);
        scale[r] = rescale(state.x, top);
        acc.max[r] = top;
        acc.sum[r] = acc.sum[r] * shrink + state.y * scale[r];
#pragma unroll
        for (int j = 0; j < T::D / 8; j++) {
            acc.vector(j)[r * 2] *= shrink;
            acc.vector(j)[r * 2 + 1] *= shrink;
        }
    }
}

// Adds the partial result at `from` to `acc`, whose sums are whole rows', and puts zeros back.  CHUNK vectors are under
// way at once.
template <class T>
__device__ __forceinline__ void gather_rows(group_accumulator<T> &acc, const lane_slot<T> &from, int lane)
{
    constexpr int VECTORS = T::D / 8, CHUNK = VECTORS > 16 ? 4 : VECTORS; // as registers allow
    float scale[2];
#pragma unroll
    for (int first = 0; first < VECTORS; first += CHUNK) {
        float2 theirs;
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
        if (first == 0)
            level<T>(acc, theirs, scale, lane);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
            acc.add(first + j, other[j], scale);
            from.o[(first + j) * 32] = make_float4(0, 0, 0, 0);
        }
    }
    *from.state = make_float2(0, 0);
}

// Lane t of four has word j of each of x[j]: of x[t] it gets all four words, in order of lanes.
__device__ __forceinline__ uint4 transpose_words(const u32 (&x)[4], int lane)
{
    const bool odd = lane & 1, upper = lane & 2;
    u32 pair[2][2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 other = __shfl_xor_sync(0xffffffff, odd ? x[2 * i] : x[2 * i + 1], 1);
        pair[i][0] = odd ? other : x[2 * i];
        pair[i][1] = odd ? x[2 * i + 1] : other;
    }
    u32 other[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        other[i] = __shfl_xor_sync(0xffffffff, upper ? pair[0][i] : pair[1][i], 2);
    return upper ? make_uint4(other[0], other[1], pair[1][0], pair[1][1])
                 : make_uint4(pair[0][0], pair[0][1], other[0], other[1]);
}

// A lane's part of its two rows, whole now, to out and lse.
template <class T>
__device__ __forceinline__ void store_rows(const decode_params &p, const group_accumulator<T> &acc,
                                           const int (&out_rows)[2], int lane)
{
    const int t = lane % 4;
    const float scales[2] = {p.out_scale / acc.sum[0], p.out_scale / acc.sum[1]};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int out_row = out_rows[r];
        // a row without keys is +0 whatever its sums hold
        const bool dead = acc.sum[r] == 0.0f;
        const float scale = scales[r];
        const long long at = static_cast<long long>(out_row) * T::D;
        const auto value = [&](int j, int i) { return dead ? 0.0f : acc.vector(j)[r * 2 + i] * scale; };
        if (T::FP8 && p.flags & DECODE_OUT_FP8) {
#pragma unroll
            for (int j = 0; j < T::D / 8; j += 8) {
                u32 words[4]; // of two bytes of one vector, and two of the fourth after it
#pragma unroll
                for (int i = 0; i < 4; i++)
                    words[i] = pack_e4m3(value(j + i, 0), value(j + i, 1)) |
                               pack_e4m3(value(j + i + 4, 0), value(j + i + 4, 1)) << 16;
                const uint4 x = transpose_words(words, lane);
                auto *const to = reinterpret_cast<uint2 *>(static_cast<unsigned char *>(p.out) + at) + (j + t);
                if (out_row >= 0) {
                    to[0] = make_uint2(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.z, x.w, 0x5410));
                    to[4] = make_uint2(__byte_perm(x.x, x.y, 0x7632), __byte_perm(x.z, x.w, 0x7632));
                }
            }
        } else {
#pragma unroll
            for (int j = 0; j < T::D / 8; j += 4) {
                u32 words[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    words[i] = pack_16<T::BF16>(value(j + i, 0), value(j + i, 1));
                const uint4 x = transpose_words(words, lane);
                if (out_row >= 0)
                    reinterpret_cast<uint4 *>(static_cast<unsigned char *>(p.out) + at * 2)[j + t] = x;
            }
        }
        if (p.lse && t == r && out_row >= 0)
            p.lse[out_row] = lse_of(acc.max[r], acc.sum[r]);
    }
}

// What the end of an item is told by, for one lane: so that the place among the queries can be left before.
struct item_tail {
    int share, rank, last_rank;
    int out_row[2]; // of the lane's two rows
    bool live;      // some row of the warp's 16 is somebody's

    // `rows`: the warp's
    __device__ __forceinline__ item_tail(const item_info &item, const row_info *rows, int lane)
        : share(item.share), rank(item.rank), last_rank(item.last_rank),
          out_row{rows[lane / 4].out_row, rows[lane / 4 + 8].out_row}, live(rows[0].out_row >= 0)
    {
    }
};

// The end of an item for one warp, whose 16 rows are the `warp`-th; as merge.cuh's finish_item.  First what other CTAs
// have left (the item is volatile so that it is read when it is needed: registers are for the results),
template <class T>
__device__ __forceinline__ void gather_item(const decode_params &p, group_accumulator<T> &acc,
                                            const volatile item_info &item, const row_info *rows, int warp, int lane)
{
    if (rows[0].out_row < 0)
        return; // nor has any other CTA results for these rows
    // As a binary tree: partial results are large here, and a CTA brings in one in about a microsecond.
#pragma unroll 1
    for (int step = 1; !(item.rank & step) && item.rank + step <= item.last_rank; step *= 2)
        gather_rows<T>(acc, lane_slot<T>(p.partials, item.share + step, warp, lane), lane);
}

// and then to where the result belongs.
template <class T>
__device__ __forceinline__ void leave_item(const decode_params &p, const group_accumulator<T> &acc,
                                           const item_tail &item, int warp, int lane)
{
    if (!item.live)
        return;
    if (item.rank == 0) {
        store_rows<T>(p, acc, item.out_row, lane);
        return;
    }
    const lane_slot<T> to(p.partials, item.share, warp, lane);
#pragma unroll
    for (int j = 0; j < T::D / 8; j++) {
        const float *const o = acc.vector(j);
        store_relaxed(to.o + j * 32,
                      make_float4(never_zero(o[0]), never_zero(o[1]), never_zero(o[2]), never_zero(o[3])));
    }
    const float2 state = acc.state(lane);
    store_relaxed(to.state, make_float2(never_zero(state.x), never_zero(state.y)));
}

template <class T>
__device__ __forceinline__ void consume_in_groups(const decode_params &p, unsigned char *smem, control<T> *ctl)
{
    constexpr int GROUPS = T::ROWS / 64;
    const int lane = threadIdx.x % 32, group = uniform(threadIdx.x / 128), warp = threadIdx.x / 32;
    ring_place<T> at = {smem_address(smem + T::OFF_RING), ctl, 0, 0};
    query_place<T> q = {smem, ctl, 0, 0};
    if (GROUPS == 2 && group == 1)
        named_barrier_arrive(BARRIER_TURN, 256); // the first turn is group 0's
    for (bool final = false; !final;) { // items
        q.wait();
        const item_info &item = q.item();
        const row_info *const rows = q.rows() + warp * 16;
        if (uniform(item.share < 0))
            break;
        final = uniform(item.final);
        const bool both = GROUPS == 1 || uniform(q.rows()[64].out_row >= 0);
        if (!both && group == 1) { // no row of this group's is anybody's
            for (bool last = false; !last; at = at.next()) {
                at.wait_for_k();
                last = at.tile().flags & TILE_LAST;
                barrier_arrive_warp(at.k_empty(), lane);
                at.wait_for_v();
                barrier_arrive_warp(at.empty(), lane);
            }
            barrier_arrive_warp(q.empty(), lane);
            q = q.next();
            continue;
        }
        const box_shape boxes = boxes_of<T>(p, false);
        const tile_matrices m = matrices_of<T>(boxes);
        const u32 q_smem = q.q_smem() + group * (64 * 128);
        const auto take_turn = [&] {
            if (GROUPS == 2 && both)
                named_barrier(BARRIER_TURN + group, 256);
        };
        const auto pass_turn = [&] {
            if (GROUPS == 2 && both)
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
        for (;;) {
            weigh_tile<T>(w, s, acc, at, tile, m, boxes, rows + lane / 4, p.scale_log2, group, lane);
            if (uniform(tile.flags & TILE_LAST))
                break;
            const ring_place<T> next = at.next();
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
        // the next query can come; after the last one nothing comes, and what is told of it stays
        item_tail end(item, rows, lane);
        barrier_arrive_warp(q.empty(), lane);
        q = q.next();
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
        acc.add_lanes();
        if (final) { // only that may go on in other CTAs
            gather_item<T>(p, acc, item, rows, warp, lane);
            end = item_tail(item, rows, lane); // once more: registers are for results
        }
        leave_item<T>(p, acc, end, warp, lane);
    }
}

} // namespace quire

// merge.cuh - the end of an item: warps' results to one, pieces of a split item to one, and out
// SPDX-License-Identifier: Apache-2.0
//
// An item that lies in one share whole is written at once.
// A CTA's share holds at most one item that began in a lower share (its first), and at most one that
// goes on in a higher one (its last).  For the former it leaves a partial result in its own slot of the
// workspace; the CTA that holds an item's first piece, rank 0, adds the others' in the order of rank.
// Beyond FAN_IN ranks every FAN_IN-th adds those behind it first.  So the bits depend on lengths and grid
// alone.  Where CTAs are left without a share (lone), these put an item together, each some of its rows: the others
// leave all that they have, rank 0 too.  Where that are many, row r of ranks behind r, r + FAN_IN, ... is added by these
// first.  A word is its own flag: slots are zero between launches, a value of 0 is stored as -0, the reader polls until
// no word is +0 and puts zeros back.
#pragma once

#include "compute.cuh"
#include "schedule.cuh"

namespace quire {

constexpr int FAN_IN = 16;

// A thread's dims of a row, N vectors of four: unscaled output, and the row's maximum (log2 units) and
// sum of weights.
template <int N>
struct row_part {
    float4 o[N];
    float2 state; // maximum, sum
};

// What a part's sums are to be multiplied with when they become relative to `top`.  A part without keys
// has maximum -inf, and zeros (or NaN, if a live key's score was NaN: then NaN is the answer).
__device__ __forceinline__ float rescale(float max, float top)
{
    return max == -INFINITY ? 1.0f : exp2_approx(max - top);
}

template <int N>
__device__ __forceinline__ void scale_part(row_part<N> &part, float top)
{
    const float w = rescale(part.state.x, top);
#pragma unroll
    for (int i = 0; i < N; i++)
        part.o[i] = make_float4(part.o[i].x * w, part.o[i].y * w, part.o[i].z * w, part.o[i].w * w);
    part.state = make_float2(top, part.state.y * w);
}

// into += from; into is relative to its maximum, from's is no larger
template <int N>
__device__ __forceinline__ void add_part(row_part<N> &into, const row_part<N> &from)
{
    const float w = rescale(from.state.x, into.state.x);
#pragma unroll
    for (int i = 0; i < N; i++) {
        into.o[i].x += from.o[i].x * w;
        into.o[i].y += from.o[i].y * w;
        into.o[i].z += from.o[i].z * w;
        into.o[i].w += from.o[i].w * w;
    }
    into.state.y += from.state.y * w;
}

// The natural logarithm of a row's sum of exponentials; -inf without keys.
__device__ __forceinline__ float lse_of(float max, float sum) { return (max + log2f(sum)) * 0.693147180559945309f; }

__device__ __forceinline__ float never_zero(float x) { return x == 0.0f ? -0.0f : x; }

__device__ __forceinline__ u32 least_word(float2 v) { return min(__float_as_uint(v.x), __float_as_uint(v.y)); }

__device__ __forceinline__ u32 least_word(float4 v)
{
    return min(least_word(make_float2(v.x, v.y)), least_word(make_float2(v.z, v.w)));
}

// Which partial results a CTA adds for the item that ends its share's run.
struct gathering {
    int count; // of ranks to add
    int rank;  // the CTA's own

    // i-th rank to add: the next ones, then (rank 0) the leaders
    __device__ __forceinline__ int rank_of(int i) const
    {
        return i < FAN_IN - 1 || count <= FAN_IN - 1 ? rank + 1 + i : (i - FAN_IN + 2) * FAN_IN;
    }
};

__device__ __forceinline__ gathering what_to_gather(const item_info &item)
{
    gathering g = {0, item.rank};
    if (item.rank == 0)
        g.count = item.last_rank < FAN_IN ? item.last_rank : FAN_IN - 1 + item.last_rank / FAN_IN;
    else if (item.rank % FAN_IN == 0)
        g.count = min(item.last_rank - item.rank, FAN_IN - 1);
    return g;
}

template <class T>
__device__ __forceinline__ void store_out(const decode_params &p, int out_row, int dim, float4 o, float2 state)
{
    // a row without keys is +0 whatever its sums hold
    const float scale = divide_approx(p.out_scale, state.y);
    o = state.y == 0.0f ? make_float4(0, 0, 0, 0) : make_float4(o.x * scale, o.y * scale, o.z * scale, o.w * scale);
    const long long at = static_cast<long long>(out_row) * T::D + dim;
    if (T::FP8 && p.flags & DECODE_OUT_FP8)
        *reinterpret_cast<u32 *>(static_cast<unsigned char *>(p.out) + at) =
            pack_e4m3(o.x, o.y) | pack_e4m3(o.z, o.w) << 16;
    else
        *reinterpret_cast<uint2 *>(static_cast<unsigned char *>(p.out) + at * 2) =
            make_uint2(pack_16<T::BF16>(o.x, o.y), pack_16<T::BF16>(o.z, o.w));
    if (p.lse && dim == 0)
        p.lse[out_row] = lse_of(state.x, state.y);
}

// The weights of a row, of which every lane has those of its keys; rows are those of compute.cuh's accumulators.
__device__ __forceinline__ float sum_over_keys(float sum)
{
    sum += __shfl_xor_sync(0xffffffff, sum, 4);
    sum += __shfl_xor_sync(0xffffffff, sum, 8);
    sum += __shfl_xor_sync(0xffffffff, sum, 16);
    return sum;
}

// This warp's accumulators, to its plane of the merge area.
template <class T>
__device__ __forceinline__ void store_accumulator(float *plane, accumulator<T> &acc, int first_row, int lane)
{
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < T::N_TILES; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float *row = plane + (first_row + n * 8 + 2 * t + j) * T::ACC_STRIDE;
#pragma unroll
            for (int m = 0; m < T::D_TILES; m++)
                if constexpr (T::FP8) {
                    *reinterpret_cast<float2 *>(row + m * 16 + 2 * g) = make_float2(acc.o[n][m][j], acc.o[n][m][j + 2]);
                } else {
                    row[m * 16 + g] = acc.o[n][m][j];
                    row[m * 16 + g + 8] = acc.o[n][m][j + 2];
                }
            const float sum = sum_over_keys(acc.sum[n][j]);
            if (g == 0)
                *reinterpret_cast<float2 *>(row + T::D) = make_float2(acc.max[n][j], sum);
        }
}

// Floats from a CTA's slots to the next CTA's: one slot, and where items can be solo one for each of their heads.
template <class T>
constexpr int CTA_SLOTS = LAYOUT_SLOT_FLOATS(T::D, T::ROWS) * LAYOUT_CTA_SLOTS(T::KEY_WARPS, T::SOLO);

template <class T>
__device__ __forceinline__ float *slots_of(const decode_params &p, int share)
{
    return p.partials + static_cast<long long>(share) * CTA_SLOTS<T>;
}

// Adds partial results begin, begin + step, ... of those to add to this warp's rows of its plane: each is polled by
// one warp, so that none is polled by threads that have nothing to do with it.  `first_slot`: of rank 0.
template <class T>
__device__ __forceinline__ void gather(const gathering &todo, int begin, int step, float *plane, float *first_slot,
                                       const row_info *rows, int first_row, int lane)
{
    constexpr u32 ALL = 0xffffffff;
    // a lane holds VECTORS of CHUNK rows, 32 vectors apart; lane r also the state of row r
    constexpr int ROW_VECTORS = T::D / 4, ALL_VECTORS = T::WARP_ROWS * ROW_VECTORS / 32;
    constexpr int VECTORS = ALL_VECTORS < 8 ? ALL_VECTORS : 8, CHUNK = VECTORS * 32 / ROW_VECTORS;
    static_assert(T::WARP_ROWS % CHUNK == 0 && CHUNK <= 32);
    const auto row = [lane](int v) { return (v * 32 + lane) / ROW_VECTORS; }; // of vector v, in its chunk
    const auto place = [lane, row](int v) { return row(v) * T::ACC_STRIDE + (v * 32 + lane) % ROW_VECTORS * 4; };
    const int own_state = lane % CHUNK * T::ACC_STRIDE + T::D;

#pragma unroll 1
    for (int row0 = first_row; row0 < first_row + T::WARP_ROWS; row0 += CHUNK) {
        // rows that only fill the tile leave nothing anywhere
        const u32 live = __ballot_sync(ALL, lane < CHUNK && rows[row0 + lane % CHUNK].out_row >= 0);
        if (!live)
            break;
        float *const chunk = plane + row0 * T::ACC_STRIDE;
        float4 sum[VECTORS];
        float2 state = make_float2(0, 0);
        if (lane < CHUNK)
            state = *reinterpret_cast<const float2 *>(chunk + own_state);
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            sum[v] = *reinterpret_cast<const float4 *>(chunk + place(v));
#pragma unroll 1
        for (int i = begin; i < todo.count; i += step) {
            float *const slot = first_slot + (todo.rank_of(i) * CTA_SLOTS<T> + row0 * T::ACC_STRIDE);
            float4 part[VECTORS];
            float2 part_state;
            u32 least; // of all words: 0 until every one has arrived
            do {
#pragma unroll
                for (int v = 0; v < VECTORS; v++) // all under way at once
                    load_relaxed(part[v], reinterpret_cast<const float4 *>(slot + place(v)), live >> row(v) & 1);
                load_relaxed(part_state, reinterpret_cast<const float2 *>(slot + own_state), live >> lane & 1);
                least = least_word(part_state);
#pragma unroll
                for (int v = 0; v < VECTORS; v++)
                    least = min(least, least_word(part[v]));
            } while (__any_sync(ALL, !least));
            const float top = fmaxf(state.x, part_state.x);
            const float ours = rescale(state.x, top), theirs = rescale(part_state.x, top);
            state = make_float2(top, state.y * ours + part_state.y * theirs);
            if (live >> lane & 1)
                *reinterpret_cast<float2 *>(slot + own_state) = make_float2(0, 0);
#pragma unroll
            for (int v = 0; v < VECTORS; v++) {
                const float a = __shfl_sync(ALL, ours, row(v)), b = __shfl_sync(ALL, theirs, row(v));
                sum[v] = make_float4(sum[v].x * a + part[v].x * b, sum[v].y * a + part[v].y * b,
                                     sum[v].z * a + part[v].z * b, sum[v].w * a + part[v].w * b);
                if (live >> row(v) & 1)
                    *reinterpret_cast<float4 *>(slot + place(v)) = make_float4(0, 0, 0, 0);
            }
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            *reinterpret_cast<float4 *>(chunk + place(v)) = sum[v];
        if (lane < CHUNK)
            *reinterpret_cast<float2 *>(chunk + own_state) = state;
    }
}

// Ranks whose partial results are added to a row: 0, 1, ... up to `direct`, then every step-th from `first` on.
struct rank_list {
    int count, direct, first, step;

    __device__ __forceinline__ int rank_of(int i) const { return i < direct ? i : first + (i - direct) * step; }
};

// Of a row, in a warp of an adder: pieces under way at once, and how many it adds at most before some ranks add others'
// first. Both were measured (doc/kernels.md).
constexpr int ADDER_DEPTH = 5, ADDER_PIECES = 8;

// Adds every step-th of `list`, from begin on, to a row of a plane, DEPTH at a time.  `slot_row`: the row of rank 0's
// slot.
template <class T, int DEPTH>
__device__ __forceinline__ void gather_row(const rank_list &list, int begin, int step, float *plane_row,
                                           float *slot_row, int lane)
{
    static_assert(T::D <= 128, "a lane has one vector of the row, and all have its state");
    const bool has_dims = lane < T::D / 4;
    float4 sum = make_float4(0, 0, 0, 0);
    if (has_dims)
        sum = reinterpret_cast<const float4 *>(plane_row)[lane];
    float2 state = *reinterpret_cast<const float2 *>(plane_row + T::D);
#pragma unroll 1
    for (int i = begin; i < list.count; i += DEPTH * step) {
        float *from[DEPTH];
        float4 part[DEPTH];
        float2 part_state[DEPTH];
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
            from[k] = slot_row + list.rank_of(min(i + k * step, list.count - 1)) * CTA_SLOTS<T>;
        u32 least; // of all words: 0 until every one has arrived
        do {
            least = ~0u;
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {
                const bool wanted = i + k * step < list.count;
                load_relaxed(part[k], reinterpret_cast<const float4 *>(from[k]) + lane, wanted && has_dims);
                load_relaxed(part_state[k], reinterpret_cast<const float2 *>(from[k] + T::D), wanted);
            }
#pragma unroll
            for (int k = 0; k < DEPTH; k++)
                least = min(least, min(least_word(part[k]), least_word(part_state[k])));
        } while (__any_sync(0xffffffff, !least));
        float top = state.x;
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
            if (i + k * step < list.count)
                top = fmaxf(top, part_state[k].x);
        const float ours = rescale(state.x, top);
        sum = make_float4(sum.x * ours, sum.y * ours, sum.z * ours, sum.w * ours);
        state = make_float2(top, state.y * ours);
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            if (i + k * step >= list.count)
                continue;
            const float theirs = rescale(part_state[k].x, top);
            sum = make_float4(sum.x + part[k].x * theirs, sum.y + part[k].y * theirs, sum.z + part[k].z * theirs,
                              sum.w + part[k].w * theirs);
            state.y += part_state[k].y * theirs;
            if (has_dims)
                reinterpret_cast<float4 *>(from[k])[lane] = make_float4(0, 0, 0, 0);
            if (lane == 0)
                *reinterpret_cast<float2 *>(from[k] + T::D) = make_float2(0, 0);
        }
    }
    __syncwarp();
    if (has_dims)
        reinterpret_cast<float4 *>(plane_row)[lane] = sum;
    if (lane == 0)
        *reinterpret_cast<float2 *>(plane_row + T::D) = state;
}

// Whether adders get rows that some ranks have added before.
__device__ __forceinline__ bool rows_are_led(const item_info &item)
{
    return item.last_rank >= item.adders * ADDER_PIECES;
}

// What an adder adds to row r.
__device__ __forceinline__ rank_list ranks_of_row(const item_info &item, int r)
{
    if (!rows_are_led(item))
        return {item.last_rank + 1, 0, 0, 1};
    return {r + (item.last_rank - r) / FAN_IN + 1, r, r, FAN_IN};
}

// Which row a CTA adds of the ranks behind it; negative: none.
template <class T>
__device__ __forceinline__ int led_row(const item_info &item, const row_info *rows)
{
    const int r = item.rank % FAN_IN;
    const bool leads = item.adders > 0 && item.adder < 0 && rows_are_led(item) && item.rank < item.last_rank;
    return leads && r < T::ROWS && rows[r].out_row >= 0 ? r : -1;
}

// To a slot of the workspace.
template <class T, int N>
__device__ __forceinline__ void leave_part(float *slot, int row, int dim, const row_part<N> &part)
{
    float *const to = slot + row * T::ACC_STRIDE + dim;
#pragma unroll
    for (int j = 0; j < N; j++)
        store_relaxed(reinterpret_cast<float4 *>(to + j * (T::D / N)),
                      make_float4(never_zero(part.o[j].x), never_zero(part.o[j].y), never_zero(part.o[j].z),
                                  never_zero(part.o[j].w)));
    if (dim == 0)
        store_relaxed(reinterpret_cast<float2 *>(to + T::D),
                      make_float2(never_zero(part.state.x), never_zero(part.state.y)));
}

// One warp's rows, whose output is complete: transposed by the matrix stores, in a few instructions, as most of the time
// of short requests goes by here.  `sums`: over all keys; `plane`: the warp's own.
template <class T>
__device__ __forceinline__ void store_solo(const decode_params &p, const accumulator<T> &acc, const float (&sums)[2],
                                           float *plane, const row_info *rows, int lane)
{
    static_assert(T::N_TILES == 1 && T::ROWS == 8);
    const bool bytes = T::FP8 && p.flags & DECODE_OUT_FP8;
    const int row_bytes = bytes ? T::D : T::D * 2, stride = row_bytes + 16; // so that rows begin in other banks
    u32 base = smem_address(plane);
    make_again(base); // no register holds addresses while tiles are attended
    auto *const out = static_cast<unsigned char *>(p.out);
    float scale[2];
    bool empty[2]; // a row without keys is +0 whatever its sums hold
#pragma unroll
    for (int j = 0; j < 2; j++) {
        empty[j] = sums[j] == 0.0f;
        scale[j] = divide_approx(p.out_scale, sums[j]);
        const int out_row = rows[lane % 4 * 2 + j].out_row;
        if (p.lse && lane < 4 && out_row >= 0)
            p.lse[out_row] = lse_of(acc.max[0][j], sums[j]);
    }
    const auto scaled = [&](int m, int i) { return empty[i % 2] ? 0.0f : acc.o[0][m][i] * scale[i % 2]; };
    u32 r[4];
    if (bytes) { // two dims of a row are an element of 16 bits
#pragma unroll
        for (int m = 0; m < T::D_TILES; m += 4) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                r[i] = pack_e4m3(scaled(m + i, 0), scaled(m + i, 2)) |
                       pack_e4m3(scaled(m + i, 1), scaled(m + i, 3)) << 16;
            store_matrix_x4_transposed(base + lane % 8 * stride + (m + lane / 8) * 16, r);
        }
    } else {
#pragma unroll
        for (int m = 0; m < T::D_TILES; m += 2) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                r[i] = pack_16<T::BF16>(scaled(m + i / 2, i % 2 * 2), scaled(m + i / 2, i % 2 * 2 + 1));
            store_matrix_x4_transposed(base + lane % 8 * stride + (m * 2 + lane / 8) * 16, r);
        }
    }
    __syncwarp();
    const auto place = [&](int row, int at) { // in `out`, of byte `at` of a row
        return reinterpret_cast<uint4 *>(out + (static_cast<long long>(rows[row].out_row) * row_bytes + at));
    };
    if (T::FP8 && !bytes) { // 32 bytes have the even dims of 16, then the odd ones
        constexpr int UNITS = T::D / 16;
#pragma unroll
        for (int unit = lane; unit < T::ROWS * UNITS; unit += 32) {
            const int row = unit / UNITS, at = unit % UNITS * 32;
            if (rows[row].out_row < 0)
                continue;
            const uint4 a = load_16(base + row * stride + at), b = load_16(base + row * stride + at + 16);
            *place(row, at) = {__byte_perm(a.x, b.x, 0x5410), __byte_perm(a.x, b.x, 0x7632),
                               __byte_perm(a.y, b.y, 0x5410), __byte_perm(a.y, b.y, 0x7632)};
            *place(row, at + 16) = {__byte_perm(a.z, b.z, 0x5410), __byte_perm(a.z, b.z, 0x7632),
                                    __byte_perm(a.w, b.w, 0x5410), __byte_perm(a.w, b.w, 0x7632)};
        }
    } else {
        const int vectors = row_bytes / 16;
#pragma unroll
        for (int unit = lane; unit < T::ROWS * vectors; unit += 32) {
            const int row = unit / vectors, at = unit % vectors * 16;
            if (rows[row].out_row >= 0)
                *place(row, at) = load_16(base + row * stride + at);
        }
    }
    __syncwarp();
}

// A partial result of one warp's rows, as its lanes hold them: vectors of the output, 512 bytes of each D tile in a row,
// then the states {maximum, sum} of rows 2t and 2t+1. Lanes of rows that only fill the tile leave nothing, and have the
// last places, so that the others' adjoin.
template <class T>
struct own_part {
    float *slot;
    int lane;
    bool live;

    __device__ __forceinline__ float4 *vector(int m) const
    {
        return reinterpret_cast<float4 *>(slot) + m * 32 + lane % 4 * 8 + lane / 4;
    }
    __device__ __forceinline__ float4 *states() const
    {
        return reinterpret_cast<float4 *>(slot) + T::D_TILES * 32 + lane % 4;
    }
    static_assert(!T::SOLO || T::D_TILES * 128 + 16 <= LAYOUT_SLOT_FLOATS(T::D, T::ROWS));

    // `sum`: over all keys.
    __device__ __forceinline__ void leave(const accumulator<T> &acc, const float (&sum)[2]) const
    {
        if (!live)
            return;
#pragma unroll
        for (int m = 0; m < T::D_TILES; m++)
            store_relaxed(vector(m), make_float4(never_zero(acc.o[0][m][0]), never_zero(acc.o[0][m][1]),
                                                 never_zero(acc.o[0][m][2]), never_zero(acc.o[0][m][3])));
        if (lane < 4)
            store_relaxed(states(), make_float4(never_zero(acc.max[0][0]), never_zero(sum[0]),
                                                never_zero(acc.max[0][1]), never_zero(sum[1])));
    }

    __device__ __forceinline__ void add_to(accumulator<T> &acc, float (&sum)[2]) const
    {
        constexpr int BATCH = T::D_TILES < 8 ? T::D_TILES : 8; // vectors under way at once
        float ours[2], theirs[2];
#pragma unroll
        for (int first = 0; first < T::D_TILES; first += BATCH) {
            float4 part[BATCH], state = make_float4(1, 1, 1, 1);
            u32 least; // of all words: 0 until every one has arrived
            do {
#pragma unroll
                for (int k = 0; k < BATCH; k++)
                    load_relaxed(part[k], vector(first + k), live);
                if (first == 0)
                    load_relaxed(state, states(), live);
                least = least_word(state);
#pragma unroll
                for (int k = 0; k < BATCH; k++)
                    least = min(least, least_word(part[k]));
            } while (__any_sync(0xffffffff, !least));
            if (first == 0) {
                const float max[2] = {state.x, state.z}, weight[2] = {state.y, state.w};
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const float top = fmaxf(acc.max[0][j], max[j]);
                    ours[j] = rescale(acc.max[0][j], top);
                    theirs[j] = rescale(max[j], top);
                    acc.max[0][j] = top;
                    sum[j] = sum[j] * ours[j] + weight[j] * theirs[j];
                }
                if (live && lane < 4)
                    *states() = make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int k = 0; k < BATCH; k++) {
                const float from[4] = {part[k].x, part[k].y, part[k].z, part[k].w};
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc.o[0][first + k][i] = acc.o[0][first + k][i] * ours[i % 2] + from[i] * theirs[i % 2];
                if (live)
                    *vector(first + k) = make_float4(0, 0, 0, 0);
            }
        }
    }
};

// One warp, whose head of the item is its own; `rows` too.
template <class T>
__device__ __forceinline__ void finish_solo(const decode_params &p, accumulator<T> &acc, float *merge,
                                            const row_info *rows, const item_info &item, int key_warp, int lane)
{
    float sum[2];
#pragma unroll
    for (int j = 0; j < 2; j++)
        sum[j] = sum_over_keys(acc.sum[0][j]);
    if (item.last_rank > 0) {
        const bool live = rows[lane % 4 * 2].out_row >= 0;
        float *const first_slot = slots_of<T>(p, item.share - item.rank) + key_warp * LAYOUT_SLOT_FLOATS(T::D, T::ROWS);
        const auto part_of = [&](int rank) { return own_part<T>{first_slot + rank * CTA_SLOTS<T>, lane, live}; };
        const gathering todo = what_to_gather(item);
#pragma unroll 1
        for (int i = 0; i < todo.count; i++)
            part_of(todo.rank_of(i)).add_to(acc, sum);
        if (item.rank > 0) {
            part_of(item.rank).leave(acc, sum);
            return;
        }
    }
    store_solo<T>(p, acc, sum, merge + key_warp * T::ROWS * T::ACC_STRIDE, rows, lane);
}

// All consumer threads; `rows` are the whole item's.
template <class T>
__device__ __forceinline__ void finish_item(const decode_params &p, accumulator<T> &acc, float *merge,
                                            const row_info *rows, const item_info &item, int key_warp, int first_row,
                                            int lane)
{
    constexpr int PLANE = T::ROWS * T::ACC_STRIDE;
    // a thread takes N vectors of a row at a time, STEP dims apart
    constexpr int VECTORS = T::ROWS * T::D / 4 / T::CONSUMERS, N = VECTORS < 2 ? 1 : 2, STEP = T::D / N;
    static_assert(STEP % 4 == 0);

    float *const first_slot = slots_of<T>(p, item.share - item.rank), *const plane = merge + key_warp * PLANE;
    store_accumulator<T>(plane, acc, first_row, lane);
    const bool spared = T::SPARES && item.adders > 0, adds = spared && item.adder >= 0;
    int led = -1;
    if constexpr (T::SPARES) {
        led = led_row<T>(item, rows);
        const int row = item.adder + key_warp / max(item.adders, 1) * item.adders; // of an adder, with other warps
        if (adds && rows[row].out_row >= 0) {
            __syncwarp();
            gather_row<T, ADDER_DEPTH>(ranks_of_row(item, row), key_warp % item.adders, item.adders,
                                       plane + row * T::ACC_STRIDE, first_slot + row * T::ACC_STRIDE, lane);
        }
    }
    const gathering todo = what_to_gather(item);
    if (!spared && key_warp < todo.count) {
        __syncwarp();
        gather<T>(todo, key_warp, T::KEY_WARPS, plane, first_slot, rows, first_row, lane);
    }
    for (bool again = false;; again = true) { // all rows but the one that is led, and that one later
        named_barrier(1, T::CONSUMERS);
#pragma unroll 1
        for (int unit = threadIdx.x; unit < T::ROWS * STEP / 4; unit += T::CONSUMERS) {
            const int row = unit / (STEP / 4), dim = unit % (STEP / 4) * 4, place = row * T::ACC_STRIDE + dim;
            if (rows[row].out_row < 0 || (row == led) != again || (adds && row % item.adders != item.adder))
                continue;
            row_part<N> part, warps[T::KEY_WARPS];
#pragma unroll
            for (int k = 0; k < T::KEY_WARPS; k++) {
                const float *from = merge + k * PLANE + place;
#pragma unroll
                for (int j = 0; j < N; j++)
                    warps[k].o[j] = *reinterpret_cast<const float4 *>(from + j * STEP);
                warps[k].state = *reinterpret_cast<const float2 *>(from - dim + T::D);
            }
            float top = warps[0].state.x;
#pragma unroll
            for (int k = 1; k < T::KEY_WARPS; k++)
                top = fmaxf(top, warps[k].state.x);
            part = warps[0];
            scale_part(part, top);
#pragma unroll
            for (int k = 1; k < T::KEY_WARPS; k++)
                add_part(part, warps[k]);
            if (item.rank > 0 || (spared && !adds)) {
                leave_part<T>(first_slot + item.rank * CTA_SLOTS<T>, row, dim, part);
            } else {
#pragma unroll
                for (int j = 0; j < N; j++)
                    store_out<T>(p, rows[row].out_row, dim + j * STEP, part.o[j], part.state);
            }
        }
        if (again || led < 0)
            break;
        if constexpr (T::SPARES) {
            // to its own part of the row, which nobody else looks at before all have met again
            constexpr int DEPTH = (FAN_IN - 1 + T::KEY_WARPS - 1) / T::KEY_WARPS; // one round
            gather_row<T, DEPTH>({min(item.last_rank - item.rank, FAN_IN - 1), 0, item.rank + 1, 1}, key_warp,
                                 T::KEY_WARPS, plane + led * T::ACC_STRIDE, first_slot + led * T::ACC_STRIDE, lane);
        }
    }
    if (!item.final)
        named_barrier(1, T::CONSUMERS); // the merge area is free again
}

} // namespace quire

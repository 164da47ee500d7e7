// schedule.cuh - live metadata to work: which key tiles a CTA takes, and of which items
// SPDX-License-Identifier: Apache-2.0
//
// An item is (request, KV head, tile of ROWS query rows); its length is the number of key tiles that
// any of its rows sees, and at least 1, because rows without keys are written too.  Items are ordered
// by request, head, row tile, and laid end to end; share s of N is the s-th of N equal runs of tiles.
// The CTA that is dispatched first takes the last share: a CTA that waits for another's partial
// result (merge.cuh) waits only for higher shares, which are dispatched earlier.
#pragma once

#include "params.h"
#include "ptx.cuh"

namespace quire {

__device__ __forceinline__ int clamp(int x, int lo, int hi) { return min(max(x, lo), hi); }

// One request's live metadata, clamped to what the launch owns.
struct request {
    int keys;        // n
    int tokens;      // q
    int first_token; // of the request in query and out
    int first_entry; // of the request in paged_kv_indices
};

// As it stands in memory, so that it can be under way while other work is done.
struct raw_request {
    int index, entry, entry_end, keys, token, token_end;
};

__device__ __forceinline__ raw_request load_request(const decode_params &p, int b)
{
    raw_request r = {b, p.indptr[b], p.indptr[b + 1], p.seq_lens[b], 0, 0};
    if (p.flags & DECODE_PACKED) {
        r.token = p.qo_indptr[b];
        r.token_end = p.qo_indptr[b + 1];
    }
    return r;
}

__device__ __forceinline__ request clamp_request(const decode_params &p, const raw_request &raw)
{
    request r;
    const int end = clamp(raw.entry_end, 0, p.indices_len);
    r.first_entry = clamp(raw.entry, 0, end);
    r.keys = clamp(raw.keys, 0, p.max_seq_len);
    const int owned = end - r.first_entry;
    if (owned < (r.keys >> p.page_shift) + 1) // the product cannot overflow then
        r.keys = min(r.keys, owned << p.page_shift);
    if (p.flags & DECODE_PACKED) {
        const int last = clamp(raw.token_end, 0, p.total_q);
        r.first_token = clamp(raw.token, 0, last);
        r.tokens = min(last - r.first_token, p.seq_len_q);
    } else {
        r.first_token = raw.index * p.seq_len_q;
        r.tokens = p.seq_len_q;
    }
    return r;
}

// [lo, hi) of keys; empty if lo >= hi
struct key_range {
    int lo, hi;
};

// What query token i of the request sees.
__device__ __forceinline__ key_range visible_keys(const decode_params &p, const request &r, int i)
{
    const long long last = static_cast<long long>(r.keys) - r.tokens + i; // the token's own position
    key_range v;
    v.hi = p.flags & DECODE_CAUSAL ? static_cast<int>(max(last + 1, 0ll)) : r.keys;
    v.lo = p.window_left >= 0 ? static_cast<int>(max(last - p.window_left, 0ll)) : 0;
    return v;
}

template <int ROWS>
__device__ __forceinline__ int row_tiles(const decode_params &p, const request &r)
{
    return (r.tokens * p.group + ROWS - 1) / ROWS;
}

// The keys that some row of row tile `rt` sees: rows are token-major, so the first token sees the
// earliest key and the last token the latest.
template <int ROWS>
__device__ __forceinline__ key_range tile_keys(const decode_params &p, const request &r, int rt)
{
    int first = 0, last = 0;
    if (r.tokens > 1) {
        first = rt * ROWS / p.group;
        last = (min((rt + 1) * ROWS, r.tokens * p.group) - 1) / p.group;
    }
    return {visible_keys(p, r, first).lo, visible_keys(p, r, last).hi};
}

// An item's run of key tiles, in units of TILE keys from the request's start.
template <int TILE>
__device__ __forceinline__ int first_tile(key_range k) { return k.lo < k.hi ? k.lo / TILE : 0; }

template <int TILE>
__device__ __forceinline__ int tile_count(key_range k)
{
    return k.lo < k.hi ? (k.hi + TILE - 1) / TILE - k.lo / TILE : 1;
}

// Key tiles of one KV head of the request.
template <int ROWS, int TILE>
__device__ __forceinline__ int tiles_per_head(const decode_params &p, const request &r)
{
    int sum = 0;
    const int n = row_tiles<ROWS>(p, r);
    for (int rt = 0; rt < n; rt++)
        sum += tile_count<TILE>(tile_keys<ROWS>(p, r, rt));
    return sum;
}

// 64-bit quotients of numbers that are nearly always small
__device__ __forceinline__ u64 divide(u64 a, u64 b)
{
    return a >> 32 ? a / b : static_cast<u32>(a) / static_cast<u32>(b);
}

// What every thread of a CTA knows after the scan.
struct share {
    u64 each, extra;  // key tiles of a share; the first `extra` shares have one more
    u64 start, end;   // this CTA's share
    u64 offset;       // of `start` within its request
    int index;        // of the share; negative if there is none for this CTA
    int b;            // the request that `start` lies in
    request req;

    __device__ __forceinline__ u64 start_of(int i) const { return i * each + min(static_cast<u64>(i), extra); }

    // the share that tile x belongs to
    __device__ __forceinline__ int of(u64 x) const
    {
        const u64 larger = (each + 1) * extra; // tiles of the shares that have one more
        return static_cast<int>(x < larger ? divide(x, each + 1) : extra + divide(x - larger, each));
    }
};

// How many shares: one for each CTA, unless items of one length can be cut, or dealt out, evenly over
// nearly as many: then pieces are fewer and alike, which gains more than the idle CTAs lose while the
// launch is short.
__device__ __forceinline__ int share_count(u64 total, bool alike, int items)
{
    constexpr u64 SHORT = 9000; // tiles, of 32 KB
    const int grid = static_cast<int>(min(static_cast<u64>(gridDim.x), total));
    if (!alike || total > SHORT)
        return grid;
    int even;
    if (items <= grid) {
        even = grid / items * items;
    } else {
        const int per_share = (items + grid - 1) / grid;
        if (items % per_share)
            return grid;
        even = items / per_share;
    }
    return even * 25 >= grid * 24 ? even : grid;
}

// All threads of the CTA take part.  `sums` holds a word per warp.
template <int ROWS, int TILE>
__device__ __forceinline__ void find_share(const decode_params &p, share *s, u64 *sums)
{
    const int threads = blockDim.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int each = (p.batch + threads - 1) / threads;
    const int first = min(static_cast<int>(threadIdx.x) * each, p.batch), last = min(first + each, p.batch);

    u64 mine = 0;
    request req;
    int items = 0; // of the last request this thread looked at
    bool alike = true;
    for (int b = first; b < last; b++) {
        req = clamp_request(p, load_request(p, b));
        const u64 here = static_cast<u64>(tiles_per_head<ROWS, TILE>(p, req)) * p.kv_heads;
        alike &= b == first || here * (b - first) == mine;
        items = row_tiles<ROWS>(p, req);
        mine += here;
    }
    u64 before = mine; // inclusive scan
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const u64 other = __shfl_up_sync(0xffffffff, before, step);
        if (lane >= step)
            before += other;
    }
    if (lane == 31)
        sums[warp] = before;
    if (threadIdx.x == 0)
        sums[31] = last > first ? mine / (last - first) : 0;
    __syncthreads();
    // one row tile each, and as long as the first request's
    alike &= first == last || (items == 1 && mine == sums[31] * (last - first));
    alike = __syncthreads_and(alike);
    u64 total = 0;
    before -= mine;
    for (int w = 0; w < threads / 32; w++) {
        if (w == warp)
            before += total;
        total += sums[w];
    }

    const int count = share_count(total, alike, p.batch * p.kv_heads);
    const int index = count - 1 - static_cast<int>(blockIdx.x);
    if (index < 0) {
        if (threadIdx.x == 0)
            s->index = index;
    } else {
        share mine_now;
        mine_now.each = divide(total, count);
        mine_now.extra = total - mine_now.each * count;
        const u64 start = mine_now.start_of(index);
        if (start >= before && start < before + mine) { // one thread: empty requests span nothing
            u64 offset = start - before;
            int b = first;
            if (last - first > 1)
                for (;; b++) {
                    req = clamp_request(p, load_request(p, b));
                    const u64 here = static_cast<u64>(tiles_per_head<ROWS, TILE>(p, req)) * p.kv_heads;
                    if (offset < here)
                        break;
                    offset -= here;
                }
            mine_now.start = start;
            mine_now.end = mine_now.start_of(index + 1);
            mine_now.offset = offset;
            mine_now.index = index;
            mine_now.b = b;
            mine_now.req = req;
            *s = mine_now;
        }
    }
    __syncthreads();
}

// The producer's place in the order of tiles.
template <int ROWS, int TILE>
struct cursor {
    request req;
    raw_request ahead;   // the request after it, on its way
    int b, head, rt, row_tile_count;
    key_range keys;      // that some row of the item sees
    key_range common;    // that every row of it sees
    int tile, tile_end;  // next key tile of the item, and one past its last
    u64 item_start;      // of the item in the launch's order

    __device__ __forceinline__ void enter_item(const decode_params &p)
    {
        int first = 0, last = 0;
        if (req.tokens > 1) {
            first = rt * ROWS / p.group;
            last = (min((rt + 1) * ROWS, req.tokens * p.group) - 1) / p.group;
        }
        const key_range a = visible_keys(p, req, first), z = visible_keys(p, req, last);
        keys = {a.lo, z.hi};
        common = {z.lo, a.hi};
        tile = first_tile<TILE>(keys);
        tile_end = tile + tile_count<TILE>(keys);
    }

    __device__ __forceinline__ void enter_request(const decode_params &p)
    {
        row_tile_count = row_tiles<ROWS>(p, req);
        if (b + 1 < p.batch)
            ahead = load_request(p, b + 1);
    }

    __device__ __forceinline__ void seek(const decode_params &p, const share &s)
    {
        b = s.b;
        req = s.req;
        u64 offset = s.offset;
        const u32 per_head = tiles_per_head<ROWS, TILE>(p, req);
        head = static_cast<int>(divide(offset, per_head));
        offset -= static_cast<u64>(head) * per_head;
        for (rt = 0;; rt++) {
            enter_item(p);
            if (offset < tile_end - tile)
                break;
            offset -= tile_end - tile;
        }
        item_start = s.start - offset;
        tile += static_cast<int>(offset);
        enter_request(p);
    }

    __device__ __forceinline__ u64 item_end() const { return item_start + tile_count<TILE>(keys); }

    // To the item after the one at hand; the caller knows that there is one.
    __device__ __forceinline__ void next_item(const decode_params &p)
    {
        item_start = item_end();
        if (++rt == row_tile_count) {
            rt = 0;
            if (++head == p.kv_heads) {
                head = 0;
                do {
                    b++;
                    req = clamp_request(p, ahead);
                    enter_request(p);
                } while (row_tile_count == 0);
            }
        }
        enter_item(p);
    }
};

} // namespace quire

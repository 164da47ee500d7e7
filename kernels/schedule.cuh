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

__device__ __forceinline__ request read_request(const decode_params &p, int b)
{
    request r;
    const int end = clamp(p.indptr[b + 1], 0, p.indices_len);
    r.first_entry = clamp(p.indptr[b], 0, end);
    r.keys = clamp(p.seq_lens[b], 0, p.max_seq_len);
    const int owned = end - r.first_entry;
    if (owned < (r.keys >> p.page_shift) + 1)         // the product below cannot overflow then
        r.keys = min(r.keys, owned << p.page_shift);
    if (p.flags & DECODE_PACKED) {
        const int last = clamp(p.qo_indptr[b + 1], 0, p.total_q);
        r.first_token = clamp(p.qo_indptr[b], 0, last);
        r.tokens = min(last - r.first_token, p.seq_len_q);
    } else {
        r.first_token = b * p.seq_len_q;
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

// What every CTA knows after the scan.
struct share {
    long long total;  // key tiles of the whole launch
    long long start;  // first tile of this CTA's share, and one past its last
    long long end;
    long long offset; // of `start` within its request
    int request;      // that `start` lies in
    int count;        // N, the number of shares
    int index;        // this CTA's
};

__device__ __forceinline__ long long share_start(long long total, int count, int index)
{
    const long long each = total / count, extra = total % count;
    return index * each + min(static_cast<long long>(index), extra);
}

// The share that tile x belongs to.
__device__ __forceinline__ int share_of(long long total, int count, long long x)
{
    const long long each = total / count, extra = total % count;
    const long long larger = (each + 1) * extra; // tiles in the shares that have one more
    return static_cast<int>(x < larger ? x / (each + 1) : extra + (x - larger) / each);
}

// All threads of the CTA take part.  `sums` holds a word per warp.
template <int ROWS, int TILE>
__device__ __forceinline__ void find_share(const decode_params &p, share *s, long long *sums)
{
    const int threads = blockDim.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int each = (p.batch + threads - 1) / threads;
    const int first = min(static_cast<int>(threadIdx.x) * each, p.batch), last = min(first + each, p.batch);

    long long mine = 0;
    for (int b = first; b < last; b++) {
        const request r = read_request(p, b);
        mine += static_cast<long long>(tiles_per_head<ROWS, TILE>(p, r)) * p.kv_heads;
    }
    long long before = mine; // inclusive scan
    for (int step = 1; step < 32; step *= 2) {
        const long long other = __shfl_up_sync(0xffffffff, before, step);
        if (lane >= step)
            before += other;
    }
    if (lane == 31)
        sums[warp] = before;
    __syncthreads();
    long long total = 0;
    before -= mine;
    for (int w = 0; w < threads / 32; w++) {
        if (w == warp)
            before += total;
        total += sums[w];
    }

    const int count = static_cast<int>(min(static_cast<long long>(gridDim.x), total));
    const int index = count - 1 - static_cast<int>(blockIdx.x);
    if (index < 0) {
        if (threadIdx.x == 0)
            *s = {total, 0, 0, 0, 0, count, index};
    } else {
        const long long start = share_start(total, count, index);
        if (start >= before && start < before + mine) { // one thread: empty requests span nothing
            long long offset = start - before;
            int b = first;
            for (;; b++) {
                const request r = read_request(p, b);
                const long long here = static_cast<long long>(tiles_per_head<ROWS, TILE>(p, r)) * p.kv_heads;
                if (offset < here)
                    break;
                offset -= here;
            }
            *s = {total, start, share_start(total, count, index + 1), offset, b, count, index};
        }
    }
    __syncthreads();
}

// The producer's place in the order of tiles.
template <int ROWS, int TILE>
struct cursor {
    request req, ahead;  // the request at hand, and the one after it, whose metadata is under way
    int b, head, rt, row_tile_count;
    key_range keys;      // of the item
    int tile, tile_end;  // next key tile of the item, and one past its last
    long long item_start;// of the item in the launch's order

    __device__ __forceinline__ void enter_item()
    {
        tile = first_tile<TILE>(keys);
        tile_end = tile + tile_count<TILE>(keys);
    }

    __device__ __forceinline__ void enter_request(const decode_params &p)
    {
        row_tile_count = row_tiles<ROWS>(p, req);
        if (b + 1 < p.batch)
            ahead = read_request(p, b + 1);
    }

    __device__ __forceinline__ void seek(const decode_params &p, const share &s)
    {
        b = s.request;
        req = read_request(p, b);
        enter_request(p);
        long long offset = s.offset;
        const int per_head = tiles_per_head<ROWS, TILE>(p, req);
        head = static_cast<int>(offset / per_head);
        offset -= static_cast<long long>(head) * per_head;
        for (rt = 0;; rt++) {
            keys = tile_keys<ROWS>(p, req, rt);
            const int n = tile_count<TILE>(keys);
            if (offset < n)
                break;
            offset -= n;
        }
        item_start = s.start - offset;
        enter_item();
        tile += static_cast<int>(offset);
    }

    // To the item after the one at hand; the caller knows that there is one.
    __device__ __forceinline__ void next_item(const decode_params &p)
    {
        item_start += tile_count<TILE>(keys);
        if (++rt == row_tile_count) {
            rt = 0;
            if (++head == p.kv_heads) {
                head = 0;
                do {
                    b++;
                    req = ahead;
                    enter_request(p);
                } while (row_tile_count == 0);
            }
        }
        keys = tile_keys<ROWS>(p, req, rt);
        enter_item();
    }
};

} // namespace quire

// schedule.cuh - live metadata to work: which key tiles a CTA takes, and of which items
// SPDX-License-Identifier: Apache-2.0
//
// An item is (request, KV head, tile of ROWS query rows); its length is the number of key tiles that
// any of its rows sees, and at least 1, because rows without keys are written too.  A solo item is (request,
// KEY_WARPS heads), and its tiles are as many keys of each head as a warp's slice holds: so are the items of
// requests with so few keys, and all items of a long launch where pages are small, because the blocks of
// several heads that adjoin in a page are read faster than one head's.  Items are ordered
// by request, head, row tile, and laid end to end; share s of N is the s-th of N equal runs of tiles.
// The CTA that is dispatched first takes the last share: a CTA that waits for another's partial
// result (merge.cuh) waits only for higher shares, which are dispatched earlier.
#pragma once

#include "traits.cuh"

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

    __device__ __forceinline__ bool operator!=(const raw_request &r) const
    {
        return entry != r.entry || entry_end != r.entry_end || keys != r.keys || token != r.token ||
               token_end != r.token_end;
    }
};

template <bool EARLY = false>
__device__ __forceinline__ raw_request load_request(const decode_params &p, int b)
{
    raw_request r = {b, load_int<EARLY>(p.indptr + b), load_int<EARLY>(p.indptr + b + 1),
                     load_int<EARLY>(p.seq_lens + b), 0, 0};
    if (p.flags & DECODE_PACKED) {
        r.token = load_int<EARLY>(p.qo_indptr + b);
        r.token_end = load_int<EARLY>(p.qo_indptr + b + 1);
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
    const int last = r.keys - r.tokens + i; // the token's own position
    key_range v;
    v.hi = p.flags & DECODE_CAUSAL ? max(last + 1, 0) : r.keys;
    v.lo = p.window_left >= 0 && last > p.window_left ? last - p.window_left : 0;
    return v;
}

template <class T>
__device__ __forceinline__ int row_tiles(const decode_params &p, const request &r)
{
    return (r.tokens * p.group + T::ROWS - 1) / T::ROWS;
}

// The keys of one row tile: rows are token-major, so the first token sees the earliest key and the last
// token the latest.
struct tile_keys {
    key_range some; // that some row sees
    key_range all;  // that every row sees
};

template <class T>
__device__ __forceinline__ tile_keys keys_of(const decode_params &p, const request &r, int rt)
{
    int first = 0, last = 0;
    if (r.tokens > 1) {
        first = rt * T::ROWS / p.group;
        last = (min((rt + 1) * T::ROWS, r.tokens * p.group) - 1) / p.group;
    }
    const key_range a = visible_keys(p, r, first), z = visible_keys(p, r, last);
    return {{a.lo, z.hi}, {z.lo, a.hi}};
}

// An item's run of key tiles, counted from the request's start.
template <class T>
__device__ __forceinline__ int first_tile(key_range k, bool solo)
{
    return k.lo < k.hi ? (solo ? k.lo / T::WARP_KEYS : k.lo / T::TILE) : 0;
}

template <class T>
__device__ __forceinline__ int tile_count(key_range k, bool solo)
{
    const int end = solo ? (k.hi + T::WARP_KEYS - 1) / T::WARP_KEYS : (k.hi + T::TILE - 1) / T::TILE;
    return k.lo < k.hi ? end - first_tile<T>(k, solo) : 1;
}

// `together`: all items of the launch are.
template <class T>
__device__ __forceinline__ bool is_solo(key_range k, int row_tile_count, bool together)
{
    return T::SOLO && row_tile_count == 1 && (together || (k.lo < k.hi && tile_count<T>(k, true) == 1));
}

// A request's items stand in `heads` groups of equal length.
struct request_tiles {
    int heads; // KV heads, or groups of KEY_WARPS of them
    int each;  // key tiles of one, over all row tiles

    __device__ __forceinline__ u64 total() const { return static_cast<u64>(heads) * each; }
};

template <class T>
__device__ __forceinline__ request_tiles count_tiles(const decode_params &p, const request &r, bool together)
{
    const int n = row_tiles<T>(p, r);
    request_tiles t = {p.kv_heads, 0};
    for (int rt = 0; rt < n; rt++) {
        const key_range k = keys_of<T>(p, r, rt).some;
        const bool solo = is_solo<T>(k, n, together);
        if (solo)
            t.heads = (p.kv_heads + T::KEY_WARPS - 1) / T::KEY_WARPS;
        t.each += tile_count<T>(k, solo);
    }
    return t;
}

// 64-bit quotients of numbers that are nearly always small
__device__ __forceinline__ u64 divide(u64 a, u64 b)
{
    return a >> 32 ? a / b : static_cast<u32>(a) / static_cast<u32>(b);
}

// Key tiles, mostly of 32 KB, up to which a launch is short; merging pieces of many rows costs more than idle
// CTAs at any length.
template <class T>
constexpr u64 SHORT_LAUNCH = T::ROWS >= 32 ? ~0ull : 9000;

// A CTA's run of tiles, and where it begins.
struct share {
    u64 each, extra;     // key tiles of a share; the first `extra` shares have one more
    u64 start, end;      // this CTA's share
    u64 offset;          // of `start` within its request
    bool together;       // all items are solo
    int index;           // of the share; negative if there is none for this CTA
    int b;               // the request that `start` lies in
    request req;
    request_tiles tiles;

    __device__ __forceinline__ u64 start_of(int i) const { return i * each + min(static_cast<u64>(i), extra); }

    // the share that tile x belongs to
    __device__ __forceinline__ int of(u64 x) const
    {
        const u64 larger = (each + 1) * extra; // tiles of the shares that have one more
        return static_cast<int>(x < larger ? divide(x, each + 1) : extra + divide(x - larger, each));
    }

    // alike: every request has as many items of the same length as the others, in one row tile (WGMMA: any number)
    template <class T>
    __device__ __forceinline__ void cut(const decode_params &p, u64 total, bool alike, int heads)
    {
        int count = gridDim.x;
        if (alike && total <= SHORT_LAUNCH<T>)
            count = heads == p.kv_heads ? p.even_shares : p.even_solo_shares;
        if (T::WGMMA && alike) { // a piece is worth its merging from 128 KB on
            constexpr int LEAST = 131072 / (2 * T::TILE_BYTES);
            const u64 items = static_cast<u64>(p.batch) * p.kv_heads * ((p.seq_len_q * p.group + T::ROWS - 1) / T::ROWS);
            const u64 limit = max(items, divide(total, LEAST));
            if (limit < static_cast<u64>(count))
                count = static_cast<int>(limit - limit % items);
        }
        count = static_cast<int>(min(static_cast<u64>(count), total));
        index = count - 1 - static_cast<int>(blockIdx.x);
        if (index < 0)
            return;
        each = divide(total, count);
        extra = total - each * count;
        start = start_of(index);
        end = start_of(index + 1);
    }
};

// Whether the items of a launch are to be solo, all of them: where it is long, and no item is cut in many
// pieces then.  `longest`: the most tiles of a head of any request.
template <class T>
__device__ __forceinline__ bool join_heads(const decode_params &p, u64 total, u64 longest)
{
    return total > SHORT_LAUNCH<T> && longest * T::KEY_WARPS * gridDim.x * 2 <= total * 5;
}

// By one warp alone, if there are at most 32 requests: the start of a launch waits for this.  `own`: the
// metadata of request min(lane, batch - 1).
template <class T>
__device__ __forceinline__ share find_share_alone(const decode_params &p, const raw_request &own, int lane)
{
    constexpr u32 ALL = 0xffffffff;
    share s;
    s.req = clamp_request(p, own);
    s.b = own.index;
    s.together = false;
    u64 mine, before, total;
    for (;;) {
        s.tiles = count_tiles<T>(p, s.req, s.together);
        total = mine = s.tiles.total();
        before = 0;
        if (p.batch > 1) {
            if (lane >= p.batch)
                mine = 0;
            total = mine;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) { // inclusive scan
                const u64 other = __shfl_up_sync(ALL, total, step);
                if (lane >= step)
                    total += other;
            }
            before = total - mine;
            total = __shfl_sync(ALL, total, 31);
        }
        if (!(T::SOLO && p.flags & DECODE_HEADS_TOGETHER) || s.together || total <= SHORT_LAUNCH<T>)
            break;
        s.together = join_heads<T>(p, total, __reduce_max_sync(ALL, static_cast<u32>(s.tiles.each)));
        if (!s.together)
            break;
    }
    bool alike = (T::WGMMA || row_tiles<T>(p, s.req) == 1) && !s.together;
    if (p.batch > 1) {
        const int heads = __shfl_sync(ALL, s.tiles.heads, 0), length = __shfl_sync(ALL, s.tiles.each, 0);
        alike = __all_sync(ALL, alike && s.tiles.heads == heads && s.tiles.each == length);
    }
    s.cut<T>(p, total, alike, s.tiles.heads);
    if (s.index < 0)
        return s;
    s.offset = s.start - before;
    if (p.batch > 1) {
        // empty requests span nothing, so one lane's request has the start
        const int b = __ffs(__ballot_sync(ALL, s.start >= before && s.start < before + mine)) - 1;
        s.b = b;
        s.offset = __shfl_sync(ALL, s.offset, b);
        s.req.keys = __shfl_sync(ALL, s.req.keys, b);
        s.req.tokens = __shfl_sync(ALL, s.req.tokens, b);
        s.req.first_token = __shfl_sync(ALL, s.req.first_token, b);
        s.req.first_entry = __shfl_sync(ALL, s.req.first_entry, b);
        s.tiles.each = __shfl_sync(ALL, s.tiles.each, b);
    }
    return s;
}

// By all threads of the CTA, for any number of requests.  `words`: 32 words of shared memory.  `own`: the
// metadata of request threadIdx.x, if there are at least as many threads as requests.
template <class T>
__device__ __forceinline__ void find_share(const decode_params &p, share *s, u64 *words, const raw_request &own)
{
    constexpr int WARPS = T::THREADS / 32;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int each = (p.batch + T::THREADS - 1) / T::THREADS;
    const int first = min(static_cast<int>(threadIdx.x) * each, p.batch), last = min(first + each, p.batch);

    u64 mine = 0;
    request req;
    request_tiles tiles = {0, 0};
    bool alike = true, together = false; // alike: this thread's requests, to one another
    for (int b = first; b < last; b++) {
        req = clamp_request(p, each == 1 ? own : load_request(p, b));
        const request_tiles here = count_tiles<T>(p, req, false);
        alike &= (T::WGMMA || row_tiles<T>(p, req) == 1) &&
                 (b == first || (here.heads == tiles.heads && here.each == tiles.each));
        tiles = here;
        mine += here.total();
    }
    u64 before, total;
    for (;;) {
        before = mine; // inclusive scan
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const u64 other = __shfl_up_sync(0xffffffff, before, step);
            if (lane >= step)
                before += other;
        }
        if (lane == 31)
            words[warp] = before;
        if (threadIdx.x == 0) {
            words[30] = tiles.heads;
            words[31] = tiles.each;
        }
        __syncthreads();
        total = 0;
        before -= mine;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            if (w == warp)
                before += total;
            total += words[w];
        }
        if (!(T::SOLO && p.flags & DECODE_HEADS_TOGETHER) || each > 1 || together || total <= SHORT_LAUNCH<T>)
            break;
        const u32 longest = __reduce_max_sync(0xffffffff, static_cast<u32>(tiles.each));
        __syncthreads();
        if (lane == 0)
            words[warp] = longest;
        __syncthreads();
        u64 most = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            most = max(most, words[w]);
        __syncthreads();
        together = join_heads<T>(p, total, most);
        if (!together)
            break;
        if (first < last) {
            tiles = count_tiles<T>(p, req, true);
            mine = tiles.total();
        }
        alike = false;
    }
    const int heads = static_cast<int>(words[30]);
    alike &= first == last || (tiles.heads == heads && tiles.each == static_cast<int>(words[31]));
    alike = __syncthreads_and(alike);

    share found = {};
    found.together = together;
    found.cut<T>(p, total, alike, heads);
    if (found.index < 0) {
        if (threadIdx.x == 0)
            s->index = found.index;
    } else if (found.start >= before && found.start < before + mine) { // one thread: empty requests span nothing
        found.offset = found.start - before;
        found.b = first;
        if (last - first > 1)
            for (;; found.b++) {
                req = clamp_request(p, load_request(p, found.b));
                tiles = count_tiles<T>(p, req, together);
                if (found.offset < tiles.total())
                    break;
                found.offset -= tiles.total();
            }
        found.req = req;
        found.tiles = tiles;
        *s = found;
    }
    __syncthreads();
}

// The producer's place in the order of tiles.
template <class T>
struct cursor {
    request req;
    raw_request ahead;   // the request after it, on its way
    int b, head, rt, row_tile_count;
    tile_keys keys;
    bool together, solo; // all items; this one
    int tile, tile_end;  // next key tile of the item, and one past its last
    u64 item_start;      // of the item in the launch's order

    __device__ __forceinline__ int length() const { return tile_count<T>(keys.some, solo); }
    __device__ __forceinline__ u64 item_end() const { return item_start + length(); }
    __device__ __forceinline__ int heads() const { return solo ? T::KEY_WARPS : 1; } // of the item

    // The first key of a tile, and how many there are of one head.
    __device__ __forceinline__ int first_key(int of_tile) const { return of_tile * key_count(); }
    __device__ __forceinline__ int key_count() const { return solo ? T::WARP_KEYS : T::TILE; }

    __device__ __forceinline__ void enter_item(const decode_params &p)
    {
        keys = keys_of<T>(p, req, rt);
        solo = is_solo<T>(keys.some, row_tile_count, together);
        tile = first_tile<T>(keys.some, solo);
        tile_end = tile + length();
    }

    template <bool EARLY = false>
    __device__ __forceinline__ void look_ahead(const decode_params &p)
    {
        if (b + 1 < p.batch)
            ahead = load_request<EARLY>(p, b + 1);
    }

    __device__ __forceinline__ void seek(const decode_params &p, const share &s)
    {
        b = s.b;
        req = s.req;
        together = s.together;
        row_tile_count = row_tiles<T>(p, req);
        const u64 each = s.tiles.each;
        const int group = s.offset < each ? 0 : static_cast<int>(divide(s.offset, each));
        u64 offset = s.offset - group * each;
        for (rt = 0;; rt++) {
            enter_item(p);
            if (offset < length())
                break;
            offset -= length();
        }
        head = group * heads();
        item_start = s.start - offset;
        tile += static_cast<int>(offset);
        look_ahead<true>(p);
    }

    // To the item after the one at hand; the caller knows that there is one.
    __device__ __forceinline__ void next_item(const decode_params &p)
    {
        item_start = item_end();
        if (++rt == row_tile_count) {
            rt = 0;
            head += heads();
            if (head >= p.kv_heads) {
                head = 0;
                do {
                    b++;
                    req = clamp_request(p, ahead);
                    row_tile_count = row_tiles<T>(p, req);
                    look_ahead(p);
                } while (row_tile_count == 0);
            }
        }
        enter_item(p);
    }
};

} // namespace quire

// items.cuh - live metadata to items: what requests hold, what their query rows see, how long items are
// SPDX-License-Identifier: Apache-2.0
//
// An item is (request, KV head, tile of ROWS query rows); its length is the number of key tiles that
// any of its rows sees, and at least 1, because rows without keys are written too.  A solo item is (request,
// KEY_WARPS heads), and its tiles are as many keys of each head as a warp's slice holds: so are the items of
// requests with so few keys, and all items of a long launch where pages are small, because the blocks of
// several heads that adjoin in a page are read faster than one head's.
#pragma once

#include "traits.cuh"

#include <climits>

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
    const int owned = min(end - r.first_entry, INT_MAX >> p.page_shift); // pages: as many as max_seq_len can be
    r.keys = min(clamp(raw.keys, 0, p.max_seq_len), owned << p.page_shift);
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
    v.lo = max(last, p.window_left) - p.window_left;
    return v;
}

template <class T>
__device__ __forceinline__ int row_tiles(const decode_params &p, const request &r)
{
    return static_cast<u32>(r.tokens * p.group + T::ROWS - 1) / T::ROWS;
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
        const u32 group = p.group;
        first = static_cast<u32>(rt * T::ROWS) / group;
        last = static_cast<u32>(min((rt + 1) * T::ROWS, r.tokens * p.group) - 1) / group;
    }
    const key_range a = visible_keys(p, r, first), z = visible_keys(p, r, last);
    return {{a.lo, z.hi}, {z.lo, a.hi}};
}

// log2 of a tile's keys of one head
template <class T>
__device__ __forceinline__ int tile_shift(bool solo)
{
    return T::SOLO && solo ? log2(T::WARP_KEYS) : log2(T::TILE);
}

// An item's run of key tiles, counted from the request's start.
template <class T>
__device__ __forceinline__ int first_tile(key_range k, bool solo)
{
    return k.lo < k.hi ? k.lo >> tile_shift<T>(solo) : 0;
}

template <class T>
__device__ __forceinline__ int tile_count(key_range k, bool solo)
{
    const int shift = tile_shift<T>(solo);
    return k.lo < k.hi ? ((k.hi - 1) >> shift) - (k.lo >> shift) + 1 : 1;
}

// `together`: all items of the launch are.
template <class T>
__device__ __forceinline__ bool is_solo(key_range k, int row_tile_count, bool together)
{
    const bool in_one = k.lo < k.hi && (k.lo ^ (k.hi - 1)) < T::WARP_KEYS; // tile
    return T::SOLO && row_tile_count == 1 && (together || in_one);
}

// How the items of a launch are counted, all of them.
struct counting {
    bool together; // they are solo
    bool besides;  // they count some units besides their tiles
    bool dealt;    // each has DEALT_UNITS, and is whole
};

// Units of a tile of row tile rt.
template <class T>
__device__ __forceinline__ int tile_units(const decode_params &p, const request &r, int rt)
{
    return !T::PAIRS || r.tokens * p.group - rt * T::ROWS > 64 ? T::UNITS : T::HALF_UNITS;
}

// Units that an item counts besides its tiles, where items are not alike.  If it has several, what its last one lacks
// is taken off: up to half a tile, as a short one takes its time too.
template <class T>
__device__ __forceinline__ int units_besides(key_range k, bool solo)
{
    if (T::WGMMA)
        return T::ITEM_UNITS;
    const int shift = tile_shift<T>(solo), last = k.hi - 1;
    const int lacks = T::UNITS - 1 - (last >> (shift - log2(T::UNITS))) % T::UNITS;
    const bool several = last >> shift > k.lo >> shift; // none if no row sees a key, as `last` is below `lo` then
    static_assert(T::ITEM_UNITS >= T::UNITS / 2); // items are not shorter than their tiles
    return T::ITEM_UNITS - (several ? min(lacks, T::UNITS / 2) : 0);
}

// A request's items stand in `heads` groups of equal length.
struct request_tiles {
    int heads; // KV heads, or groups of KEY_WARPS of them
    int each;  // units of one, over all row tiles
    int besides; // of these, what items count besides their tiles

    __device__ __forceinline__ u64 total() const { return static_cast<u64>(heads) * each; }
};

template <class T>
__device__ __forceinline__ request_tiles count_tiles(const decode_params &p, const request &r, counting how)
{
    const int n = row_tiles<T>(p, r);
    request_tiles t = {p.kv_heads, 0, 0};
#pragma unroll 1
    for (int rt = 0; rt < n; rt++) {
        const key_range k = keys_of<T>(p, r, rt).some;
        const bool solo = is_solo<T>(k, n, how.together);
        if (solo)
            t.heads = static_cast<u32>(p.kv_heads + T::KEY_WARPS - 1) / T::KEY_WARPS;
        t.each += tile_count<T>(k, solo) * tile_units<T>(p, r, rt);
        if (how.besides)
            t.besides += units_besides<T>(k, solo);
    }
    t.each += t.besides;
    return t;
}

// Whether all items of a request are of nearly one length, so that cutting at their ends leaves shares nearly equal.
template <class T>
__device__ __forceinline__ bool is_level(const decode_params &p, const request &r)
{
    const int n = row_tiles<T>(p, r);
    if (!T::WGMMA || n <= 1)
        return n == 1;
    const int first = tile_count<T>(keys_of<T>(p, r, 0).some, false);
    const int last = tile_count<T>(keys_of<T>(p, r, n - 1).some, false);
    return 8 * (max(first, last) - min(first, last)) <= max(first, last);
}

} // namespace quire

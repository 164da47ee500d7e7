// schedule.cuh - items to work: which key tiles a CTA takes, and of which items
// SPDX-License-Identifier: Apache-2.0
//
// Items are ordered by request, head, row tile, and laid end to end; share s of N is the s-th of N equal runs.  What is
// counted is what takes time: units, of which a tile has more if two warpgroups work on it, and an item some besides
// where items are not alike; a tile belongs to the share that has its first unit.  Where like items of several row
// tiles come out even they are dealt out whole instead, in rounds: row tiles of one head are in step then, and read its
// keys from L2.
// The CTA that is dispatched first takes the last share: a CTA that waits for another's partial
// result (merge.cuh) waits only for higher shares, which are dispatched earlier.  Where items are alike these have the
// units that are left over, as who is dispatched last begins last.
#pragma once

#include "items.cuh"

namespace quire {

// 64-bit quotients of numbers that are nearly always small
__device__ __forceinline__ u64 divide(u64 a, u64 b)
{
    return a >> 32 ? a / b : static_cast<u32>(a) / static_cast<u32>(b);
}

#ifndef QUIRE_SHORT_LAUNCH
#define QUIRE_SHORT_LAUNCH 9000 // key tiles, mostly of 32 KB; tests have fewer
#endif
// Units up to which a launch is short, what items count besides included, and up to which pieces that are fewer and
// alike gain more than CTAs without any lose; merging pieces of many rows costs more than those at any length.
template <class T>
constexpr u64 SHORT_LAUNCH = u64{QUIRE_SHORT_LAUNCH} * T::UNITS;
template <class T>
constexpr u64 EVEN_LAUNCH = T::ROWS >= 32 ? ~u64{0} : u64{20000} * T::UNITS;

// Of an item that is dealt out, whatever its length: more than any has.
constexpr int DEALT_UNITS = 1 << 30;

constexpr int LEAST_ADDERS = 4; // of an item: fewer gain nothing (merge.cuh)

// A CTA's run of tiles, and where it begins.
struct share {
    u64 each, each_high; // units of each of the first `low` shares, and of each of the others: one more or less
    int low;
    u64 start, end;      // this CTA's share
    u64 offset;          // of `start` within its request
    counting how;
    int index;           // of the share; negative if there is none for this CTA
    int adders, adder;   // as item_info's; an adder's share is the one with its item's first piece
    int b;               // the request that `start` lies in
    request req;
    request_tiles tiles;

    __device__ __forceinline__ int count() const { return index + 1 + static_cast<int>(blockIdx.x); }

    // The item of a round. Rounds go to and fro, as later row tiles see more keys.
    __device__ __forceinline__ int dealt_item(int round) const
    {
        return round * count() + (round % 2 ? count() - 1 - index : index);
    }

    __device__ __forceinline__ u64 start_of(int i) const
    {
        return min(i, low) * each + max(i - low, 0) * each_high;
    }

    // the share that unit x belongs to
    __device__ __forceinline__ int of(u64 x) const
    {
        const u64 high = low * each; // the first unit of those others
        const bool is_low = x < high;
        return static_cast<int>(divide(is_low ? x : x - high, is_low ? each : each_high)) + (is_low ? 0 : low);
    }

    // Has CTAs that are left put items together, if all items are cut in as many pieces, at their ends too.  They are
    // dispatched after the CTAs that they wait for.
    template <class T>
    __device__ __forceinline__ void call_adders(u64 total, int count, int all_items)
    {
        constexpr int LEAST_PIECES = 5; // of an item: fewer gain nothing
        const int spare = gridDim.x - count, pieces = count / all_items;
        if (pieces < LEAST_PIECES || spare < LEAST_ADDERS * all_items || pieces * all_items != count ||
            (all_items > 1 && total % count != 0))
            return;
        adders = LEAST_ADDERS;
        while (adders < T::ROWS && adders * 2 * all_items <= spare)
            adders *= 2;
        const int nth = -1 - index;
        if (nth >= 0 && nth < adders * all_items) {
            adder = nth % adders;
            index = nth / adders * pieces;
        }
    }

    // alike: every request has as many items of the same length as the others, all level
    template <class T>
    __device__ __forceinline__ void cut(const decode_params &p, u64 total, bool alike, int heads)
    {
        int count = gridDim.x;
        u64 items = 0;
        if (alike && total <= EVEN_LAUNCH<T>)
            count = heads == p.kv_heads ? p.even_shares : p.even_solo_shares;
        if (T::WGMMA && alike) { // a piece is worth its merging from 64 KB on
            constexpr int LEAST = 65536 / (2 * T::TILE_BYTES) * T::UNITS;
            const int row_tile_count = (p.seq_len_q * p.group + T::ROWS - 1) / T::ROWS;
            items = static_cast<u64>(p.batch) * p.kv_heads * row_tile_count;
            const u64 limit = max(items, divide(total, LEAST));
            if (limit < static_cast<u64>(count))
                count = static_cast<int>(limit - limit % items);
        }
        if (T::SPARES && alike && p.batch * heads == 1 && count > 2 * LEAST_ADDERS) // worth four of 132 CTAs
            count = min(count, static_cast<int>(gridDim.x) - LEAST_ADDERS);
        // Shares are a tile long or longer, so that each has a tile's beginning, but one behind the last tile of an item:
        // of the shares from that of an item's first tile to that of its last one all have a piece of it.
        count = static_cast<int>(min(static_cast<u64>(count), max(total / T::UNITS, u64{total > 0})));
        index = count - 1 - static_cast<int>(blockIdx.x);
        adders = 0;
        adder = -1;
        if (T::SPARES && alike)
            call_adders<T>(total, count, p.batch * heads);
        if (index < 0)
            return;
        const bool even = items > static_cast<u64>(count) && items % count == 0;
        if (T::IN_STEP && even && !(p.flags & DECODE_PACKED)) {
            how.dealt = true;
            // the first item's request: all have as many units
            start = static_cast<u64>(index / static_cast<int>(items / p.batch)) * divide(total, p.batch);
            end = start + items / count * DEALT_UNITS;
            return;
        }
        each = each_high = divide(total, count);
        low = static_cast<int>(total - each * count); // so many shares have one more
        if (alike) {
            low = count - low;
            each_high++;
        } else {
            each++;
        }
        start = start_of(index);
        end = start_of(index + 1);
    }
};

// Whether the items of a launch are to be solo, all of them: where it is long, and no item is cut in many
// pieces then.  `longest`: the most units of a head of any request.
template <class T>
__device__ __forceinline__ bool join_heads(const decode_params &p, u64 total, u64 longest)
{
    return total > SHORT_LAUNCH<T> && longest * T::KEY_WARPS * gridDim.x * 2 <= total * 5;
}

// By each producer warp alone, of at most 32 requests (T::ALONE): the start of a launch waits for this.  `own`: the
// metadata of request min(lane, batch - 1).
template <class T>
__device__ __forceinline__ share find_share_alone(const decode_params &p, const raw_request &own, int lane)
{
    constexpr u32 ALL = 0xffffffff;
    share s;
    s.req = clamp_request(p, own);
    s.b = own.index;
    s.how = {false, true, false};
    u64 mine, before, total;
    static_assert(!T::SOLO, "heads are not joined");
    s.tiles = count_tiles<T>(p, s.req, s.how);
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
    const int each = s.tiles.each - s.tiles.besides;
    bool alike = is_level<T>(p, s.req);
    if (p.batch > 1) {
        const int heads = __shfl_sync(ALL, s.tiles.heads, 0), length = __shfl_sync(ALL, each, 0);
        alike = __all_sync(ALL, alike && s.tiles.heads == heads && each == length);
    }
    if (alike) {
        s.how.besides = false;
        s.tiles.each = each;
        if (mine > 0)
            mine = s.tiles.total();
        before = s.b * s.tiles.total();
        total = p.batch * s.tiles.total();
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

    u64 mine, before, total;
    request req;
    request_tiles tiles = {0, 0, 0};
    int each_alike = 0; // tiles.each with nothing besides
    bool alike;         // this thread's requests, to one another
    counting how = {false, true, false};
#pragma unroll 1
    for (;;) { // once more if heads are to be joined
        u32 longest = 0;
        mine = 0;
        alike = true;
        for (int b = first; b < last; b++) {
            req = clamp_request(p, each == 1 ? own : load_request(p, b));
            const request_tiles here = count_tiles<T>(p, req, how);
            const int length = here.each - here.besides;
            alike &= is_level<T>(p, req) && (b == first || (here.heads == tiles.heads && length == each_alike));
            tiles = here;
            each_alike = length;
            mine += here.total();
            longest = max(longest, static_cast<u32>(here.each));
        }
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
            words[31] = each_alike;
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
        if (!T::SOLO || how.together || !(p.flags & DECODE_HEADS_TOGETHER) || each > 1 || total <= SHORT_LAUNCH<T>)
            break;
        longest = __reduce_max_sync(0xffffffff, longest);
        __syncthreads();
        if (lane == 0)
            words[warp] = longest;
        __syncthreads();
        u64 most = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            most = max(most, words[w]);
        __syncthreads();
        how.together = join_heads<T>(p, total, most);
        if (!how.together)
            break;
    }
    const int heads = static_cast<int>(words[30]);
    const request_tiles like = {heads, static_cast<int>(words[31]), 0};
    alike &= first == last || (tiles.heads == heads && each_alike == like.each);
    alike = __syncthreads_and(alike);
    if (alike) {
        how.besides = false;
        tiles = like;
        mine = (last - first) * like.total();
        before = first * like.total();
        total = p.batch * like.total();
    }

    share found = {};
    found.how = how;
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
                tiles = count_tiles<T>(p, req, how);
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
    counting how;
    bool solo;           // the item is
    int tile, tile_end;  // the next one, and one past the last in this share
    int units;           // of a tile
    int turn;            // how many of its tiles come last instead of first
    u64 item_start;      // of the item in the launch's order, in units

    __device__ __forceinline__ bool dealt() const { return T::IN_STEP && how.dealt; }
    __device__ __forceinline__ int first() const { return first_tile<T>(keys.some, solo); }
    __device__ __forceinline__ int count() const { return tile_count<T>(keys.some, solo); }
    __device__ __forceinline__ int length() const
    {
        return dealt() ? DEALT_UNITS
                       : count() * units + (how.besides ? units_besides<T>(keys.some, solo) : 0);
    }
    __device__ __forceinline__ u64 item_end() const { return item_start + length(); }
    // The unit that its last tile begins with, and whether that tile is in this share.
    __device__ __forceinline__ u64 last_tile_start() const
    {
        return item_start + static_cast<u64>(count() - 1) * units;
    }
    __device__ __forceinline__ bool ends() const { return tile_end == first() + count(); }
    __device__ __forceinline__ int heads() const { return T::SOLO && solo ? T::KEY_WARPS : 1; } // of the item

    // The place of a tile of this share in the order of keys.
    __device__ __forceinline__ int place(int of_tile) const
    {
        if (!T::IN_STEP)
            return of_tile;
        const int turned = of_tile + turn;
        return turned < tile_end ? turned : turned - count(); // whole items alone are turned
    }

    // The first key of a tile, and how many there are of one head.
    __device__ __forceinline__ int first_key(int of_tile) const { return of_tile << tile_shift<T>(solo); }
    __device__ __forceinline__ int key_count() const { return 1 << tile_shift<T>(solo); }

    __device__ __forceinline__ void enter_item(const decode_params &p)
    {
        keys = keys_of<T>(p, req, rt);
        solo = is_solo<T>(keys.some, row_tile_count, how.together);
        tile = first();
        units = tile_units<T>(p, req, rt);
    }

    // Tiles that begin before unit x of the item.
    __device__ __forceinline__ int tiles_before(u64 x) const
    {
        const u32 near = static_cast<u32>(min(x, u64{0x7fffffff})) + units - 1;
        return min(static_cast<int>(units == T::UNITS ? near / T::UNITS : near / T::HALF_UNITS), count());
    }

    // To the item's tiles that are in the share.
    //
    // CTAs that work on row tiles of one head are to be at the same keys at a time, though each began with a piece of
    // another length: a whole item is begun where it would be by now, had this share begun with an item.
    __device__ __forceinline__ void enter_tiles(const share &s)
    {
        tile_end = first() + tiles_before(s.end - item_start);
        turn = 0;
        constexpr int FEW = 16; // tiles, which are likely to be in L2 whatever the order
        if (T::IN_STEP && !dealt() && row_tile_count > 1 && tile_end - tile > FEW && tile == first() &&
            item_start > s.start && ends())
            turn = static_cast<int>(static_cast<u32>(item_start - s.start) / units % count());
    }

    template <bool EARLY = false>
    __device__ __forceinline__ void look_ahead(const decode_params &p)
    {
        if (b + 1 < p.batch)
            ahead = load_request<EARLY>(p, b + 1);
    }

    // The request, head and row tile of the share's item of this round.
    template <bool EARLY>
    __device__ __forceinline__ void find_dealt(const decode_params &p, const share &s)
    {
        const int item = s.dealt_item(static_cast<int>((item_start - s.start) / DEALT_UNITS));
        const int each = p.kv_heads * row_tile_count;
        if (b != item / each) {
            b = item / each;
            req = clamp_request(p, load_request<EARLY>(p, b));
        }
        head = item % each / row_tile_count;
        rt = item % row_tile_count;
    }

    // To a share's first tile. A share that lies behind an item's last tile, in what is counted besides, has none.
    __device__ __forceinline__ bool seek(const decode_params &p, const share &s)
    {
        b = s.b;
        req = s.req;
        how = s.how;
        row_tile_count = row_tiles<T>(p, req);
        const u64 each = s.tiles.each;
        const int group = s.offset < each ? 0 : static_cast<int>(divide(s.offset, each));
        u64 offset = s.offset - group * each;
        rt = 0;
        if (dealt()) {
            item_start = s.start;
            find_dealt<true>(p, s);
        }
        for (;; rt++) {
            enter_item(p);
            if (offset < length())
                break;
            offset -= length();
        }
        if (!dealt())
            head = group * heads();
        item_start = s.start - offset;
        tile += tiles_before(offset);
        enter_tiles(s);
        look_ahead<true>(p);
        return tile < tile_end || next_item<true>(p, s);
    }

    // Whether a request that seek has looked at for itself, not as the share has it, may be another by now.
    __device__ __forceinline__ bool outdated(const decode_params &p, const share &s) const
    {
        return b != s.b || (b + 1 < p.batch && load_request<true>(p, b + 1) != ahead);
    }

    // To the next tile of the share, if there is one; `fresh`: whether it is an item's first here.
    __device__ __forceinline__ bool next_tile(const decode_params &p, const share &s, bool &fresh)
    {
        fresh = ++tile == tile_end;
        return !fresh || next_item(p, s);
    }

    // To the item after the one at hand, if it is in the share too.
    template <bool EARLY = false>
    __device__ __forceinline__ bool next_item(const decode_params &p, const share &s)
    {
        if (item_end() >= s.end)
            return false;
        item_start = item_end();
        if (dealt()) {
            find_dealt<EARLY>(p, s);
        } else if (++rt == row_tile_count) {
            rt = 0;
            head += heads();
            if (head >= p.kv_heads) {
                head = 0;
                do {
                    b++;
                    req = clamp_request(p, ahead);
                    row_tile_count = row_tiles<T>(p, req);
                    look_ahead<EARLY>(p);
                } while (row_tile_count == 0 && b + 1 < p.batch); // a guess may end in requests without tokens
            }
        }
        enter_item(p);
        enter_tiles(s);
        return true;
    }
};

} // namespace quire

-- Paged caches: append, fork, copy-on-write, free, exhaustion, batches, poison.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"
local quire = require "quire"

local device = tap.device()
local ok, is, same, raises = tap.ok, tap.is, tap.same, tap.raises

local HEADS, DIM, SIZE = 2, 64, 16

local function new_cache(changes)
    local options = { device = device, pages = 8, page_size = SIZE, kv_heads = HEADS, head_dim = DIM, dtype = "fp16" }
    for name, value in pairs(changes or {}) do
        options[name] = value
    end
    return quire.cache(options)
end

-- Rows whose every element tells its token and head; small enough to be exact.
local function rows(first, count, head_step, on)
    return quire.tensor { shape = { count, HEADS, DIM }, dtype = "fp16", device = on or device }:fill(function(t, h)
        return first + t + (head_step or 0) * h
    end)
end

-- What a sequence holds, element 0 of a head, key by key.
local function contents(sequence, plane, head)
    local here = plane:to "cpu"
    local list = {}
    for position = 0, sequence.length - 1 do
        local page = sequence.pages[math.floor(position / SIZE) + 1]
        list[position + 1] = here:get(page, head, position % SIZE, DIM - 1)
    end
    return list
end

local function counting(first, count)
    local list = {}
    for i = 1, count do
        list[i] = first + i - 1
    end
    return list
end

for _, form in ipairs { "combined", "tuple" } do
    for _, pad in ipairs { 0, 8 } do
        local what = ("%s, pad %d"):format(form, pad)
        local cache = new_cache { form = form, page_stride_pad = pad }
        local s = cache:sequence()
        s:append(rows(0, 5, 500), rows(1000, 5, 500))
        s:append(rows(5, 30, 500, "cpu"), rows(1005, 30, 500, "cpu"))
        is(s.length, 35, "%s: appended length", what)
        is(#s.pages, 3, "%s: pages owned", what)
        same(contents(s, cache.k, 0), counting(0, 35), "%s: keys of head 0", what)
        same(contents(s, cache.k, 1), counting(500, 35), "%s: keys of head 1", what)
        same(contents(s, cache.v, 0), counting(1000, 35), "%s: values of head 0", what)
        same(contents(s, cache.v, 1), counting(1500, 35), "%s: values of head 1", what)

        -- A fork shares; who appends first to the half full page gets a copy of it.
        local fork = cache:fork(s)
        same(fork.pages, s.pages, "%s: a fork has the same pages", what)
        is(cache:pages_free(), 5, "%s: and takes none", what)
        is(cache:pages_shared(), 3, "%s: three are shared", what)
        fork:append(rows(100, 1), rows(1100, 1))
        is(cache:pages_free(), 4, "%s: append to a shared page takes one", what)
        ok(fork.pages[3] ~= s.pages[3] and fork.pages[2] == s.pages[2], "%s: for the last page only", what)
        same(contents(s, cache.k, 0), counting(0, 35), "%s: the original is as it was", what)
        local expected = counting(0, 35)
        expected[36] = 100
        same(contents(fork, cache.k, 0), expected, "%s: the fork has the prefix and its own", what)
        s:append(rows(35, 1), rows(1035, 1))
        is(cache:pages_free(), 4, "%s: the original now owns its last page alone", what)
        same(contents(s, cache.v, 0), counting(1000, 36), "%s: and goes on in it", what)

        local part = cache:fork(s, 16)
        is(#part.pages, 1, "%s: a fork of 16 keys has one page", what)
        part:append(rows(0, 1), rows(0, 1))
        ok(part.pages[1] == s.pages[1] and #part.pages == 2, "%s: a full page needs no copy", what)

        s:free()
        s:free()
        is(cache:pages_free(), 4, "%s: freed twice, one page was its own alone", what)
        fork:free()
        part:free()
        is(cache:pages_free(), 8, "%s: all pages are back", what)
    end
end

-- Out of pages: refused before anything changes.
local cache = new_cache()
local big = cache:sequence(7 * SIZE)
local small = cache:sequence(3)
raises(function() small:append(rows(0, 20), rows(0, 20)) end, "out of pages: 1 more needed, 0 of 8 free", "append")
is(small.length, 3, "a refused append changes no length")
is(#small.pages, 1, "and takes no page")
raises(function() cache:sequence(1) end, "out of pages", "a new sequence")
local copy = cache:fork(small)
raises(function() copy:extend(1) end, "out of pages: 1 more needed", "copy-on-write without a page left")
ok(copy.pages[1] == small.pages[1] and copy.length == 3, "leaves the sharing as it was")
big:free()
copy:extend(1)
ok(copy.pages[1] ~= small.pages[1], "and works once there is one")
raises(function() big:append(rows(0, 1), rows(0, 1)) end, "has been freed", "append to a freed sequence")

-- Sequences that nobody knows any more give their pages back.
copy, small = nil, nil -- luacheck: ignore
collectgarbage()
collectgarbage()
is(cache:pages_free(), 8, "collected sequences free their pages")

-- Batches.
local a, none, b = cache:sequence(33), cache:sequence(0), cache:sequence(16)
local batch = cache:batch { a, none, b }
same(batch.indptr:totable(), { 0, 3, 3, 4 }, "indptr")
same(batch.indices:totable(), { a.pages[1], a.pages[2], a.pages[3], b.pages[1] }, "indices")
same(batch.seq_lens:totable(), { 33, 0, 16 }, "seq_lens")
is(batch.max_seq_len, 33, "max_seq_len")
is(batch.indptr.device, device, "on the cache's device")
local empty = cache:batch {}
same(empty.indptr:totable(), { 0 }, "a batch of nobody: indptr")
is(empty.seq_lens.numel, 0, "seq_lens")
is(empty.max_seq_len, 1, "and a max_seq_len that decode accepts")

-- A batch that goes on in the same tensors.
local going = cache:batch({ a, b }, { indices = 6, max_seq_len = 64 })
is(going.indices.numel, 6, "room for indices")
is(going.max_seq_len, 64, "a bound on the lengths")
local address = going.indices.pointer
b:extend(17)
going:update { b, a }
same(going.seq_lens:totable(), { 33, 33 }, "update: seq_lens")
same(going.indptr:totable(), { 0, 3, 6 }, "update: indptr")
same(going.indices:totable(), { b.pages[1], b.pages[2], b.pages[3], a.pages[1], a.pages[2], a.pages[3] },
    "update: indices")
ok(going.indices.pointer == address, "update: in place")
raises(function() going:update { a } end, "expected 2 sequences, got 1", "update: fewer sequences")
a:extend(16)
raises(function() going:update { a, b } end, "room for 6 page ids, got 7", "update: no room")
local bounded = cache:batch({ b }, { indices = 9, max_seq_len = 40 })
raises(function() bounded:update { a } end, "at most max_seq_len 40 keys, got 49", "update: too long")
raises(function() cache:batch({ a }, { max_len = 4 }) end, "unknown argument 'max_len'", "a misspelt option")
a = cache:fork(a, 33)
collectgarbage()
collectgarbage()

-- Poison reaches all that is not owned, and nothing else.
for _, form in ipairs { "combined", "tuple" } do
    local pool = new_cache { form = form, page_stride_pad = 16, pages = 3 }
    local s = pool:sequence():append(rows(0, 20), rows(0, 20))
    pool:poison()
    local finite, nans = 0, 0
    for _, plane in ipairs { pool.k, pool.v } do
        for _, x in ipairs(plane:totable()) do
            finite, nans = finite + (x == x and 1 or 0), nans + (x ~= x and 1 or 0)
        end
    end
    is(finite, 2 * 20 * HEADS * DIM, "%s: owned slots keep their data", form)
    is(nans, 2 * (3 * SIZE - 20) * HEADS * DIM, "%s: all others are NaN", form)
    same(contents(s, pool.k, 1), counting(0, 20), "%s: the data is right", form)
    local block = (form == "combined" and pool.kv or pool.k):mirror "cpu"
    local gap = block.pointer + block.numel / 3
    is(gap[0] == 0xFFFF and gap[15] == 0xFFFF, true, "%s: gaps between pages are NaN", form)
end

-- Shuffled pages: a permutation, decided by the seed.
local function order(seed)
    return new_cache { shuffle = seed, pages = 64 }:sequence(64 * SIZE).pages
end
local first = order "x"
same(order "x", first, "the same seed gives the same order")
ok(table.concat(order "y", " ") ~= table.concat(first, " "), "another seed another")
table.sort(first)
same(first, counting(0, 64), "each page is there once")

-- Refusals.
raises(function() new_cache { pages = 0 } end, "pages: expected an integer of at least 1, got 0", "no pages")
raises(function() new_cache { page_stride_pad = "8" } end, "page_stride_pad: expected an integer", "a pad that is none")
raises(function() new_cache { head_dim = 2 ^ 60 } end, "cannot allocate", "more memory than there can be")
raises(function() quire.cache() end, "cache: expected a table of named arguments, got nil", "no arguments")
raises(function() new_cache { form = "split" } end, "form: expected.*split", "no such form")
raises(function() new_cache { pagesize = 16 } end, "unknown argument 'pagesize'", "a misspelt name")
raises(function() a:append(rows(0, 1):view { HEADS, DIM }, rows(0, 1)) end, "append: k: expected fp16 %[n,2,64%]",
    "keys of another rank")
raises(function() a:append(rows(0, 1):convert "bf16", rows(0, 1)) end, "k: expected fp16", "keys of another dtype")
raises(function() a:append(rows(0, 1), rows(0, 2)) end, "v: expected 1 keys", "as many values as keys")
raises(function() cache:fork(a, 34) end, "at most the 33 keys", "a fork longer than its origin")
raises(function() cache:batch { new_cache():sequence(1) } end, "entry 1: expected a sequence of this cache",
    "a sequence of another cache")
raises(function() cache:batch() end, "batch: expected a list of sequences, got nil", "no list")
raises(function() cache:batch({ a }, { indices = "9" }) end, "batch: indices: expected an integer",
    "no number of indices")
raises(function() cache:fork(7) end, "fork: expected a sequence of this cache", "a fork of what is none")
local gone = cache:sequence()
gone:free()
raises(function() cache:fork(gone) end, "fork: the sequence has been freed", "a fork of a freed sequence")
raises(function() cache:batch { a, gone } end, "entry 2: the sequence has been freed", "a batch of a freed sequence")
tap.done()

-- Inputs that broke others: padding, poison, page tables, strides, empty rows.
-- SPDX-License-Identifier: Apache-2.0
local ffi = require "ffi"
local quire = require "quire"
local tap = require "tap"
local pitfall = require "pitfall"

local ok, means, right = tap.ok, pitfall.means, pitfall.right

local PAGES = { 16, 32, 64, 128 }
local DTYPES = { { "bf16", "bf16" }, { "fp16", "fp16" }, { "fp8e4m3", "fp16" }, { "fp8e4m3", "fp8e4m3" } }

local function up_to(n)
    local lens = {}
    for length = 1, n do
        lens[length] = length
    end
    return lens
end

-- Padding lanes in the softmax: Q = 0, V[t] = (t mod 16) + 1, all lengths to 300 in one batch.  Unused
-- values of 0 would shrink the mean, of 1000 blow it up.
for _, page in ipairs(PAGES) do
    for _, mask in ipairs { "dense", "causal" } do
        for _, sq in ipairs { 1, 3 } do
            for _, padding in ipairs { 0, 1000 } do
                means({
                    lens = up_to(300), sq = sq, page = page, mask = mask, hq = 4, hkv = 4, k = 0,
                    v = function(_, t) return t % 16 + 1 end, unused_k = 0, unused_v = padding,
                }, function(b, i)
                    local visible = mask == "dense" and b + 1 or math.max(0, b + 1 - sq + i + 1)
                    local sum = 0
                    for t = 0, visible - 1 do
                        sum = sum + t % 16 + 1
                    end
                    return visible > 0 and sum / visible or 0
                end, "lengths 1 to 300 among %d, page %d, %s, %d tokens", padding, page, mask, sq)
            end
        end
    end
end

-- NaN in whatever is not to be read changes no bit.
local POISONED = {
    { what = "the last page's tail", lens = { 1, 3, 32, 64, 96, 48, 257 } },
    { what = "listed pages past the length", lens = { 1, 16, 17, 0, 100 }, extra = 3 },
    { what = "keys before the window", lens = { 300, 40, 33, 5 }, mask = "causal", window = 16 },
    { what = "keys before the window, two tokens", lens = { 300, 40, 33, 5 }, mask = "causal", window = 16, sq = 2 },
}
for _, dtype in ipairs(DTYPES) do
    for _, case in ipairs(POISONED) do
        local function build(hidden_is_nan)
            return {
                lens = case.lens, extra = case.extra, mask = case.mask, window = case.window, sq = case.sq,
                q = "random", dtype = dtype[1], out_dtype = dtype[2],
                unused_k = not hidden_is_nan and 0 or nil, unused_v = not hidden_is_nan and 0 or nil,
                k = function(b, t, h)
                    if hidden_is_nan and case.window and t < case.lens[b + 1] - (case.sq or 1) - case.window then
                        return 0 / 0
                    end
                    return (t * 7 + h * 3 + b) % 11 / 8
                end,
                v = function(b, t, h)
                    if hidden_is_nan and case.window and t < case.lens[b + 1] - (case.sq or 1) - case.window then
                        return 0 / 0
                    end
                    return (t * 5 + h + b) % 13 / 4
                end,
            }
        end
        local poisoned = right(build(true), "%s to %s: NaN in %s", dtype[1], dtype[2], case.what)
        local clean = pitfall.run(build(false))
        ok(poisoned.out:same_bits(clean.out) and poisoned.lse:same_bits(clean.lse), "%s to %s: changes no bit of %s",
            dtype[1], dtype[2], case.what)
    end
end

-- Keys after a row's causal limit may be huge without a trace in the rows that do not see them.
do
    local function build(value)
        return {
            lens = { 40, 17 }, sq = 4, mask = "causal", q = "random",
            v = function(b, t) return t == (b == 0 and 39 or 16) and value or t % 7 end,
        }
    end
    local huge, small = pitfall.run(build(1e4)), pitfall.run(build(3))
    local same = true
    for b = 0, 1 do
        for i = 0, 2 do
            same = same and huge.out[b][i]:same_bits(small.out[b][i])
        end
    end
    ok(same, "a huge value that the last token alone sees")
end

-- Page ids past the live length are not followed: the next rows' are -1 and 0x7FFFFFFF.
do
    local host = pitfall.build { lens = { 257, 33 }, page = 64, q = "random", extra = 2 }
    local clean = pitfall.decode(host)
    for _, entry in ipairs { 5, 6, 8, 9 } do -- rows own 7 and 3 entries, of which 5 and 1 are live
        host.paged_kv_indices[entry] = entry % 2 == 0 and -1 or 0x7FFFFFFF
    end
    ok(pitfall.decode(host).out:same_bits(clean.out), "unused page ids of -1 and 2^31-1 are not followed")
end

-- The index array ends where memory ends.
if pitfall.device == "cpu" then
    ffi.cdef [[
    void *mmap(void *address, size_t bytes, int protection, int flags, int file, long offset);
    int mprotect(void *address, size_t bytes, int protection);
    int munmap(void *address, size_t bytes);
    long sysconf(int name);
    ]]
    local READ_WRITE, NONE, PRIVATE_ANONYMOUS, PAGESIZE = 3, 0, 0x22, 30
    local page = tonumber(ffi.C.sysconf(PAGESIZE))
    local memory = ffi.cast("char *", ffi.C.mmap(nil, 2 * page, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0))
    ok(ffi.C.mprotect(memory + page, page, NONE) == 0, "a page that faults after the index array")
    local host = pitfall.build { lens = { 40, 257 }, page = 64, q = "random" }
    local indices = host.paged_kv_indices
    host.paged_kv_indices = quire.tensor {
        data = memory + page - 4 * indices.numel, shape = { indices.numel }, dtype = "int32",
    }:copy(indices)
    local tight = pitfall.decode(host)
    host.paged_kv_indices = indices
    ok(tight.out:same_bits(pitfall.decode(host).out), "no entry past the end is read")
    ffi.C.munmap(memory, 2 * page)
end

-- A row owns more pages than its length needs: the length decides.
for _, page in ipairs(PAGES) do
    for extra = 1, 3 do
        means({ lens = { page, 2 * page, 1 }, page = page, extra = extra, k = 0, v = 1, unused_k = 0, unused_v = 1000 },
            function() return 1 end, "page %d: %d pages more than needed", page, extra)
    end
end

-- V from the right page, for every head size and page size: V is the logical page's number.
for _, d in ipairs { 64, 128, 256 } do
    for _, page in ipairs(PAGES) do
        local lens = { 4 * page, 3 * page + 2, 2 * page + 1 }
        means({ lens = lens, d = d, page = page, k = 0, v = function(_, t) return math.floor(t / page) end,
            unused_v = 900, unused_k = 0 }, function(b)
            local sum = 0
            for t = 0, lens[b + 1] - 1 do
                sum = sum + math.floor(t / page)
            end
            return sum / lens[b + 1]
        end, "D %d, page %d: V of the right page", d, page)
    end
end

-- Outer page strides: the same bits whatever lies between the pages.
for _, dtype in ipairs { "bf16", "fp8e4m3" } do
    local function bits(form, pad)
        return pitfall.run { lens = { 70, 5, 33 }, form = form, pad = pad, q = "random", dtype = dtype }.out
    end
    local compact = bits("combined", 0)
    for _, other in ipairs { { "tuple", 0 }, { "combined", 16 }, { "tuple", 48 }, { "combined", 2 * 2 * 16 * 64 } } do
        ok(bits(other[1], other[2]):same_bits(compact), "%s: %s with %d elements between pages has the same bits",
            dtype, other[1], other[2])
    end
    local host = pitfall.build { lens = { 70, 5, 33 }, form = "tuple", q = "random", dtype = dtype }
    local v = host.kv_cache[2]
    local wide = { unpack(v.strides) }
    wide[1] = wide[1] + 160
    local apart = quire.tensor { shape = v.shape, strides = wide, dtype = dtype }
    host.kv_cache = { host.kv_cache[1], apart:copy(v) }
    ok(pitfall.decode(host).out:same_bits(compact), "%s: K and V with different strides", dtype)
end

-- Requests without keys, as graphs pad with: +0, -inf, and none of their page ids is read.
do
    local lens = { 7, 0, 33, 0, 1, 0, 0, 64 }
    local host = pitfall.build { lens = lens, q = "random", extra = 1 }
    for b = 0, #lens - 1 do
        if lens[b + 1] == 0 then
            host.paged_kv_indices[host.paged_kv_indptr[b]] = -1
        end
    end
    local result = pitfall.decode(host)
    local zero = true
    for b = 0, #lens - 1 do
        for h = 0, 7 do
            if lens[b + 1] == 0 then
                zero = zero and result.lse:get(b, h) == -math.huge and 1 / result.out:get(b, h, 63) == math.huge
            end
        end
    end
    ok(zero, "requests without keys give +0 and -inf")
    ok(quire.verify(result.args).ok, "and the others are right")
end
right({ lens = { 40, 300, 5 }, q_lens = { 3, 0, 2 }, mask = "causal", q = "random" }, "a request without query tokens")
right({ lens = { 1, 2, 20 }, sq = 4, mask = "causal", q = "random" }, "more query tokens than keys")
right({ lens = {}, q = "random" }, "no requests")
right({ lens = { 5, 9 }, q_lens = { 0, 0 }, q = "random" }, "no query tokens at all")

-- The same request at several places of the batch.
for _, dtype in ipairs(DTYPES) do
    local lens = { 129, 5, 129, 700, 129 }
    local host = pitfall.build {
        lens = lens, dtype = dtype[1], out_dtype = dtype[2], q = function(_, _, h) return h / 8 end,
    }
    for _, b in ipairs { 2, 4 } do -- request 0's pages for all three
        for j = 0, 8 do
            host.paged_kv_indices[host.paged_kv_indptr[b] + j] = host.paged_kv_indices[j]
        end
    end
    local result = pitfall.decode(host)
    ok(quire.verify(result.args).ok, "%s to %s: a request three times in a batch is right", dtype[1], dtype[2])
    if pitfall.device == "cpu" then
        ok(result.out[0]:same_bits(result.out[2]) and result.out[0]:same_bits(result.out[4]),
            "%s to %s: with the same bits each time", dtype[1], dtype[2])
    end
    local again = pitfall.decode(host)
    ok(again.out:same_bits(result.out) and again.lse:same_bits(result.lse), "%s to %s: and at every launch", dtype[1],
        dtype[2])
end
tap.done()

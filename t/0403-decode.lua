-- The calls of quire.h from Lua: argument names, what is allocated, right results, the library's words.
-- SPDX-License-Identifier: Apache-2.0
local ffi = require "ffi"
local tap = require "tap"
local quire = require "quire"
local subset = require "quire.subset"

local device = tap.device()
local ok, is, raises = tap.ok, tap.is, tap.raises

-- Three requests of 2 query tokens over a cache with random data; the rest of the cache is poison.
local function make(changes)
    local cache = quire.cache { device = device, pages = 12, page_size = 16, kv_heads = 2, head_dim = 64,
        dtype = "bf16", shuffle = "decode" }
    cache.k:normal { seed = "k" }
    cache.v:normal { seed = "v" }
    local sequences = { cache:sequence(70), cache:sequence(2), cache:sequence(33) }
    cache:poison()
    local batch = cache:batch(sequences)
    local args = {
        query = quire.tensor { shape = { 3, 2, 8, 64 }, dtype = "bf16", device = device }:normal { seed = "q" },
        kv_cache = cache.kv,
        paged_kv_indptr = batch.indptr,
        paged_kv_indices = batch.indices,
        seq_lens = batch.seq_lens,
        max_seq_len = batch.max_seq_len,
        seq_len_q = 2,
        mask_type = "causal",
    }
    for name, value in pairs(changes or {}) do
        args[name] = value
    end
    return args
end

-- Right against the reference, and the reference in its own words.
local args = make()
local out, lse = quire.decode(args)
is(out:describe(), "bf16 [3,2,8,64] on " .. device, "out is allocated")
is(lse, nil, "lse is not, unless asked for")
is(args.out, nil, "the table of arguments is left alone")
out, lse = quire.decode(make { lse = true })
is(lse:describe(), "fp32 [3,2,8] on " .. device, "lse = true allocates it")
local expected, expected_lse = quire.reference(args)
is(expected:describe(), "fp64 [3,2,8,64] on cpu", "the reference is float64 on the CPU")
local difference = quire.compare(out, expected)
ok(difference.special == 0 and difference.relative < 2.5e-3, "out agrees: %s", tostring(difference))
ok(quire.compare(lse, expected_lse).max_difference < 2e-5 + 1e-6 * 10, "lse agrees")
local verdict = quire.verify(make { out = out, lse = lse })
ok(verdict.ok and verdict.rows == 48 and verdict.relative_error < verdict.relative_bound, "and so says verify")

-- The reference itself, on a case that can be done by hand: equal weights give the mean.
do
    local small = quire.cache { pages = 2, page_size = 16, kv_heads = 1, head_dim = 64, dtype = "fp16" }
    local s = small:sequence(3)
    small.v:fill(function(page, _, slot)
        return page == s.pages[1] and ({ [0] = 1, 2, 6 })[slot] or 1000
    end)
    local batch = small:batch { s }
    local mean = {
        query = quire.tensor { shape = { 1, 1, 64 }, dtype = "fp16" }, kv_cache = small.kv,
        paged_kv_indptr = batch.indptr, paged_kv_indices = batch.indices, seq_lens = batch.seq_lens,
        max_seq_len = 3,
    }
    local r, l = quire.reference(mean)
    is(r:get(0, 0, 63), 3, "reference: the mean of 1, 2 and 6")
    ok(math.abs(l:get(0, 0) - math.log(3)) < 1e-12, "reference: lse is ln 3")
end

-- Combined, a pair of tensors, and DLTensors are one thing.
local bits = quire.decode(args)
local pair = { args.kv_cache:select(1, 0), args.kv_cache:select(1, 1) }
ok(quire.decode(make { kv_cache = pair }):same_bits(bits), "{K, V} gives the same bits")
ok(quire.decode(make { query = args.query.dl }):same_bits(bits), "a DLTensor as an argument")

-- A wrong result is seen.
local broken = out:to "cpu":clone()
broken:set(broken:get(1, 0, 3, 9) + 1, 1, 0, 3, 9)
verdict = quire.verify(make { out = broken:to(device), lse = lse })
ok(not verdict.ok and verdict.failures == 1, "verify sees one wrong element")
is(verdict.worst_index, ((1 * 2 + 0) * 8 + 3) * 64 + 9, "and says which")

-- NaN is wrong, but where a live value that is not finite may have made it: in V in its dimension of all rows of the
-- request and KV head, in K in all dimensions. What no row sees excuses nothing.
do
    local all_nan = quire.tensor { shape = { 3, 2, 8, 64 }, dtype = "bf16", device = device }:fill(0 / 0)
    local per_head = 2 * 4 -- rows of a request and KV head
    local function failures(plane, position)
        local with_nan = make { out = all_nan }
        if plane then
            local host = with_nan.kv_cache:to "cpu":clone()
            local page = with_nan.paged_kv_indices:to "cpu"[math.floor(position / 16)]
            host:set(0 / 0, page, plane, 1, position % 16, 5) -- KV head 1, dimension 5, of request 0
            with_nan.kv_cache = host:to(device)
        end
        return quire.verify(with_nan).failures
    end
    is(failures(), 48 * 64, "NaN everywhere is wrong everywhere")
    is(failures(1, 69), 48 * 64 - per_head, "a NaN in V excuses its dimension")
    is(failures(0, 3), 48 * 64 - per_head * 64, "a NaN in K excuses its head")
    is(failures(1, 70), 48 * 64, "a NaN past the end excuses nothing")
end

-- Some requests of a batch.
local both = { { request = 2, first = 0, last = 2 }, { request = 0, first = 0, last = 2 } }
local part = subset(make { out = out, lse = lse }, both)
verdict = quire.verify(part)
ok(verdict.ok and verdict.rows == 32, "a subset of the requests is right")
part.out:set(part.out:get(0, 0, 0) + 1, 0, 0, 0)
ok(not quire.verify(part).ok, "and wrong when it is wrong")

-- Packed queries.
local packed = make {
    query = quire.tensor { shape = { 5, 8, 64 }, dtype = "bf16", device = device }:normal { seed = "packed" },
    qo_indptr = quire.tensor { { 0, 3, 3, 5 }, dtype = "int32", device = device },
    max_seq_len_q = 3, lse = true,
}
packed.seq_len_q = nil
packed.out, packed.lse = quire.decode(packed)
verdict = quire.verify(packed)
ok(verdict.ok and verdict.rows == 40, "packed queries are right")
verdict = quire.verify(subset(packed, { { request = 2, first = 0, last = 2 }, { request = 1, first = 0, last = 0 } }))
ok(verdict.ok and verdict.rows == 16, "and a subset of them")

-- Rows of query past qo_indptr[B], as graphs pad with them, are written too: +0 and -inf, whatever stood there.
-- Of no request either, all are.
for _, offsets in ipairs { { 0, 3, 3, 5 }, { 0, 0, 0, 0 } } do
    local tail = make {
        query = quire.tensor { shape = { 9, 8, 64 }, dtype = "bf16", device = device }:normal { seed = "packed" },
        qo_indptr = quire.tensor { offsets, dtype = "int32", device = device },
        max_seq_len_q = 3,
        out = quire.tensor { shape = { 9, 8, 64 }, dtype = "bf16", device = device }:fill(0 / 0),
        lse = quire.tensor { shape = { 9, 8 }, dtype = "fp32", device = device }:fill(0 / 0),
    }
    tail.seq_len_q = nil
    quire.decode(tail)
    local used, o, l = offsets[4], tail.out:to "cpu", tail.lse:to "cpu"
    ok(o:slice(0, used, 9):same_bits(quire.tensor { shape = { 9 - used, 8, 64 }, dtype = "bf16" }),
        "rows past the last request, after row %d: +0", used)
    ok(l:slice(0, used, 9):same_bits(quire.tensor { shape = { 9 - used, 8 }, dtype = "fp32" }:fill(-math.huge)),
        "rows past the last request, after row %d: -inf", used)
    ok(used == 0 or o:slice(0, 0, used):same_bits(packed.out:to "cpu"), "rows before them, to row %d, as ever", used)
end

-- Launches that are bound once read data and metadata each time.
local bound = make { out = quire.tensor { shape = args.query.shape, dtype = "bf16", device = device } }
local bytes = quire.workspace_size(bound)
ok(bytes >= 0 and bytes % 1 == 0, "workspace_size: %d bytes", bytes)
bound.workspace_buffer = quire.tensor { shape = { math.max(bytes, 1) }, dtype = "uint8", device = device }
quire.prepare(bound)
local launch = quire.bind(bound)
ok(launch():same_bits(bits), "bind: the same result")
bound.seq_lens:fill { 1, 2, 3 }
launch()
ok(quire.verify(bound).ok and not bound.out:same_bits(bits), "bind: new lengths are seen")

-- check finds the first broken rule of the live metadata.
ok(pcall(quire.check, make()), "check accepts good metadata")
local bad = make { seq_lens = quire.tensor { { 70, 17, 33 }, dtype = "int32", device = device } }
raises(function() quire.check(bad) end, "request 1.*17.*QUIRE_ERROR_VALUE", "check names the request and its length")
if device == "cpu" then
    raises(function() quire.decode(bad) end, "request 1.*QUIRE_ERROR_VALUE", "and so does decode on the CPU")
end

-- Refusals by the module: before the library sees them.
local function refused(changes, pattern, name)
    raises(function() quire.decode(make(changes)) end, pattern, name)
end
refused({ window_lef = 3 }, "^[^\n]*decode: unknown argument 'window_lef'; known: .*window_left", "a misspelt name")
refused({ seq_len_q = 1.5 }, "seq_len_q: expected an integer, got 1.5", "half a token")
refused({ bmm1_scale = "1" }, "bmm1_scale: expected a number, got \"1\"", "a string as a scale")
refused({ mask_type = "diagonal" }, "mask_type: expected \"dense\" or \"causal\", got \"diagonal\"", "no such mask")
refused({ out_dtype = "int8" }, "out_dtype: expected", "no such output type")
refused({ metadata_stable = 1 }, "metadata_stable: expected true or false, got 1", "a number as a flag")
refused({ kv_cache = { args.kv_cache } }, "kv_cache: expected a tensor or {K, V}", "K without V")
refused({ query = "q" }, "query: expected a tensor, got string$", "a string as a tensor")
refused({ seq_lens = ffi.new("int64_t[3]") }, "seq_lens: expected a tensor, got ctype<int64_t",
    "an int64 array for lengths")
raises(function() quire.decode(args.query) end, "expected a table of named arguments, got a tensor", "a lone tensor")
raises(function() quire.workspace_size() end, "expected a table of named arguments, got nil", "nothing")

-- Refusals by the library: its words come through, with the status, and point at the caller.
refused({ seq_lens = quire.tensor { { 70, 2, 33 }, dtype = "int64", device = device } },
    "seq_lens:.*int32.*int64.*QUIRE_ERROR_TYPE", "int64 lengths")
refused({ window_left = 5, mask_type = "dense" }, "window_left:.*QUIRE_ERROR_VALUE", "a window without causal")
refused({ max_seq_len = 2147483521 }, "max_seq_len:.*2147483520.*QUIRE_ERROR_VALUE", "a bound too large")
refused({ kv_layout = "NHD" }, "kv_layout:.*QUIRE_ERROR_UNSUPPORTED", "another layout")
refused({ bmm2_scale = 0 / 0 }, "bmm2_scale:.*QUIRE_ERROR_VALUE", "NaN as a scale")
local without = make()
without.query = nil
raises(function() quire.decode(without) end, "query:.*NULL.*QUIRE_ERROR_TYPE", "no query")
raises(function() quire.decode(make { kv_layout = "NHD" }) end, "0403%-decode%.lua:%d+:", "the error points here")
if device == "cpu" then
    raises(function() quire.decode(args, ffi.cast("void *", 16)) end, "stream:.*QUIRE_ERROR_UNSUPPORTED",
        "a stream with CPU tensors")
end
raises(function() quire.decode(args, {}) end, "stream: expected a stream of quire.cuda, a pointer or nil, got table",
    "a table as a stream")

-- Nothing that a launch needs is collected before it.
for _ = 1, 50 do
    local o = quire.decode(make())
    collectgarbage "step"
    if not o:same_bits(bits) then
        ok(false, "results stay the same under garbage collection")
        break
    end
end
tap.done()

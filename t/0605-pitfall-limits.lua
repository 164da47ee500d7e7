-- Inputs that broke others: 64-bit metadata, offsets beyond 32 bits, large batches, scales, lengths beyond pages.
-- SPDX-License-Identifier: Apache-2.0
local ffi = require "ffi"
local quire = require "quire"
local cases = require "quire.cases"
local tap = require "tap"
local pitfall = require "pitfall"

local ok, is, raises, means, right = tap.ok, tap.is, tap.raises, pitfall.means, pitfall.right

-- 64-bit metadata is refused, not read as 32-bit.
for _, name in ipairs { "paged_kv_indptr", "paged_kv_indices", "seq_lens", "qo_indptr" } do
    local host = pitfall.build { lens = { 5, 7 }, q_lens = { 1, 2 }, q = "random" }
    host[name] = host[name]:convert "int64"
    raises(function() pitfall.decode(host) end, name .. ":.*int32.*int64.*QUIRE_ERROR_TYPE", "%s of int64", name)
end

-- More keys than the row's pages hold: an error on the CPU; on a GPU check finds it, and decode stays in bounds.
do
    local host = pitfall.build { lens = { 64, 30 }, q = "random" }
    local clamped = pitfall.decode(host)
    host.seq_lens[0] = 65
    host.max_seq_len = 65
    local words = "request 0.*65.*5 pages.*4.*QUIRE_ERROR_VALUE"
    raises(function() quire.check(cases.mirror(host, pitfall.device)) end, words, "check: 65 keys in 4 pages of 16")
    if pitfall.device == "cpu" then
        raises(function() pitfall.decode(host) end, words, "decode on the CPU: 65 keys in 4 pages of 16")
    else
        ok(pitfall.decode(host).out:same_bits(clamped.out), "decode on a GPU: 65 keys in 4 pages are 64")
    end
    host.seq_lens[0], host.max_seq_len = 64, 64
    host.paged_kv_indices[1] = 1000
    raises(function() quire.check(cases.mirror(host, pitfall.device)) end, "request 0.*1000.*QUIRE_ERROR_VALUE",
        "check: a page that the cache does not have")
end

-- Pages 2^31 elements apart: 12 GiB of address space, of which three pages are touched.
if pitfall.device == "cpu" then
    ffi.cdef [[
    void *mmap(void *address, size_t bytes, int protection, int flags, int file, long offset);
    int munmap(void *address, size_t bytes);
    ]]
    local READ_WRITE, FLAGS = 3, 0x4022 -- MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
    local apart = 2 ^ 31
    local bytes = (2 * apart + 2 * 16 * 64) * 2
    local memory = ffi.C.mmap(nil, bytes, READ_WRITE, FLAGS, -1, 0)
    if ffi.cast("intptr_t", memory) == -1 then
        ok(true, "pages 2^31 elements apart # SKIP no 8 GiB of address space")
    else
        local kv = quire.tensor { data = memory, shape = { 3, 2, 1, 16, 64 }, strides = { apart, 1024, 1024, 64, 1 },
            dtype = "fp16" }
        for page = 0, 2 do
            kv[page][1]:fill(2 * page + 1)
        end
        local host = pitfall.build { lens = { 16, 16, 16 }, hq = 1, hkv = 1, dtype = "fp16" }
        host.kv_cache = kv
        for b, page in ipairs { 2, 1, 0 } do
            host.paged_kv_indices[b - 1] = page
        end
        local result = pitfall.decode(host)
        ok(pitfall.row_is(result.out, 0, 5) and pitfall.row_is(result.out, 1, 3) and pitfall.row_is(result.out, 2, 1),
            "pages 2^31 elements apart")
        ffi.C.munmap(memory, bytes)
    end
end

-- Sizes near 2^31, with no memory behind them.
do
    local null = ffi.cast("void *", 0)
    local function shapes(batch, sq, heads, max_seq_len)
        local function shape_only(shape, dtype)
            return quire.tensor { data = null, shape = shape, dtype = dtype, device = pitfall.device }
        end
        local query = sq == 1 and { batch, heads, 64 } or { batch, sq, heads, 64 }
        return {
            query = shape_only(query, "bf16"), kv_cache = shape_only({ 10, 2, heads, 16, 64 }, "bf16"),
            paged_kv_indptr = shape_only({ batch + 1 }, "int32"), paged_kv_indices = shape_only({ 10 }, "int32"),
            seq_lens = shape_only({ batch }, "int32"), max_seq_len = max_seq_len, seq_len_q = sq,
        }
    end
    ok(quire.workspace_size(shapes(4, 1, 8, 2147483520)) >= 0, "max_seq_len 2147483520 is accepted")
    raises(function() quire.workspace_size(shapes(4, 1, 8, 2147483521)) end, "max_seq_len:.*2147483520.*VALUE",
        "max_seq_len 2147483521 is not")
    raises(function() quire.workspace_size(shapes(4, 1, 8, 0)) end, "max_seq_len:.*VALUE", "nor is 0")
    ok(quire.workspace_size(shapes(2 ^ 20, 255, 8, 4096)) >= 0, "B*SQ*Hq just below 2^31 is accepted")
    raises(function() quire.workspace_size(shapes(2 ^ 20, 256, 8, 4096)) end, "VALUE", "2^31 is not")
end

-- More requests than a grid's axis has room for.
for _, case in ipairs { { 65535, 1 }, { 65536, 1 }, { 70000, 1 }, { 2050, 32 } } do
    local batch, heads = case[1], case[2]
    local host = pitfall.build {
        lens = { 1 }, hq = heads, hkv = heads, dtype = "fp16", v = function(_, _, h) return h + 3 end,
    }
    local zeros = quire.tensor { shape = { batch }, dtype = "int32" }
    host.query = quire.tensor { shape = { batch, heads, 64 }, dtype = "fp16" }
    host.seq_lens = quire.tensor { shape = { batch }, dtype = "int32" }:fill(1)
    host.paged_kv_indices = zeros:fill(host.paged_kv_indices[0])
    host.paged_kv_indptr = quire.tensor { shape = { batch + 1 }, dtype = "int32" }:fill(function(b) return b end)
    local result = pitfall.decode(host)
    local bad = 0
    for row = 0, batch * heads - 1 do
        bad = bad + (pitfall.row_is(result.out, row, row % heads + 3) and 0 or 1)
    end
    is(bad, 0, "%d requests of %d heads: every row is written", batch, heads)
end

-- Scales: applied once, default 1/sqrt(D) and 1, powers of two exact, nonsense refused.
for _, dtype in ipairs { { "bf16" }, { "fp16" }, { "fp8e4m3", "fp16" }, { "fp8e4m3", "fp8e4m3" } } do
    local what = ("%s to %s"):format(dtype[1], dtype[2] or dtype[1])
    for _, scale in ipairs { 0.25, 0.5, 1, 4 } do
        means({ lens = { 40 }, dtype = dtype[1], out_dtype = dtype[2], k = 0, v = 2, bmm2_scale = scale },
            function() return 2 * scale end, "%s: bmm2_scale %g", what, scale)
        right({ lens = { 40, 300 }, dtype = dtype[1], out_dtype = dtype[2], q = "random", bmm1_scale = scale,
            bmm2_scale = dtype[2] == "fp8e4m3" and 4 or 1 }, "%s: bmm1_scale %g", what, scale)
    end
    local function bits(changes)
        local o = { lens = { 300, 7 }, d = 128, dtype = dtype[1], out_dtype = dtype[2], q = "random" }
        for name, value in pairs(changes) do
            o[name] = value
        end
        return pitfall.run(o).out
    end
    ok(bits { bmm1_scale = 1 / math.sqrt(128), bmm2_scale = 1 }:same_bits(bits {}), "%s: the default scales", what)
    local function k_of(factor)
        return function(_, t) return factor * (t % 13 - 6) / 8 end
    end
    ok(bits { k = k_of(1), bmm1_scale = 0.125 }:same_bits(bits { k = k_of(0.5), bmm1_scale = 0.25 }),
        "%s: half of K and twice the scale are the same bits", what)
end
for _, name in ipairs { "bmm1_scale", "bmm2_scale" } do
    for _, bad in ipairs { 0, -1, 0 / 0, math.huge, 1e-50, 1e39 } do
        raises(function() pitfall.run { lens = { 5 }, [name] = bad } end, name .. ":.*QUIRE_ERROR_VALUE",
            "%s = %g", name, bad)
    end
end
raises(function() pitfall.run { lens = { 5 }, window = 3 } end, "window_left:.*VALUE", "a window without causal")
raises(function() pitfall.run { lens = { 5 }, mask = "causal", window = -2 } end, "window_left:.*VALUE",
    "window_left = -2")

-- Groups up to 32 work, 33 is refused, and the library goes on.
for _, group in ipairs { 5, 6, 7, 16, 32 } do
    right({ lens = { 50 }, hq = group, hkv = 1, q = "random" }, "group %d", group)
end
raises(function() pitfall.run { lens = { 50 }, hq = 33, hkv = 1 } end, "33.*QUIRE_ERROR_UNSUPPORTED", "group 33")
right({ lens = { 50 }, q = "random" }, "the next call works")

-- Shapes that do not agree.
for _, case in ipairs {
    { "out", { 2, 1, 8, 64 }, 1 }, { "out", { 2, 8, 64 }, 3 }, { "out", { 3, 8, 64 }, 1 },
} do
    local host = pitfall.build { lens = { 5, 7 }, sq = case[3] }
    local there = {}
    for name, value in pairs(cases.mirror(host, pitfall.device)) do
        there[name] = value
    end
    there.out = quire.tensor { shape = case[2], dtype = "bf16", device = pitfall.device }
    raises(function() quire.decode(there) end, "out:.*QUIRE_ERROR_", "out [%s] for %d tokens",
        table.concat(case[2], ","), case[3])
end
do
    local host = pitfall.build { lens = { 5, 7, 9 } }
    host.paged_kv_indptr = quire.tensor { { 0, 1, 2, 3, 3 }, dtype = "int32" }
    raises(function() pitfall.decode(host) end, "paged_kv_indptr:.*5.*QUIRE_ERROR_VALUE", "3 requests, indptr of 4")
end
tap.done()

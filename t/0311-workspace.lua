-- The workspace and what may not be read: zeroed once, any launches after; guards, poison, bounds.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"
local quire = require "quire"
local gpu = require "gpu"

local ok, is, raises = tap.ok, tap.is, tap.raises
local stream = gpu.stream()

-- Kinds that differ in kernel, in where partial results lie and in how items are cut.
local kinds = {
    { kv_lens = { 4096, 17, 1 } },
    { kv_lens = { 1, 17, 40 } },
    { kv_lens = { 9000 }, hq = 32, hkv = 8 },
    { kv_lens = { 5000 }, hq = 4, hkv = 1, d = 64, dtype = "fp16", page = 64 },
    { kv_lens = { 2500, 3, 700 }, d = 256, dtype = "bf16", page = 32, form = "tuple", page_stride_pad = 128 },
    { kv_lens = { 6000, 6001 }, dtype = "fp8e4m3", out_dtype = "fp16", hq = 16, hkv = 2 },
    { kv_lens = { 3000, 0, 64 }, dtype = "fp8e4m3", d = 256, page = 128 },
    { kv_lens = { 4000, 33 }, seq_len_q = 3, hq = 28, hkv = 4, dtype = "fp16" },
    { kv_lens = { 4000, 4001 }, seq_len_q = 8, hq = 32, hkv = 2, mask = "dense" },
    { kv_lens = { 8000, 100 }, seq_len_q = 2, window_left = 3000, d = 64 },
    { kv_lens = { 3000, 65, 0, 1000 }, q_lens = { 5, 1, 2, 0 }, hq = 24, hkv = 2, dtype = "fp16" },
    { kv_lens = { 2049 }, seq_len_q = 40, hq = 8, hkv = 1, d = 256 },
}
for i, kind in ipairs(kinds) do
    kind.id = "kind " .. i
    kind.args = gpu.build(kind)
    quire.prepare(kind.args)
    kind.wanted = gpu.decode_fresh(kind.args, stream)
    local verdict = quire.verify(kind.wanted)
    ok(verdict.ok, "%s is right (worst error %.3f of its bound)", kind.id, verdict.worst_error)
    kind.bytes = quire.workspace_size(kind.args)
end

-- POISON, and nothing is written outside out, lse and workspace. All that is not live is NaN already.
for _, kind in ipairs(kinds) do
    local query = kind.args.query
    local args, intact = gpu.with(kind.args, {}), {}
    args.out, intact.out = gpu.guarded(query.shape, kind.args.out.dtype)
    args.lse, intact.lse = gpu.guarded({ unpack(query.shape, 1, query.rank - 1) }, "fp32")
    args.workspace_buffer, intact.workspace = gpu.guarded({ math.max(kind.bytes, 1) }, "uint8")
    args.workspace_buffer:fill(0)
    quire.decode(args, stream)
    gpu.sync(stream)
    ok(gpu.same_bits(args, kind.wanted) and intact.out() and intact.lse() and intact.workspace(),
        "%s: the guards around out, lse and workspace are intact", kind.id)
end

-- A workspace one byte short is refused with the bytes that it takes, and nothing is written.
for _, kind in ipairs(kinds) do
    if kind.bytes > 0 then
        local args = gpu.fresh(kind.args)
        args.workspace_buffer = gpu.workspace(args, kind.bytes - 1)
        raises(function() quire.decode(args, stream) end,
            ("workspace_buffer.*%d.*QUIRE_ERROR_VALUE"):format(kind.bytes), "%s: one byte less than %d is refused",
            kind.id, kind.bytes)
        gpu.sync(stream)
        local out = args.out:to "cpu"
        local first = out:get(unpack({ 0, 0, 0, 0 }, 1, out.rank))
        ok(first ~= first, "... and out is as it was")
    end
end

-- DIRTY: one workspace, zeroed once, for all kinds in random order, launched one after the other without a pause,
-- so that one begins while the one before ends. The first fills it with what NaN keys leave behind.
local largest = 0
for _, kind in ipairs(kinds) do
    largest = math.max(largest, kind.bytes)
end
local workspace = gpu.workspace(nil, largest)
do
    local bad = gpu.build { kv_lens = { 4096, 4096 }, id = "NaN" }
    gpu.fill_nan(bad.kv_cache)
    bad.out:fill(0)
    bad.workspace_buffer = workspace
    quire.decode(bad, stream)
    gpu.sync(stream)
    local first = bad.out:to "cpu":get(0, 0, 0)
    ok(first ~= first, "NaN in live values reaches the result")
end

math.randomseed(45)
for round = 1, 4 do
    local launched = {}
    for i = 1, 40 do
        local kind = kinds[math.random(#kinds)]
        local args = gpu.fresh(kind.args)
        args.workspace_buffer = workspace
        args.metadata_stable = round % 2 == 0
        launched[i] = { kind = kind, args = args, launch = quire.bind(args) }
    end
    gpu.sync()
    for _, one in ipairs(launched) do
        one.launch(stream)
    end
    gpu.sync(stream)
    local differ = 0
    for _, one in ipairs(launched) do
        differ = differ + (gpu.same_bits(one.args, one.kind.wanted) and 0 or 1)
    end
    is(differ, 0, "40 launches of any kind in one workspace%s: the bits of a fresh one",
        round % 2 == 0 and ", metadata_stable" or "")
end

-- P45: what is kept between launches is zero after each. (The CPU's workspace keeps nothing.)
if not gpu.on_cpu then
    local left = 0
    for _ = 1, 50 do
        local kind = kinds[math.random(#kinds)]
        quire.decode(gpu.with(gpu.fresh(kind.args), { workspace_buffer = workspace }), stream)
        gpu.sync(stream)
        left = left + (gpu.all_zero(workspace) and 0 or 1)
    end
    is(left, 0, "the workspace is all zero after each of 50 launches")
end

-- P12, P41: the bound max_seq_len moves no bit; the workspace grows with it, if it changes at all.
do
    local differ, wrong = 0, 0
    for len = 1, 64 do
        local args = gpu.build { kv_lens = { len }, hq = 32, hkv = 8, max_seq_len = 64, id = "P12" }
        local short = gpu.decode_fresh(args, stream)
        local long = gpu.decode_fresh(gpu.with(args, { max_seq_len = 131072 }), stream)
        differ = differ + (gpu.same_bits(short, long) and 0 or 1)
        wrong = wrong + (quire.verify(short).ok and 0 or 1)
    end
    is(differ, 0, "lengths 1 to 64: max_seq_len 64 and 131072 give the same bits")
    is(wrong, 0, "... and these are right")
    for _, t in ipairs {
        { kv_lens = { 253 } },
        { kv_lens = { 253, 4000, 0, 77 }, hq = 16, dtype = "fp16" },
        { kv_lens = { 20000 }, hkv = 1 },
        { kv_lens = { 900, 30 }, seq_len_q = 4, window_left = 128, dtype = "fp8e4m3" },
    } do
        t.id = table.concat(t.kv_lens, ",")
        local args = gpu.build(t)
        local tight, bytes = gpu.decode_fresh(args, stream), quire.workspace_size(args)
        local same, grows = true, true
        for _, bound in ipairs { 20000, 131072, 1000000, 2147483520 } do
            local looser = gpu.with(args, { max_seq_len = bound })
            same = same and gpu.same_bits(tight, gpu.decode_fresh(looser, stream))
            grows = grows and quire.workspace_size(looser) >= bytes
            bytes = quire.workspace_size(looser)
        end
        ok(same, "lengths %s: no bound changes bits", t.id)
        ok(grows, "... nor makes the workspace smaller")
    end
end

-- TWIN: equal requests in one batch are all right, and the launch is bit-equal to a second one.
do
    local cache = quire.cache { pages = 400, page_size = 16, kv_heads = 4, head_dim = 128, dtype = "bf16",
        device = gpu.device, shuffle = "twin" }
    cache.k:normal { seed = "twin k" }
    cache.v:normal { seed = "twin v" }
    local one, other = cache:sequence(3000), cache:sequence(333)
    local list = {}
    for b = 1, 40 do
        list[b] = b % 3 == 0 and other or one
    end
    cache:poison()
    local batch = cache:batch(list)
    local row = quire.tensor { shape = { 1, 16, 128 }, dtype = "bf16" }:normal { seed = "twin q" }
    local query = quire.tensor { shape = { 40, 16, 128 }, dtype = "bf16" }
    for b = 0, 39 do
        query:slice(0, b, b + 1):copy(row)
    end
    local args = {
        query = query:to(gpu.device), kv_cache = cache.kv, paged_kv_indptr = batch.indptr,
        paged_kv_indices = batch.indices, seq_lens = batch.seq_lens, max_seq_len = batch.max_seq_len,
        out = quire.tensor { shape = { 40, 16, 128 }, dtype = "bf16", device = gpu.device },
    }
    local first, second = gpu.decode_fresh(args, stream), gpu.decode_fresh(args, stream)
    ok(quire.verify(first).ok, "twins: every copy is right")
    ok(gpu.same_bits(first, second), "twins: a second launch gives the same bits")
end

-- Metadata that breaks a rule is never followed out of bounds on a GPU (elsewhere it is refused).
if not gpu.on_cpu then
    local cache = quire.cache { pages = 6, page_size = 16, kv_heads = 2, head_dim = 64, dtype = "fp16",
        device = gpu.device }
    cache.v:fill(1)
    local block = gpu.metadata(2, 5)
    local args = gpu.fresh {
        query = quire.tensor { shape = { 2, 4, 64 }, dtype = "fp16", device = gpu.device }, kv_cache = cache.kv,
        paged_kv_indptr = block.indptr, paged_kv_indices = block.indices, seq_lens = block.seq_lens, max_seq_len = 100,
        out = quire.tensor { shape = { 1 }, dtype = "fp16", device = gpu.device },
    }
    local function run(lens, pages)
        block:set(lens, pages):store()
        quire.decode(args, stream)
        gpu.sync(stream)
        return args.out:to "cpu", args.lse:to "cpu"
    end
    local out, lse = run({ 65, 16 }, { { 0, 1, 2, 3 }, { 4 } })
    ok(out:get(0, 0, 0) == 1 and math.abs(lse:get(0, 0) - math.log(64)) < 1e-4,
        "a length beyond its pages ends with them")
    ok(out:get(1, 3, 63) == 1 and math.abs(lse:get(1, 3) - math.log(16)) < 1e-4,
        "... and the next request is right")
    raises(function() quire.check(args, stream) end, "request 0.*65", "... and check tells")
    out, lse = run({ 64, 1000 }, { { 0, 0x7FFFFFFF, 2, -1 }, { 4 } })
    ok(out:get(0, 0, 0) == 0.5 and math.abs(lse:get(0, 0) - math.log(64)) < 1e-4,
        "page ids outside the cache read as zeros")
    ok(out:get(1, 0, 0) == 1 and math.abs(lse:get(1, 0) - math.log(16)) < 1e-4, "a length beyond every bound is cut")
    out, lse = run({ -5, 16 }, { { 0 }, { 4 } })
    ok(out:get(0, 0, 0) == 0 and lse:get(0, 0) == -math.huge and out:get(1, 0, 0) == 1, "a negative length is none")
end
tap.done()

-- Work beside ours: producers on the same stream, other streams, a GPU that somebody keeps busy.
-- SPDX-License-Identifier: Apache-2.0
local ffi = require "ffi"
local tap = require "tap"
local quire = require "quire"
local gpu = require "gpu"
local clock = require "quire.clock"

local ok, is = tap.ok, tap.is
local stream = gpu.stream()
local int32_p = ffi.typeof "int32_t *"

-- Writes `count` words on the stream, as late as a kernel can; on the CPU at once.
local produce
if gpu.on_cpu then
    function produce(to, from, count)
        ffi.copy(to, from, count * 4)
    end
else
    local kernel = gpu.kernel("produce", { "int32_t *", "const int32_t *", "int32_t", "uint64_t" })
    function produce(to, from, count, nanoseconds)
        kernel:launch(stream, 1, 128, ffi.cast(int32_p, to), ffi.cast("const int32_t *", from), count, nanoseconds)
    end
end

local function times(count, value)
    local list = {}
    for i = 1, count do
        list[i] = value
    end
    return list
end

-- P53: the metadata are written by a kernel right before each decode, without a wait. Every iteration has an out of
-- its own, so that nothing is waited for until the end. All requests of a batch are alike; how many there are decides
-- how a kernel gets at the metadata: by one warp, by a thread for each request, or by threads with several each.
local function toggle(packed, batch, iterations)
    local cache = quire.cache { pages = 4, page_size = 16, kv_heads = 2, head_dim = 128, dtype = "bf16",
        device = gpu.device }
    cache.v:fill(function(page) return 2 ^ page end) -- 1, 2, 4, 8
    local block = gpu.metadata(batch, 2 * batch)
    -- What is written, and the mean of V that it gives; packed: rows past qo_indptr[batch] are +0.
    local states = {
        { lens = 16, pages = { 0, 1 }, q = 1, mean = 1 },
        { lens = 32, pages = { 2, 3 }, q = 2, mean = 6 },
        { lens = 16, pages = { 2, 3 }, q = 2, mean = 4 },
        { lens = 32, pages = { 1, 0 }, q = 1, mean = 1.5 },
        { lens = 32, pages = { 3, 2 }, q = 1, mean = 6 }, -- other pages, and nothing else
    }
    local sources = {}
    for i, state in ipairs(states) do
        block:set(times(batch, state.lens), times(batch, state.pages), times(batch, state.q))
        sources[i] = block.host:clone():to(gpu.device)
    end
    local tokens = (packed and 2 or 1) * batch
    local args = gpu.fresh {
        query = quire.tensor { shape = { tokens, 8, 128 }, dtype = "bf16", device = gpu.device }, kv_cache = cache.kv,
        paged_kv_indptr = block.indptr, paged_kv_indices = block.indices, seq_lens = block.seq_lens, max_seq_len = 32,
        qo_indptr = packed and block.qo_indptr or nil, max_seq_len_q = packed and 2 or nil,
        out = quire.tensor { shape = { 1 }, dtype = "bf16", device = gpu.device },
    }
    args.lse = nil
    local outs = gpu.fill_nan(quire.tensor { shape = { iterations, tokens, 8, 128 }, dtype = "bf16",
        device = gpu.device })
    block:set(times(batch, 0), times(batch, {}), times(batch, 0)):store()
    quire.prepare(args)
    local launches = {}
    for i = 1, iterations do
        launches[i] = quire.bind(gpu.with(args, { out = outs:select(0, i - 1) }))
    end
    gpu.sync()
    for i = 1, iterations do
        produce(block.there.pointer, sources[(i - 1) % #states + 1].pointer, block.words, i % 3 * 1500)
        launches[i](stream)
    end
    gpu.sync(stream)
    local wrong, first_wrong = 0, nil
    outs = outs:to "cpu"
    for i = 1, iterations do
        local state = states[(i - 1) % #states + 1]
        for token = 0, tokens - 1 do
            local wanted = (not packed or token < batch * state.q) and state.mean or 0
            for head = 0, 7 do
                for dim = 0, 127, 127 do
                    if outs:get(i - 1, token, head, dim) ~= wanted then
                        wrong = wrong + 1
                        first_wrong = first_wrong or i
                    end
                end
            end
        end
    end
    is(wrong, 0, "%d requests%s: metadata written just before each of %d decodes is seen%s", batch,
        packed and ", packed" or "", iterations,
        first_wrong and (" (iteration %d was the first not to)"):format(first_wrong) or "")
end
for _, batch in ipairs { 1, 20, 100, 400 } do
    toggle(false, batch, batch == 1 and 2000 or 100)
    toggle(true, batch, batch == 1 and 2000 or 100)
end

-- metadata_stable promises nothing about Q, K and V: they too are written just before.
do
    local ITERATIONS = 500
    local cache = quire.cache { pages = 40, page_size = 16, kv_heads = 1, head_dim = 64, dtype = "fp16",
        device = gpu.device, form = "tuple" }
    local sequence = cache:sequence(640)
    local batch = cache:batch { sequence }
    local words = cache.v:bytes() / 4
    local sources = {}
    for i = 1, 3 do
        sources[i] = cache.v:clone():fill(i)
    end
    local outs = gpu.fill_nan(quire.tensor { shape = { ITERATIONS, 1, 4, 64 }, dtype = "fp16", device = gpu.device })
    local args = gpu.fresh {
        query = quire.tensor { shape = { 1, 4, 64 }, dtype = "fp16", device = gpu.device }, kv_cache = cache.kv,
        paged_kv_indptr = batch.indptr, paged_kv_indices = batch.indices, seq_lens = batch.seq_lens, max_seq_len = 640,
        metadata_stable = true, out = quire.tensor { shape = { 1 }, dtype = "fp16", device = gpu.device },
    }
    args.lse = nil
    quire.prepare(args)
    gpu.sync()
    for i = 1, ITERATIONS do
        produce(cache.v.pointer, sources[i % 3 + 1].pointer, words, 2000)
        quire.decode(gpu.with(args, { out = outs:select(0, i - 1) }), stream)
    end
    gpu.sync(stream)
    local wrong = 0
    outs = outs:to "cpu"
    for i = 1, ITERATIONS do
        for head = 0, 3 do
            wrong = wrong + (outs:get(i - 1, 0, head, 63) == i % 3 + 1 and 0 or 1)
        end
    end
    is(wrong, 0, "metadata_stable: V written just before each of %d decodes is seen", ITERATIONS)
end

-- metadata_stable or not: the same bits, in chains in which one launch overlaps the next.
for _, t in ipairs {
    { kv_lens = { 5000, 3, 0, 600 }, hq = 32, hkv = 8 },
    { kv_lens = { 900, 4000 }, seq_len_q = 4, dtype = "fp8e4m3", out_dtype = "fp16" },
    { kv_lens = { 90, 4000, 1 }, q_lens = { 7, 1, 0 }, dtype = "fp16", d = 64, window_left = 500 },
} do
    t.id = "stable " .. table.concat(t.kv_lens, ",")
    local args = gpu.build(t)
    local wanted = gpu.decode_fresh(args, stream)
    local chain = {}
    for i = 1, 50 do
        chain[i] = gpu.fresh(args)
        chain[i].workspace_buffer = chain[1].workspace_buffer
        chain[i].metadata_stable = i % 4 ~= 0
    end
    gpu.sync()
    for _, one in ipairs(chain) do
        quire.decode(one, stream)
    end
    gpu.sync(stream)
    local differ = 0
    for _, one in ipairs(chain) do
        differ = differ + (gpu.same_bits(one, wanted) and 0 or 1)
    end
    is(differ, 0, "%s: with and without metadata_stable, chained: same bits", t.id)
end

-- P47: two streams at once, with workspaces of their own.
do
    local sides = {}
    for i, t in ipairs {
        { kv_lens = { 6000, 10, 700 }, hq = 32, hkv = 8 },
        { kv_lens = { 20, 5000, 900, 1 }, hq = 32, hkv = 8, seq_len_q = 2 },
    } do
        t.id = "side " .. i
        local args = gpu.build(t)
        sides[i] = { stream = gpu.stream(), wanted = gpu.decode_fresh(args), mine = gpu.fresh(args), differ = 0 }
        sides[i].launch = quire.bind(sides[i].mine)
    end
    for _ = 1, 10 do
        gpu.in_turns(sides, 20)
        for _, side in ipairs(sides) do
            gpu.sync(side.stream)
            side.differ = side.differ + (gpu.same_bits(side.mine, side.wanted) and 0 or 1)
            gpu.fill_nan(side.mine.out)
        end
    end
    is(sides[1].differ + sides[2].differ, 0, "two streams, 200 launches each: the bits of one at a time")
end

-- P43: nothing of the host is needed after a launch returned: every struct is overwritten right after it.
do
    local C = require "quire.library".C
    local LAUNCHES, DISTINCT = 1000, 8
    local args = gpu.build { kv_lens = { 300, 2, 1000, 77 }, id = "P43" }
    local queries, wanted = {}, {}
    for i = 1, DISTINCT do
        queries[i] = args.query:clone():normal { seed = "P43" .. i }
        wanted[i] = gpu.decode_fresh(gpu.with(args, { query = queries[i] }), stream)
    end
    local outs = gpu.fill_nan(quire.tensor { shape = { LAUNCHES, unpack(args.query.shape) }, dtype = "bf16",
        device = gpu.device })
    local workspace = gpu.workspace(args)
    local names = { "query", "kv_cache", "paged_kv_indptr", "paged_kv_indices", "seq_lens", "workspace_buffer", "out" }
    local structs, extents = ffi.new("DLTensor[?]", #names), ffi.new("int64_t[?]", #names * 10)
    local call = ffi.new "quire_decode_args"
    local handle = ffi.cast("void *", stream and stream:live() or nil)
    local failed = 0
    gpu.sync()
    for i = 1, LAUNCHES do
        local now = gpu.with(args, { query = queries[i % DISTINCT + 1], out = outs:select(0, i - 1),
            workspace_buffer = workspace })
        C.quire_decode_args_init(call)
        for n, name in ipairs(names) do
            local dl, shape = now[name].dl, extents + (n - 1) * 10
            structs[n - 1] = dl
            ffi.copy(shape, dl.shape, dl.ndim * 8)
            ffi.copy(shape + 5, dl.strides, dl.ndim * 8)
            structs[n - 1].shape, structs[n - 1].strides = shape, shape + 5
            call[name] = structs + (n - 1)
        end
        call.max_seq_len, call.mask_type = args.max_seq_len, C.QUIRE_MASK_CAUSAL
        failed = failed + (C.quire_decode(call, handle) == C.QUIRE_OK and 0 or 1)
        ffi.fill(call, ffi.sizeof(call), 0xEE)
        ffi.fill(structs, ffi.sizeof(structs), 0xEE)
        ffi.fill(extents, ffi.sizeof(extents), 0xEE)
    end
    gpu.sync(stream)
    is(failed, 0, "%d launches succeed", LAUNCHES)
    local differ = 0
    for i = 1, LAUNCHES do
        differ = differ + (outs:select(0, i - 1):same_bits(wanted[i % DISTINCT + 1].out) and 0 or 1)
    end
    is(differ, 0, "... and depend on nothing that the host overwrote after them")
end

-- A GPU kept busy by a foreign kernel: a decode that splits its items over the whole GPU gets few SMs, then all. One of
-- many heads, and one of a single head, which CTAs without a share put together.
local function beside_foreign_work(t)
    local cuda = quire.cuda
    local spin = gpu.kernel("spin", { "uint64_t" })
    local busy = cuda.stream(gpu.id)
    local args = gpu.with(gpu.build(t), { metadata_stable = t.metadata_stable })
    local wanted = gpu.decode_fresh(args, stream)
    local own = gpu.fresh(args)
    gpu.sync()

    -- A block of 1024 threads on every SM but one. Whether or not our CTAs fit beside it, they get that one: if one of
    -- them waited for one that cannot start, the decode would end only after the foreign kernel.
    local SECONDS = 3
    spin:launch(busy, cuda.sm_count(gpu.id) - 1, 1024, SECONDS * 1e9)
    local start = clock.now()
    while clock.now() < start + 0.1 do end -- it has all its SMs by then
    quire.decode(own, stream)
    gpu.sync(stream)
    local still_busy = busy:busy()
    ok(gpu.same_bits(own, wanted), "%s: on a GPU that is nearly full, the same bits", t.id)
    ok(still_busy, "... and without waiting for the foreign kernel to end")
    busy:sync()

    -- Full, then free again, many times: CTAs of ours start a few at a time.
    local launches = {}
    for i = 1, 20 do
        launches[i] = gpu.fresh(args)
    end
    gpu.sync()
    for i = 1, 20 do
        spin:launch(busy, cuda.sm_count(gpu.id) * (i % 3 + 1), 512 + 256 * (i % 3), i * 50000)
        quire.decode(launches[i], stream)
    end
    gpu.sync(stream)
    busy:sync()
    local differ = 0
    for i = 1, 20 do
        differ = differ + (gpu.same_bits(launches[i], wanted) and 0 or 1)
    end
    is(differ, 0, "... 20 decodes beside foreign kernels of all sizes: the same bits")
end
if not gpu.on_cpu then
    beside_foreign_work { kv_lens = { 4000, 5, 1000 }, hq = 32, hkv = 8, id = "many heads" }
    beside_foreign_work { kv_lens = { 9000 }, hq = 8, hkv = 1, id = "one KV head" }
    beside_foreign_work { kv_lens = { 9000 }, hq = 8, hkv = 1, metadata_stable = true, id = "one KV head, stable" }
end
tap.done()

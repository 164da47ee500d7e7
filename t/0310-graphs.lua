-- Decodes in CUDA graphs, and metadata that changes: everything live is read at every launch and replay.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"
local quire = require "quire"
local gpu = require "gpu"

local ok, is = tap.ok, tap.is
local function clear(args)
    gpu.fill_nan(args.out)
    gpu.fill_nan(args.lse)
end

local stream = gpu.stream()

-- CAPTURE, and the first decode of the process is one: what it needs is loaded inside the capture.
do
    local args = gpu.fresh(gpu.build { kv_lens = { 1, 4097, 33 }, id = "unprepared" })
    local graph = gpu.capture(stream, function(s) quire.bind(args)(s) end)
    is(table.concat(graph.nodes, " "), "kernel", "an unprepared decode is captured, as one kernel")
    local first = args.out:to "cpu":get(0, 0, 0)
    ok(gpu.on_cpu or first ~= first, "which has not run")
    graph:replay(stream)
    gpu.sync(stream)
    ok(quire.verify(args).ok, "the replay is right")
end

-- CAPTURE of every kind of call: global mode, so a hidden wait, allocation or copy fails; bits as without a graph.
for _, t in ipairs {
    { kv_lens = { 700, 0, 1, 129 }, hq = 32, hkv = 8 },
    { kv_lens = { 300, 5, 2000 }, dtype = "fp16", d = 64, mask = "dense", page = 64, form = "tuple",
      page_stride_pad = 64 },
    { kv_lens = { 300, 5, 2000 }, dtype = "fp8e4m3", d = 256, out_dtype = "fp16", page = 32 },
    { kv_lens = { 300, 70 }, dtype = "fp8e4m3", seq_len_q = 5 },
    { kv_lens = { 900, 40, 3000 }, seq_len_q = 4, hq = 28, hkv = 4, window_left = 200, page = 128 },
    { kv_lens = { 65, 0, 257, 12 }, q_lens = { 1, 3, 8, 0 }, dtype = "fp16" },
} do
    t.id = ("capture %s d%d %s q%s"):format(t.dtype or "bf16", t.d or 128, t.mask or "causal",
        t.seq_len_q or (t.q_lens and "packed" or 1))
    local args = gpu.fresh(gpu.build(t))
    quire.prepare(args)
    local launch = quire.bind(args)
    local graph = gpu.capture(stream, function(s)
        launch(s)
        launch(s)
    end)
    is(table.concat(graph.nodes, " "), gpu.on_cpu and "kernel" or "kernel kernel", "%s: one kernel a decode", t.id)
    for _ = 1, 3 do
        graph:replay(stream)
    end
    gpu.sync(stream)
    local verdict = quire.verify(args)
    ok(verdict.ok, "%s: replays are right (worst error %.3f of its bound)", t.id, verdict.worst_error)
    ok(gpu.same_bits(args, gpu.decode_fresh(args, stream)), "%s: same bits as a plain launch", t.id)
end

-- A decode whose live metadata changes from replay to replay: `pool` of pages, room for everything.
local function live(options)
    local cache = quire.cache { pages = options.pool, page_size = options.page, kv_heads = options.hkv,
        head_dim = options.d, dtype = options.dtype, device = gpu.device }
    cache.k:normal { seed = "live k" }
    cache.v:normal { seed = "live v" }
    local entries = options.batch * (math.ceil(options.max_len / options.page) + 1)
    local block = gpu.metadata(options.batch, entries)
    local shape = options.total_q and { options.total_q, options.hq, options.d }
        or options.seq_len_q == 1 and { options.batch, options.hq, options.d }
        or { options.batch, options.seq_len_q, options.hq, options.d }
    local args = {
        query = quire.tensor { shape = shape, dtype = options.dtype, device = gpu.device }:normal { seed = "live q" },
        kv_cache = cache.kv,
        paged_kv_indptr = block.indptr, paged_kv_indices = block.indices, seq_lens = block.seq_lens,
        max_seq_len = options.max_len, mask_type = options.mask, window_left = options.window_left,
        metadata_stable = options.metadata_stable,
        out = quire.tensor { shape = { 1 }, dtype = options.out_dtype or options.dtype, device = gpu.device },
    }
    if options.total_q then
        args.qo_indptr, args.max_seq_len_q = block.qo_indptr, options.max_q
    else
        args.seq_len_q = options.seq_len_q
    end
    return gpu.fresh(args), block
end

local function capture(args)
    quire.prepare(args)
    local launch = quire.bind(args)
    return gpu.capture(stream, function(s) launch(s) end)
end

-- P40: a length, then a schedule, frozen at capture.
local function check_replay(graph, args, name, ...)
    clear(args)
    graph:replay(stream)
    gpu.sync(stream)
    local verdict = quire.verify(args)
    ok(verdict.ok and gpu.same_bits(args, gpu.decode_fresh(args, stream)), name, ...)
end

do
    local function row(first, len)
        local list = {}
        for i = 1, math.ceil(len / 16) do
            list[i] = (first + i * 7) % 200
        end
        return list
    end
    local args, block = live { batch = 4, max_len = 2048, page = 16, hq = 8, hkv = 2, d = 128, dtype = "bf16",
        seq_len_q = 1, pool = 200, mask = "causal" }
    local function set(lens)
        block:set(lens, { row(0, lens[1]), row(50, lens[2]), row(100, lens[3]), row(150, lens[4]) }):store()
    end
    for _, pair in ipairs {
        { { 2048, 1, 1, 1 }, { 5, 300, 257, 64 } },
        { { 1, 1, 1, 1 }, { 2048, 2048, 2048, 2048 } },
        { { 2048, 2048, 2048, 2048 }, { 1, 1, 1, 1 } },
        { { 7, 0, 33, 0 }, { 0, 2048, 0, 0 } },
    } do
        set(pair[1])
        local graph = capture(args)
        set(pair[2])
        check_replay(graph, args, "captured at %s, replayed at %s", table.concat(pair[1], ","),
            table.concat(pair[2], ","))
    end
end

do
    local args, block = live { batch = 2, total_q = 8, max_q = 8, max_len = 512, page = 32, hq = 8, hkv = 1, d = 128,
        dtype = "bf16", pool = 40, mask = "causal" }
    local function pages(from, to, shift)
        local list = {}
        for i = from, to - 1 do
            list[#list + 1] = (i + shift) % 40
        end
        return list
    end
    block:set({ 65, 257 }, { pages(0, 3, 0), pages(3, 12, 0) }, { 1, 7 }):store()
    local graph = capture(args)
    check_replay(graph, args, "packed: as captured")
    block:set({ 257, 65 }, { pages(0, 9, 1), pages(9, 12, 1) }, { 4, 4 }):store()
    check_replay(graph, args, "packed: other query lengths, KV lengths and pages")
end

-- 200 random replays.
math.randomseed(40)
for _, options in ipairs {
    { batch = 7, max_len = 3000, page = 16, hq = 8, hkv = 2, d = 128, dtype = "bf16", seq_len_q = 1, mask = "dense" },
    { batch = 5, max_len = 2000, page = 64, hq = 14, hkv = 2, d = 64, dtype = "fp16", seq_len_q = 3, mask = "causal",
      window_left = 300, metadata_stable = true },
    { batch = 6, total_q = 20, max_q = 7, max_len = 1500, page = 32, hq = 8, hkv = 1, d = 128, dtype = "fp8e4m3",
      out_dtype = "fp16", mask = "causal" },
    { batch = 150, max_len = 400, page = 128, hq = 4, hkv = 4, d = 256, dtype = "bf16", seq_len_q = 1,
      mask = "causal" },
} do
    options.pool = 120
    local args, block = live(options)
    local function change()
        local lens, pages = gpu.random_rows(options.batch, options.max_len, options.page, options.pool)
        local q = options.total_q and {}
        local left = options.total_q
        for b = 1, q and options.batch or 0 do
            q[b] = math.random(0, math.min(left, options.max_q))
            left = left - q[b]
        end
        block:set(lens, pages, q):store()
    end
    change()
    local graph = capture(args)
    local wrong, differ, REPLAYS = 0, 0, 50
    for i = 1, REPLAYS do
        change()
        clear(args)
        graph:replay(stream)
        gpu.sync(stream)
        if not gpu.same_bits(args, gpu.decode_fresh(args, stream)) then
            differ = differ + 1
        end
        if i % 10 == 0 and not quire.verify(args).ok then
            wrong = wrong + 1
        end
    end
    local name = ("%s, d %d, B %d%s"):format(options.dtype, options.d, options.batch,
        options.total_q and ", packed" or "")
    is(wrong, 0, "%s: replays with random metadata are right", name)
    is(differ, 0, "%s: each has the bits of a plain launch", name)
end
tap.done()

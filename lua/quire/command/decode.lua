-- decode.lua - quire decode: a paged cache of real or given lengths, one decode, its check
-- SPDX-License-Identifier: Apache-2.0

local quire = require "quire"
local cache = require "quire.cache"
local clock = require "quire.clock"
local common = require "quire.command.options"
local progress = require "quire.command.progress"
local sample = require "quire.sample"
local subset = require "quire.subset"
local tensor = require "quire.tensor"
local text = require "quire.text"
local trace = require "quire.trace"
local work = require "quire.work"

local decode = {}

local DEFAULT_BATCH = { random = 8, trace = 64 }
local SPARE_PAGES = 3

-- Lengths without a trace: log-normal as in conversations, median 600.
local MEDIAN_LENGTH, SPREAD, LONGEST = 600, 1.1, 8192

-- Elements of K in the reference that are worth waiting for: a few seconds of two cores.
local VERIFY_BUDGET = 1e8

local TIMED_SECONDS, TIMED_RUNS = 0.3, 31 -- whichever comes first, and at least one run

function decode.describe(command)
    command:description "Decode a batch over a paged cache and check it against the float64 reference."
    command:option "--trace"
        :description "Take the lengths of a request trace: CSV, or JSON lines whose block hashes share pages."
        :argname "FILE"
    command:option "--lens"
        :description "Lengths, such as '100 8192x32'."
        :argname "LENGTHS"
        :convert(common.lengths)
    command:option "--batch"
        :description "Requests: the first of the trace (default 64), or drawn at random (default 8)."
        :argname "N"
        :convert(common.integer("--batch", 1))
    common.device(command)
    command:option "--q-heads":argname "N":default "32":convert(common.integer("--q-heads", 1))
    command:option "--kv-heads":argname "N":default "8":convert(common.integer("--kv-heads", 1))
    command:option "--head-dim":argname "N":default "128":convert(common.integer("--head-dim", 1))
    command:option "--dtype"
        :description "Of Q, K and V."
        :choices { "fp16", "bf16", "fp8e4m3" }
        :default "bf16"
    command:option "--out-dtype"
        :description "Default: that of Q; fp8e4m3 may give fp16."
        :choices { "fp16", "bf16", "fp8e4m3" }
    command:option "--page-size":argname "N":default "16":convert(common.integer("--page-size", 1))
    command:option "--mask":choices { "dense", "causal" }:default "dense"
    command:option "--window"
        :description "Keys before a token that it sees besides itself; needs --mask causal."
        :argname "N"
        :default "-1"
        :convert(common.integer("--window", -1))
    command:option "--seq-len-q"
        :description "Query tokens of every request."
        :argname "N"
        :default "1"
        :convert(common.integer("--seq-len-q", 1))
    command:option "--seed"
        :description "Of the data, of random lengths and of the order of pages."
        :default "0"
    command:option "--verify"
        :description "What to check against the reference: all requests, or a sample where all would take long."
        :choices { "all", "sample" }
        :default "sample"
    command:flag "--json"
        :description "Print one JSON object."
end

-- ---- the batch -----------------------------------------------------------------------------------

local function random_lengths(count, seed)
    local z = tensor.new { shape = { count }, dtype = "fp64" }:normal { seed = seed .. "/lengths" }
    local lengths = {}
    for b = 1, count do
        local length = math.floor(MEDIAN_LENGTH * math.exp(SPREAD * z[b - 1]))
        lengths[b] = math.max(1, math.min(LONGEST, length))
    end
    return lengths
end

-- The requests, and where they come from in words.
local function requests_of(options)
    if options.trace and options.lens then
        error("--trace and --lens: only one of them can be given", 0)
    elseif options.lens and options.batch then
        error("--lens and --batch: only one of them can be given", 0)
    elseif options.trace then
        local requests, problem = trace.read(options.trace, options.batch or DEFAULT_BATCH.trace)
        if not requests then
            error(problem, 0)
        end
        if options.batch and #requests < options.batch then
            error(("--batch: %s has only %d requests"):format(options.trace, #requests), 0)
        end
        return requests, options.trace
    end
    local requests = {}
    local lengths = options.lens
        or random_lengths(options.batch or DEFAULT_BATCH.random, options.seed)
    for b, length in ipairs(lengths) do
        requests[b] = { length = length, blocks = {} }
    end
    return requests, options.lens and "--lens" or ("random, seed " .. options.seed)
end

local function lengths_of(requests)
    local lengths, keys = {}, 0
    for b, request in ipairs(requests) do
        lengths[b] = request.length
        keys = keys + request.length
    end
    table.sort(lengths)
    return { min = lengths[1], median = text.median(lengths), max = lengths[#lengths], total = keys }
end

-- The mean of n values is about 1/sqrt(n), and fp8 has its digits from 2^-6 to 448: as a model's
-- scales would, this one puts the shortest and the longest request at equal distances from 1.
local function fp8_output_scale(requests)
    local lengths = lengths_of(requests)
    return (math.max(lengths.min, 1) * math.max(lengths.max, 1)) ^ 0.25
end

-- The cache with its sequences, and the arguments of quire.decode.
local function build(options, requests)
    local plan = trace.plan(requests, options.page_size)
    local pool = cache.new {
        device = options.device, pages = plan.pages + SPARE_PAGES, page_size = options.page_size,
        kv_heads = options.kv_heads, head_dim = options.head_dim, dtype = options.dtype,
        shuffle = options.seed .. "/pages",
    }
    pool.kv:normal { seed = options.seed .. "/kv" }
    local sequences = trace.sequences(requests, plan, pool)
    pool:poison()
    local batch = pool:batch(sequences)
    local shape = { #requests, options.q_heads, options.head_dim }
    if options.seq_len_q > 1 then
        table.insert(shape, 2, options.seq_len_q)
    end
    local out_dtype = options.out_dtype or options.dtype
    local query = tensor.new { shape = shape, dtype = options.dtype, device = options.device }
    local lse_shape = { unpack(shape) }
    lse_shape[#lse_shape] = nil
    local arguments = {
        query = query:normal { seed = options.seed .. "/q" },
        kv_cache = pool.kv,
        paged_kv_indptr = batch.indptr,
        paged_kv_indices = batch.indices,
        seq_lens = batch.seq_lens,
        max_seq_len = batch.max_seq_len,
        seq_len_q = options.seq_len_q,
        mask_type = options.mask,
        window_left = options.window,
        bmm2_scale = out_dtype == "fp8e4m3" and fp8_output_scale(requests) or 1,
        out = tensor.new { shape = shape, dtype = out_dtype, device = options.device }:fill(0 / 0),
        lse = tensor.new { shape = lse_shape, dtype = "fp32", device = options.device }:fill(0 / 0),
    }
    local workspace_bytes = quire.workspace_size(arguments)
    if workspace_bytes > 0 then
        arguments.workspace_buffer = tensor.new {
            shape = { workspace_bytes }, dtype = "uint8", device = options.device,
        }
    end
    return pool, sequences, arguments
end

-- ---- time ----------------------------------------------------------------------------------------

-- Seconds of a decode, as seen by who waits for it: median of several runs, after one that is not
-- counted.
local function time_decode(arguments, device)
    local launch = quire.bind(arguments)
    local function finish()
        if device ~= "cpu" then
            quire.cuda.sync(tonumber(device:match "%d+"))
        end
    end
    launch()
    finish()
    local times, start = {}, clock.now()
    repeat
        local before = clock.now()
        launch()
        finish()
        times[#times + 1] = clock.now() - before
    until #times == TIMED_RUNS or clock.now() - start > TIMED_SECONDS
    return text.median(times), #times
end

-- ---- check ---------------------------------------------------------------------------------------

local function choose(options, requests)
    local shape = { hq = options.q_heads, hkv = options.kv_heads, d = options.head_dim, window_left = options.window }
    local costs = {}
    for b, request in ipairs(requests) do
        costs[b] = sample.request(request.length, options.seq_len_q, shape)
    end
    return sample.pieces(costs, options.verify == "all" and math.huge or VERIFY_BUDGET, options.seed)
end

-- ---- report --------------------------------------------------------------------------------------

local function report(r)
    local rows = {
        { "requests", ("%d of %s, %s"):format(r.requests, r.source,
            r.seq_len_q == 1 and "one query token each" or ("%d query tokens each"):format(r.seq_len_q)) },
        { "lengths", ("min %d, median %.0f, max %d, %d keys in all"):format(
            r.lengths.min, r.lengths.median, r.lengths.max, r.lengths.total) },
        { "heads", ("%d query, %d KV, head_dim %d, %s to %s"):format(
            r.q_heads, r.kv_heads, r.head_dim, r.dtype, r.out_dtype) },
        { "mask", r.window_left >= 0 and ("%s, window_left %d"):format(r.mask, r.window_left) or r.mask },
        { "pages", ("%d of %d tokens used, %d of them shared; %s, %s without sharing"):format(
            r.pages_used, r.page_size, r.pages_shared, text.bytes(r.pages_used * r.page_bytes),
            text.bytes(r.pages_listed * r.page_bytes)) },
        { "workspace", text.bytes(r.workspace_bytes) },
        { "time", ("%s (median of %d), %s of K and V read: %.2f GB/s"):format(
            text.seconds(r.seconds), r.runs, text.bytes(r.kv_bytes), r.kv_bytes / r.seconds / 1e9) },
        { "checked", ("%s against the float64 reference, %d query rows"):format(
            r.verified_tokens == r.requests * r.seq_len_q and "all requests"
                or ("a sample of %d query tokens in %d of %d requests (--verify all checks all)"):format(
                    r.verified_tokens, r.verified, r.requests),
            r.verdict.rows) },
        { "error", ("%.2f of its bound at worst, lse %.2f; relative %.2e, bound %.1e"):format(
            r.verdict.worst_error, r.verdict.lse_error, r.verdict.relative_error, r.verdict.relative_bound) },
        { "result", r.right and "right" or ("WRONG: %d elements of %d rows outside their bound; worst is "
            .. "element %d of the checked: expected %.9g, got %.9g"):format(r.verdict.failures, r.verdict.rows,
            r.verdict.worst_index, r.verdict.worst_expected, r.verdict.worst_got) },
    }
    print(("decode on %s (%s, %s)"):format(r.device, r.device_name, r.kernels))
    print(text.table(rows, {}))
end

function decode.run(options)
    local requests, source = requests_of(options)
    local device = common.usable_device(options.device)
    local bar = progress.start(3)
    bar:show(0, "making the cache")
    local pool, sequences, arguments = build(options, requests)
    bar:show(1, "decoding")
    local seconds, runs = time_decode(arguments, options.device)

    bar:show(2, "comparing with the reference")
    local pieces = choose(options, requests)
    local verdict = quire.verify(subset(arguments, pieces))
    local verified_tokens, verified = sample.count(pieces)
    local right = verdict.ok and verdict.rows == verified_tokens * options.q_heads
        and verdict.relative_error <= verdict.relative_bound
    bar:clear()

    local listed, keys = 0, 0
    for b, sequence in ipairs(sequences) do
        listed = listed + #sequence.pages
        keys = keys + work.keys(requests[b].length, options.seq_len_q, options.window)
    end
    local result = {
        device = options.device, device_name = device.name, kernels = device.kernels,
        source = source, requests = #requests, lengths = lengths_of(requests),
        q_heads = options.q_heads, kv_heads = options.kv_heads, head_dim = options.head_dim,
        dtype = options.dtype, out_dtype = arguments.out.dtype, seq_len_q = options.seq_len_q,
        mask = options.mask, window_left = options.window,
        page_size = options.page_size, page_bytes = pool:page_bytes(),
        pages_used = pool.pages - pool:pages_free(), pages_shared = pool:pages_shared(), pages_listed = listed,
        workspace_bytes = arguments.workspace_buffer and arguments.workspace_buffer:bytes() or 0,
        kv_bytes = keys * pool:page_bytes() / options.page_size,
        seconds = seconds, runs = runs,
        verified = verified, verified_tokens = verified_tokens, verdict = verdict, right = right,
    }
    if options.json then
        print(common.json(result))
    else
        report(result)
    end
    return right
end

return decode

-- bench.lua - measures workloads over one large pool of pages
-- SPDX-License-Identifier: Apache-2.0
--
-- The pool holds normal numbers.  A workload's pages are drawn from a random permutation of the whole
-- pool, in several sets that take turns, so that no launch finds its keys in a cache: the pages that a
-- launch sees are in no other set.  Each workload is measured beside the read rate of its own pages at
-- that moment, and its output, from the measured launches, is compared with the reference.

local quire = require "quire"
local cases = require "quire.cases"
local dtype = require "quire.dtype"
local measure = require "quire.measure"
local memory = require "quire.memory"
local normal = require "quire.normal"
local sample = require "quire.sample"
local subset = require "quire.subset"
local tensor = require "quire.tensor"
local text = require "quire.text"
local work = require "quire.work"

local Bench = {}
Bench.__index = Bench

local CACHES = 7             -- sets in rotation hold this many times the last-level cache,
local ROTATION_SHARE = 1 / 16 -- or this share of the memory where that is less
local READ_BYTES = 4e9       -- of pages to read for the read rate on CUDA; on the CPU the rotation's
local MEMORY_SHARE = 1 / 2   -- of the device, for the pool
local ALIGNMENT = 64
local VERIFY_BUDGET = 7e7  -- elements of K in the reference: a second or two of two cores
local PATTERN = 2 ^ 26     -- elements that are made; the pool repeats them

-- What a launch is allowed beyond the time of its bytes, in seconds.
local ALLOWED = { promised = 3e-6, cuda = 4.5e-6, cpu = 20e-6 }

local function page_bytes(case)
    return 2 * case.hkv * case.page * case.d * dtype.get(case.dtype).bytes
end

-- Pages that a launch lists, and those of them that it sees.
local function pages_of(case)
    local listed, seen = 0, 0
    for b = 1, #case.kv_lens do
        local all, some = work.pages(case, b)
        listed, seen = listed + all, seen + some
    end
    return listed, seen
end

-- Bytes of the pages that a launch sees.
local function set_bytes_of(case)
    local _, seen = pages_of(case)
    return seen * page_bytes(case)
end

-- A bench of `list`, cases from casefile, on a device.  Options: metadata_stable; working_set, bytes
-- that the sets in rotation hold and that the read rate is measured over; matrix_rate, operations per
-- second, for the least time of workloads of many rows.
local function new(list, device, options)
    local info = quire.device(device)
    local limit = info.memory_bytes * MEMORY_SHARE
    local rotation = options.working_set or math.min(CACHES * info.cache_bytes, info.memory_bytes * ROTATION_SHARE)
    local read_bytes = options.working_set or device == "cpu" and rotation or READ_BYTES
    local wanted = math.min(math.max(rotation, read_bytes), limit)
    for _, case in ipairs(list) do
        local set = set_bytes_of(case)
        if set <= limit then
            local sets = math.ceil(rotation / math.max(set, 1))
            wanted = math.max(wanted, set, math.min(sets * set, limit))
        end
    end
    return setmetatable({
        device = device,
        info = info,
        limit = limit,
        rotation = rotation,
        read_bytes = read_bytes,
        metadata_stable = options.metadata_stable,
        matrix_rate = options.matrix_rate,
        pool_bytes = math.ceil(wanted / ALIGNMENT) * ALIGNMENT,
        allowed = device == "cpu" and ALLOWED.cpu or options.metadata_stable and ALLOWED.promised or ALLOWED.cuda,
    }, Bench)
end

-- The pool with normal numbers of a type; it is filled again when the type changes.
function Bench:pool_of(name)
    if not self.pool then
        self.pool = tensor.new { shape = { self.pool_bytes }, dtype = "uint8", device = self.device }
    end
    if self.pool_dtype ~= name then
        local count = math.min(PATTERN, math.floor(self.pool_bytes / dtype.get(name).bytes))
        local pattern = tensor.new { shape = { count }, dtype = name }:normal { seed = "bench" }
        local filled = pattern:bytes()
        memory.copy(self.pool.pointer, self.device, pattern.pointer, "cpu", filled)
        while filled < self.pool_bytes do
            local step = math.min(pattern:bytes(), self.pool_bytes - filled)
            memory.copy(self.pool.pointer + filled, self.device, self.pool.pointer, self.device, step)
            filled = filled + step
        end
        self.pool_dtype = name
    end
    return self.pool
end

-- The page ids, [sets, listed], of as many sets as `rotation` bytes hold and the pages in `order` have room for.
-- No page that a token sees is in two of them; those that none sees may be any.
local function page_sets(case, order, rotation)
    local listed, seen = pages_of(case)
    local sets = math.max(1, math.min(math.ceil(rotation / math.max(set_bytes_of(case), 1)),
        math.floor(#order / math.max(seen, 1))))
    local ids = tensor.new { shape = { sets, listed }, dtype = "int32" }
    local at, next_seen, next_unseen = 0, 1, 1
    for _ = 1, sets do
        for b = 1, #case.kv_lens do
            local all, some = work.pages(case, b)
            for _ = 1, all - some do
                ids.pointer[at], next_unseen = order[next_unseen], next_unseen % #order + 1
                at = at + 1
            end
            for _ = 1, some do
                ids.pointer[at], next_seen = order[next_seen], next_seen + 1
                at = at + 1
            end
        end
    end
    return ids
end

-- As a model's scales would, keeps fp8 its digits: the mean of n values is about 1 / sqrt(n).
local function output_scale(case)
    local keys = {}
    for b, length in ipairs(case.kv_lens) do
        keys[b] = work.keys(length, case.q_lens[b], case.window_left)
    end
    return case.out_dtype == "fp8e4m3" and math.sqrt(text.largest(keys, 1)) or 1
end

-- Arguments of a launch for each set of pages, alike but for paged_kv_indices; also the pool as a
-- cache, and the order of all its pages.
local function build(self, case)
    local pool = self:pool_of(case.dtype)
    local pages = math.floor(self.pool_bytes / page_bytes(case))
    local kv = tensor.new {
        data = pool.pointer, shape = { pages, 2, case.hkv, case.page, case.d }, dtype = case.dtype,
        device = self.device,
    }
    local order = normal.permutation(pages, case.id)
    local indices = page_sets(case, order, self.rotation):to(self.device)
    local function int32(values)
        return tensor.new { values, shape = { #values }, dtype = "int32", device = self.device }
    end
    local indptr = { 0 }
    for b = 1, #case.kv_lens do
        indptr[b + 1] = indptr[b] + work.pages(case, b)
    end
    local shape, qo_indptr = cases.query_shape(case)
    if case.page_stride_pad ~= 0 then
        error(("page_stride_pad: expected 0, as the pages of a bench have no gaps, got %d"):format(
            case.page_stride_pad), 0)
    elseif case.pattern ~= "random" then
        error(("pattern: expected random, as the pool of a bench is, got %s"):format(case.pattern), 0)
    end
    local common = {
        query = tensor.new { shape = shape, dtype = case.dtype, device = self.device }:normal { seed = case.id },
        kv_cache = case.form == "tuple" and { kv:select(1, 0), kv:select(1, 1) } or kv,
        paged_kv_indptr = int32(indptr),
        seq_lens = int32(case.kv_lens),
        max_seq_len = case.max_seq_len,
        mask_type = case.mask,
        window_left = case.window_left,
        metadata_stable = self.metadata_stable,
        bmm2_scale = output_scale(case),
        out = tensor.new { shape = shape, dtype = case.out_dtype, device = self.device },
    }
    if qo_indptr then
        common.qo_indptr, common.max_seq_len_q = int32(qo_indptr), case.max_seq_len_q
    else
        common.seq_len_q = case.seq_len_q
    end
    common.paged_kv_indices = indices:select(0, 0)
    common.workspace_buffer = tensor.new {
        shape = { math.max(1, quire.workspace_size(common)) }, dtype = "uint8", device = self.device,
    }
    local of_set = {}
    for s = 1, indices.shape[1] do
        of_set[s] = {}
        for name, value in pairs(common) do
            of_set[s][name] = value
        end
        of_set[s].paged_kv_indices = indices:select(0, s - 1)
    end
    return of_set, kv, order
end

-- Compares what the last launch left with the reference; also what was compared.
local function verify(case, given)
    local requests = {}
    for b, length in ipairs(case.kv_lens) do
        requests[b] = sample.request(length, case.q_lens[b], case)
    end
    local pieces = sample.pieces(requests, VERIFY_BUDGET, case.id)
    local tokens, of_requests = sample.count(pieces)
    local verdict = quire.verify(subset(given, pieces))
    local right = verdict.ok and verdict.rows == tokens * case.hq and verdict.relative_error <= verdict.relative_bound
    return right, verdict, tokens, of_requests
end

-- What measures the read rate of a workload's pages, in the order in which its sets come.
local function reader(self, case, kv, order)
    local count = math.min(#order, math.max(1, math.ceil(self.read_bytes / page_bytes(case))))
    local first = {}
    for i = 1, count do
        first[i] = order[i]
    end
    first = tensor.new { first, dtype = "int32", device = self.device }
    return function()
        return measure.read_rate(kv, first)
    end
end

-- Measures one workload: a table of results, or one with `problem` where it cannot be run, or `skipped`
-- where the device has not the memory.
function Bench:run(case)
    local result = { name = case.id, page = case.page, peers = case.peers }
    local set_bytes = set_bytes_of(case)
    if set_bytes > self.pool_bytes then
        result.skipped = ("%.1f GB of pages, and room for %.1f"):format(set_bytes / 1e9, self.limit / 1e9)
        return result
    end
    local of_set, kv, order = build(self, case)
    quire.prepare(of_set[1])
    local read_rate = reader(self, case, kv, order)
    local before, unknown = read_rate()
    result.read_problem = unknown
    local launches = {}
    for s, given in ipairs(of_set) do
        launches[s] = quire.bind(given)
    end
    of_set[1].out:fill(0 / 0) -- which stays where no launch writes
    local last
    result.seconds, result.runs, last = measure.launch_time(self.device, launches)
    result.read_rate = before and math.max(before, read_rate()) -- a disturbed measurement is too low
    local verdict
    result.right, verdict, result.verified_tokens, result.verified = verify(case, of_set[last])
    if self.device ~= "cpu" then
        result.host_seconds = measure.host_time(self.device, launches, result.seconds)
    end
    result.requests, result.tokens = #case.kv_lens, 0
    for _, q in ipairs(case.q_lens) do
        result.tokens = result.tokens + q
    end
    result.error, result.relative_error = verdict.worst_error, verdict.relative_error
    result.bytes, result.kv_bytes, result.flops = work.bytes(case), work.kv_bytes(case), work.flops(case)
    result.rate, result.flop_rate = result.bytes / result.seconds, result.flops / result.seconds
    if result.read_rate then
        local least = work.least_seconds(case, result.read_rate, self.matrix_rate)
        result.share = result.rate / result.read_rate
        result.overhead = result.seconds - least
        result.over_goal = result.seconds / (least + self.allowed)
    end
    return result
end

return { new = new, page_sets = page_sets }

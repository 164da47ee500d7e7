-- bench.lua - measures workloads over one large pool of pages
-- SPDX-License-Identifier: Apache-2.0
--
-- The pool holds normal numbers.  A workload's pages are drawn from a random permutation of the whole
-- pool, in several disjoint sets that take turns, so that no launch finds its keys in a cache.  Each
-- workload is measured beside the read rate of its own pages at that moment, and its output, from the
-- measured launches, is compared with the reference.

local quire = require "quire"
local casefile = require "quire.casefile"
local cases = require "quire.cases"
local measure = require "quire.measure"
local memory = require "quire.memory"
local normal = require "quire.normal"
local sample = require "quire.sample"
local subset = require "quire.subset"
local tensor = require "quire.tensor"

local Bench = {}
Bench.__index = Bench

local CACHES = 7             -- sets in rotation hold this many times the last-level cache,
local ROTATION_SHARE = 1 / 16 -- or this share of the memory where that is less
local READ_BYTES = 4e9       -- of pages to read for the read rate on CUDA; on the CPU the rotation's
local MEMORY_SHARE = 1 / 2   -- of the device, for the pool
local ALIGNMENT = 64
local VERIFY_BUDGET = 2e8  -- products of Q and K in the reference: well under a second a workload
local PATTERN = 2 ^ 26     -- elements that are made; the pool repeats them

-- What a launch is allowed beyond the time of its bytes, in seconds.
local ALLOWED = { promised = 3e-6, cuda = 4.5e-6, cpu = 20e-6 }

local function element_bytes(case)
    return case.dtype == "fp8e4m3" and 1 or 2
end

local function page_bytes(case)
    return 2 * case.hkv * case.page * case.d * element_bytes(case)
end

local function pages_of(case)
    local pages = 0
    for _, length in ipairs(case.kv_lens) do
        pages = pages + math.ceil(length / case.page)
    end
    return pages
end

-- Bytes that a launch has to move: live keys and values, queries, output, metadata.
local function bytes_of(case)
    local shape = cases.query_shape(case)
    local rows = 1
    for _, extent in ipairs(shape) do
        rows = rows * extent
    end
    local out = case.out_dtype == "fp8e4m3" and 1 or 2
    return casefile.kv_bytes(case) + rows * (element_bytes(case) + out)
        + 4 * (2 * #case.kv_lens + 1 + pages_of(case))
end

-- A bench of `list`, cases from casefile, on a device.  Options: metadata_stable; working_set, bytes
-- that the sets in rotation hold and that the read rate is measured over.
local function new(list, device, options)
    local info = quire.device(device)
    local limit = info.memory_bytes * MEMORY_SHARE
    local rotation = options.working_set or math.min(CACHES * info.cache_bytes, info.memory_bytes * ROTATION_SHARE)
    local read_bytes = options.working_set or device == "cpu" and rotation or READ_BYTES
    local wanted = math.min(math.max(rotation, read_bytes), limit)
    for _, case in ipairs(list) do
        local set = pages_of(case) * page_bytes(case)
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
        pool_bytes = math.ceil(wanted / ALIGNMENT) * ALIGNMENT,
        allowed = device == "cpu" and ALLOWED.cpu or options.metadata_stable and ALLOWED.promised or ALLOWED.cuda,
    }, Bench)
end

-- The pool with normal numbers of a type; it is filled again when the type changes.
function Bench:pool_of(dtype)
    if not self.pool then
        self.pool = tensor.new { shape = { self.pool_bytes }, dtype = "uint8", device = self.device }
    end
    if self.pool_dtype ~= dtype then
        local size = dtype == "fp8e4m3" and 1 or 2
        local count = math.min(PATTERN, math.floor(self.pool_bytes / size))
        local pattern = tensor.new { shape = { count }, dtype = dtype }:normal { seed = "bench" }
        local filled = pattern:bytes()
        memory.copy(self.pool.pointer, self.device, pattern.pointer, "cpu", filled)
        while filled < self.pool_bytes do
            local step = math.min(pattern:bytes(), self.pool_bytes - filled)
            memory.copy(self.pool.pointer + filled, self.device, self.pool.pointer, self.device, step)
            filled = filled + step
        end
        self.pool_dtype = dtype
    end
    return self.pool
end

-- Arguments of a launch for each set of pages, alike but for paged_kv_indices; also the pool as a
-- cache, and the order of all its pages.
local function build(self, case)
    local pool = self:pool_of(case.dtype)
    local pages, each = math.floor(self.pool_bytes / page_bytes(case)), pages_of(case)
    local kv = tensor.new {
        data = pool.pointer, shape = { pages, 2, case.hkv, case.page, case.d }, dtype = case.dtype,
        device = self.device,
    }
    local order = normal.permutation(pages, case.id)
    local set_bytes = math.max(1, each * page_bytes(case))
    local sets = math.max(1, math.min(math.ceil(self.rotation / set_bytes), math.floor(pages / math.max(1, each))))
    local function int32(values, shape)
        return tensor.new { values, shape = shape or { #values }, dtype = "int32", device = self.device }
    end
    local chosen = {}
    for i = 1, sets * each do
        chosen[i] = order[i]
    end
    local indices = int32(chosen, { sets, each })
    local indptr = { 0 }
    for b, length in ipairs(case.kv_lens) do
        indptr[b + 1] = indptr[b] + math.ceil(length / case.page)
    end
    local shape, qo_indptr = cases.query_shape(case)
    local common = {
        query = tensor.new { shape = shape, dtype = case.dtype, device = self.device }:normal { seed = case.id },
        kv_cache = kv,
        paged_kv_indptr = int32(indptr),
        seq_lens = int32(case.kv_lens),
        max_seq_len = case.max_seq_len,
        mask_type = case.mask,
        window_left = case.window_left,
        metadata_stable = self.metadata_stable,
        bmm2_scale = case.out_dtype == "fp8e4m3" and math.sqrt(case.max_seq_len) or 1, -- keeps fp8 its digits
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
    for s = 1, sets do
        of_set[s] = {}
        for name, value in pairs(common) do
            of_set[s][name] = value
        end
        of_set[s].paged_kv_indices = indices:select(0, s - 1)
    end
    return of_set, kv, order
end

-- Compares what the last launch left with the reference.
local function verify(case, given)
    local costs = {}
    for b, length in ipairs(case.kv_lens) do
        costs[b] = length * case.q_lens[b] * case.hq * case.d
    end
    local chosen = sample(costs, VERIFY_BUDGET, case.id)
    local rows = 0
    for _, b in ipairs(chosen) do
        rows = rows + case.q_lens[b + 1] * case.hq
    end
    local verdict = quire.verify(subset(given, chosen))
    return verdict.ok and verdict.rows == rows and verdict.relative_error <= verdict.relative_bound,
        verdict, #chosen
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
    local set_bytes = pages_of(case) * page_bytes(case)
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
    result.right, verdict, result.verified = verify(case, of_set[last])
    if self.device ~= "cpu" then
        result.host_seconds = measure.host_time(self.device, launches)
    end
    result.requests = #case.kv_lens
    result.error, result.relative_error = verdict.worst_error, verdict.relative_error
    result.bytes, result.kv_bytes = bytes_of(case), casefile.kv_bytes(case)
    result.rate = result.bytes / result.seconds
    if result.read_rate then
        local least = result.bytes / result.read_rate
        result.share = least / result.seconds
        result.overhead = result.seconds - least
        result.over_goal = result.seconds / (least + self.allowed)
    end
    return result
end

return { new = new }

-- gpu.lua - what the tests of a GPU share: the device, its streams and graphs, cases, metadata that changes
-- SPDX-License-Identifier: Apache-2.0
--
-- The device is $QUIRE_TEST_DEVICE, else cuda:0; without it the test is skipped. On "cpu" the same tests run with
-- stand-ins for streams and graphs, which tries their own logic where there is no GPU.

local ffi = require "ffi"
local tap = require "tap"
local quire = require "quire"
local cases = require "quire.cases"
local memory = require "quire.memory"

local gpu = { device = tap.device "cuda:0" }
gpu.on_cpu = gpu.device == "cpu"
gpu.id = tonumber(gpu.device:match "%d+")

-- ---- streams and graphs ------------------------------------------------------------------------------

-- A stream, of the device tested if no other number is given, or nil on the CPU, where calls take none and are done
-- when they return.
function gpu.stream(id)
    return not gpu.on_cpu and quire.cuda.stream(id or gpu.id) or nil
end

function gpu.sync(stream)
    if stream then
        stream:sync()
    elseif not gpu.on_cpu then
        quire.cuda.sync(gpu.id)
    end
end

-- fn(stream) captured; on the CPU replay calls it.
function gpu.capture(stream, fn)
    if not gpu.on_cpu then
        return quire.cuda.capture(stream, fn)
    end
    return { nodes = { "kernel" }, replay = function() fn() end }
end

-- A kernel of t/foreign.cu.
local modules = {}
function gpu.kernel(name, types)
    if not modules[1] then
        local path = (os.getenv "QUIRE_BUILD" or ".") .. "/t/foreign.fatbin"
        local file = assert(io.open(path, "rb"))
        modules[1] = quire.cuda.module(gpu.id, file:read "*a")
        file:close()
    end
    return modules[1]:kernel(name, types)
end

-- ---- tensors -----------------------------------------------------------------------------------------

local GUARD = 256 -- bytes, and out and workspace stay aligned behind them
local GUARD_BYTE = 0xA5

-- A tensor between guard bytes, and a function that tells whether these are intact.
function gpu.guarded(shape, dtype)
    local count = 1
    for _, extent in ipairs(shape) do
        count = count * extent
    end
    local element = quire.tensor { shape = { 1 }, dtype = dtype }.element.bytes
    local guard = GUARD / element
    local whole = quire.tensor { shape = { count + 2 * guard }, dtype = dtype, device = gpu.device }
    memory.fill(whole.pointer, gpu.device, GUARD_BYTE, whole:bytes())
    local inner = whole:slice(0, guard, guard + count)
    local function intact()
        local host = whole:to "cpu"
        local bytes = ffi.cast("uint8_t *", host.pointer)
        for i = 0, GUARD - 1 do
            if bytes[i] ~= GUARD_BYTE or bytes[host:bytes() - 1 - i] ~= GUARD_BYTE then
                return false
            end
        end
        return true
    end
    return inner:view(shape), intact
end

-- All bits of a NaN in every float type.
function gpu.fill_nan(t)
    memory.fill(t.pointer, t.device, 0xFF, t:bytes())
    return t
end

function gpu.workspace(args, bytes)
    bytes = bytes or quire.workspace_size(args)
    local device = args and args.query.device or gpu.device
    return quire.tensor { shape = { math.max(bytes, 1) }, dtype = "uint8", device = device }
end

function gpu.all_zero(t)
    local host = t:to "cpu"
    local words, count = ffi.cast("int64_t *", host.pointer), math.floor(host:bytes() / 8)
    for i = 0, count - 1 do
        if words[i] ~= 0 then
            return false
        end
    end
    for i = count * 8, host:bytes() - 1 do
        if ffi.cast("uint8_t *", host.pointer)[i] ~= 0 then
            return false
        end
    end
    return true
end

-- A copy of a table with some fields replaced.
gpu.with = require "quire.decode".with

-- The arguments again, with out, lse and workspace of their own, the first two full of NaN.
function gpu.fresh(args)
    local query = args.query
    local rows = { unpack(query.shape, 1, query.rank - 1) }
    local own = gpu.with(args, {
        out = gpu.fill_nan(quire.tensor { shape = query.shape, dtype = args.out.dtype, device = query.device }),
        lse = gpu.fill_nan(quire.tensor { shape = rows, dtype = "fp32", device = query.device }),
    })
    own.workspace_buffer = gpu.workspace(own)
    return own
end

-- Decodes with everything fresh and waits; gives the arguments that it ran with.
function gpu.decode_fresh(args, stream)
    local own = gpu.fresh(args)
    quire.decode(own, stream)
    gpu.sync(stream)
    return own
end

-- `rounds` launches of each of `sides`, which have a launch and a stream, one after the other.
function gpu.in_turns(sides, rounds)
    for _ = 1, rounds do
        for _, side in ipairs(sides) do
            side.launch(side.stream)
        end
    end
end

function gpu.same_bits(a, b)
    return a.out:same_bits(b.out) and a.lse:same_bits(b.lse)
end

-- ---- cases -------------------------------------------------------------------------------------------

local defaults = {
    hq = 8, hkv = 2, d = 128, dtype = "bf16", page = 16, form = "combined", mask = "causal", window_left = -1,
    page_stride_pad = 0, pattern = "random", seq_len_q = 1,
}

-- A case as casefile.read gives them, from what differs from the defaults.
function gpu.case(t)
    local case = gpu.with(defaults, t)
    case.id = case.id or table.concat(case.kv_lens, ",")
    case.out_dtype = case.out_dtype or case.dtype
    case.packed = case.q_lens ~= nil
    if case.packed then
        case.max_seq_len_q = case.max_seq_len_q or math.max(1, unpack(case.q_lens))
        case.seq_len_q = nil
    else
        case.q_lens = {}
        for b = 1, #case.kv_lens do
            case.q_lens[b] = case.seq_len_q
        end
    end
    case.max_seq_len = case.max_seq_len or math.max(1, unpack(case.kv_lens))
    return case
end

-- quire.decode's arguments for it, on the device tested if no other is named: out and lse full of NaN, as is all that
-- may not be read.
function gpu.build(t, device)
    return (cases.build(gpu.case(t), device or gpu.device))
end

-- ---- metadata that changes ---------------------------------------------------------------------------

-- seq_lens, indptr, qo_indptr and indices in one int32 block, so that one copy, or one kernel, writes all of it.
-- `entries` is room for page ids. Views on the device are what decode takes; set() fills the host's copy, store()
-- copies it over.
function gpu.metadata(batch, entries)
    local at = { seq_lens = 0, indptr = batch, qo_indptr = 2 * batch + 1, indices = 3 * batch + 2 }
    local block = { batch = batch, words = 3 * batch + 2 + entries }
    block.host = quire.tensor { shape = { block.words }, dtype = "int32" }
    block.there = quire.tensor { shape = { block.words }, dtype = "int32", device = gpu.device }
    local function view(name, count)
        return block.there:slice(0, at[name], at[name] + count)
    end
    block.seq_lens = view("seq_lens", batch)
    block.indptr = view("indptr", batch + 1)
    block.qo_indptr = view("qo_indptr", batch + 1)
    block.indices = view("indices", entries)

    -- lens[b] keys in pages[b][1..]; query tokens q[b], 1 each if there is no q. Entries that no row owns are
    -- ids that nobody may follow.
    function block:set(lens, pages, q)
        local to, entry, token = self.host.pointer, 0, 0
        to[at.indptr], to[at.qo_indptr] = 0, 0
        for b = 1, batch do
            to[at.seq_lens + b - 1] = lens[b]
            for _, page in ipairs(pages[b]) do
                assert(entry < entries, "metadata: more page ids than there is room for")
                to[at.indices + entry] = page
                entry = entry + 1
            end
            to[at.indptr + b] = entry
            token = token + (q and q[b] or 1)
            to[at.qo_indptr + b] = token
        end
        for i = entry, entries - 1 do
            to[at.indices + i] = i % 2 == 0 and -1 or 0x7FFFFFFF
        end
        return self
    end

    function block:store()
        self.there:copy(self.host)
        return self
    end

    return block
end

-- Requests of 0 to max_len keys, short and full ones among them, in random pages of a pool; each may own a page
-- more than it needs, with an id that nobody may follow.
function gpu.random_rows(batch, max_len, page_size, pool_pages)
    local lens, pages = {}, {}
    for b = 1, batch do
        local kind = math.random(6)
        lens[b] = kind == 1 and 0 or kind == 2 and max_len or math.random(kind == 3 and page_size or max_len)
        pages[b] = {}
        for i = 1, math.ceil(lens[b] / page_size) do
            pages[b][i] = math.random(0, pool_pages - 1)
        end
        if math.random(3) == 1 then
            table.insert(pages[b], -1)
        end
    end
    return lens, pages
end

return gpu

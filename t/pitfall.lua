-- pitfall.lua - small decodes whose every number a test decides, surrounded by what must not be read
-- SPDX-License-Identifier: Apache-2.0
--
-- pitfall.run(o) builds, decodes and returns; o has
--   lens                keys of each request
--   sq, or q_lens       query tokens of every request (default 1), or packed: of each
--   hq, hkv, d, page    default 8, 2, 64, 16
--   dtype, out_dtype    default bf16, dtype
--   mask, window, form, pad, max_seq_len, bmm1_scale, bmm2_scale
--   q, k, v             numbers, functions (request, token, head) giving what fills a row, or
--                       "random"; default 0, "random", "random"
--   unused_k, unused_v  what fills the slots and pages that may not be read; default NaN
--   extra               pages that each row owns beyond what its length needs, default 0
--   indices, lens_now   changes of the metadata: functions of the (CPU) tensors
-- Pages come in random order.  out starts as NaN, with guard bytes around it and the workspace.

local ffi = require "ffi"
local quire = require "quire"
local cases = require "quire.cases"
local tap = require "tap"

local pitfall = { device = tap.device() }

local GUARD, GUARD_BYTE = 64, 0xA5

-- A tensor with guard bytes before and after it.
local function guarded(shape, dtype)
    local plain = quire.tensor { shape = shape, dtype = dtype } -- for its size
    local bytes = plain:bytes()
    local block = quire.tensor { shape = { bytes + 2 * GUARD }, dtype = "uint8", device = pitfall.device }
    block:fill(GUARD_BYTE)
    local inner = quire.tensor {
        data = ffi.cast("char *", block.pointer) + GUARD, shape = shape, dtype = dtype, device = pitfall.device,
    }
    return inner, function()
        local here = block:to "cpu"
        for i = 0, GUARD - 1 do
            if here.pointer[i] ~= GUARD_BYTE or here.pointer[GUARD + bytes + i] ~= GUARD_BYTE then
                return false
            end
        end
        return block ~= nil -- and so keeps it
    end
end

local function fill_row(pointer, bits, d)
    for i = 0, d - 1 do
        pointer[i] = bits
    end
end

local function value_of(rule, ...)
    if type(rule) == "function" then
        return rule(...)
    end
    return rule
end

-- Keys or values: what rule(request, position, head) says; "random" leaves what is there.
local function fill_plane(plane, sequences, rule)
    if rule == "random" then
        return
    end
    local size, d, encode = plane.shape[3], plane.shape[4], plane.element.from_number
    for b, sequence in ipairs(sequences) do
        for position = 0, sequence.length - 1 do
            local base = plane.pointer + sequence.pages[math.floor(position / size) + 1] * plane.strides[1]
            for h = 0, plane.shape[2] - 1 do
                fill_row(base + (h * size + position % size) * d, encode(value_of(rule, b - 1, position, h)), d)
            end
        end
    end
end

local function fill_query(query, o, rule)
    if rule == "random" then
        query:normal { seed = "query" }
        return
    end
    local d, at = o.d, 0
    for b = 1, #o.lens do
        for i = 0, (o.q_lens and o.q_lens[b] or o.sq) - 1 do
            for h = 0, o.hq - 1 do
                fill_row(query.pointer + at, query.element.from_number(value_of(rule, b - 1, i, h)), d)
                at = at + d
            end
        end
    end
end

-- The slots that no sequence owns.
local function fill_unused(cache, plane, value)
    local bits = plane.element.from_number(value)
    for page = 0, cache.pages - 1 do
        local base = plane.pointer + page * plane.strides[1]
        for h = 0, cache.kv_heads - 1 do
            for slot = cache.live[page], cache.page_size - 1 do
                fill_row(base + (h * cache.page_size + slot) * cache.head_dim, bits, cache.head_dim)
            end
        end
    end
end

local defaults = {
    sq = 1, hq = 8, hkv = 2, d = 64, page = 16, dtype = "bf16", mask = "dense", window = -1, form = "combined",
    pad = 0, q = 0, k = "random", v = "random", extra = 0,
}

-- The arguments on the CPU, with neither out nor workspace.
function pitfall.build(changes)
    local o = setmetatable({}, { __index = defaults })
    for name, value in pairs(changes) do
        o[name] = value
    end
    local pages, longest = 3, 1
    for _, length in ipairs(o.lens) do
        pages = pages + math.ceil(length / o.page) + o.extra
        longest = math.max(longest, length)
    end
    local cache = quire.cache {
        pages = pages, page_size = o.page, kv_heads = o.hkv, head_dim = o.d, dtype = o.dtype, form = o.form,
        page_stride_pad = o.pad, shuffle = "pitfall",
    }
    cache.k:normal { seed = "keys" }
    cache.v:normal { seed = "values" }
    local sequences = {}
    for b, length in ipairs(o.lens) do
        sequences[b] = cache:sequence(length)
    end
    fill_plane(cache.k, sequences, o.k)
    fill_plane(cache.v, sequences, o.v)
    cache:poison()
    if o.unused_k then
        fill_unused(cache, cache.k, o.unused_k)
    end
    if o.unused_v then
        fill_unused(cache, cache.v, o.unused_v)
    end
    local lens = {}
    for b, sequence in ipairs(sequences) do
        lens[b] = sequence.length
        sequence:extend(#sequence.pages * o.page + o.extra * o.page - sequence.length) -- the pages, not the keys
    end
    local batch = cache:batch(sequences)
    local shape, qo_indptr = cases.query_shape {
        kv_lens = o.lens, q_lens = o.q_lens, packed = o.q_lens ~= nil, seq_len_q = o.sq, hq = o.hq, d = o.d,
    }
    local query = quire.tensor { shape = shape, dtype = o.dtype }
    fill_query(query, o, o.q)
    local args = {
        query = query,
        kv_cache = cache.kv,
        paged_kv_indptr = batch.indptr,
        paged_kv_indices = batch.indices,
        seq_lens = quire.tensor { lens, shape = { #lens }, dtype = "int32" },
        max_seq_len = o.max_seq_len or longest,
        mask_type = o.mask,
        window_left = o.window,
        bmm1_scale = o.bmm1_scale,
        bmm2_scale = o.bmm2_scale,
        out_dtype = o.out_dtype,
    }
    if qo_indptr then
        args.qo_indptr = quire.tensor { qo_indptr, dtype = "int32" }
        args.max_seq_len_q = 1
        for _, q in ipairs(o.q_lens) do
            args.max_seq_len_q = math.max(args.max_seq_len_q, q)
        end
    else
        args.seq_len_q = o.sq
    end
    return args
end

-- Decodes arguments that are on the CPU on the tested device: out and lse on the CPU, whether the
-- guards are whole, and the arguments with these for quire.verify.  `workspace`, on the device, is
-- used if given.
function pitfall.decode(host, workspace)
    local there = {}
    for name, value in pairs(cases.mirror(host, pitfall.device)) do
        there[name] = value
    end
    local lse_shape = { unpack(host.query.shape) }
    lse_shape[#lse_shape] = nil
    local guards = {}
    there.out, guards[1] = guarded(host.query.shape, host.out_dtype or host.query.dtype)
    there.lse, guards[2] = guarded(lse_shape, "fp32")
    there.out:fill(0 / 0)
    there.lse:fill(0 / 0)
    there.workspace_buffer = workspace
    if not workspace then
        local bytes = math.max(1, quire.workspace_size(there))
        there.workspace_buffer, guards[3] = guarded({ bytes }, "uint8")
        there.workspace_buffer:fill(0)
    end
    quire.decode(there)
    -- copies: the guarded blocks go with this call
    local result = { out = there.out:to "cpu":clone(), lse = there.lse:to "cpu":clone(), guards = true, args = {} }
    for _, whole in ipairs(guards) do
        result.guards = whole() and result.guards
    end
    for name, value in pairs(host) do
        result.args[name] = value
    end
    result.args.out, result.args.lse = result.out, result.lse
    return result
end

function pitfall.run(o)
    return pitfall.decode(pitfall.build(o))
end

-- Runs and compares with the float64 reference: a test of its own, named by a format.
function pitfall.right(o, name, ...)
    local result = pitfall.run(o)
    local verdict = quire.verify(result.args)
    local rows = result.out.numel / result.out.shape[result.out.rank]
    if not tap.ok(verdict.ok and verdict.rows == rows and result.guards, name, ...) then
        print(("#   %d of %d elements wrong, %.3g of its bound at %d: %.9g, not %.9g; lse %.3g; guards %s"):format(
            verdict.failures, result.out.numel, verdict.worst_error, verdict.worst_index, verdict.worst_got,
            verdict.worst_expected, verdict.lse_error, tostring(result.guards)))
    end
    return result
end

-- Whether row `row` of out (counted over tokens and heads) has `expected` everywhere, within a
-- rounding of its type.
local ROUNDING = { bf16 = 2 ^ -8, fp16 = 2 ^ -11, fp8e4m3 = 2 ^ -4 }
function pitfall.row_is(out, row, expected)
    local d = out.shape[out.rank]
    local decode, slack = out.element.to_number, ROUNDING[out.dtype] * math.abs(expected)
    for i = row * d, row * d + d - 1 do
        local difference = math.abs(decode(out.pointer[i]) - expected)
        if difference > slack or difference ~= difference then
            return false
        end
    end
    return true
end

-- Every row of out is what expect(request, token, head) says; one test.
function pitfall.means(o, expect, name, ...)
    local result = pitfall.run(o)
    local sq, hq, row, bad = o.sq or 1, o.hq or defaults.hq, 0, nil
    for b = 0, #o.lens - 1 do
        for i = 0, (o.q_lens and o.q_lens[b + 1] or sq) - 1 do
            for h = 0, hq - 1 do
                local expected = expect(b, i, h)
                if not bad and not pitfall.row_is(result.out, row, expected) then
                    bad = ("request %d, token %d, head %d: expected %.9g, got %.9g"):format(b, i, h, expected,
                        result.out.element.to_number(result.out.pointer[row * result.out.shape[result.out.rank]]))
                end
                row = row + 1
            end
        end
    end
    if not tap.ok(not bad and result.guards, name, ...) then
        print("#   " .. (bad or "guard bytes were written"))
    end
    return result
end

return pitfall

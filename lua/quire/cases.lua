-- cases.lua - the inputs of a case: caches, metadata and queries of one of a few patterns
-- SPDX-License-Identifier: Apache-2.0
--
-- Patterns; `token` is a key's position in its request, divisions round down, o_scale is 1 unless
-- the output is fp8, and values named are the stored ones:
--   random         q, k, v = 0.25 * normal.  fp8 stores real/scale with q_scale 0.5, k_scale 0.25,
--                  v_scale 0.75, o_scale 0.625, or less where a row sees many keys (output_scale);
--                  bmm1_scale = q_scale*k_scale/sqrt(D), bmm2_scale = v_scale/o_scale
--   rescale-same   as random, but q = 0 except q[...,0] = 1, 8 for fp8; k[token][0] = max(0, 32 -
--                  token/128): the weights fall from one block of 128 keys to the next
--   rescale-mixed  the same, and the sign of q[...,0] alternates with token*Hq + head
--   ascend         as random, but q = 0 except q[...,0] = 8, 64 for fp8; k[token][0] = 16 * min(15,
--                  token/128): the running maximum rises from block to block
--   tail           q = 0 except q[...,0] = 1, 8 for fp8; K = V = 0 but for the last SQ-1 keys, t = 0
--                  to SQ-2: k[0] = 80, v[0] = 8*(t+1), t+1 for fp8.  Dense and causal differ visibly
--
-- The normal numbers come from a counter seeded by the case's id.  Pages come from a shuffled pool 3
-- larger than needed, and no request's pages are in order.  All that may not be read is NaN, and out
-- and lse start as NaN.

local cache = require "quire.cache"
local tensor = require "quire.tensor"
local work = require "quire.work"

local cases = {}

local SPARE_PAGES = 3
local FP8_SCALES = { q = 0.5, k = 0.25, v = 0.75, out = 0.625 }
local ONES = { q = 1, k = 1, v = 1 }
local BLOCK = 128 -- keys between two steps of the rescale and ascend patterns

-- Sets element 0 of every head of the keys or values at one position.
local function set_first(plane, sequence, position, value)
    local size = sequence.cache.page_size
    local page = sequence.pages[math.floor(position / size) + 1]
    local slot = position % size
    local bits = plane.element.from_number(value)
    local at = plane.pointer + page * plane.strides[1] + slot * plane.strides[3]
    for h = 0, plane.shape[2] - 1 do
        at[h * plane.strides[2]] = bits
    end
end

-- Queries that are 0 but for element 0 of every row.
local function fill_first(query, value, alternate)
    query:fill(0)
    local dim = query.shape[query.rank]
    for row = 0, query.numel / dim - 1 do -- row = token*Hq + head
        local sign = alternate and row % 2 == 1 and -1 or 1
        query.pointer[row * dim] = query.element.from_number(sign * value)
    end
end

local patterns = {}

function patterns.random() end

local function rescale(case, query, pool, sequences, fp8)
    fill_first(query, fp8 and 8 or 1, case.pattern == "rescale-mixed")
    for _, sequence in ipairs(sequences) do
        for position = 0, sequence.length - 1 do
            set_first(pool.k, sequence, position, math.max(0, 32 - math.floor(position / BLOCK)))
        end
    end
end
patterns["rescale-same"] = rescale
patterns["rescale-mixed"] = rescale

function patterns.ascend(_, query, pool, sequences, fp8)
    fill_first(query, fp8 and 64 or 8)
    for _, sequence in ipairs(sequences) do
        for position = 0, sequence.length - 1 do
            set_first(pool.k, sequence, position, 16 * math.min(15, math.floor(position / BLOCK)))
        end
    end
end

function patterns.tail(case, query, pool, sequences, fp8)
    fill_first(query, fp8 and 8 or 1)
    pool.k:fill(0)
    pool.v:fill(0)
    local last = (case.max_seq_len_q or case.seq_len_q) - 1
    for _, sequence in ipairs(sequences) do
        for t = math.max(0, last - sequence.length), last - 1 do
            local position = sequence.length - last + t
            set_first(pool.k, sequence, position, 80)
            set_first(pool.v, sequence, position, (fp8 and 1 or 8) * (t + 1))
        end
    end
end

-- What fp8 output is divided by. The mean of n values is about 1/sqrt(n) of them: from some hundred keys on, most means
-- would be below fp8's normal numbers, and their rounding above the bound for random data, however right.
local FEW_KEYS, LIKE_KEYS = 300, 128
local function output_scale(case)
    local most = 0
    for _, length in ipairs(case.kv_lens) do
        most = math.max(most, work.keys(length, 1, case.window_left))
    end
    local many = case.pattern == "random" and most > FEW_KEYS
    return many and FP8_SCALES.out * math.sqrt(LIKE_KEYS / most) or FP8_SCALES.out
end

local function in_order(pages)
    for i = 2, #pages do
        if pages[i] < pages[i - 1] then
            return false
        end
    end
    return #pages > 1
end

local function reverse(list)
    for i = 1, math.floor(#list / 2) do
        list[i], list[#list + 1 - i] = list[#list + 1 - i], list[i]
    end
end

-- The shape of a case's queries, and for packed ones the offsets of the requests.
function cases.query_shape(case)
    if not case.packed then
        if case.seq_len_q == 1 then
            return { #case.kv_lens, case.hq, case.d }
        end
        return { #case.kv_lens, case.seq_len_q, case.hq, case.d }
    end
    local offsets = { 0 }
    for b, q in ipairs(case.q_lens) do
        offsets[b + 1] = offsets[b] + q
    end
    return { offsets[#offsets], case.hq, case.d }, offsets
end

-- Arguments of quire.decode with copies on a device of all tensors, gaps between pages included; on
-- the CPU the same table.
function cases.mirror(host, device)
    if device == "cpu" then
        return host
    end
    local there = {}
    for name, value in pairs(host) do
        if tensor.is_tensor(value) then
            there[name] = value:mirror(device)
        elseif type(value) == "table" then
            there[name] = { value[1]:mirror(device), value[2]:mirror(device) }
        else
            there[name] = value
        end
    end
    return there
end

-- Builds a case (from casefile.read) on a device.  Returns the arguments of quire.decode, out and
-- lse included, and the same on the CPU, with its own out and lse, for the reference.  On the CPU
-- both are one table.
function cases.build(case, device)
    local fp8 = case.dtype == "fp8e4m3"
    local scales = fp8 and FP8_SCALES or ONES
    local pages = SPARE_PAGES
    for _, length in ipairs(case.kv_lens) do
        pages = pages + math.ceil(length / case.page)
    end
    local pool = cache.new {
        pages = pages, page_size = case.page, kv_heads = case.hkv, head_dim = case.d,
        dtype = case.dtype, form = case.form, page_stride_pad = case.page_stride_pad,
        shuffle = case.id .. "/pages",
    }
    local sequences = {}
    for b, length in ipairs(case.kv_lens) do
        sequences[b] = pool:sequence(length)
        if in_order(sequences[b].pages) then
            reverse(sequences[b].pages)
        end
    end

    local shape, qo_indptr = cases.query_shape(case)
    local query = tensor.new { shape = shape, dtype = case.dtype }
    query:normal { seed = case.id .. "/q", scale = 0.25 / scales.q }
    pool.k:normal { seed = case.id .. "/k", scale = 0.25 / scales.k }
    pool.v:normal { seed = case.id .. "/v", scale = 0.25 / scales.v }
    patterns[case.pattern](case, query, pool, sequences, fp8)
    pool:poison()

    local batch = pool:batch(sequences)
    local out_scale = case.out_dtype == "fp8e4m3" and output_scale(case) or 1
    local host = {
        query = query,
        kv_cache = pool.kv,
        paged_kv_indptr = batch.indptr,
        paged_kv_indices = batch.indices,
        seq_lens = batch.seq_lens,
        max_seq_len = case.max_seq_len,
        mask_type = case.mask,
        window_left = case.window_left,
        out = tensor.new { shape = shape, dtype = case.out_dtype }:fill(0 / 0),
        lse = tensor.new { shape = { unpack(shape, 1, #shape - 1) }, dtype = "fp32" }:fill(0 / 0),
    }
    if fp8 then
        host.bmm1_scale = scales.q * scales.k / math.sqrt(case.d)
        host.bmm2_scale = scales.v / out_scale
    end
    if case.packed then
        host.qo_indptr = tensor.new { qo_indptr, dtype = "int32" }
        host.max_seq_len_q = case.max_seq_len_q
    else
        host.seq_len_q = case.seq_len_q
    end
    return cases.mirror(host, device), host
end

return cases

-- subset.lua - a few query tokens of a batch, brought to the CPU
-- SPDX-License-Identifier: Apache-2.0

local memory = require "quire.memory"
local strides_of = require "quire.strides"
local tensor = require "quire.tensor"
local work = require "quire.work"

-- Rows `first` to before `last` of every range, along dimension 0, as one compact tensor.
local function gather_rows(source, ranges, shape)
    local into = tensor.new { shape = shape, dtype = source.dtype }
    local row = strides_of.count { unpack(shape, 2) }
    local at = 0
    for _, range in ipairs(ranges) do
        local count = (range[2] - range[1]) * row
        memory.copy(into.pointer + at, "cpu", source.pointer + range[1] * row, source.device,
            count * source.element.bytes)
        at = at + count
    end
    return into
end

-- The listed pages of a block [pages, ...] on a device, as a block here.
local function gather_pages(block, pages)
    local shape = { unpack(block.shape) }
    shape[1] = math.max(#pages, 1)
    local into = tensor.new { shape = shape, dtype = block.dtype }
    local page = into.numel / shape[1]
    for i, id in ipairs(pages) do
        memory.copy(into.pointer + (i - 1) * page, "cpu", block.pointer + id * block.strides[1],
            block.device, page * block.element.bytes)
    end
    return into
end

-- Arguments of quire.verify for some query tokens of a decode whose arguments, out and lse included, are given:
-- `pieces` is a list of { request =, first =, last = }, tokens of a request from `first` to before `last`, counted
-- from 0. Of a device's cache only pages that these tokens see are copied.
return function(given, pieces)
    local indptr, lens = given.paged_kv_indptr:to "cpu", given.seq_lens:to "cpu"
    local indices = given.paged_kv_indices:to "cpu"
    local qo_indptr = given.qo_indptr and given.qo_indptr:to "cpu"
    local each = given.seq_len_q or 1 -- tokens of a request, where Q is not packed
    local window, causal = given.window_left or -1, given.mask_type == "causal"
    local combined = tensor.is_tensor(given.kv_cache)
    local on_device = given.query.device ~= "cpu"
    local one = combined and given.kv_cache or given.kv_cache[1]
    local page_size = one.shape[one.rank - 1]

    local new_indptr, new_indices, new_lens, new_qo = { 0 }, {}, {}, { 0 }
    local pages, renumbered = {}, {}
    local ranges, most_tokens = {}, 1
    for n, piece in ipairs(pieces) do
        local b, count = piece.request, piece.last - piece.first
        local start = qo_indptr and qo_indptr[b] or b * each
        local tokens = qo_indptr and qo_indptr[b + 1] - start or each
        -- the mask counts from the last token: without those that follow, the piece is as with fewer keys
        local length = causal and math.max(0, lens[b] - tokens + piece.last) or lens[b]
        local unseen = math.floor((length - work.keys(length, count, window)) / page_size)
        -- entries past the live length may be anything
        for i = 0, math.ceil(length / page_size) - 1 do
            local page = indices[indptr[b] + i]
            if on_device and i < unseen then
                page = 0 -- any that is there: nothing of it is read
            elseif on_device then
                if not renumbered[page] then
                    pages[#pages + 1] = page
                    renumbered[page] = #pages - 1
                end
                page = renumbered[page]
            end
            new_indices[#new_indices + 1] = page
        end
        new_indptr[n + 1] = #new_indices
        new_lens[n] = length
        ranges[n] = { start + piece.first, start + piece.last }
        new_qo[n + 1] = new_qo[n] + count
        most_tokens = math.max(most_tokens, count)
    end

    -- packed, whatever it was
    local function rows(source)
        local shape = { new_qo[#new_qo], unpack(source.shape, not qo_indptr and each > 1 and 3 or 2) }
        return gather_rows(source, ranges, shape)
    end
    local function int32(values)
        return tensor.new { values, shape = { #values }, dtype = "int32" }
    end
    local cache = given.kv_cache
    if on_device then
        cache = combined and gather_pages(cache, pages)
            or { gather_pages(cache[1], pages), gather_pages(cache[2], pages) }
    end
    local subset = {}
    for name, value in pairs(given) do
        if not tensor.is_tensor(value) then
            subset[name] = value
        end
    end
    subset.kv_cache = cache
    subset.query, subset.out = rows(given.query), rows(given.out)
    subset.lse = given.lse and rows(given.lse)
    subset.paged_kv_indptr, subset.paged_kv_indices = int32(new_indptr), int32(new_indices)
    subset.seq_lens = int32(new_lens)
    subset.qo_indptr, subset.max_seq_len_q, subset.seq_len_q = int32(new_qo), most_tokens, nil
    return subset
end

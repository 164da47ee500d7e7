-- supported.lua - what decode accepts on a device, found by asking the library itself
-- SPDX-License-Identifier: Apache-2.0

local ffi = require "ffi"
local decode = require "quire.decode"
local tensor = require "quire.tensor"

local HEAD_DIMS = { 32, 64, 80, 96, 128, 192, 256, 512 }
local PAGE_SIZES = { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512 }
local DTYPES = { "fp16", "bf16", "fp8e4m3", "fp32" }
local LARGEST_GROUP = 128

local null = ffi.cast("void *", 0)

-- Whether a small decode of these shapes could run; no memory is touched.
local function accepts(device, dtype, out_dtype, head_dim, page_size, group)
    local function shape_only(shape, name)
        return tensor.new { shape = shape, dtype = name, device = device, data = null }
    end
    local accepted, problem = pcall(decode.workspace_size, {
        query = shape_only({ 1, group, head_dim }, dtype),
        kv_cache = shape_only({ 1, 2, 1, page_size, head_dim }, dtype),
        paged_kv_indptr = shape_only({ 2 }, "int32"),
        paged_kv_indices = shape_only({ 1 }, "int32"),
        seq_lens = shape_only({ 1 }, "int32"),
        out = shape_only({ 1, group, head_dim }, out_dtype),
        max_seq_len = 1,
    })
    if not accepted and not problem:find "QUIRE_ERROR_UNSUPPORTED" and not problem:find "QUIRE_ERROR_TYPE" then
        error(problem, 0) -- not a refusal of these shapes
    end
    return accepted
end

-- A table: dtypes as a list of { dtype, out_dtype }, head_dims, page_sizes, and max_group, the
-- largest number of query heads per KV head.  Lists are empty where nothing can run.
return function(device)
    local found = { dtypes = {}, head_dims = {}, page_sizes = {}, max_group = 0 }
    for _, dtype in ipairs(DTYPES) do
        for _, out_dtype in ipairs(DTYPES) do
            if accepts(device, dtype, out_dtype, 128, 16, 1) then
                table.insert(found.dtypes, { dtype, out_dtype })
            end
        end
    end
    local first = found.dtypes[1]
    if first then
        for _, head_dim in ipairs(HEAD_DIMS) do
            if accepts(device, first[1], first[2], head_dim, 16, 1) then
                table.insert(found.head_dims, head_dim)
            end
        end
        for _, page_size in ipairs(PAGE_SIZES) do
            if accepts(device, first[1], first[2], 128, page_size, 1) then
                table.insert(found.page_sizes, page_size)
            end
        end
        for group = 1, LARGEST_GROUP do
            if accepts(device, first[1], first[2], 128, 16, group) then
                found.max_group = group
            end
        end
    end
    return found
end

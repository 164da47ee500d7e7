-- decode.lua - the calls of quire.h that take decode arguments, by name from a Lua table
-- SPDX-License-Identifier: Apache-2.0
--
-- Names are those of quire_decode_args, except that kv_cache is a tensor (combined) or {K, V}.
-- Tensors are quire tensors, or DLTensor cdata of another library's.

local ffi = require "ffi"
local library = require "quire.library"
local tensor = require "quire.tensor"

local C = library.C

local decode = {}

-- ---- from a table of arguments to the C struct ---------------------------------------------------

local OUT_DTYPES = { fp16 = C.QUIRE_DTYPE_FP16, bf16 = C.QUIRE_DTYPE_BF16, fp8e4m3 = C.QUIRE_DTYPE_FP8E4M3 }
local MASKS = { dense = C.QUIRE_MASK_DENSE, causal = C.QUIRE_MASK_CAUSAL }
local LAYOUTS = { HND = C.QUIRE_LAYOUT_HND, NHD = C.QUIRE_LAYOUT_NHD }

local dl_pointer = ffi.typeof "const DLTensor *"

local function wrong_kind(name, expected, got, level)
    error(("%s: expected %s, got %s"):format(name, expected, got), level + 1)
end

local function wrong(name, expected, got, level)
    wrong_kind(name, expected, type(got) == "string" and ("%q"):format(got) or tostring(got), level + 1)
end

local function as_dl(value, name, level)
    if tensor.is_tensor(value) then
        return value.dl
    elseif tensor.is_dlpack(value) then
        return ffi.cast(dl_pointer, value)
    end
    wrong_kind(name, "a tensor", type(value) == "cdata" and tostring(ffi.typeof(value)) or type(value), level + 1)
end

local function set_tensor(args, name, value, level)
    args[name] = as_dl(value, name, level + 1)
end

local function set_cache(args, _, value, level)
    if type(value) == "table" and not tensor.is_tensor(value) then
        if #value ~= 2 then
            wrong_kind("kv_cache", "a tensor or {K, V}", ("a table of %d entries"):format(#value), level + 1)
        end
        args.k_cache = as_dl(value[1], "kv_cache[1]", level + 1)
        args.v_cache = as_dl(value[2], "kv_cache[2]", level + 1)
    else
        args.kv_cache = as_dl(value, "kv_cache", level + 1)
    end
end

local function set_integer(args, name, value, level)
    if type(value) == "cdata" and (ffi.istype("int64_t", value) or ffi.istype("uint64_t", value)) then
        args[name] = value
    elseif type(value) == "number" and value % 1 == 0 then
        args[name] = value
    else
        wrong(name, "an integer", value, level + 1)
    end
end

local function set_number(args, name, value, level)
    if type(value) ~= "number" then
        wrong(name, "a number", value, level + 1)
    end
    args[name] = value
end

local function set_boolean(args, name, value, level)
    if type(value) ~= "boolean" then
        wrong(name, "true or false", value, level + 1)
    end
    args[name] = value and 1 or 0
end

local function choice(names, expected)
    return function(args, name, value, level)
        if names[value] == nil then
            wrong(name, expected, value, level + 1)
        end
        args[name] = names[value]
    end
end

local setters = {
    query = set_tensor,
    kv_cache = set_cache,
    workspace_buffer = set_tensor,
    paged_kv_indptr = set_tensor,
    paged_kv_indices = set_tensor,
    seq_lens = set_tensor,
    qo_indptr = set_tensor,
    out = set_tensor,
    lse = set_tensor,
    max_seq_len = set_integer,
    seq_len_q = set_integer,
    max_seq_len_q = set_integer,
    window_left = set_integer,
    bmm1_scale = set_number,
    bmm2_scale = set_number,
    out_dtype = choice(OUT_DTYPES, '"fp16", "bf16" or "fp8e4m3"'),
    mask_type = choice(MASKS, '"dense" or "causal"'),
    kv_layout = choice(LAYOUTS, '"HND" or "NHD"'),
    metadata_stable = set_boolean,
}

local function check_arguments(given, what, level)
    if type(given) ~= "table" or tensor.is_tensor(given) then
        error(("%s: expected a table of named arguments, got %s"):format(what,
            tensor.is_tensor(given) and "a tensor" or type(given)), level + 1)
    end
    library.check_names(given, setters, what, level + 1)
end

-- The struct points into the tensors of `given`, which the caller keeps until the call is over.
local function to_struct(given, what, level)
    check_arguments(given, what, level + 1)
    local args = ffi.new "quire_decode_args"
    C.quire_decode_args_init(args)
    for name, value in pairs(given) do
        setters[name](args, name, value, level + 1)
    end
    return args
end

-- A copy of a table of arguments, with some replaced; tests use it too.
function decode.with(given, changes)
    local copy = {}
    for name, value in pairs(given) do
        copy[name] = value
    end
    for name, value in pairs(changes) do
        copy[name] = value
    end
    return copy
end
local with = decode.with

-- ---- calls ---------------------------------------------------------------------------------------

local function as_tensor(t)
    return tensor.is_tensor(t) and t or tensor.from_dlpack(t)
end

-- A tensor of query's shape, or of its shape without the head dimension, or nil where there is no
-- query to take it from: then the library says so.
local function like_query(given, dtype_name, without_dim)
    if given.query == nil or not pcall(as_dl, given.query, "query", 1) then
        return nil
    end
    local query = as_tensor(given.query)
    local shape = { unpack(query.shape) }
    if without_dim then
        shape[#shape] = nil
    end
    return tensor.new { shape = shape, dtype = dtype_name or query.dtype, device = query.device }
end

local void_pointer = ffi.typeof "void *"

-- A quire.cuda stream, a pointer, or nil.
local function stream_handle(stream, level)
    if type(stream) == "table" and type(stream.live) == "function" then
        return ffi.cast(void_pointer, stream:live())
    elseif stream == nil or type(stream) == "cdata" then
        return ffi.cast(void_pointer, stream)
    end
    error(("stream: expected a stream of quire.cuda, a pointer or nil, got %s"):format(type(stream)), level + 1)
end

local size_pointer = ffi.typeof "size_t[1]"

-- The bytes that workspace_buffer must have for these arguments.
function decode.workspace_size(given)
    local args, bytes = to_struct(given, "workspace_size", 2), size_pointer()
    library.check(C.quire_decode_workspace_size(args, bytes), 2)
    return tonumber(bytes[0])
end

-- Loads what a decode of these shapes needs, so that it can be captured in a CUDA graph.
function decode.prepare(given)
    library.check(C.quire_decode_prepare(to_struct(given, "prepare", 2)), 2)
end

-- Decodes on `stream` (default: the default stream; none on the CPU), and returns out, and lse if
-- asked for.  Where they are absent, out and workspace_buffer are allocated; lse = true allocates
-- it.  Whoever launches often, or captures a graph, passes all of them.
function decode.decode(given, stream)
    check_arguments(given, "decode", 2)
    local out = given.out or like_query(given, OUT_DTYPES[given.out_dtype] and given.out_dtype)
    local lse = given.lse
    if lse == true then
        lse = like_query(given, "fp32", true)
    end
    given = with(given, { out = out, lse = lse })
    local args = to_struct(given, "decode", 2)
    if given.workspace_buffer == nil then
        local bytes = size_pointer()
        library.check(C.quire_decode_workspace_size(args, bytes), 2)
        local workspace = tensor.new {
            shape = { math.max(1, tonumber(bytes[0])) },
            dtype = "uint8",
            device = as_tensor(given.query).device,
        }
        given.workspace_buffer = workspace
        args.workspace_buffer = workspace.dl
    end
    library.check(C.quire_decode(args, stream_handle(stream, 2)), 2)
    return given.out, given.lse
end

-- A function that launches the same decode at every call, on the stream it is given: the arguments,
-- all of which are needed, are read here once.  Data and metadata are read at every launch.
function decode.bind(given)
    local args = to_struct(given, "bind", 2)
    local kept = with(given, {}) -- the struct points into these tensors
    return function(stream)
        local status = C.quire_decode(args, stream_handle(stream, 2))
        if status ~= C.QUIRE_OK then
            library.check(status, 2)
        end
        return kept.out, kept.lse
    end
end

-- Checks the live metadata; raises with the first rule that it breaks.
function decode.check(given, stream)
    local args = to_struct(given, "check", 2)
    library.check(C.quire_decode_check(args, stream_handle(stream, 2)), 2)
end

local TENSORS = {
    "query", "paged_kv_indptr", "paged_kv_indices", "seq_lens", "qo_indptr", "out", "lse",
}

-- The same arguments on the CPU, where the reference runs.
local function on_cpu(given)
    local moved = { workspace_buffer = false }
    for _, name in ipairs(TENSORS) do
        if tensor.is_tensor(given[name]) then
            moved[name] = given[name]:to "cpu"
        end
    end
    local cache = given.kv_cache
    if tensor.is_tensor(cache) then
        moved.kv_cache = cache:to "cpu"
    elseif type(cache) == "table" and tensor.is_tensor(cache[1]) and tensor.is_tensor(cache[2]) then
        moved.kv_cache = { cache[1]:to "cpu", cache[2]:to "cpu" }
    end
    moved = with(given, moved)
    moved.workspace_buffer = nil
    return moved
end

-- The float64 reference of the same arguments: out and lse, both float64 on the CPU unless given.
-- Device tensors are copied to the CPU first.
function decode.reference(given)
    check_arguments(given, "reference", 2)
    given = on_cpu(given)
    given.out = given.out or like_query(given, "fp64")
    given.lse = given.lse or like_query(given, "fp64", true)
    library.check(C.quire_decode_reference(to_struct(given, "reference", 2)), 2)
    return given.out, given.lse
end

local VERDICT = {
    "rows", "empty_rows", "failures", "worst_index", "worst_error", "worst_expected", "worst_got",
    "lse_error", "relative_error", "relative_bound",
}

-- Compares out, and lse if given, as a decode left them, with the reference: quire_verdict's fields
-- as a table, and ok, which is true if every element is within its bound.
function decode.verify(given)
    check_arguments(given, "verify", 2)
    given = on_cpu(given)
    local verdict = ffi.new "quire_verdict"
    verdict.struct_size = ffi.sizeof "quire_verdict"
    library.check(C.quire_decode_verify(to_struct(given, "verify", 2), verdict), 2)
    local result = { ok = verdict.failures == 0 }
    for _, name in ipairs(VERDICT) do
        result[name] = tonumber(verdict[name])
    end
    return result
end

return decode

-- casefile.lua - reads the CSV files of decode cases and of workloads; both have one grammar
-- SPDX-License-Identifier: Apache-2.0
--
-- The first line names the columns, in any order:
--   id or name        what to call the row
--   kv_lens           one length a request, separated by blanks; 8192x32 means 32 times 8192
--   hq, hkv, d        query heads, KV heads, head_dim
--   dtype             fp16, bf16, fp8e4m3
-- and, where the default does not do (which an empty field stands for as well):
--   packed            1: q_lens has one query length a request, and Q is packed; default 0
--   q_lens, seq_len_q query tokens of every request (default 1); packed: q_lens, one a request, which may be
--                     written like kv_lens
--   page              page size, default 16
--   out_dtype         default: dtype
--   form              combined (default) or tuple
--   mask              dense (default) or causal
--   window_left       default -1
--   max_seq_len       default: the largest of kv_lens
--   page_stride_pad   elements between a page and the next, default 0
--   pattern           of the data, see cases.lua; default random
--   kv_bytes          what a decode reads of K and V; checked against the rest of the row
--   peerNAME_us, peerNAME   times of others, in microseconds, and whose they are

local text = require "quire.text"
local work = require "quire.work"

local casefile = {}

local function one_of(...)
    local names, set = { ... }, {}
    for _, name in ipairs(names) do
        set[name] = true
    end
    return function(value)
        if not set[value] then
            return nil, "expected one of " .. table.concat(names, ", ")
        end
        return value
    end
end

local function integer(lowest)
    return function(value)
        local number, expected = text.integer(value, lowest)
        return number, expected and "expected " .. expected
    end
end

local function lengths(value)
    local list = text.lengths(value)
    if not list or #list == 0 then
        return nil, "expected lengths such as 100 8192x32"
    end
    return list
end

local function words(value)
    if value == "" then
        return nil, "expected some text"
    end
    return value
end

local readers = {
    id = words, name = words,
    kv_lens = lengths, q_lens = lengths,
    packed = one_of("0", "1"),
    hq = integer(1), hkv = integer(1), d = integer(1),
    seq_len_q = integer(1), page = integer(1), max_seq_len = integer(1),
    window_left = integer(-1), page_stride_pad = integer(0), kv_bytes = integer(0),
    dtype = one_of("fp16", "bf16", "fp8e4m3"),
    out_dtype = one_of("fp16", "bf16", "fp8e4m3"),
    form = one_of("combined", "tuple"),
    mask = one_of("dense", "causal"),
    pattern = one_of("random", "rescale-same", "rescale-mixed", "ascend", "tail"),
}

local function reader_of(column)
    if readers[column] then
        return readers[column]
    elseif column:match "^peer%w*_us$" then
        return function(value)
            local number = tonumber(value)
            if not (number and number > 0 and number < math.huge) then
                return nil, "expected a time above 0, in microseconds, or nothing"
            end
            return number
        end, true
    elseif column:match "^peer%w*$" then
        return function(value)
            return value
        end
    end
end

-- Columns that every row has to fill, besides id or name.
local NEEDED = { "kv_lens", "hq", "hkv", "d", "dtype" }
local is_needed = {}
for _, column in ipairs(NEEDED) do
    is_needed[column] = true
end

-- What the row leaves out, and what its columns have to agree on: nil, or the column and why not.
local function complete(case)
    case.id = case.id or case.name
    case.packed = case.packed == "1"
    case.page = case.page or 16
    case.out_dtype = case.out_dtype or case.dtype
    case.form = case.form or "combined"
    case.mask = case.mask or "dense"
    case.window_left = case.window_left or -1
    case.page_stride_pad = case.page_stride_pad or 0
    case.pattern = case.pattern or "random"
    case.max_seq_len = case.max_seq_len or text.largest(case.kv_lens, 1)
    if case.packed then
        if not case.q_lens or #case.q_lens ~= #case.kv_lens then
            return "q_lens", ("expected %d query lengths, one a request, got %d"):format(
                #case.kv_lens, case.q_lens and #case.q_lens or 0)
        end
        case.max_seq_len_q = text.largest(case.q_lens, 1)
        if case.seq_len_q and case.seq_len_q ~= 1 and case.seq_len_q ~= case.max_seq_len_q then
            return "seq_len_q", ("expected nothing, 1, or %d, the largest of q_lens, as packed is 1, got %d"):format(
                case.max_seq_len_q, case.seq_len_q)
        end
        case.seq_len_q = nil
    else
        if case.q_lens then
            if #case.q_lens ~= 1 or case.q_lens[1] < 1 then
                return "q_lens", "expected one query length of at least 1, as packed is 0"
            elseif case.seq_len_q and case.seq_len_q ~= case.q_lens[1] then
                return "q_lens", ("expected %d, as seq_len_q says, got %d"):format(
                    case.seq_len_q, case.q_lens[1])
            end
            case.seq_len_q = case.q_lens[1]
        end
        case.seq_len_q = case.seq_len_q or 1
        case.q_lens = {}
        for b = 1, #case.kv_lens do
            case.q_lens[b] = case.seq_len_q
        end
    end
    if case.kv_bytes and case.kv_bytes ~= work.kv_bytes(case) then
        return "kv_bytes", ("expected %d, as the lengths and heads give, got %d"):format(
            work.kv_bytes(case), case.kv_bytes)
    end
end

-- The rows of a file as a list of cases, or nil and a message "FILE:LINE: column: ...".  A case has
-- the columns' names, with q_lens one a request, and max_seq_len_q if it is packed, else seq_len_q;
-- `columns` holds what the row itself says, `peers` the times by the name between peer and _us.
function casefile.read(path)
    local lines, problem = text.lines(path)
    if not lines then
        return nil, problem
    end
    return casefile.parse(lines, path)
end

-- The same of lines at hand; `path` is for messages.
function casefile.parse(lines, path)
    local function fail(line, column, why)
        return nil, ("%s:%d: %s%s"):format(path, line, column and column .. ": " or "", why)
    end
    local columns, why = text.csv_fields(lines[1] or "")
    if not columns then
        return fail(1, nil, why)
    end
    if #columns == 1 and columns[1] == "" then
        return fail(1, nil, "expected the names of the columns")
    end
    local has = {}
    for _, column in ipairs(columns) do
        if not reader_of(column) then
            return fail(1, column, "no such column")
        elseif has[column] then
            return fail(1, column, "the column is there twice")
        end
        has[column] = true
    end
    for _, column in ipairs(NEEDED) do
        if not has[column] then
            return fail(1, column, "the column is missing")
        end
    end
    if not (has.id or has.name) then
        return fail(1, "id or name", "the column is missing")
    end
    local cases, seen = {}, {}
    for n = 2, #lines do
        if lines[n] ~= "" then
            local fields, bad = text.csv_fields(lines[n])
            if not fields then
                return fail(n, nil, bad)
            elseif #fields ~= #columns then
                return fail(n, nil, ("expected %d fields, got %d"):format(#columns, #fields))
            end
            local case = { columns = {}, peers = {} }
            for i, column in ipairs(columns) do
                local value, expected
                if fields[i] ~= "" or is_needed[column] or column == (has.id and "id" or "name") then
                    value, expected = reader_of(column)(fields[i])
                end
                if expected then
                    return fail(n, column, ("%s, got %q"):format(expected, fields[i]))
                end
                case[column], case.columns[column] = value, value
                if value and column:match "^peer%w*_us$" then
                    case.peers[column:match "^peer(%w*)_us$"] = value
                end
            end
            local column, disagreement = complete(case)
            if column then
                return fail(n, column, disagreement)
            elseif seen[case.id] then
                return fail(n, has.id and "id" or "name", ("%q is on line %d too"):format(case.id, seen[case.id]))
            end
            seen[case.id] = n
            cases[#cases + 1] = case
        end
    end
    if #cases == 0 then
        return nil, ("%s: no cases"):format(path)
    end
    return cases
end

return casefile

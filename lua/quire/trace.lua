-- trace.lua - request traces of serving systems: their lengths, and the prefixes requests share
-- SPDX-License-Identifier: Apache-2.0
--
-- CSV: a header that has ContextTokens or input_length, one request a line.
-- JSON lines: one object a line with input_length and, if the trace has them, hash_ids: one id for
-- each block of 512 tokens.  Requests whose leading ids are equal have the same keys there, and get
-- the same pages.

local cjson = require "cjson"
local text = require "quire.text"

local trace = {}

local BLOCK = 512 -- tokens of one hash id

local LENGTH_COLUMNS = { ContextTokens = true, input_length = true }

local function is_count(value)
    return type(value) == "number" and value >= 0 and value % 1 == 0
end

-- A list of what can stand for a block: numbers or strings.
local function are_ids(blocks)
    if type(blocks) ~= "table" or (next(blocks) ~= nil and #blocks == 0) then
        return false
    end
    for _, id in ipairs(blocks) do
        if (type(id) ~= "number" and type(id) ~= "string") or id ~= id then
            return false
        end
    end
    return true
end

local function read_csv(lines, limit)
    local columns, why = text.csv_fields(lines[1])
    if not columns then
        return nil, 1, why
    end
    local at
    for i, column in ipairs(columns) do
        at = at or (LENGTH_COLUMNS[column] and i)
    end
    if not at then
        return nil, 1, "expected a column ContextTokens or input_length"
    end
    local requests = {}
    for n = 2, #lines do
        if #requests == limit then
            break
        elseif lines[n] ~= "" then
            local fields, bad = text.csv_fields(lines[n])
            if not fields then
                return nil, n, bad
            end
            local field = fields[at] or ""
            local length = text.integer(field, 0)
            if not length then
                return nil, n, ("%s: expected a number of tokens, got %q"):format(columns[at], field)
            end
            requests[#requests + 1] = { length = length, blocks = {} }
        end
    end
    return requests
end

local function read_json(lines, limit)
    local requests = {}
    for n, line in ipairs(lines) do
        if #requests == limit then
            break
        elseif line ~= "" then
            local ok, object = pcall(cjson.decode, line)
            if not ok or type(object) ~= "table" then
                return nil, n, "expected a JSON object" .. (ok and "" or ": " .. object)
            elseif not is_count(object.input_length) then
                return nil, n, ("input_length: expected a number of tokens, got %s"):format(
                    tostring(object.input_length))
            end
            local blocks = (object.hash_ids == nil or object.hash_ids == cjson.null) and {} or object.hash_ids
            local expected = math.ceil(object.input_length / BLOCK)
            if not are_ids(blocks) or (#blocks > 0 and #blocks ~= expected) then
                return nil, n, ("hash_ids: expected a list of %d ids, one for each %d tokens"):format(
                    expected, BLOCK)
            end
            requests[#requests + 1] = { length = object.input_length, blocks = blocks }
        end
    end
    return requests
end

-- The first `limit` requests of a file, each with its length in tokens and its blocks' ids (none if
-- the trace has none); or nil and a message "FILE:LINE: ...".
function trace.read(path, limit)
    local lines, problem = text.lines(path)
    if not lines then
        return nil, problem
    end
    local is_json = (lines[1] or ""):match "^%s*{"
    local requests, line, why = (is_json and read_json or read_csv)(lines, limit)
    if not requests then
        return nil, ("%s:%d: %s"):format(path, line, why)
    elseif #requests == 0 then
        return nil, ("%s: no requests"):format(path)
    end
    return requests
end

-- What each request shares: with[b] is an earlier request, keys[b] how many leading keys of it, or 0.
-- Also the pages that all need together.
function trace.plan(requests, page_size)
    local root = { next = {} } -- a tree of block ids: a path from here is a prefix some request has
    local plan = { with = {}, keys = {}, pages = 0 }
    for b, request in ipairs(requests) do
        local node, with, keys = root, nil, 0
        for i, id in ipairs(request.blocks) do
            local known = node.next[id]
            if known then
                with = known.request
                keys = math.min(i * BLOCK, request.length, requests[with].length)
            else
                known = { next = {}, request = b }
                node.next[id] = known
            end
            node = known
        end
        plan.with[b], plan.keys[b] = with, keys
        -- a shared page that is not full is copied before more keys are written to it
        if request.length > keys then
            plan.pages = plan.pages + math.ceil(request.length / page_size) - math.floor(keys / page_size)
        end
    end
    return plan
end

-- The requests as sequences of a cache, sharing pages as planned.
function trace.sequences(requests, plan, cache)
    local sequences = {}
    for b, request in ipairs(requests) do
        local with = plan.with[b]
        if with then
            sequences[b] = cache:fork(sequences[with], plan.keys[b]):extend(request.length - plan.keys[b])
        else
            sequences[b] = cache:sequence(request.length)
        end
    end
    return sequences
end

return trace

-- work.lua - what a decode has to read, and what it has to multiply
-- SPDX-License-Identifier: Apache-2.0
--
-- A request has `length` keys and `tokens` query tokens; `window` is its window_left, -1 where there is none.
-- A case is one of casefile's.

local dtype = require "quire.dtype"

local work = {}

-- Keys that at least one query token sees: the last so many of the request.
function work.keys(length, tokens, window)
    if tokens == 0 then
        return 0
    end
    return window >= 0 and math.min(length, window + tokens) or length
end

-- 1 + 2 + ... + n
local function triangle(n)
    return n > 0 and n * (n + 1) / 2 or 0
end

-- Pairs of a query token and a key that it sees.
function work.pairs(length, tokens, mask, window)
    if mask == "dense" then
        return length * tokens
    end
    -- token i sees the keys up to length - tokens + i, and not those more than `window` before that one
    local seen = triangle(length) - triangle(length - tokens)
    if window >= 0 then
        local before = length - window - 1
        seen = seen - (triangle(before) - triangle(before - tokens))
    end
    return seen
end

-- Of a request of a case: how many pages it lists, and how many of the last of them are seen.
function work.pages(case, b)
    local length = case.kv_lens[b]
    local all = math.ceil(length / case.page)
    local keys = work.keys(length, case.q_lens[b], case.window_left)
    return all, keys > 0 and all - math.floor((length - keys) / case.page) or 0
end

local function request_kv_bytes(case, b)
    return work.keys(case.kv_lens[b], case.q_lens[b], case.window_left) * 2 * case.hkv * case.d
        * dtype.get(case.dtype).bytes
end

-- Products and sums of Q K and of P V.
local function request_flops(case, b)
    return 4 * case.d * case.hq * work.pairs(case.kv_lens[b], case.q_lens[b], case.mask, case.window_left)
end

local function sum(case, of_request)
    local total = 0
    for b = 1, #case.kv_lens do
        total = total + of_request(case, b)
    end
    return total
end

-- Bytes of K and V that a launch has to read: each once, however many rows see it.
function work.kv_bytes(case)
    return sum(case, request_kv_bytes)
end

-- Floating-point operations of a launch; those of masked pairs do not count.
function work.flops(case)
    return sum(case, request_flops)
end

-- Bytes that a launch has to move: live keys and values, queries, output, metadata.
function work.bytes(case)
    local tokens, pages = 0, 0
    for b, q in ipairs(case.q_lens) do
        local _, seen = work.pages(case, b)
        tokens, pages = tokens + q, pages + seen
    end
    local metadata = 2 * #case.kv_lens + 1 + pages + (case.packed and #case.kv_lens + 1 or 0)
    return work.kv_bytes(case) + 4 * metadata
        + tokens * case.hq * case.d * (dtype.get(case.dtype).bytes + dtype.get(case.out_dtype).bytes)
end

-- The seconds below which no launch can be: those of the bytes; where a matrix rate is known, of each request
-- those of its keys and values or those of its products, whichever are more.
function work.least_seconds(case, read_rate, matrix_rate)
    local more = matrix_rate and sum(case, function(_, b)
        return math.max(0, request_flops(case, b) / matrix_rate - request_kv_bytes(case, b) / read_rate)
    end) or 0
    return work.bytes(case) / read_rate + more
end

return work

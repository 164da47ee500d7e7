-- sample.lua - which query tokens to compare with the reference, where all would take too long
-- SPDX-License-Identifier: Apache-2.0

local tensor = require "quire.tensor"
local work = require "quire.work"

local REQUEST_SHARE = 1 / 2 -- of the budget, that one request may have of its own
local MOST_PARTS = 3 -- of a request of which not all is taken; the dearest may have more
local BAND = 16 -- rows of a KV head that the reference takes together: fewer cost as much

local sample = {}

-- What the reference of a request costs: query tokens that it takes together, and elements of K that it goes
-- through for each such part.
function sample.request(length, tokens, case)
    local group = case.hq / case.hkv
    local part = math.max(1, math.floor(BAND / group))
    return {
        tokens = tokens,
        part = part,
        cost = work.keys(length, tokens, case.window_left) * case.hkv * case.d * math.ceil(part * group / BAND),
    }
end

local function cost_of(request)
    return math.ceil(request.tokens / request.part) * request.cost
end

-- Puts into `pieces` as much of request b as `room` has place for: all of it, or the first and the last tokens and,
-- spread over those between, parts up to `most` in all; or nothing. `where`, 0 to 1, moves the ones between. Returns
-- what that costs.
local function take(pieces, b, request, room, most, where)
    local tokens, part, cost = request.tokens, request.part, request.cost
    local function add(first, last)
        pieces[#pieces + 1] = { request = b - 1, first = first, last = last }
    end
    if cost_of(request) <= room then
        add(0, tokens)
        return cost_of(request)
    elseif 2 * cost > room then
        return 0
    end
    add(0, part)
    local between = math.min(most, math.floor(room / cost)) - 2
    local each = (tokens - 2 * part) / between -- more than a part, as not all of the request fits
    for i = 0, between - 1 do
        local first = part + math.floor(i * each + where * (each - part))
        add(first, first + part)
    end
    add(tokens - part, tokens)
    return (between + 2) * cost
end

-- Of a list of requests (sample.request) the pieces to compare, { request =, first =, last = }: query tokens from
-- `first` to before `last`, all counted from 0, in ascending order. All of them if they cost no more than the
-- budget. Else the first and the last tokens of the dearest request, whatever they cost; the cheapest, if it is
-- cheap; then others, in an order that depends on the seed; and with what is left more of the dearest.
function sample.pieces(requests, budget, seed)
    local order, total = {}, 0
    for b, request in ipairs(requests) do
        order[b] = b
        total = total + cost_of(request)
    end
    local pieces = {}
    if total <= budget then
        for b, request in ipairs(requests) do
            take(pieces, b, request, math.huge)
        end
        return pieces
    end
    local z = tensor.new { shape = { #order }, dtype = "fp64" }:normal { seed = seed .. "/sample" }
    table.sort(order, function(a, b)
        return z[a - 1] == z[b - 1] and a < b or z[a - 1] < z[b - 1]
    end)
    local dearest, cheapest = 1, 1
    for b, request in ipairs(requests) do
        dearest = cost_of(request) > cost_of(requests[dearest]) and b or dearest
        cheapest = cost_of(request) < cost_of(requests[cheapest]) and b or cheapest
    end
    local share = budget * REQUEST_SHARE
    local function visit(b, room, most)
        return take(pieces, b, requests[b], room, most, math.abs(z[b - 1]) % 1)
    end
    -- kept for the dearest, which comes last
    local cost = requests[dearest].cost
    local kept = math.min(cost_of(requests[dearest]), math.max(2 * cost, math.min(MOST_PARTS * cost, share)))
    local left = budget - kept
    if cheapest ~= dearest then
        left = left - visit(cheapest, share, MOST_PARTS)
    end
    for _, b in ipairs(order) do
        if b ~= dearest and b ~= cheapest then
            left = left - visit(b, math.min(left, math.max(share, 2 * requests[b].cost)), MOST_PARTS)
        end
    end
    visit(dearest, kept + math.max(left, 0), math.huge)
    table.sort(pieces, function(a, b)
        return a.request == b.request and a.first < b.first or a.request < b.request
    end)
    return pieces
end

-- How many tokens the pieces have, and of how many requests.
function sample.count(pieces)
    local tokens, requests = 0, {}
    local distinct = 0
    for _, piece in ipairs(pieces) do
        tokens = tokens + piece.last - piece.first
        distinct = distinct + (requests[piece.request] and 0 or 1)
        requests[piece.request] = true
    end
    return tokens, distinct
end

return sample

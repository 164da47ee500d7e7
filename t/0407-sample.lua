-- What a decode has to do, counted; and the query tokens that are compared where all would take long.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"
local quire = require "quire"
local cases = require "quire.cases"
local casefile = require "quire.casefile"
local sample = require "quire.sample"
local subset = require "quire.subset"
local work = require "quire.work"

local device = tap.device()
local ok, is, same = tap.ok, tap.is, tap.same

-- ---- work ----------------------------------------------------------------------------------------

-- The contract's words, pair by pair.
local function counted(length, tokens, mask, window)
    local pairs_seen, first = 0, length
    for i = 0, tokens - 1 do
        for j = 0, length - 1 do
            local at = length - tokens + i
            if mask == "dense" or (j <= at and (window < 0 or j >= at - window)) then
                pairs_seen, first = pairs_seen + 1, math.min(first, j)
            end
        end
    end
    return pairs_seen, length - first
end

for _, mask in ipairs { "dense", "causal" } do
    local wrong = {}
    for _, window in ipairs(mask == "causal" and { -1, 0, 1, 5, 40 } or { -1 }) do
        for length = 0, 12 do
            for tokens = 0, 15 do
                local pairs_seen, keys = counted(length, tokens, mask, window)
                if work.pairs(length, tokens, mask, window) ~= pairs_seen
                    or work.keys(length, tokens, window) ~= keys then
                    wrong[#wrong + 1] = ("%d/%d/%d"):format(length, tokens, window)
                end
            end
        end
    end
    is(table.concat(wrong, " "), "", "%s: pairs and keys, for all small lengths, tokens and windows", mask)
end

local function parse(columns, fields)
    return assert(casefile.parse({ "id,kv_lens,hq,hkv,d,dtype" .. columns, fields }, "here"))[1]
end

local case = parse(",mask,window_left,q_lens,packed,page,out_dtype",
    "w,100 20 50,8,2,64,fp8e4m3,causal,9,3 1 0,1,16,fp16")
same({ work.pages(case, 1) }, { 7, 2 }, "pages listed, and seen: 88 to 99")
same({ work.pages(case, 2) }, { 2, 2 }, "pages seen: 10 to 19")
same({ work.pages(case, 3) }, { 4, 0 }, "pages seen without a query token")
is(work.kv_bytes(case), (12 + 10) * 2 * 2 * 64, "bytes of K and V: once for all rows")
is(work.bytes(case), work.kv_bytes(case) + 4 * 8 * 64 * (1 + 2) + 4 * (3 + 4 + 4 + 4), "bytes with Q, out and metadata")
is(work.flops(case), 4 * 64 * 8 * (3 * 10 + 10), "operations: visible pairs")
is(work.least_seconds(case, 1e3), work.bytes(case) / 1e3, "least time: of the bytes")
is(work.least_seconds(case, 1e3, 1e30), work.bytes(case) / 1e3, "or so, where multiplying takes no time")
local least = (work.bytes(case) - work.kv_bytes(case)) / 1e3 + work.flops(case) / 1e3
ok(math.abs(work.least_seconds(case, 1e3, 1e3) / least - 1) < 1e-12, "or of the products of each request")

-- ---- which tokens --------------------------------------------------------------------------------

local function text_of(pieces)
    local words = {}
    for i, piece in ipairs(pieces) do
        words[i] = ("%d:%d-%d"):format(piece.request, piece.first, piece.last)
    end
    return table.concat(words, " ")
end

local function requests_of(costs, tokens)
    local list = {}
    for b, cost in ipairs(costs) do
        list[b] = { tokens = tokens or 1, part = 1, cost = cost }
    end
    return list
end

local six = requests_of { 5, 9, 1, 5, 5, 5 }
is(text_of(sample.pieces(six, 30, "seed")), "0:0-1 1:0-1 2:0-1 3:0-1 4:0-1 5:0-1", "all within the budget")
is(text_of(sample.pieces(six, 5, "seed")), "1:0-1 2:0-1", "the dearest and the cheapest")
is(text_of(sample.pieces(requests_of { 7 }, 5, "seed")), "0:0-1", "a lone one")
local some = text_of(sample.pieces(six, 20, "seed"))
is(select(2, some:gsub(":", "")), 4, "as many as the budget has room for: %s", some)
is(text_of(sample.pieces(six, 20, "seed")), some, "the same seed picks the same")
is(text_of(sample.pieces(requests_of({ 1, 1 }, 0), 20, "seed")), "0:0-0 1:0-0", "requests without a token")

do -- four requests of 512 tokens
    local pieces = sample.pieces(requests_of({ 1, 1, 1, 1 }, 512), 12, "seed")
    local tokens, of = sample.count(pieces)
    is(of, 4, "many tokens: of all four requests: %s", text_of(pieces))
    is(tokens, 12, "many tokens: as many as the budget has room for")
    local ends, ascending = 0, true
    for i, piece in ipairs(pieces) do
        ends = ends + ((piece.first == 0 or piece.last == 512) and 1 or 0)
        local before = pieces[i - 1]
        ascending = ascending and (not before or before.request < piece.request or before.last <= piece.first)
    end
    is(ends, 8, "many tokens: the first and the last of each")
    ok(ascending, "many tokens: in order, none twice")
    is(text_of(sample.pieces(requests_of({ 1 }, 512), 1, "seed")), "0:0-1 0:511-512", "the ends, whatever they cost")
    local all_parts = true -- of a request as long as the budget allows, each part once
    for budget = 2, 40 do
        pieces = sample.pieces({ { tokens = 41, part = 1, cost = 1 } }, budget, "seed")
        local apart = #pieces == budget and pieces[1].first == 0 and pieces[budget].last == 41
        for i = 2, #pieces do
            apart = apart and pieces[i].first >= pieces[i - 1].last
        end
        all_parts = all_parts and apart
    end
    ok(all_parts, "the dearest has what is left, spread over its tokens")
end

-- Tokens whose rows the reference takes together come together.
case = parse(",seq_len_q", "p,100,32,8,64,bf16,9")
local request = sample.request(100, 9, case)
is(request.part, 4, "4 tokens of 4 heads are 16 rows")
is(request.cost, 100 * 8 * 64, "and cost what 1 does")
is(text_of(sample.pieces({ request }, 1, "seed")), "0:0-4 0:5-9", "so they are taken together")
request = sample.request(100, 9, parse(",seq_len_q", "p,100,32,1,64,bf16,9"))
is(request.part .. " " .. request.cost, "1 " .. 2 * 100 * 64, "one token of 32 heads is more rows than that")

-- ---- their arguments -----------------------------------------------------------------------------

-- Of a whole decode's reference, the rows of a piece; of the piece's reference, its rows: the same.
for _, line in ipairs {
    "packed and causal,100 7 0 40,4,2,64,bf16,causal,-1,9 12 3 5,1",
    "packed and windowed,100 7 0 40,4,2,64,bf16,causal,17,9 12 3 5,1",
    "packed and dense,100 7 0 40,4,2,64,fp16,dense,-1,9 12 3 5,1",
    "fixed and causal,100 7 0 40,4,2,64,fp16,causal,-1,6,0",
    "fixed and windowed,100 7 0 40,4,2,64,bf16,causal,3,6,0",
    "one token,100 7 0 40,4,2,64,bf16,causal,17,1,0",
} do
    case = parse(",mask,window_left,q_lens,packed", line)
    local there = cases.build(case, device)
    there.out, there.lse = quire.decode(there)
    local whole, whole_lse = quire.reference(require "quire.decode".with(there, { out = false, lse = false }))
    local pieces, start, at = {}, {}, 0
    for b, q in ipairs(case.q_lens) do
        start[b] = at
        at = at + q
        for _, ends in ipairs { { 0, math.min(2, q) }, { math.floor(q / 2), math.floor(q / 2) + 1 }, { q - 1, q } } do
            table.insert(pieces, { request = b - 1, first = ends[1], last = ends[2] })
        end
    end
    local part = subset(there, pieces)
    local verdict = quire.verify(part)
    ok(verdict.ok and verdict.rows == sample.count(pieces) * case.hq, "%s: pieces are right", case.id)
    part.out, part.lse = nil, nil
    local out, lse = quire.reference(part)
    local rows, lse_rows = whole:view { at, case.hq * case.d }, whole_lse:view { at, case.hq }
    local agree, n = true, 0
    for _, piece in ipairs(pieces) do
        for token = piece.first, piece.last - 1 do
            local from = start[piece.request + 1] + token
            agree = agree and quire.compare(out:view { out.shape[1], case.hq * case.d }:select(0, n),
                rows:select(0, from)).relative < 1e-12
            local difference = quire.compare(lse:view { lse.shape[1], case.hq }:select(0, n), lse_rows:select(0, from))
            agree = agree and difference.special == 0 and difference.max_difference < 1e-12
            n = n + 1
        end
    end
    ok(agree and n == out.shape[1], "%s: their reference is the whole one's", case.id)

    -- what is wrong in the first, a middle or the last token of a piece is seen, and only there
    part = subset(there, pieces)
    part.out:view { n, case.hq * case.d }:set(9, n - 1, case.hq * case.d - 1)
    ok(not quire.verify(part).ok, "%s: a wrong element is seen", case.id)
end
tap.done()

-- The reader of request traces, and the pages that requests share.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"
local quire = require "quire"
local trace = require "quire.trace"

local ok, is, same, like = tap.ok, tap.is, tap.same, tap.like

local data = os.getenv "QUIRE_SOURCE" .. "/t/data/"

local function lengths(requests)
    local list = {}
    for b, request in ipairs(requests) do
        list[b] = request.length
    end
    return list
end

same(lengths(assert(trace.read(data .. "context.csv"))), { 374, 1, 2048, 91 }, "CSV with CR LF: all requests")
same(lengths(assert(trace.read(data .. "context.csv", 2))), { 374, 1 }, "the first two")
local requests = assert(trace.read(data .. "blocks.jsonl"))
same(lengths(requests), { 1100, 700, 1600, 1100, 600, 40 }, "JSON lines")
same(requests[3].blocks, { 10, 11, 13, 14 }, "with block ids")

-- Requests 3 and 4 share with 1; request 5 has block 11 after another first block, which is not the
-- same prefix.
local plan = trace.plan(requests, 16)
same(plan.keys, { 0, 0, 1024, 1100, 0, 0 }, "shared keys")
is(plan.with[3], 1, "shared with the first request that had them")
is(plan.pages, 69 + 44 + (100 - 64) + 0 + 38 + 3, "pages for all")
local cache = quire.cache { pages = plan.pages, page_size = 16, kv_heads = 1, head_dim = 64, dtype = "fp16" }
local sequences = trace.sequences(requests, plan, cache)
is(cache:pages_free(), 0, "the plan is exact")
is(cache:pages_shared(), 69, "shared pages")
for b, request in ipairs(requests) do
    is(sequences[b].length, request.length, "length of request %d", b)
end
ok(sequences[3].pages[64] == sequences[1].pages[64] and sequences[3].pages[65] ~= sequences[1].pages[65],
    "request 3 shares 64 pages and no more")
same(sequences[4].pages, sequences[1].pages, "request 4 shares all")

-- What is wrong, with its line.
local path = os.tmpname()
for _, case in ipairs {
    { "a,b\n1,2\n", ":1: expected a column ContextTokens or input_length", "no such column" },
    { "t,ContextTokens\n1,2\n3,x\n", ':3: ContextTokens: expected a number of tokens, got "x"', "no number" },
    { "t,ContextTokens\n1\n", ':2: ContextTokens: expected a number of tokens, got ""', "a field missing" },
    { "t,ContextTokens\n", ": no requests", "no requests" },
    { "", ":1: expected a column", "an empty file" },
    { '{"input_length": 5}\n{"input_length": 5\n', ":2: expected a JSON object", "broken JSON" },
    { '{"input_length": -5}\n', ":1: input_length: expected a number of tokens, got %-5", "a negative length" },
    { '{"length": 5}\n', ":1: input_length: expected a number of tokens, got nil", "no length" },
    { '{"input_length": 513, "hash_ids": [1]}\n', ":1: hash_ids: expected a list of 2 ids", "an id too few" },
    { '{"input_length": 13, "hash_ids": [NaN]}\n', ":1: hash_ids: expected a list", "an id that is NaN" },
    { '{"input_length": 513, "hash_ids": {"a": 1}}\n', ":1: hash_ids: expected a list", "ids with names" },
    { '{"input_length": 513, "hash_ids": 7}\n', ":1: hash_ids: expected a list", "ids that are no list" },
} do
    local file = assert(io.open(path, "w"))
    file:write(case[1])
    file:close()
    local got, message = trace.read(path)
    is(got, nil, "%s: refused", case[3])
    like(message, case[2], "%s: file and line", case[3])
end
os.remove(path)
local _, missing = trace.read "/nonexistent.jsonl"
like(missing, "/nonexistent.jsonl: No such file", "no such file")
tap.done()

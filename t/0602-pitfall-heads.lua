-- Inputs that broke others: groups that are no power of two, rows never written, output places.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"
local pitfall = require "pitfall"

local ok, means, right = tap.ok, pitfall.means, pitfall.right

-- Query heads go with their KV head, for every group and several numbers of KV heads: V of KV head j
-- is j + 1.
for _, hkv in ipairs { 1, 2, 3, 5 } do
    for group = 1, 32 do
        means({ lens = { 3, 40 }, hq = group * hkv, hkv = hkv, k = 0, v = function(_, _, h) return h + 1 end },
            function(_, _, h) return math.floor(h / group) + 1 end, "%d KV heads, group %d", hkv, group)
    end
end

-- Groups that do not divide a tile of rows, and several tokens: right, and no head depends on others.
for _, group in ipairs { 3, 5, 6, 7, 9, 12, 14, 28 } do
    for _, sq in ipairs { 1, 3, 5 } do
        right({ lens = { 1025, 33, 129 }, sq = sq, hq = group * 2, hkv = 2, d = 128, mask = "causal", q = "random" },
            "group %d, %d tokens", group, sq)
    end
end
for _, group in ipairs { 7, 28 } do
    local together = pitfall.run { lens = { 700 }, hq = group, hkv = 1, d = 128,
        q = function(_, _, h) return (h - group / 2) / 8 end }
    local close = true
    for h = 0, group - 1 do
        local alone = pitfall.run { lens = { 700 }, hq = 1, hkv = 1, d = 128, q = (h - group / 2) / 8 }
        for i = 0, 127 do
            local a, b = together.out:get(0, h, i), alone.out:get(0, 0, i)
            close = close and math.abs(a - b) <= 2 ^ -7 * math.abs(b) + 2 ^ -10
        end
    end
    ok(close, "group %d: every head as it would be alone", group)
end

-- All rows are written, for groups above a tile's half: out starts as NaN.
for group = 9, 32 do
    right({ lens = { 600, 1 }, hq = group, hkv = 1, q = "random" }, "group %d: no row is left out", group)
end

-- Output places, fixed and packed: request, token and head each move the answer.
for batch = 1, 5 do
    for sq = 1, 5 do
        local lens, q_lens = {}, {}
        for b = 1, batch do
            lens[b] = 100 * b + 12
            q_lens[b] = (b + sq) % (sq + 1)
        end
        local function expect(packed)
            return function(b, i, h)
                -- token i sees all but the last few keys, whose V is 0; the others' tells request and head
                local q = packed and q_lens[b + 1] or sq
                local n = lens[b + 1]
                return (b + 1 + 8 * math.floor(h / 2)) * (n - sq) / (n - q + i + 1)
            end
        end
        local o = {
            lens = lens, sq = sq, hq = 4, hkv = 2, mask = "causal", k = 0,
            v = function(b, t, h) return t < lens[b + 1] - sq and b + 1 + 8 * h or 0 end,
        }
        means(o, expect(false), "%d requests of %d tokens: each output in its place", batch, sq)
        o.q_lens = q_lens
        means(o, expect(true), "%d requests of %d tokens, packed", batch, sq)
    end
end
tap.done()

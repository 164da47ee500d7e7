-- Inputs that broke others: V at the ends of its type's range.  A result is a mean, so it is between the values.
-- SPDX-License-Identifier: Apache-2.0
local quire = require "quire"
local tap = require "tap"
local pitfall = require "pitfall"

local ok, right = tap.ok, pitfall.right

local TYPES = {
    { "bf16", "bf16", largest = 2 ^ 128 - 2 ^ 120, normal = 2 ^ -126, least = 2 ^ -133 },
    { "fp16", "fp16", largest = 65504, normal = 2 ^ -14, least = 2 ^ -24 },
    { "fp8e4m3", "fp16", largest = 448, normal = 2 ^ -6, least = 2 ^ -9 },
    { "fp8e4m3", "fp8e4m3", largest = 448, normal = 2 ^ -6, least = 2 ^ -9 },
}
local LENS, LONG = { 1, 2, 300 }, { 1, 2, 300, 5000 }

-- Query heads per KV head, and tokens: 1, 2, 4, 8, 16 and 32 rows, and what is left over of them.
local FEW = { { 1, 1 }, { 8, 1 }, { 5, 5 } }
local ROWS = { { 1, 1 }, { 2, 1 }, { 3, 1 }, { 4, 1 }, { 5, 1 }, { 7, 1 }, { 8, 1 }, { 12, 1 }, { 16, 1 }, { 32, 1 },
    { 4, 2 }, { 5, 5 }, { 8, 8 } }

-- Scores, where a query of ones and D of 64 make them 8 times the element of K; and the sign of V.
local CASES = {
    { "alike", k = function() return 0 end, sign = function() return 1 end, lens = LONG },
    { "alike, signs by halves of a chunk", k = function() return 0 end,
        sign = function(_, t) return t % 256 < 128 and -1 or 1 end, lens = LENS },
    { "spread, signs in turn", k = function(_, t) return (t * 7 % 13 - 6) / 8 end,
        sign = function(_, t) return t % 2 == 0 and 1 or -1 end, lens = LENS },
    { "rising", k = function(_, t) return math.floor(t / 64) / 16 end, sign = function() return -1 end, lens = LONG },
    { "one above all", k = function(_, t) return t == 1 and 2 or 0 end, sign = function() return 1 end, lens = LENS },
}

local function values(value, sign)
    return function(...)
        return value * sign(...)
    end
end

-- Whether no element is beyond `bound`: verdicts let a number next to the largest be Inf, as rounding may make it.
local function within(result, bound)
    for _, x in ipairs(result.out:totable()) do
        if not (math.abs(x) <= bound) then
            return false
        end
    end
    return true
end

for _, types in ipairs(TYPES) do
    local what = ("%s to %s"):format(types[1], types[2])
    local function run(changes, format, ...)
        local o = { lens = LENS, dtype = types[1], out_dtype = types[2], hkv = 1, q = 1 }
        for name, value in pairs(changes) do
            o[name] = value
        end
        return right(o, "%s: " .. format, what, ...)
    end

    for _, rows in ipairs(types[1] == "bf16" and ROWS or FEW) do
        local hq, sq = rows[1], rows[2]
        for _, case in ipairs(CASES) do
            local result = run({ lens = case.lens, hq = hq, sq = sq, k = case.k, v = values(types.largest, case.sign) },
                "the largest V, %d heads, %d tokens, scores %s", hq, sq, case[1])
            ok(within(result, types.largest), "%s: and it is within V", what)
        end
        run({ hq = hq, sq = sq, mask = "causal", window = 290, v = types.largest },
            "the largest V, %d heads, %d tokens, a window", hq, sq)
        for _, value in ipairs { types.normal, types.least, 3 * types.least } do
            run({ hq = hq, sq = sq, k = CASES[3].k, v = values(value, CASES[2].sign) },
                "V of %.3g, %d heads, %d tokens", value, hq, sq)
        end
        -- What counts has a small weight, as all else is 0.
        for _, power in ipairs { 4, 48 } do
            run({ hq = hq, sq = sq, k = function(_, t) return t == 0 and power / 8 or 0 end,
                v = function(_, t) return t == 0 and 0 or types.largest end, bmm2_scale = 2 ^ -4 },
                "the largest V, %d heads, %d tokens, weighed by e^-%d", hq, sq, power)
        end
    end
    for _, d in ipairs { 128, 256 } do
        for hq = 1, 8, 7 do
            local result = run({ hq = hq, d = d, k = 0, v = types.largest }, "the largest V, D %d, %d heads", d, hq)
            ok(within(result, types.largest), "%s: and it is within V", what)
        end
    end
end

-- Subnormal V that a scale makes large keep the bits that float32 has for them.  On GPUs weights of bf16 are lowered
-- whatever V is, and those of less than a normal number's have fewer.
for _, rows in ipairs(ROWS) do
    for _, power in ipairs { 0, 4 } do
        local value = pitfall.device == "cpu" and 2 ^ -133 or 2 ^ -118
        right({ lens = LENS, hkv = 1, hq = rows[1], sq = rows[2], q = 1, bmm2_scale = 2 ^ 100,
            k = function(_, t) return t == 0 and power / 8 or 0 end,
            v = function(_, t) return t == 0 and 0 or value end },
            "V of %.3g, %d heads, %d tokens, weighed by e^-%d", value, rows[1], rows[2], power)
    end
end
tap.done()

-- Inputs that broke others: extreme scores, empty tiles, overflow, rounding of partial results.
-- SPDX-License-Identifier: Apache-2.0
local quire = require "quire"
local tap = require "tap"
local pitfall = require "pitfall"

local ok, is, means, right = tap.ok, tap.is, pitfall.means, pitfall.right

-- Very negative scores are still scores.  Two keys; the page's other slots score 0, far above them.
for _, dtype in ipairs { "bf16", "fp16" } do
    for _, value in ipairs { 1, 3 } do
        local result = means({ lens = { 2 }, d = 128, hq = 32, hkv = 4, dtype = dtype, q = 64, k = -64, v = value,
            unused_k = 0, unused_v = 1000 }, function() return value end,
            "%s: raw scores of -524288, V = %d", dtype, value)
        if value == 1 then
            ok(math.abs(result.lse:get(0, 0) + 46340.2569) < 0.05, "%s: and their lse", dtype)
        end
    end
    for _, raw in ipairs { 1e4, 5e4, 5.5e4, 6e4, 1e5, 2e5, 2.45e5 } do
        -- q = 64 in every dimension; k is what makes the raw score, rounded to the type
        right({ lens = { 2, 50 }, d = 128, dtype = dtype, q = 64, k = -raw / (128 * 64),
            unused_k = 0, unused_v = 1000 }, "%s: raw scores of about %g", dtype, -raw)
    end
end

-- A weight of e^-15 or so counts where the values of the key with weight 1 are 0; fp16 has 5 steps below it.
for _, types in ipairs { { "fp16", "fp16" }, { "fp8e4m3", "fp16" } } do
    for sq = 1, 12, 11 do
        for _, k in ipairs { 1.25, 1.5, 1.75, 1.875 } do -- scores 8 times that, and 0
            right({ lens = { 2, 40 }, sq = sq, hq = 8, dtype = types[1], out_dtype = types[2], q = 1,
                k = function(_, t) return t == 0 and k or 0 end, v = function(_, t) return t == 0 and 0 or 96 end },
                "%s to %s, %d tokens: weights of e^-%g beside 1", types[1], types[2], sq, 8 * k)
        end
    end
end

-- A last tile that one row cannot see at all.
means({ lens = { 129 }, sq = 2, d = 128, hq = 8, hkv = 2, mask = "causal", k = 0,
    v = function(_, t) return t == 128 and 129 or 1 end },
    function(_, i) return i == 0 and 1 or (128 + 129) / 129 end, "129 keys, 2 causal tokens")
for sq = 2, 8 do
    local lens = {}
    for _, tile in ipairs { 16, 32, 64, 128, 256 } do
        for rest = 0, sq do
            lens[#lens + 1] = tile + rest
            lens[#lens + 1] = 3 * tile + rest
        end
    end
    local result = means({ lens = lens, sq = sq, hq = 4, mask = "causal", k = 0, v = function(_, t) return t % 8 end },
        function(b, i)
            local visible, sum = lens[b + 1] - sq + i + 1, 0
            for t = 0, visible - 1 do
                sum = sum + t % 8
            end
            return sum / visible
        end, "%d tokens, lengths around multiples of tiles", sq)
    local finite = true
    for _, x in ipairs(result.lse:totable()) do
        finite = finite and x > -math.huge and x < math.huge
    end
    ok(finite, "%d tokens: every lse is finite", sq)
end

-- The largest fp8 values: the output must not overflow on the way.
for _, length in ipairs { 1, 16, 300, 5000 } do
    for _, case in ipairs { { "fp16", 1, 448 }, { "fp16", 0.5, 224 }, { "fp16", 2, 896 }, { "fp8e4m3", 1, 448 },
        { "fp8e4m3", 0.5, 224 }, { "fp8e4m3", 2, 448 } } do
        local result = pitfall.run { lens = { length }, dtype = "fp8e4m3", out_dtype = case[1], k = 0, v = 448,
            bmm2_scale = case[2] }
        local exact = true
        for _, x in ipairs(result.out:totable()) do
            exact = exact and x == case[3]
        end
        ok(exact, "%d keys of 448 times %g as %s are %g", length, case[2], case[1], case[3])
    end
end

-- At the largest values fp16 and bf16 round to nearest, and beyond them to Inf; fp8 stays at 448.
do
    local inf, bf16_max = math.huge, 2 ^ 128 - 2 ^ 120
    for _, case in ipairs {
        { "fp16", "fp16", 65504, 1.0002, 65504 }, { "fp16", "fp16", 65504, 1.0003, inf },
        { "fp16", "fp16", -65504, 1.0003, -inf }, { "bf16", "bf16", bf16_max, 1.001, bf16_max },
        { "bf16", "bf16", bf16_max, 1.003, inf }, { "bf16", "bf16", -bf16_max, 2, -inf },
        { "fp8e4m3", "fp16", 448, 1000, inf }, { "fp8e4m3", "fp8e4m3", -448, 1000, -448 },
        { "fp8e4m3", "fp8e4m3", 448, 3e38, 448 } } do
        local result = pitfall.run { lens = { 1 }, dtype = case[1], out_dtype = case[2], k = 0, v = case[3],
            bmm2_scale = case[4] }
        local exact = true
        for _, x in ipairs(result.out:totable()) do
            exact = exact and x == case[5]
        end
        ok(exact, "%g times %g as %s is %g", case[3], case[4], case[2], case[5])
    end
end

-- The second half scores higher by a step of 0 to 8 in log2 units: the error may not jump on the way.
for _, dtype in ipairs { { "fp8e4m3", "fp16" }, { "bf16" }, { "fp16" } } do
    local worst, rows = 0, 0
    for step = 0, 8, 0.25 do
        for swapped = 0, 1 do
            local result = pitfall.run { lens = { 256 }, hq = 1, hkv = 1, dtype = dtype[1], out_dtype = dtype[2], q = 1,
                k = function(_, t) return (t < 128) == (swapped == 1) and 1 or 0 end,
                v = function(_, t) return (t < 128) == (swapped == 1) and 1 or 0 end,
                bmm1_scale = math.max(step, 1e-9) * math.log(2) / 64 }
            local verdict = quire.verify(result.args)
            local expected = 2 ^ step / (1 + 2 ^ step)
            worst = math.max(worst, verdict.worst_error)
            rows = rows + verdict.rows
            if math.abs(result.out:get(0, 0, 0) - expected) > 2e-3 * expected + 2 ^ -8 then
                worst = math.huge
            end
        end
    end
    ok(worst <= 1 and rows == 66, "%s: scores that rise by any step, %.2f of the bound at worst", dtype[1], worst)
end
local halves = pitfall.run { lens = { 256 }, hq = 1, hkv = 1, dtype = "fp8e4m3", out_dtype = "fp16", q = 1,
    k = function(_, t) return t < 128 and 0 or 1 end, v = function(_, t) return t < 128 and 0 or 1 end,
    bmm1_scale = 3.9 * math.log(2) / 64 }
ok(math.abs(halves.out:get(0, 0, 0) - 0.93722) < 5e-4, "3.9 log2 units: 0.93722")

-- Partial results are rounded once, at the end: with bf16 partials this one would be 1.0.
local exact = means({ lens = { 256 }, k = 0, v = function(_, t) return (t < 63 or t >= 128) and 1.0078125 or 1 end },
    function() return 1.0078125 end, "a mean just above the middle of two bf16 numbers")
is(exact.out:get(0, 0, 0), 1.0078125, "is rounded up, exactly")
-- Rounding to nearest of the float64 answer, element by element; splits at 256 keys may cost little.
do
    local function misrounded(length)
        local result = pitfall.run { lens = { length }, q = "random", d = 128, hq = 32, hkv = 8 }
        local reference = quire.reference(result.args)
        local expected = reference:convert "bf16"
        local count = 0
        for i = 0, expected.numel - 1 do
            count = count + (expected.pointer[i] ~= result.out.pointer[i] and 1 or 0)
        end
        return count / expected.numel
    end
    local one, many = misrounded(250), misrounded(8000)
    ok(many < one + 0.1, "bf16: %.3f of 8000 keys' results are not the nearest, %.3f of 250's", many, one)
end

-- No row picks up another's sum.
for _, dtype in ipairs { { "bf16" }, { "fp16" }, { "fp8e4m3", "fp16" }, { "fp8e4m3" } } do
    for _, d in ipairs { 64, 128, 256 } do
        for _, group in ipairs { 1, 3, 4, 8, 16 } do
            means({ lens = { 1, 77, 600 }, sq = 3, d = d, hq = 2 * group, hkv = 2,
                dtype = dtype[1], out_dtype = dtype[2],
                q = function(_, i, h) return 2 ^ (h % 7 - i) end, k = "random", v = 1 }, function() return 1 end,
                "%s to %s, D %d, group %d: V = 1 gives 1", dtype[1], dtype[2] or dtype[1], d, group)
        end
    end
end

-- NaN and Inf in what is live follow IEEE arithmetic, and stay with their request and KV head.
for _, case in ipairs { { "NaN in V", "v", 0 / 0 }, { "NaN in K", "k", 0 / 0 }, { "Inf in V", "v", math.huge } } do
    local o = { lens = { 40, 300, 77 }, hq = 8, hkv = 2, q = "random", k = 0.5, v = 1 }
    local clean = pitfall.run(o)
    local base = o[case[2]]
    o[case[2]] = function(b, t, h)
        return b == 1 and t == 130 and h == 1 and case[3] or base
    end
    local result = pitfall.run(o)
    local others, hit = true, true
    for b = 0, 2 do
        for h = 0, 7 do
            if b == 1 and h >= 4 then
                local x = result.out:get(b, h, 3)
                hit = hit and (x ~= x or x == math.huge)
            else
                others = others and result.out[b][h]:same_bits(clean.out[b][h])
            end
        end
    end
    ok(hit, "%s shows in its own rows", case[1])
    ok(others, "%s leaves no trace in other requests and KV heads", case[1])
end
tap.done()

-- Inputs that broke others: causal and window limits off by one or shared by all tokens.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"
local pitfall = require "pitfall"

local means, right = pitfall.means, pitfall.right

local DTYPES = { { "bf16" }, { "fp16" }, { "fp8e4m3", "fp16" }, { "fp8e4m3", "fp8e4m3" } }

-- The mean of V over the keys that token i of sq sees.
local function mean(length, sq, i, window, v)
    local last = length - sq + i
    local first = window >= 0 and math.max(0, last - window) or 0
    local sum = 0
    for t = first, last do
        sum = sum + v(t)
    end
    return last >= first and sum / (last - first + 1) or 0
end

-- Causal limits are aligned to the bottom right.
do
    local values = { [0] = 1, 2, 6 }
    means({ lens = { 3 }, sq = 2, mask = "causal", k = 0, v = function(_, t) return values[t] end },
        function(_, i) return i == 0 and 1.5 or 3 end, "2 tokens over 3 keys of 1, 2, 6")
end
for sq = 1, 8 do
    local lens = {}
    for length = sq, sq + 40 do
        lens[#lens + 1] = length
    end
    means({ lens = lens, sq = sq, mask = "causal", k = 0, v = function(_, t) return t end },
        function(b, i) return mean(lens[b + 1], sq, i, -1, function(t) return t end) end,
        "%d tokens over %d to %d keys", sq, sq, sq + 40)
end

-- Dense and causal differ: V = 1 on the prefix and 2, 4, 8, 16 on the four new tokens.
for _, dtype in ipairs(DTYPES) do
    for _, mask in ipairs { "causal", "dense" } do
        local prefix = { 21, 3 }
        local function v(b, t)
            return t < prefix[b + 1] and 1 or 2 ^ (t - prefix[b + 1] + 1)
        end
        means({ lens = { 25, 7 }, sq = 4, d = 128, mask = mask, dtype = dtype[1], out_dtype = dtype[2], k = 0, v = v },
            function(b, i)
                return mean(prefix[b + 1] + 4, 4, mask == "dense" and 3 or i, -1, function(t) return v(b, t) end)
            end, "%s to %s, %s: prefix and new tokens", dtype[1], dtype[2] or dtype[1], mask)
    end
end

-- Each token has a window of its own.
means({ lens = { 20 }, sq = 4, mask = "causal", window = 3, k = 0, v = function(_, t) return t end },
    function(_, i) return 14.5 + i end, "4 tokens, window 3")
for window, expected in pairs { [-1] = 4.5, [0] = 9, [1] = 8.5, [3] = 7.5, [8] = 5, [9] = 4.5, [100] = 4.5 } do
    means({ lens = { 10 }, mask = "causal", window = window, k = 0, v = function(_, t) return t end },
        function() return expected end, "10 keys, window_left %d", window)
end
for sq = 1, 8 do
    for _, window in ipairs { 0, 1, 2, 7, 15, 16, 17, 31, 40, 127, 255 } do
        local lens = {}
        for length = sq, 300, 7 do
            lens[#lens + 1] = length
        end
        means({ lens = lens, sq = sq, hq = 4, mask = "causal", window = window, k = 0,
            v = function(_, t) return t % 9 end },
            function(b, i) return mean(lens[b + 1], sq, i, window, function(t) return t % 9 end) end,
            "%d tokens, window %d, %d to 300 keys", sq, window, sq)
    end
end

-- A window in every type, at the lengths where it begins to leave pages out.
for _, dtype in ipairs(DTYPES) do
    for _, window in ipairs { 0, 127, 128, 256, 511 } do
        for _, sq in ipairs { 1, 4 } do
            right({ lens = { 255, 256, 257, 384, 512, 513, 640, 1024 }, sq = sq, mask = "causal", window = window,
                dtype = dtype[1], out_dtype = dtype[2], q = "random", bmm2_scale = dtype[2] == "fp8e4m3" and 16 or 1 },
                "%s to %s: window %d, %d tokens", dtype[1], dtype[2] or dtype[1], window, sq)
        end
    end
end
right({ lens = { 300, 20, 7 }, q_lens = { 5, 1, 8 }, mask = "causal", window = 33, q = "random" },
    "packed queries with a window")
tap.done()

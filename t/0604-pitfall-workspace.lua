-- Inputs that broke others: what a workspace held before, its size, and what a call remembers of another.
-- SPDX-License-Identifier: Apache-2.0
local quire = require "quire"
local tap = require "tap"
local pitfall = require "pitfall"

local ok, is, raises, right = tap.ok, tap.is, tap.raises, pitfall.right

local function workspace_of(host)
    local there = {}
    for name, value in pairs(require "quire.cases".mirror(host, pitfall.device)) do
        there[name] = value
    end
    return quire.workspace_size(there)
end

local function workspace(bytes)
    return quire.tensor { shape = { math.max(bytes, 1) }, dtype = "uint8", device = pitfall.device }
end

-- Many shapes in no order, over one workspace that was zeroed once: each as over a fresh one, and as
-- the reference has it.  So nothing is remembered of shape, type, scale, stride or mask either.
local list = {}
local KINDS = {
    { lens = { 4096 } }, { lens = { 1, 17, 40 } }, { lens = { 4096, 1 }, mask = "causal", window = 16 },
    { lens = { 700, 33, 129, 5 } }, { lens = { 5, 300, 257, 64 }, sq = 2, mask = "causal" },
    { lens = { 5, 300, 257, 64 }, sq = 3, mask = "causal" }, { lens = { 65, 257 }, q_lens = { 1, 7 }, mask = "causal" },
    { lens = { 257, 65 }, q_lens = { 4, 4 }, mask = "causal" }, { lens = { 2000, 0, 9 }, hq = 28, hkv = 4 },
    { lens = { 100, 900 }, form = "tuple", pad = 16 }, { lens = { 100, 900 }, page = 64 },
}
local SCALES = { 1 / 8, 3 / 8, 1 / 32 }
for n = 1, 66 do
    local o = { q = "random", d = ({ 64, 128, 256 })[n % 3 + 1], dtype = ({ "bf16", "fp16" })[n % 2 + 1],
        bmm1_scale = SCALES[n % 5 % 3 + 1] }
    for name, value in pairs(KINDS[n * 7 % #KINDS + 1]) do
        o[name] = value
    end
    list[n] = { order = (n * 37) % 67, host = pitfall.build(o) }
end
table.sort(list, function(a, b) return a.order < b.order end)
local largest = 0
for _, entry in ipairs(list) do
    largest = math.max(largest, workspace_of(entry.host))
end
local shared = workspace(largest)
local same, correct = 0, 0
for _, entry in ipairs(list) do
    local result = pitfall.decode(entry.host, shared)
    local fresh = pitfall.decode(entry.host)
    same = same + (result.out:same_bits(fresh.out) and result.lse:same_bits(fresh.lse) and 1 or 0)
    correct = correct + (quire.verify(result.args).ok and 1 or 0)
end
is(same, #list, "decodes over a used workspace have the bits of those over fresh ones")
is(correct, #list, "and are right")

-- A workspace in which a launch left NaN behind.
do
    local nan = pitfall.build { lens = { 4096, 4096, 4096 }, v = 0 / 0, q = "random" }
    local clean = pitfall.build { lens = { 1, 17, 40 }, max_seq_len = 4096, q = "random" }
    local used = workspace(math.max(workspace_of(nan), workspace_of(clean)))
    pitfall.decode(nan, used)
    ok(pitfall.decode(clean, used).out:same_bits(pitfall.decode(clean).out), "NaN left in a workspace does no harm")
end

-- The bound on the lengths changes no bit.
for _, length in ipairs { 1, 2, 3, 5, 31, 64, 253 } do
    local function bits(bound)
        return pitfall.run { lens = { length }, hq = 32, hkv = 8, d = 128, q = "random", max_seq_len = bound }
    end
    local exact = bits(length)
    for _, bound in ipairs { 4096, 131072, 2147483520 } do
        local loose = bits(bound)
        ok(loose.out:same_bits(exact.out) and loose.lse:same_bits(exact.lse),
            "%d keys: the same bits with a bound of %d", length, bound)
    end
end

-- The size: exact, growing with batch and bound, and one byte less is refused with the bytes needed.
do
    local sizes, grows = {}, true
    for n, batch in ipairs { 1, 2, 8, 64, 256, 1024 } do
        local lens = {}
        for b = 1, batch do
            lens[b] = 1
        end
        sizes[n] = workspace_of(pitfall.build { lens = lens, hq = 32, hkv = 8, d = 128, max_seq_len = 8192 })
        grows = grows and sizes[n] >= (sizes[n - 1] or 0)
    end
    ok(grows, "the size does not shrink with the batch: %s", table.concat(sizes, " "))
    local bounds = {}
    for n, bound in ipairs { 1, 300, 4096, 131072, 2147483520 } do
        bounds[n] = workspace_of(pitfall.build { lens = { 1 }, max_seq_len = bound })
        grows = grows and bounds[n] >= (bounds[n - 1] or 0)
    end
    ok(grows, "nor with the bound: %s", table.concat(bounds, " "))
    for _, o in ipairs { { lens = { 300, 5000, 1 }, q = "random" },
        { lens = { 2000, 40, 9 }, sq = 16, hq = 16, hkv = 4, d = 128, q = "random" } } do
        local host = pitfall.build(o)
        local bytes = workspace_of(host)
        if bytes > 0 then
            raises(function() pitfall.decode(host, workspace(bytes - 1)) end,
                ("workspace_buffer:.*%d.*QUIRE_ERROR_VALUE"):format(bytes), "%d bytes: one less is refused", bytes)
        end
        right(o, "%d bytes: accepted, and nothing beyond them is written", bytes)
    end
end
tap.done()

-- Two GPUs in one process: a call goes to the device of its tensors, whichever was used last.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"
local quire = require "quire"
local gpu = require "gpu"

local ok, is, raises = tap.ok, tap.is, tap.raises

if not gpu.on_cpu and quire.cuda.count() < 2 then
    tap.skip_all "needs two CUDA devices, this machine has one"
end
local ids = { gpu.id or 0, gpu.id == 1 and 0 or 1 }

-- A device's tensors and stream, and what it gives when the other one idles.
local function side(id, t)
    local args = gpu.build(t, gpu.on_cpu and "cpu" or ("cuda:%d"):format(id))
    local stream = gpu.stream(id)
    local s = { stream = stream, args = args, wanted = gpu.decode_fresh(args, stream), mine = gpu.fresh(args) }
    s.launch = quire.bind(s.mine)
    return s
end

for _, t in ipairs {
    { kv_lens = { 6000, 10, 700 }, hq = 32, hkv = 8 },
    { kv_lens = { 900, 40, 3000 }, seq_len_q = 4, dtype = "fp16", d = 64, window_left = 200, page = 128 },
    { kv_lens = { 300, 5, 2000 }, q_lens = { 7, 1, 40 }, dtype = "fp8e4m3", out_dtype = "fp16" },
} do
    t.id = ("%s d%d"):format(t.dtype or "bf16", t.d or 128)
    local sides = { side(ids[1], t), side(ids[2], t) }
    for i, s in ipairs(sides) do
        local verdict = quire.verify(s.wanted)
        ok(verdict.ok, "%s: device %d is right (worst error %.3f of its bound)", t.id, i, verdict.worst_error)
    end

    gpu.in_turns(sides, 50)
    for i, s in ipairs(sides) do
        gpu.sync(s.stream)
        ok(gpu.same_bits(s.mine, s.wanted), "%s: 50 launches in turns: device %d gives the bits of one alone", t.id, i)
        gpu.fill_nan(s.mine.out)
    end

    local graphs = {}
    for i, s in ipairs(sides) do
        graphs[i] = gpu.capture(s.stream, function(stream) s.launch(stream) end)
    end
    for _ = 1, 50 do
        for i, graph in ipairs(graphs) do
            graph:replay(sides[i].stream)
        end
    end
    for i, s in ipairs(sides) do
        gpu.sync(s.stream)
        ok(gpu.same_bits(s.mine, s.wanted), "%s: 50 replays in turns: device %d gives the bits of one alone", t.id, i)
    end
end

-- What is not of one device is refused, and nothing of it is launched.
if not gpu.on_cpu then
    local t = { kv_lens = { 100, 3 }, id = "mixed" }
    local one, two = side(ids[1], t), side(ids[2], t)
    local function fails(arguments, stream, words, what)
        local out = gpu.fill_nan(arguments.out)
        raises(function() quire.decode(arguments, stream) end, words, what)
        quire.cuda.sync(ids[1])
        quire.cuda.sync(ids[2])
        local first = out:to "cpu":get(0, 0, 0)
        ok(first ~= first, "... and out is as it was")
    end
    for _, name in ipairs { "kv_cache", "paged_kv_indices", "seq_lens", "workspace_buffer", "out" } do
        fails(gpu.with(one.mine, { [name] = two.mine[name] }), one.stream,
            ("%s: expected the device of the tensor before it, cuda:%d, got cuda:%d"):format(name, ids[1], ids[2]),
            name .. " on another device")
    end
    fails(one.mine, two.stream,
        ("stream: expected one of the tensors' device, cuda:%d, got one of cuda:%d"):format(ids[1], ids[2]),
        "another device's stream")
    one.launch(one.stream)
    gpu.sync(one.stream)
    ok(gpu.same_bits(one.mine, one.wanted), "after all that a decode is right")
end
tap.done()

-- What a launch costs the host, from LuaJIT: at most 8 us on a GPU. 0317-host-time.c is the same from C.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"
local quire = require "quire"
local gpu = require "gpu"
local clock = require "quire.clock"
local text = require "quire.text"

local ok = tap.ok
local ROUNDS, EACH = 50, 200 -- few enough at a time that no launch waits for room in the queue
local LIMIT = 8 -- microseconds
local stream = gpu.stream()

-- Every call is timed alone and the median judged: what else the machine does disturbs few of them.
local function measure(name, args)
    args = gpu.fresh(args)
    quire.prepare(args)
    local launch = quire.bind(args)
    local times, sum = {}, 0
    for _ = 1, ROUNDS do
        for _ = 1, EACH do
            local start = clock.now()
            launch(stream)
            times[#times + 1] = (clock.now() - start) * 1e6
        end
        gpu.sync(stream)
    end
    for _, each in ipairs(times) do
        sum = sum + each
    end
    local median = text.median(times)
    print(("# host time per launch from LuaJIT, %s: %.2f us on average, median %.2f"):format(
        name, sum / #times, median))
    if gpu.on_cpu then
        ok(true, "%s: %d launches # SKIP on the CPU this is the decode itself", name, #times)
    else
        ok(median <= LIMIT, "%s: %d launches, the median is at most %d us", name, #times, LIMIT)
    end
    ok(quire.verify(args).ok, "%s: the last one is right", name)
end

measure("B 1, one token", gpu.build { kv_lens = { 17 }, hq = 8, hkv = 1 })
measure("B 3, packed", gpu.build { kv_lens = { 17, 3, 20 }, q_lens = { 2, 1, 3 }, dtype = "fp16" })
tap.done()

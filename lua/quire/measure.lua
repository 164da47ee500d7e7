-- measure.lua - how fast memory is read here, and how long a decode takes
-- SPDX-License-Identifier: Apache-2.0

local ffi = require "ffi"
local clock = require "quire.clock"
local library = require "quire.library"
local text = require "quire.text"

local C = library.C

local measure = {}

-- On CUDA launches run from a graph: a launch alone pays for its start, which a chain of them hides.
local REPLAYS = 31
local GRAPH_SECONDS = 2.5e-3

-- On the CPU they run one after the other until both are reached.
local CPU_ROUNDS, CPU_SECONDS = 5, 0.3

local READ_ROUNDS = 7

local HOST_ROUNDS, HOST_GPU_SECONDS = 5, 10e-3 -- each

local function device_number(device)
    return tonumber(device:match "^cuda:(%d+)$")
end

local function cuda_times(stream, rounds, work)
    local cuda = require "quire.cuda"
    local times = {}
    for i = 1, rounds do
        local start, stop = cuda.event(), cuda.event()
        start:record(stream)
        work(stream)
        stop:record(stream)
        stop:sync()
        times[i] = start:elapsed(stop) * 1e-3
    end
    return times
end

local function cpu_times(rounds, work)
    local times = {}
    for i = 1, rounds do
        local start = clock.now()
        work(nil)
        times[i] = clock.now() - start
    end
    return times
end

-- Bytes per second of reading the blocks of a tensor [n, ...] in the order of `order`, int32 [m]; nil
-- and why where the library does not offer it for the device.
function measure.read_rate(blocks, order)
    local id = device_number(blocks.device)
    local stream = id and require "quire.cuda".stream(id)
    local function read()
        return C.quire_measure_read(blocks.dl, order.dl, stream and ffi.cast("void *", stream:live()) or nil)
    end
    local status = read() -- also wakes what sleeps
    if status == C.QUIRE_ERROR_UNSUPPORTED then
        return nil, ffi.string(C.quire_last_error())
    end
    library.check(status, 2)
    local seconds = text.median(id and cuda_times(stream, READ_ROUNDS, read) or cpu_times(READ_ROUNDS, read))
    return order.numel * (blocks.numel / blocks.shape[1]) * blocks.element.bytes / seconds
end

local function on_cpu(launches)
    local times, start, last = {}, clock.now(), 1
    cpu_times(1, launches[last]) -- pages of out and workspace are new
    repeat
        last = last % #launches + 1
        times[#times + 1] = cpu_times(1, launches[last])[1]
    until #times >= CPU_ROUNDS and clock.now() - start > CPU_SECONDS
    return text.median(times), #times, last
end

local function on_cuda(id, launches)
    local cuda = require "quire.cuda"
    local stream = cuda.stream(id)
    local function capture(count)
        return cuda.capture(stream, function()
            for i = 0, count - 1 do
                launches[i % #launches + 1](stream)
            end
        end)
    end
    local function replay(graph, rounds)
        return text.median(cuda_times(stream, rounds, function()
            graph:replay(stream)
        end))
    end
    -- whole rotations over the launches, as many as fill the time
    local count = #launches
    local graph = capture(count)
    replay(graph, 2)
    local once = replay(graph, 3)
    if once < GRAPH_SECONDS then
        count = count * math.ceil(GRAPH_SECONDS / math.max(once, 1e-6))
        graph:free()
        graph = capture(count)
        replay(graph, 2)
    end
    return replay(graph, REPLAYS) / count, REPLAYS, #launches
end

-- Seconds of one launch, the median over rotations through `launches`, functions of a stream such as
-- quire.bind gives; also the number of measurements, and which of the launches came last.
function measure.launch_time(device, launches)
    local id = device_number(device)
    if id then
        return on_cuda(id, launches)
    end
    return on_cpu(launches)
end

-- Seconds that the host spends on a launch without a graph, which takes the GPU `seconds`; CUDA only.
function measure.host_time(device, launches, seconds)
    local cuda = require "quire.cuda"
    local stream = cuda.stream(device_number(device))
    -- Fewer than the driver queues before it makes the host wait.  And where launches are long no more than a few: a
    -- GPU that has been busy for half a second is at its power limit, and slow, when the next workload is measured.
    local count = math.max(10, math.min(200, math.floor(HOST_GPU_SECONDS / seconds)))
    local best = math.huge
    for _ = 1, HOST_ROUNDS do
        local start = clock.now()
        for i = 0, count - 1 do
            launches[i % #launches + 1](stream)
        end
        best = math.min(best, (clock.now() - start) / count)
        stream:sync()
    end
    return best
end

return measure

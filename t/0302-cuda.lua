-- quire.cuda: memory, streams, events, graphs and modules; on a GPU, or where there is no driver on one that runs no
-- kernels (t/fake/libcuda.c).
-- SPDX-License-Identifier: Apache-2.0
local ffi = require "ffi"
local tap = require "tap"

local ok, is, like, raises = tap.ok, tap.is, tap.like, tap.raises

-- The fake has the real driver's soname: once loaded, quire.cuda finds it.
local fake
if not pcall(ffi.load, "libcuda.so.1") then
    local path = (os.getenv "QUIRE_BUILD" or ".") .. "/t/fake/.libs/libcuda.so.1"
    local loaded, library = pcall(ffi.load, path, true)
    if not loaded then
        tap.skip_all "no CUDA driver, and none to stand in for it: the build is without CUDA"
    end
    fake = library
    ffi.cdef "long fake_allocations(void); long fake_calls(const char *name);"
end

local cuda = require "quire.cuda"
local available, why = cuda.available()
if not available then
    tap.skip_all(why)
end

-- ---- devices -----------------------------------------------------------------------------------------
ok(cuda.count() >= 1, "%d devices", cuda.count())
ok(#cuda.name(0) > 0, "device 0 is a %s", cuda.name(0))
ok(cuda.capability(0) >= 10 and cuda.sm_count(0) > 0, "of capability %d, with %d SMs", cuda.capability(0),
    cuda.sm_count(0))
local free, total = cuda.mem_info(0)
ok(free > 0 and free <= total, "%.0f of %.0f bytes are free", free, total)
raises(function() cuda.name(cuda.count()) end, "device: expected a number from 0 to", "a device that is not there")
raises(function() cuda.stream "0" end, "device: expected a number", "a string as a device")
cuda.sync(0)

-- ---- memory ------------------------------------------------------------------------------------------
local COUNT = 1000
local there, here, back = cuda.alloc(0, COUNT * 4), ffi.new("int32_t[?]", COUNT), ffi.new("int32_t[?]", COUNT)
for i = 0, COUNT - 1 do
    here[i] = i * i
end
local function arrived(wanted)
    cuda.copy(back, there, COUNT * 4)
    for i = 0, COUNT - 1 do
        if back[i] ~= wanted(i) then
            return false
        end
    end
    return true
end
local function square(i) return i * i end

is(cuda.device_of(there), 0, "memory knows its device")
is(cuda.device_of(here), nil, "memory of the host has none")
cuda.copy(there, here, COUNT * 4)
ok(arrived(square), "to the device and back")
local other = cuda.alloc(0, COUNT * 4)
cuda.copy(other, there, COUNT * 4)
cuda.fill(there, 0, COUNT * 4)
ok(arrived(function() return 0 end), "filled with zeros")
cuda.copy(there, other, COUNT * 4)
ok(arrived(square), "from device to device")
cuda.fill(there + 4, 0xFF, 4)
ok(arrived(function(i) return i == 1 and -1 or i * i end), "a part is filled")
cuda.copy(there, here, 0)
cuda.copy(here, back, COUNT * 4)
is(here[1], -1, "between two places of the host")
cuda.copy(there, "\1\0\0\0", 4)
ok(arrived(function(i) return (i == 0 and 1) or (i == 1 and -1) or i * i end), "from a string")
cuda.free(other)
cuda.free(other)
raises(function() cuda.free(here) end, "expected what cuda.alloc gave", "foreign memory is not freed")
ok(cuda.alloc(0, 0) ~= nil, "no bytes are an allocation too")
raises(function() cuda.alloc(0, -1) end, "bytes: expected a whole number", "a negative size")
raises(function() cuda.alloc(0, 2 ^ 60) end,
    "cuMemAlloc of 1152921504606846976 bytes on cuda:0: CUDA_ERROR_OUT_OF_MEMORY %(.+%)",
    "too much, in the driver's words")
raises(function() cuda.fill(there, 256, 1) end, "byte: expected 0 to 255, got 256", "more than a byte")
raises(function() cuda.fill(here, 0, 4) end, "expected device memory", "fill is for devices")

-- ---- streams and events ------------------------------------------------------------------------------
local stream = cuda.stream(0)
ok(stream.handle ~= nil, "a stream has a handle")
is(tostring(stream), "cuda stream on cuda:0", "and prints itself")
local start, stop = cuda.event():record(stream), cuda.event()
cuda.fill(there, 7, COUNT * 4, stream)
stop:record(stream):sync()
ok(start:elapsed(stop) >= 0, "%.3f ms between two events", start:elapsed(stop))
ok(arrived(function() return 0x07070707 end), "work on a stream is done after its event")
cuda.copy(there, here, COUNT * 4, stream)
stream:sync()
is(stream:busy(), false, "nothing is left to do")
ok(arrived(function(i) return i == 1 and -1 or i * i end), "a copy on a stream")
raises(function() cuda.copy(there, "abcd", 4, stream) end, "a Lua string may be collected", "no string on a stream")
raises(function() cuda.event():sync() end, "has not been recorded", "an event that was never recorded")
local second = cuda.stream(0)
second:wait(stop)
second:sync()
second:free()
second:free()
raises(function() second:sync() end, "stream: has been freed", "a stream that is gone")
start:free()
start:free()
raises(function() start:elapsed(stop) end, "event: has been freed", "an event that is gone")

-- ---- graphs ------------------------------------------------------------------------------------------
cuda.fill(there, 0, COUNT * 4)
local graph = cuda.capture(stream, function(s)
    is(s, stream, "what is captured gets the stream")
    cuda.fill(there, 1, COUNT * 4, s)
end)
is(table.concat(graph.nodes, " "), "memset", "a graph tells its nodes")
ok(arrived(function() return 0 end), "what is captured does not run")
graph:replay(stream)
stream:sync()
ok(fake or arrived(function() return 0x01010101 end), "it runs when replayed")
raises(function() cuda.capture(stream, function() cuda.alloc(0, 16) end) end,
    "cuMemAlloc.*CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "a capture forbids to allocate")
raises(function() cuda.capture(stream, function() stream:sync() end) end, "cuStreamSynchronize", "and to wait")
local thrown = { "a table" }
local passed, problem = pcall(cuda.capture, stream, function() error(thrown) end)
ok(not passed and problem == thrown, "an error inside comes out as it was")
local garbage, unwanted = cuda.alloc(0, 16), cuda.alloc(0, 16)
graph = cuda.capture(stream, function(s)
    garbage = nil
    collectgarbage()
    cuda.free(unwanted)
    cuda.fill(there, 2, 4, s)
end)
is(garbage or #graph.nodes, 1, "what is let go inside a capture is freed after it")
graph:free()
graph:free()
raises(function() graph:replay(stream) end, "graph: has been freed", "a graph that is gone")

-- ---- garbage -----------------------------------------------------------------------------------------
if fake then
    there, other = nil, nil -- luacheck: ignore 311 (for the collector)
    collectgarbage()
    collectgarbage()
    local before = fake.fake_allocations()
    local kept = {}
    for i = 1, 100 do
        kept[i] = cuda.alloc(0, 16)
        cuda.stream(0)
    end
    is(tonumber(fake.fake_allocations() - before), 100, "allocations live while they are referred to")
    is(kept[100] ~= nil, true, "... as these are")
    kept = nil -- luacheck: ignore 311 (for the collector)
    collectgarbage()
    collectgarbage()
    is(tonumber(fake.fake_allocations() - before), 0, "and are freed when they are not")
    is(tonumber(fake.fake_calls "cuStreamDestroy_v2") >= 100, true, "streams too")
    is(tonumber(fake.fake_calls "cuCtxPushCurrent_v2"), tonumber(fake.fake_calls "cuCtxPopCurrent_v2"),
        "the current context is always put back")
end

-- ---- kernels -----------------------------------------------------------------------------------------
local file = io.open((os.getenv "QUIRE_BUILD" or ".") .. "/t/foreign.fatbin", "rb")
if file then
    local module = cuda.module(0, file:read "*a")
    file:close()
    local produce = module:kernel("produce", { "int32_t *", "const int32_t *", "int32_t", "uint64_t" })
    local from, to = cuda.alloc(0, 400), cuda.alloc(0, 400)
    for i = 0, 99 do
        here[i] = 3 * i
    end
    cuda.copy(from, here, 400)
    produce:launch(stream, 1, 32, ffi.cast("int32_t *", to), ffi.cast("const int32_t *", from), 100, 1000)
    cuda.copy(back, to, 400, stream)
    stream:sync()
    ok(fake or (back[0] == 0 and back[99] == 297), "a kernel of one's own runs")
    raises(function() produce:launch(stream, 1, 32, nil) end, "produce: expected 4 arguments, got 1",
        "arguments are counted")
    module:free()
    module:free()
    raises(function() produce:launch(stream, 1, 32, nil, nil, 0, 0) end, "module: has been freed",
        "not after its module")
end
if not fake then
    raises(function() cuda.module(0, "no code at all"):kernel("x", {}) end, "CUDA_ERROR_", "what is no code is refused")
    like(cuda.name(0), "%w", "and the device is none the worse")
end
tap.done()

-- cuda.lua - device memory, streams, events, graphs and small kernels, straight from the CUDA driver
-- SPDX-License-Identifier: Apache-2.0
--
-- Devices are numbers from 0. Pointers are cdata; `stream` is what cuda.stream gives, or nil: then the call
-- has finished when it returns. Every call makes its device's primary context current and restores what was
-- current before. What fails raises the driver's words.
--
-- Memory, streams, events, graphs and modules are freed when Lua collects them, or at once by free(), which
-- may be called again. A pointer derived from an allocation (p + 16) does not keep it alive: hold the
-- allocation itself for as long as a kernel may use it. While a stream is being captured nothing is freed, as
-- that would break the capture: what is collected meanwhile is freed after it.

local ffi = require "ffi"
local driver = require "quire.driver"

local cuda = {}

local check, try, call, own = driver.check, driver.try, driver.call, driver.own
local release, free_handle, live_handle = driver.release, driver.free_handle, driver.live_handle

local SUCCESS, OUT_OF_MEMORY, NOT_READY = 0, 2, 600 -- CUDA_ERROR_...
local COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76 -- CU_DEVICE_ATTRIBUTE_...
local MULTIPROCESSOR_COUNT = 16
local POINTER_DEVICE_ORDINAL = 9 -- CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
local CAPTURE_GLOBAL = 0 -- CU_STREAM_CAPTURE_MODE_GLOBAL: the strictest
local NODE_TYPES = { [0] = "kernel", "memcpy", "memset", "host", "graph", "empty", "wait", "record" }

local void_pp = ffi.typeof "void *[1]"
local int_p = ffi.typeof "int[1]"
local size_p = ffi.typeof "size_t[1]"
local void_p = ffi.typeof "void *"
local const_void_p = ffi.typeof "const void *"
local byte_p = ffi.typeof "uint8_t *"

-- ---- devices -----------------------------------------------------------------------------------------

-- Devices of this machine; 0 without a driver.
cuda.count = driver.count

-- True, or false and why no device can be used.
function cuda.available()
    if driver.problem() then
        return false, driver.problem()
    end
    if cuda.count() == 0 then
        return false, "no CUDA device"
    end
    return true
end

local function attribute(device, which)
    local value = int_p()
    call(device, "cuDeviceGetAttribute", value, which, driver.handle(device))
    return value[0]
end

function cuda.name(device)
    local name = ffi.new "char[256]"
    call(device, "cuDeviceGetName", name, 256, driver.handle(device))
    return ffi.string(name)
end

-- 90 for compute capability 9.0
function cuda.capability(device)
    return attribute(device, COMPUTE_CAPABILITY_MAJOR) * 10 + attribute(device, COMPUTE_CAPABILITY_MINOR)
end

function cuda.sm_count(device)
    return attribute(device, MULTIPROCESSOR_COUNT)
end

-- Waits for all work of the device, and raises what went wrong in it.
function cuda.sync(device)
    call(device, "cuCtxSynchronize")
end

-- Bytes free and bytes in all.
function cuda.mem_info(device)
    local free, total = size_p(), size_p()
    call(device, "cuMemGetInfo_v2", free, total)
    return tonumber(free[0]), tonumber(total[0])
end

-- ---- memory ------------------------------------------------------------------------------------------

local allocations = setmetatable({}, { __mode = "k" }) -- pointer -> device, false once freed

local function check_bytes(bytes, level)
    if type(bytes) ~= "number" or bytes < 0 or bytes % 1 ~= 0 then
        error(("bytes: expected a whole number, not negative, got %s"):format(tostring(bytes)), level + 1)
    end
end

-- `bytes` of the device's memory as uint8_t *, aligned to 256 bytes, contents undefined.
function cuda.alloc(device, bytes)
    check_bytes(bytes, 2)
    local out = void_pp()
    -- The driver has no allocation of 0 bytes.
    local result = try(device, "cuMemAlloc_v2", out, math.max(bytes, 1))
    if result == OUT_OF_MEMORY and not driver.capturing() then
        -- Lua cannot see how large the things are that it has not collected yet. A second round, as the
        -- first one only runs the finalizers of what it finds.
        collectgarbage()
        collectgarbage()
        result = try(device, "cuMemAlloc_v2", out, math.max(bytes, 1))
    end
    check(result, ("cuMemAlloc of %.0f bytes on cuda:%d"):format(bytes, device), 2)
    local pointer = own(device, "cuMemFree_v2", ffi.cast(byte_p, out[0]))
    allocations[pointer] = device
    return pointer
end

-- Frees what cuda.alloc gave. The memory must not be in use any more; freeing waits for the device.
function cuda.free(pointer)
    local device = allocations[pointer]
    if device == nil then
        error("cuda.free: expected what cuda.alloc gave, got " .. tostring(pointer), 2)
    end
    if device then
        allocations[pointer] = false
        ffi.gc(pointer, nil)
        release(device, "cuMemFree_v2", pointer)
    end
end

-- The device that memory belongs to, or nil for the host's.
function cuda.device_of(pointer)
    if driver.problem() then
        return nil
    end
    local ordinal = int_p()
    local result = try(driver.any(), "cuPointerGetAttribute", ordinal, POINTER_DEVICE_ORDINAL,
        ffi.cast(const_void_p, pointer))
    -- Host memory that CUDA has never heard of is an invalid value; host memory that it has, a device below 0.
    return result == SUCCESS and ordinal[0] >= 0 and ordinal[0] or nil
end

-- Copies between any two memories. With a stream it only enqueues the copy: both sides must stay as they are
-- until it is done. Without, it waits for the work that is on the device's streams and for the copy.
function cuda.copy(to, from, bytes, stream)
    check_bytes(bytes, 2)
    local target, source = ffi.cast(void_p, to), ffi.cast(const_void_p, from)
    if bytes == 0 then
        return
    end
    if stream then
        if type(from) == "string" then
            error("cuda.copy: a Lua string may be collected before the stream gets to it", 2)
        end
        call(stream.device, "cuMemcpyAsync", target, source, bytes, stream:live())
        return
    end
    local to_device, from_device = cuda.device_of(target), cuda.device_of(source)
    local device = to_device or from_device
    if not device then
        ffi.copy(target, source, bytes)
        return
    end
    if from_device and from_device ~= device then
        cuda.sync(from_device)
    end
    call(device, "cuMemcpyAsync", target, source, bytes, nil)
    call(device, "cuStreamSynchronize", nil)
end

-- Sets every byte of device memory.
function cuda.fill(to, byte, bytes, stream)
    check_bytes(bytes, 2)
    local target = ffi.cast(void_p, to)
    if type(byte) ~= "number" or byte < 0 or byte > 255 or byte % 1 ~= 0 then
        error(("byte: expected 0 to 255, got %s"):format(tostring(byte)), 2)
    end
    if bytes == 0 then
        return
    end
    if stream then
        call(stream.device, "cuMemsetD8Async", target, byte, bytes, stream:live())
        return
    end
    local device = cuda.device_of(target)
    if not device then
        error("cuda.fill: expected device memory", 2)
    end
    call(device, "cuMemsetD8Async", target, byte, bytes, nil)
    call(device, "cuStreamSynchronize", nil)
end

-- ---- streams and events ------------------------------------------------------------------------------

local Stream = {}
Stream.__index = Stream

function Stream:__tostring()
    return ("cuda stream on cuda:%d"):format(self.device)
end

-- A stream; .handle is its CUstream. Like every stream of the run-time library's, it waits for the default
-- stream's work and the default stream's work for it.
function cuda.stream(device)
    local out = void_pp()
    call(device, "cuStreamCreate", out, 0)
    return setmetatable({ device = device, handle = own(device, "cuStreamDestroy_v2", out[0]) }, Stream)
end

-- For the module's own use: the handle, or an error once freed.
function Stream:live()
    return live_handle(self, "stream")
end

-- Waits for all work on the stream.
function Stream:sync()
    call(self.device, "cuStreamSynchronize", self:live())
end

-- True while work on the stream is unfinished.
function Stream:busy()
    local result = try(self.device, "cuStreamQuery", self:live())
    if result == NOT_READY then
        return true
    end
    check(result, "cuStreamQuery", 2)
    return false
end

-- Work enqueued from now on waits for the event.
function Stream:wait(event)
    call(self.device, "cuStreamWaitEvent", self:live(), live_handle(event, "event"), 0)
end

-- Work on it goes on to its end.
function Stream:free()
    free_handle(self, "cuStreamDestroy_v2")
end

local Event = {}
Event.__index = Event

-- An event; it gets its device from the first stream that records it.
function cuda.event()
    return setmetatable({}, Event)
end

function Event:record(stream)
    if not self.device then
        local out = void_pp()
        call(stream.device, "cuEventCreate", out, 0)
        self.device, self.handle = stream.device, own(stream.device, "cuEventDestroy_v2", out[0])
    end
    call(self.device, "cuEventRecord", live_handle(self, "event"), stream:live())
    return self
end

-- Waits for the work before the event.
function Event:sync()
    if not self.device then
        error("event: has not been recorded", 2)
    end
    call(self.device, "cuEventSynchronize", live_handle(self, "event"))
    return self
end

-- Milliseconds from this event to a later one on the device; both must be done.
function Event:elapsed(stop)
    if not (self.device and stop.device) then
        error("event: has not been recorded", 2)
    end
    local milliseconds = ffi.new "float[1]"
    call(self.device, "cuEventElapsedTime", milliseconds, live_handle(self, "event"), live_handle(stop, "event"))
    return milliseconds[0]
end

function Event:free()
    free_handle(self, "cuEventDestroy_v2")
end

-- ---- graphs ------------------------------------------------------------------------------------------

local Graph = {}
Graph.__index = Graph

local function node_types(device, graph)
    local count = size_p()
    call(device, "cuGraphGetNodes", graph, nil, count)
    local nodes = ffi.new("void *[?]", math.max(tonumber(count[0]), 1))
    call(device, "cuGraphGetNodes", graph, nodes, count)
    local types, kind = {}, int_p()
    for i = 0, tonumber(count[0]) - 1 do
        call(device, "cuGraphNodeGetType", nodes[i], kind)
        types[#types + 1] = NODE_TYPES[kind[0]] or ("type %d"):format(kind[0])
    end
    return types
end

-- Runs fn(stream) and records what it enqueues, instead of running it. The capture is in global mode: a
-- call that waits, allocates or frees fails in it. What fn raises is raised again, and the stream is usable.
function cuda.capture(stream, fn)
    local device = stream.device
    call(device, "cuStreamBeginCapture_v2", stream:live(), CAPTURE_GLOBAL)
    driver.begin_capture()
    local ok, problem = pcall(fn, stream)
    local out = void_pp()
    local result = try(device, "cuStreamEndCapture", stream:live(), out)
    driver.end_capture()
    local graph = out[0] ~= nil and own(device, "cuGraphDestroy", out[0]) or nil
    if not ok then
        error(problem, 0)
    end
    check(result, "cuStreamEndCapture", 2)
    local exec = void_pp()
    call(device, "cuGraphInstantiateWithFlags", exec, graph, 0)
    return setmetatable({
        device = device,
        nodes = node_types(device, graph), -- what was recorded: "kernel", "memcpy", ...
        handle = own(device, "cuGraphExecDestroy", exec[0]),
    }, Graph)
end

-- Enqueues all of it once.
function Graph:replay(stream)
    call(self.device, "cuGraphLaunch", live_handle(self, "graph"), stream:live())
end

function Graph:free()
    free_handle(self, "cuGraphExecDestroy")
end

-- ---- kernels of others -------------------------------------------------------------------------------

local Module, Kernel = {}, {}
Module.__index = Module
Kernel.__index = Kernel

-- Loads PTX text, a cubin or a fatbin, given as a string of its bytes.
function cuda.module(device, image)
    local out = void_pp()
    call(device, "cuLibraryLoadData", out, ffi.cast(const_void_p, image), nil, nil, 0, nil, nil, 0)
    return setmetatable({ device = device, handle = own(device, "cuLibraryUnload", out[0]) }, Module)
end

-- A kernel by its name; `types` are the C types of its parameters: { "int32_t *", "uint64_t" }.
function Module:kernel(name, types)
    local out = void_pp()
    call(self.device, "cuLibraryGetKernel", out, live_handle(self, "module"), name)
    local kernel = { module = self, name = name, kernel = out[0], boxes = {}, slots = ffi.new("void *[?]", #types + 1) }
    for i, ctype in ipairs(types) do
        kernel.boxes[i] = ffi.new(ffi.typeof("$[1]", ffi.typeof(ctype)))
        kernel.slots[i - 1] = kernel.boxes[i]
    end
    return setmetatable(kernel, Kernel)
end

function Module:free()
    free_handle(self, "cuLibraryUnload")
end

-- Launches `blocks` blocks of `threads` threads; the rest are the kernel's arguments, copied at once.
function Kernel:launch(stream, blocks, threads, ...)
    if select("#", ...) ~= #self.boxes then
        error(("%s: expected %d arguments, got %d"):format(self.name, #self.boxes, select("#", ...)), 2)
    end
    live_handle(self.module, "module")
    for i, box in ipairs(self.boxes) do
        box[0] = select(i, ...)
    end
    call(stream.device, "cuLaunchKernel", self.kernel, blocks, 1, 1, threads, 1, 1, 0, stream:live(), self.slots, nil)
end

return cuda

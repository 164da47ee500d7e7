-- driver.lua - calls of the CUDA driver: its functions, errors, contexts, and what is freed when
-- SPDX-License-Identifier: Apache-2.0
--
-- For quire.cuda, whose promises about contexts and freeing are kept here.

local ffi = require "ffi"

local driver = {}

-- Handles are plain pointers here, and device addresses pointers too: so the names of cuda.h stay free for
-- another module. The functions' names are the exported ones; cuda.h's macros hide them.
ffi.cdef [[
int cuInit(unsigned flags);
int cuGetErrorName(int error, const char **name);
int cuGetErrorString(int error, const char **text);
int cuDeviceGetCount(int *count);
int cuDeviceGet(int *device, int ordinal);
int cuDeviceGetName(char *name, int size, int device);
int cuDeviceGetAttribute(int *value, int which, int device);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
int cuCtxSynchronize(void);
int cuPointerGetAttribute(void *value, int which, const void *pointer);
int cuMemGetInfo_v2(size_t *free, size_t *total);
int cuMemAlloc_v2(void **pointer, size_t bytes);
int cuMemFree_v2(void *pointer);
int cuMemcpyAsync(void *to, const void *from, size_t bytes, void *stream);
int cuMemsetD8Async(void *to, unsigned char value, size_t bytes, void *stream);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamDestroy_v2(void *stream);
int cuStreamSynchronize(void *stream);
int cuStreamQuery(void *stream);
int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamEndCapture(void *stream, void **graph);
int cuEventCreate(void **event, unsigned flags);
int cuEventDestroy_v2(void *event);
int cuEventRecord(void *event, void *stream);
int cuEventSynchronize(void *event);
int cuEventElapsedTime(float *milliseconds, void *start, void *stop);
int cuGraphGetNodes(void *graph, void **nodes, size_t *count);
int cuGraphNodeGetType(void *node, int *type);
int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags);
int cuGraphLaunch(void *exec, void *stream);
int cuGraphExecDestroy(void *exec);
int cuGraphDestroy(void *graph);
int cuLibraryLoadData(void **library, const void *code, void *jit_options, void **jit_values,
                      unsigned jit_count, void *options, void **values, unsigned count);
int cuLibraryUnload(void *library);
int cuLibraryGetKernel(void **kernel, void *library, const char *name);
int cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared_bytes, void *stream, void **parameters, void **extra);
]]

local SUCCESS = 0

local void_pp = ffi.typeof "void *[1]"
local int_p = ffi.typeof "int[1]"

-- ---- the driver --------------------------------------------------------------------------------------

local C, problem -- one of them is set after open()

local function describe(result, what)
    local name, text = ffi.new "const char *[1]", ffi.new "const char *[1]"
    C.cuGetErrorName(result, name)
    C.cuGetErrorString(result, text)
    if name[0] == nil then
        return ("%s: CUDA error %d"):format(what, result)
    end
    return ("%s: %s (%s)"):format(what, ffi.string(name[0]), ffi.string(text[0]))
end

local function open()
    if C or problem then
        return
    end
    local ok, loaded = pcall(ffi.load, "libcuda.so.1")
    if not ok then
        problem = "no CUDA driver: " .. loaded
        return
    end
    C = loaded
    local result = C.cuInit(0)
    if result ~= SUCCESS then
        problem = describe(result, "cuInit")
        C = nil
    end
end

-- Why there is no driver, or nil where there is one.
function driver.problem()
    open()
    return problem
end

-- Raises unless a result is success, as seen from `level` callers above (default 2).
local function check(result, what, level)
    if result ~= SUCCESS then
        error(describe(result, what), level and level + 1 or 3)
    end
end

-- Devices of this machine; 0 without a driver.
function driver.count()
    open()
    if problem then
        return 0
    end
    local count = int_p()
    check(C.cuDeviceGetCount(count), "cuDeviceGetCount")
    return count[0]
end

local contexts = {} -- of each device used so far: its number and its primary context

-- The state of a device, made at its first use.
local function device_state(device)
    local state = contexts[device]
    if state then
        return state
    end
    open()
    if problem then
        error(problem, 4)
    end
    if type(device) ~= "number" or device % 1 ~= 0 or device < 0 or device >= driver.count() then
        error(("device: expected a number from 0 to %d, got %s"):format(driver.count() - 1, tostring(device)), 4)
    end
    local handle, context = int_p(), void_pp()
    check(C.cuDeviceGet(handle, device), "cuDeviceGet", 4)
    check(C.cuDevicePrimaryCtxRetain(context, handle[0]), "cuDevicePrimaryCtxRetain", 4)
    state = { handle = handle[0], context = context[0] }
    contexts[device] = state
    return state
end

local popped = void_pp()

-- The driver's function `name` with the device's context current; gives the result's number. The arguments convert
-- without error: nothing may leave between push and pop.
local function try(device, name, ...)
    local state = device_state(device)
    check(C.cuCtxPushCurrent_v2(state.context), "cuCtxPushCurrent", 3)
    local result = C[name](...)
    C.cuCtxPopCurrent_v2(popped)
    return result
end

local function call(device, name, ...)
    check(try(device, name, ...), name, 3)
end

-- ---- freeing -----------------------------------------------------------------------------------------

local captures = 0 -- under way
local waiting = {} -- what was let go meanwhile

-- Finalizers run anywhere, even after the driver has shut down at the process's end: they raise nothing.
local function release(device, name, handle)
    if captures > 0 then
        waiting[#waiting + 1] = { device, name, handle }
        return
    end
    local state = contexts[device]
    if C.cuCtxPushCurrent_v2(state.context) == SUCCESS then
        C[name](handle)
        C.cuCtxPopCurrent_v2(popped)
    end
end

local function release_waiting()
    local list = waiting
    waiting = {}
    for _, entry in ipairs(list) do
        release(unpack(entry))
    end
end

-- Between these two nothing is freed.
function driver.begin_capture()
    captures = captures + 1
end

function driver.end_capture()
    captures = captures - 1
    release_waiting()
end

function driver.capturing()
    return captures > 0
end

-- One finalizer for each kind of object and device, not one closure an object.
local finalizers = {}
local function finalizer(device, name)
    local key = name .. device
    local found = finalizers[key]
    if not found then
        found = function(handle)
            release(device, name, handle)
        end
        finalizers[key] = found
    end
    return found
end

local function own(device, name, handle)
    return ffi.gc(handle, finalizer(device, name))
end

-- Methods that objects with a `handle` and a `device` share.
local function free_handle(object, name)
    local handle = object.handle
    if handle ~= nil then
        object.handle = nil
        ffi.gc(handle, nil)
        release(object.device, name, handle)
    end
end

local function live_handle(object, what)
    local handle = object.handle
    if handle == nil then
        error(what .. ": has been freed", 3)
    end
    return handle
end

driver.check, driver.try, driver.call = check, try, call
driver.release, driver.own, driver.free_handle, driver.live_handle = release, own, free_handle, live_handle

-- The number of a device in CUDA's own count.
function driver.handle(device)
    return device_state(device).handle
end

-- A device that was used already, else 0: for calls that any context will do for.
function driver.any()
    return next(contexts) or 0
end

return driver

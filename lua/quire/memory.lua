-- memory.lua - allocate, copy and fill on any device: the one door between tensors and devices
-- SPDX-License-Identifier: Apache-2.0

local ffi = require "ffi"
local library = require "quire.library"

ffi.cdef [[
void *calloc(size_t count, size_t size);
void free(void *memory);
int memcmp(const void *a, const void *b, size_t bytes);
int madvise(void *address, size_t length, int advice);
]]

local memory = {}

local ALIGNMENT = 64 -- a cache line, and more than any argument asks for
-- Blocks of at least so many bytes begin where a huge page can (of x86-64; other sizes do no harm) and ask for such
-- pages: the scattered reads of a cache then miss the TLB less.
local HUGE_BLOCK, HUGE_PAGE = 2 ^ 23, 2 ^ 21
local MADV_HUGEPAGE = 14

local ADDRESSABLE = 2 ^ 53 -- more has no machine, and numbers are not exact beyond

-- quire.cuda talks to the driver; it is loaded only once a CUDA device is named.
local function cuda()
    return require "quire.cuda"
end

local function is_cpu(device)
    return device == "cpu"
end

local function refuse(device, bytes)
    error(("%s: cannot allocate %.17g bytes"):format(device, bytes), 4)
end

local function allocate_host(bytes)
    local is_huge = bytes >= HUGE_BLOCK
    local alignment = is_huge and HUGE_PAGE or ALIGNMENT
    local base = ffi.C.calloc(1, bytes + alignment)
    if base == nil then
        refuse("cpu", bytes)
    end
    base = ffi.gc(base, ffi.C.free)
    local address = ffi.cast("uintptr_t", base)
    local skip = tonumber((alignment - address % alignment) % alignment)
    local pointer = ffi.cast("char *", base) + skip
    if is_huge then
        ffi.C.madvise(pointer, bytes - bytes % HUGE_PAGE, MADV_HUGEPAGE) -- advice: without it all works too
    end
    return base, pointer
end

-- Zeroed memory.  Returns its owner, which is to be kept as long as the memory is used, and its
-- address as a char pointer.
function memory.allocate(device, bytes)
    bytes = math.max(bytes, 1)
    if bytes >= ADDRESSABLE then
        refuse(device, bytes)
    end
    if is_cpu(device) then
        return allocate_host(bytes)
    end
    local _, id = library.parse_device(device, 3)
    local owner = cuda().alloc(id, bytes)
    cuda().fill(owner, 0, bytes)
    return owner, ffi.cast("char *", owner)
end

-- Copies, and returns when the bytes have arrived.
function memory.copy(to, to_device, from, from_device, bytes)
    if bytes == 0 then
        return
    elseif is_cpu(to_device) and is_cpu(from_device) then
        ffi.copy(to, from, bytes)
    else
        cuda().copy(to, from, bytes)
    end
end

function memory.fill(to, device, byte, bytes)
    if bytes == 0 then
        return
    elseif is_cpu(device) then
        ffi.fill(to, bytes, byte)
    else
        cuda().fill(to, byte, bytes)
    end
end

-- Host memory only.
function memory.equal(a, b, bytes)
    return ffi.C.memcmp(a, b, bytes) == 0
end

return memory

-- library.lua - finds and loads libquire, checks that it is the one this module was made for,
-- and turns its statuses into Lua errors
-- SPDX-License-Identifier: Apache-2.0

local ffi = require "ffi"
require "quire.cdef"

local library = {}

-- Written when the project is built: where the library gets installed, its soname and its version.
local paths = require "quire.paths"

-- PREFIX/lib of the PREFIX/share/lua/5.1/quire that this file is in: for a tree that was moved.
local function lib_beside()
    local prefix = debug.getinfo(1, "S").source:match "^@(.*)/share/lua/5%.1/quire/[^/]*$"
    return prefix and ("%s/lib/%s"):format(prefix, paths.soname)
end

-- The environment first, so that a test can never pick up an installed copy by accident; then where
-- the library was to be installed, or moved to; then whatever the dynamic linker knows.
local function load()
    local from_environment = os.getenv "QUIRE_LIBRARY"
    if from_environment and from_environment ~= "" then
        local ok, loaded = pcall(ffi.load, from_environment)
        if not ok then
            error(("quire: cannot load the library that QUIRE_LIBRARY names: %s"):format(loaded), 0)
        end
        return loaded, from_environment
    end
    local tried = {}
    for _, name in ipairs { paths.libdir .. "/" .. paths.soname, lib_beside() or paths.soname, paths.soname } do
        local ok, loaded = pcall(ffi.load, name)
        if ok then
            return loaded, name
        end
        tried[#tried + 1] = ("  %s"):format(loaded)
    end
    error(("quire: cannot load libquire; set QUIRE_LIBRARY to the file's path\n%s")
        :format(table.concat(tried, "\n")), 0)
end

local C, path = load()
library.C = C
library.path = path
local is_quire, version = pcall(function() return ffi.string(C.quire_version()) end)
if not is_quire then
    error(("quire: %s is no libquire: %s"):format(path, version:gsub("^[^\n]-%.lua:%d+: ", "")), 0)
end
library.version = version

if paths.version ~= library.version then
    error(("quire: this Lua module is of version %s, %s is of version %s"):format(
        paths.version, path, library.version), 0)
end

-- A library whose struct is larger writes past a struct of our size: let it write into room enough.
do
    local room = ffi.new "char[4096]"
    local args = ffi.cast("quire_decode_args *", room)
    C.quire_decode_args_init(args)
    local theirs, ours = tonumber(args.struct_size), ffi.sizeof "quire_decode_args"
    if theirs ~= ours then
        error(("quire: quire_decode_args has %d bytes in %s, %d in this Lua module"):format(
            theirs, path, ours), 0)
    end
end

-- Raises what the library had to say, as seen from `level` callers above.
function library.check(status, level)
    if status == C.QUIRE_OK then
        return
    end
    error(("%s (%s)"):format(ffi.string(C.quire_last_error()),
        ffi.string(C.quire_status_name(status))), (level or 1) + 1)
end

-- Raises unless `t` is a table whose every name is a key of `known`; `what` names the call.
function library.check_names(t, known, what, level)
    if type(t) ~= "table" then
        error(("%s: expected a table of named arguments, got %s"):format(what, type(t)), (level or 1) + 1)
    end
    for name in pairs(t) do
        if known[name] == nil then
            local names = {}
            for k in pairs(known) do
                names[#names + 1] = type(k) == "string" and k or nil
            end
            table.sort(names)
            error(("%s: unknown argument '%s'; known: %s"):format(
                what, tostring(name), table.concat(names, ", ")), (level or 1) + 1)
        end
    end
end

-- "key=value" lines of the build, as a table.
function library.build_config()
    local config = {}
    for key, value in ffi.string(C.quire_build_config()):gmatch "([^=\n]+)=([^\n]*)" do
        config[key] = value
    end
    return config
end

local LARGEST_ID = 2147483647 -- that DLDevice has room for
local DEVICE_TYPES = { cpu = C.QUIRE_DEVICE_CPU, cuda = C.QUIRE_DEVICE_CUDA }

-- "cpu" or "cuda:N" as DLDevice's two numbers.
function library.parse_device(device, level)
    if device == "cpu" then
        return C.QUIRE_DEVICE_CPU, 0
    end
    local id = type(device) == "string" and device:match "^cuda:(%d+)$"
    if not id then
        error(("device: expected \"cpu\" or \"cuda:N\", got %s"):format(
            type(device) == "string" and ("%q"):format(device) or tostring(device)), (level or 1) + 1)
    end
    if tonumber(id) > LARGEST_ID then
        error(("device: expected a number up to %d, got %q"):format(LARGEST_ID, device), (level or 1) + 1)
    end
    return C.QUIRE_DEVICE_CUDA, tonumber(id)
end

-- The devices of one type ("cpu", "cuda"), described; empty where there are none.
function library.devices(kind)
    if not DEVICE_TYPES[kind] then
        error(("devices: expected \"cpu\" or \"cuda\", got %s"):format(tostring(kind)), 2)
    end
    local count = ffi.new "int32_t[1]"
    library.check(C.quire_device_count(DEVICE_TYPES[kind], count), 2)
    local list = {}
    for id = 0, count[0] - 1 do
        local info = ffi.new "quire_device_info"
        info.struct_size = ffi.sizeof "quire_device_info"
        library.check(C.quire_device_describe(DEVICE_TYPES[kind], id, info), 2)
        list[#list + 1] = {
            device = kind == "cpu" and "cpu" or ("%s:%d"):format(kind, id),
            name = ffi.string(info.name),
            memory_bytes = tonumber(info.memory_bytes),
            cache_bytes = tonumber(info.cache_bytes),
            compute_units = info.compute_units,
            capability = info.capability,
            kernels = ffi.string(info.kernels),
            problem = ffi.string(info.problem),
        }
    end
    return list
end

-- One device by name; raises if it is not there.
function library.device(device)
    local device_type, id = library.parse_device(device, 2)
    -- in the order of their numbers
    local found = library.devices(device_type == C.QUIRE_DEVICE_CPU and "cpu" or "cuda")[id + 1]
    if not found then
        error(("device %s: there is no such device; 'quire info' lists those there are"):format(device), 2)
    end
    return found
end

return library

-- info.lua - quire info: the build, the devices, and what decode accepts there
-- SPDX-License-Identifier: Apache-2.0

local quire = require "quire"
local common = require "quire.command.options"
local text = require "quire.text"

local info = {}

function info.describe(command)
    command:description "Show the build, the devices, and what can be decoded there."
    command:flag "--json"
        :description "Print one JSON object."
end

local function collect()
    local devices = {}
    for _, kind in ipairs { "cpu", "cuda" } do
        for _, device in ipairs(quire.devices(kind)) do
            device.supported = device.problem == "" and quire.supported(device.device) or nil
            devices[#devices + 1] = device
        end
    end
    return {
        version = quire.version,
        library = quire.library,
        build = quire.build_config(),
        devices = devices,
    }
end

local function list_dtypes(pairs_of)
    local names = {}
    for i, pair in ipairs(pairs_of) do
        names[i] = pair[1] == pair[2] and pair[1] or ("%s to %s"):format(pair[1], pair[2])
    end
    return table.concat(names, ", ")
end

local function capability_text(device)
    return device.capability > 0
        and (", compute capability %.1f"):format(device.capability / 10) or ""
end

local function print_device(device)
    local is_cpu = device.device == "cpu"
    print(("\n%s: %s"):format(device.device, device.name))
    local rows = {
        { "  memory", ("%s%s"):format(text.bytes(device.memory_bytes), device.cache_bytes > 0
            and (", last-level cache %s"):format(text.bytes(device.cache_bytes)) or "") },
        { "  units", ("%d %s%s"):format(device.compute_units, is_cpu and "threads" or "SMs",
            capability_text(device)) },
    }
    if device.problem ~= "" then
        rows[#rows + 1] = { "  decodes", "no: " .. device.problem }
    else
        local can = device.supported
        rows[#rows + 1] = { "  decodes", "with " .. device.kernels }
        rows[#rows + 1] = { "  dtypes", list_dtypes(can.dtypes) }
        rows[#rows + 1] = { "  head_dim", table.concat(can.head_dims, ", ") }
        rows[#rows + 1] = { "  page_size", table.concat(can.page_sizes, ", ") }
        rows[#rows + 1] = { "  heads", ("1 to %d query heads per KV head"):format(can.max_group) }
    end
    print(text.table(rows, {}))
end

function info.run(options)
    local all = collect()
    if options.json then
        print(common.json(all))
        return true
    end
    print("quire " .. all.version)
    local rows = { { "  library", all.library } }
    local keys = {}
    for key in pairs(all.build) do
        keys[#keys + 1] = key
    end
    table.sort(keys)
    for _, key in ipairs(keys) do
        rows[#rows + 1] = { "  " .. key, all.build[key] }
    end
    print(text.table(rows, {}))
    for _, device in ipairs(all.devices) do
        print_device(device)
    end
    if #quire.devices "cuda" == 0 then
        print "\nNo CUDA device that this build can see."
    end
    return true
end

return info

-- options.lua - options that several subcommands share, and conversions of their values
-- SPDX-License-Identifier: Apache-2.0

local cjson = require "cjson"
local text = require "quire.text"

local options = {}

local json = cjson.new()
json.encode_invalid_numbers "null" -- JSON has no NaN

options.json = json.encode

function options.integer(name, lowest)
    return function(value)
        local number, expected = text.integer(value, lowest)
        if not number then
            return nil, ("%s: expected %s, got '%s'"):format(name, expected, value)
        end
        return number
    end
end

function options.lengths(value)
    local list, piece = text.lengths(value)
    if not list or #list == 0 then
        return nil, ("--lens: expected lengths such as '100 8192x32', got '%s'"):format(piece or value)
    end
    return list
end

function options.device(command)
    command:option "--device"
        :description "Where to run: cpu or cuda:N."
        :argname "DEVICE"
        :default "cpu"
        :convert(function(value)
            if value ~= "cpu" and not value:match "^cuda:%d+$" then
                return nil, ("--device: expected cpu or cuda:N, got '%s'"):format(value)
            end
            return value
        end)
end

-- Sends what was printed on its way; raises where it cannot go, as to a full disk.
function options.flush()
    local written, problem = io.stdout:flush()
    if not written then
        error("standard output: " .. problem, 0)
    end
end

-- What an error says, without the place in the program: that is for programmers.
function options.message_of(problem)
    return (tostring(problem):gsub("^[^\n]-%.lua:%d+: ", ""))
end

-- Whether an error is luajit's of an interrupt.
function options.is_interrupt(problem)
    return tostring(problem):find "interrupted!$" ~= nil
end

local function go_on(ok, result, ...)
    if not ok and options.is_interrupt(result) then
        error(result, 0)
    end
    return ok, result, ...
end

-- pcall of one row of many, after whose failure the others are to follow: but not after an interrupt.
function options.attempt(...)
    return go_on(pcall(...))
end

-- Raises if no decode can run on the device; else its description.
function options.usable_device(name)
    local device = require "quire".device(name)
    if device.problem ~= "" then
        error(("device %s: %s"):format(name, device.problem), 0)
    end
    return device
end

-- The cases that --only names, or all.
function options.select_cases(all, names)
    if #names == 0 then
        return all
    end
    local by_id, selected = {}, {}
    for _, case in ipairs(all) do
        by_id[case.id] = case
    end
    for i, id in ipairs(names) do
        if not by_id[id] then
            error(("--only: there is no case '%s'"):format(id), 0)
        end
        selected[i] = by_id[id]
    end
    return selected
end

return options

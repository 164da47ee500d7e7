-- command.lua - the quire command: options in, exit status out
-- SPDX-License-Identifier: Apache-2.0
--
-- A subcommand is a module quire.command.NAME: describe(command) adds its options, run(options)
-- does it and returns whether all was right.  Exit status: 0 right, 1 a wrong result or a failed
-- check, 2 a command line, file or device that cannot be used.

local ffi = require "ffi"
local argparse = require "argparse"
local library = require "quire.library"
local common = require "quire.command.options"
local progress = require "quire.command.progress"

ffi.cdef [[
void (*signal(int number, void (*handler)(int)))(int);
int raise(int number);
]]

local SIGINT, DEFAULT = 2, nil

local SUBCOMMANDS = { "info", "decode", "check", "bench" }

local RIGHT, WRONG, UNUSABLE = 0, 1, 2

-- Calls what prints something and returns whether all was right: the exit status.  `name` begins an error's line.
local function status_of(name, print_all)
    local done, right = pcall(function()
        local right = print_all()
        common.flush()
        ffi.C.signal(SIGINT, DEFAULT) -- nobody would take the error that luajit makes of it from here on
        return right
    end)
    if not done then
        ffi.C.signal(SIGINT, DEFAULT)
        progress.clear()
        if common.is_interrupt(right) then
            ffi.C.raise(SIGINT) -- by which whoever waits for the command knows
        end
        io.stderr:write(name, ": ", common.message_of(right), "\n")
        return UNUSABLE
    end
    return right and RIGHT or WRONG
end

local function status_of_text(text)
    return status_of("quire", function()
        print(text)
        return true
    end)
end

-- argparse's own ends the program whether or not what it printed could be written.
local function add_help(parser)
    parser:add_help { action = function()
        os.exit(status_of_text(parser:get_help()))
    end }
end

local function build_parser()
    local parser = argparse("quire", "Batch decode attention over a paged KV cache.")
        :command_target "subcommand"
        :require_command(false)
    add_help(parser)
    parser:flag "--version"
        :description "Print the library's version."
    local modules = {}
    for _, name in ipairs(SUBCOMMANDS) do
        local command = parser:command(name)
        add_help(command)
        modules[name] = require("quire.command." .. name)
        modules[name].describe(command)
    end
    return parser, modules
end

-- argparse takes "-1" for an option, also where it is an option's value, as in --window -1.
local function join_negative_numbers(arguments)
    local joined = {}
    for _, argument in ipairs(arguments) do
        local before = joined[#joined]
        if argument:find "^%-%d" and before and before:find "^%-%-[^=]+$" then
            joined[#joined] = before .. "=" .. argument
        else
            joined[#joined + 1] = argument
        end
    end
    return joined
end

-- raise_interrupt: luajit's handler of SIGINT, which is not set yet.
return function(arguments, raise_interrupt)
    local parser, modules = build_parser()
    local ok, options = parser:pparse(join_negative_numbers(arguments))
    if not ok then
        io.stderr:write("quire: ", options, "; 'quire --help' and 'quire COMMAND --help' tell what there is\n")
        return UNUSABLE
    elseif options.version then
        return status_of_text("quire " .. library.version)
    elseif not options.subcommand then
        io.stderr:write(parser:get_help(), "\n")
        return UNUSABLE
    end
    return status_of("quire " .. options.subcommand, function()
        -- luajit makes the first interrupt an error, as soon as it is back in its interpreter: time to take a bar off
        -- the line.  Without one there is nothing to wait for.
        if progress.visible then
            ffi.C.signal(SIGINT, raise_interrupt)
        end
        return modules[options.subcommand].run(options)
    end)
end

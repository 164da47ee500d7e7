-- quire(1) tells of every subcommand and every option, and of no other.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"

local file = assert(io.open(os.getenv "QUIRE_SOURCE" .. "/doc/quire.1"))
local page = file:read "*a"
file:close()

local told = {} -- options anywhere in the page
for option in page:gmatch "Fl Fl ([%w-]+)" do
    told[option] = true
end

local function help(subcommand)
    local pipe = assert(io.popen(("'%s' %s --help"):format(os.getenv "QUIRE_COMMAND", subcommand)))
    local output = pipe:read "*a"
    pipe:close()
    return output
end

local there = { version = true }
local subcommands = 0
for subcommand in help "":match "Commands:\n(.*)":gmatch "\n?%s+([%a]+)  " do
    subcommands = subcommands + 1
    tap.ok(page:find("Ss quire " .. subcommand .. "\n", 1, true), "quire(1) has a section on %s", subcommand)
    for option in help(subcommand):match "Options:\n(.*)":gmatch "%s%-%-([%w-]+)" do
        there[option] = true
        tap.ok(option == "help" or told[option], "quire(1) tells of %s --%s", subcommand, option)
    end
end
tap.is(subcommands, 4, "all subcommands were looked at")
for option in pairs(told) do
    tap.ok(there[option], "--%s is an option of the command", option)
end
tap.done()

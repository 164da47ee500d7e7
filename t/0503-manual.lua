-- quire(1) tells of every subcommand and every option, and of no other; doc/lua.md of every name of the module.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"

local function slurp(name)
    local file = assert(io.open(os.getenv "QUIRE_SOURCE" .. "/doc/" .. name))
    local content = file:read "*a"
    file:close()
    return content
end

local page = slurp "quire.1"

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
local quire = require "quire"
local module_page = slurp "lua.md"
for name in pairs(quire) do
    tap.ok(module_page:find("quire." .. name, 1, true), "lua.md tells of quire.%s", name)
end
for what, methods in pairs {
    t = require "quire.tensor".methods,
    cache = getmetatable(quire.cache { pages = 1, kv_heads = 1, head_dim = 64, dtype = "fp16" }),
    s = getmetatable(quire.cache { pages = 1, kv_heads = 1, head_dim = 64, dtype = "fp16" }:sequence()),
} do
    for name, method in pairs(methods) do
        if type(method) == "function" and not name:find "^__" then
            tap.ok(module_page:find(what .. ":" .. name, 1, true), "lua.md tells of %s:%s", what, name)
        end
    end
end
tap.done()

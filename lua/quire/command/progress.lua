-- progress.lua - a progress bar on standard error, if that is a terminal
-- SPDX-License-Identifier: Apache-2.0

local ffi = require "ffi"

ffi.cdef "int isatty(int descriptor);"

local WIDTH = 30 -- characters of the bar
local STDERR = 2

local visible = ffi.C.isatty(STDERR) == 1

local Bar = {}
Bar.__index = Bar

local shown = false -- whether a bar may be on the line

-- A bar of `total` steps.
local function start(total)
    return setmetatable({ total = total }, Bar)
end

function Bar:show(done, what)
    if visible then
        local filled = math.floor(WIDTH * done / math.max(self.total, 1))
        shown = true -- first: an interrupt may be raised anywhere from here on
        io.stderr:write(("\r\27[K[%s%s] %d/%d %s"):format(
            ("#"):rep(filled), ("."):rep(WIDTH - filled), done, self.total, what))
        io.stderr:flush()
    end
end

-- Takes the bar off the line, so that something else can be printed there.
local function clear()
    if shown then
        io.stderr:write "\r\27[K"
        io.stderr:flush()
        shown = false
    end
end
Bar.clear = clear

return { visible = visible, start = start, clear = clear }

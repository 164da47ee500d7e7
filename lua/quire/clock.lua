-- clock.lua - a monotonic clock
-- SPDX-License-Identifier: Apache-2.0

local ffi = require "ffi"

ffi.cdef [[
struct quire_timespec { long seconds, nanoseconds; };
int quire_clock_gettime(int clock, struct quire_timespec *now) __asm__("clock_gettime");
]]

local MONOTONIC = 1
local spec = ffi.new "struct quire_timespec"

local clock = {}

-- Seconds since some fixed moment.
function clock.now()
    ffi.C.quire_clock_gettime(MONOTONIC, spec)
    return tonumber(spec.seconds) + tonumber(spec.nanoseconds) * 1e-9
end

return clock

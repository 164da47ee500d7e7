-- doc/example.lua runs, and shares what it says it shares.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"

local pipe = assert(io.popen(("'%s' '%s/doc/example.lua' %s 2>&1; echo status $?"):format(
    os.getenv "LUAJIT", os.getenv "QUIRE_SOURCE", tap.device())))
local output = pipe:read "*a"
pipe:close()
tap.like(output, "step 1: bf16 %[3,8,128%] .*step 4: ", "four steps")
tap.like(output, "187 pages free; 62 pages are shared\n", "the prompt's full pages are shared, the last is copied")
tap.like(output, "status 0\n$", "exit status 0")
tap.done()

-- The module's C structs are laid out as the compiler lays out quire.h's.
-- SPDX-License-Identifier: Apache-2.0
local ffi = require "ffi"
local tap = require "tap"
require "quire"

local header_path = os.getenv "QUIRE_SOURCE" .. "/lib/quire.h"
local file = assert(io.open(header_path))
local header = file:read "*a":gsub("/%*.-%*/", " ")
file:close()

-- Every struct of the header that has a typedef, and the names of its fields.
local structs = {}
for body, name in header:gmatch "typedef struct[%w_ ]*{(.-)}%s*([%w_]+);" do
    local fields = {}
    for declaration in body:gmatch "[^;]+" do
        for declarator in declaration:gmatch "[^,]+" do
            fields[#fields + 1] = declarator:gsub("%b[]", ""):match "([%w_]+)%s*$"
        end
    end
    structs[#structs + 1] = { name = name, fields = fields }
end
tap.ok(#structs >= 6, "the header has its structs (%d found)", #structs)

-- A program that prints what the compiler says.
local source, program = os.tmpname(), os.tmpname()
local out = assert(io.open(source, "w"))
out:write('#include <quire.h>\n#include <stdio.h>\nint main(void) {\n')
for _, struct in ipairs(structs) do
    out:write(('printf("%s %%zu\\n", sizeof(%s));\n'):format(struct.name, struct.name))
    for _, field in ipairs(struct.fields) do
        out:write(('printf("%s.%s %%zu\\n", offsetof(%s, %s));\n'):format(struct.name, field, struct.name, field))
    end
end
out:write "return 0; }\n"
out:close()
local command = ("%s -I'%s/lib' -x c '%s' -o '%s' && '%s'"):format(
    os.getenv "CC" or "cc", os.getenv "QUIRE_SOURCE", source, program, program)
local pipe = assert(io.popen(command))
local seen = 0
for line in pipe:lines() do
    local name, field, value = line:match "^([%w_]+)%.?([%w_]*) (%d+)$"
    local ours = field == "" and ffi.sizeof(name) or ffi.offsetof(name, field)
    tap.is(ours, tonumber(value), field == "" and "size of %s" or "offset of %s.%s", name, field)
    seen = seen + 1
end
pipe:close()
os.remove(source)
os.remove(program)
local wanted = 0
for _, struct in ipairs(structs) do
    wanted = wanted + 1 + #struct.fields
end
tap.is(seen, wanted, "the compiler told all of them")
tap.done()

-- Tensors: element types, fills, views, copies between strides and devices, refusals.
-- SPDX-License-Identifier: Apache-2.0
local ffi = require "ffi"
local tap = require "tap"
local quire = require "quire"
local dtype = require "quire.dtype"

local device = tap.device()
local ok, is, same, raises = tap.ok, tap.is, tap.same, tap.raises
local nan, inf = 0 / 0, math.huge

-- Every value of the small types comes back as it went in, and what lies in the middle of two
-- neighbours goes to the even one.
for _, name in ipairs { "fp16", "bf16", "fp8e4m3" } do
    local element = dtype.get(name)
    local largest = ({ fp16 = 0x7BFF, bf16 = 0x7F7F, fp8e4m3 = 0x7E })[name]
    local wrong, wrong_middle, wrong_side = 0, 0, 0
    local sign = 2 ^ (element.bits - 1)
    for bits = 0, largest do
        local x = element.to_number(bits)
        if element.from_number(x) ~= bits or element.from_number(-x) ~= bits + (x == 0 and bits or sign) then
            wrong = wrong + (x == 0 and element.from_number(-0.0) == sign and 0 or 1)
        end
        if bits < largest then
            local middle = (x + element.to_number(bits + 1)) / 2
            if element.from_number(middle) ~= bits + bits % 2 then
                wrong_middle = wrong_middle + 1
            end
            if element.from_number(middle * (1 - 2 ^ -40)) ~= bits
                or element.from_number(middle * (1 + 2 ^ -40)) ~= bits + 1 then
                wrong_side = wrong_side + 1
            end
        end
    end
    is(wrong, 0, "%s: all finite values survive a round trip", name)
    is(wrong_middle, 0, "%s: ties go to even", name)
    is(wrong_side, 0, "%s: the smallest step beside a tie decides it", name)
    local t = quire.tensor { { nan, 1e300, -1e300, inf }, dtype = name }
    local top = name == "fp8e4m3" and 448 or inf
    ok(t[0] ~= t[0] and t[1] == top and t[2] == -top and t[3] == top,
        "%s: NaN stays NaN, too large ends at %g", name, top)
end
is(dtype.get "fp8e4m3".to_number(0xFF) == dtype.get "fp8e4m3".to_number(0xFF), false, "fp8e4m3: 0xFF is NaN")

-- Fills and reads.
local t = quire.tensor { shape = { 2, 3 }, dtype = "fp16", device = device }
same(t:totable(), { 0, 0, 0, 0, 0, 0 }, "a new tensor is zero")
t:fill { { 1, 2, 3 }, { 4, 5, 6 } }
same(t:totable(), { 1, 2, 3, 4, 5, 6 }, "filled from nested tables")
same(t:fill(7):totable(), { 7, 7, 7, 7, 7, 7 }, "filled with a number")
t:fill(function(i, j)
    return 10 * i + j
end)
same(t:totable(), { 0, 1, 2, 10, 11, 12 }, "filled by a function of the indices")
is(t.rank, 2, "rank")
is(t.numel, 6, "numel")
is(t:bytes(), 12, "bytes")
tap.like(tostring(t), "^fp16 %[2,3%] on " .. device .. " {{0 1 2}\n%s*{10 11 12}}$", "prints itself")
same(quire.tensor { { 7, 0, 33 }, dtype = "int32" }.shape, { 3 }, "the shape comes from the values")

-- Views share the memory.
local here = t:to "cpu":clone()
is(here[1][2], 12, "t[1][2]")
is(here:get(1, 0), 10, "t:get(1, 0)")
here[0] = { 5, 6, 7 }
here:set(-1, 1, 1)
here[1][2] = 99
same(here:totable(), { 5, 6, 7, 10, -1, 99 }, "written through views")
same(here:select(1, 2):totable(), { 7, 99 }, "select of the last dimension")
same(here:slice(1, 1, 3):totable(), { 6, 7, -1, 99 }, "slice")
same(here:view { 3, 2 }.shape, { 3, 2 }, "view in another shape")
here:select(1, 0):fill(0)
same(here:totable(), { 0, 6, 7, 0, -1, 99 }, "a strided view fills only its own")

-- Copies between strides, devices and types.
local padded = quire.tensor { shape = { 3, 2, 4 }, strides = { 16, 4, 1 }, dtype = "bf16", device = device }
local normal = quire.tensor { shape = { 3, 2, 4 }, dtype = "bf16", device = device }:normal { seed = 1 }
padded:copy(normal)
ok(padded:same_bits(normal), "a padded copy has the same bits")
ok(padded:mirror "cpu":same_bits(normal), "and so has its mirror")
same(padded:mirror "cpu".strides, { 16, 4, 1 }, "which keeps the strides")
ok(normal:to "cpu":to(device):same_bits(normal), "there and back")
is(normal:to(device), normal, "a tensor that is there is not copied")
local double = normal:convert "fp64"
ok(double:convert "bf16":same_bits(normal), "bf16 to fp64 and back")
padded:normal { seed = 1 }
ok(padded:same_bits(normal), "normal numbers do not depend on strides")
ok(not quire.tensor { shape = { 2 }, dtype = "fp32" }:fill(0):same_bits(
    quire.tensor { shape = { 2 }, dtype = "fp32" }:fill(-0.0)), "-0 has other bits than 0")

-- Normal numbers: the same bytes everywhere, and normal.
local function checksum(tensor)
    local sum = 0
    local bytes = ffi.cast("uint8_t *", tensor.pointer)
    for i = 0, tensor:bytes() - 1 do
        sum = (sum * 31 + bytes[i]) % 4294967296
    end
    return sum
end
local many = quire.tensor { shape = { 99999 }, dtype = "bf16" }:normal { seed = "F1/k", scale = 0.25 }
is(checksum(many), 4025302760, "bf16 normal numbers are these bytes")
is(checksum(quire.tensor { shape = { 99999 }, dtype = "fp8e4m3" }:normal { seed = 7 }), 1706099909,
    "fp8e4m3 normal numbers are these bytes")
local sum, squares, beyond = 0, 0, 0
for i = 0, many.numel - 1 do
    local x = many[i] / 0.25
    sum, squares, beyond = sum + x, squares + x * x, beyond + (math.abs(x) > 1.96 and 1 or 0)
end
ok(math.abs(sum / many.numel) < 0.015, "mean 0")
ok(math.abs(squares / many.numel - 1) < 0.015, "variance 1")
ok(math.abs(beyond / many.numel - 0.05) < 0.005, "one in twenty beyond 1.96")

-- Tensors of others.
local borrowed = quire.from_dlpack(many.dl)
ok(borrowed.pointer == many.pointer and borrowed:same_bits(many), "a DLTensor as a tensor")
local floats = ffi.new("float[6]", 1, 2, 3, 4, 5, 6)
same(quire.tensor { data = floats, shape = { 2, 2 }, strides = { 3, 1 }, dtype = "fp32" }:totable(),
    { 1, 2, 4, 5 }, "memory of the caller's, with strides")

-- Comparisons.
local a = quire.tensor { { 1, 2, nan, inf }, dtype = "fp32" }
local b = quire.tensor { { 1, 2.5, nan, inf }, dtype = "fp64" }
local difference = quire.compare(a, b)
is(difference.special, 0, "NaN and Inf in the same places agree")
is(difference.max_difference, 0.5, "the largest difference")
is(difference.worst_index, 1, "and where it is")
is(quire.compare(b, quire.tensor { { 1, 2.5, inf, inf }, dtype = "fp32" }).special, 1, "NaN against Inf does not")

-- Refusals.
raises(function() quire.tensor { shape = { 2, -1 }, dtype = "fp16" } end, "shape%[1%].*got %-1", "a negative extent")
raises(function() quire.tensor { shape = { 2 }, dtype = "float" } end, "dtype: expected.*got float", "no such dtype")
-- Large host memory asks for huge pages, where the kernel has them: "hg" among the flags of its mapping. Nil where
-- no flags are told.
local function asks_for_huge_pages(address)
    local inside, maps = false, io.open "/proc/self/smaps"
    if not maps or not io.open "/sys/kernel/mm/transparent_hugepage/enabled" then
        return nil
    end
    for line in maps:lines() do
        local first, last = line:match "^(%x+)%-(%x+) "
        if first then
            inside = address >= tonumber(first, 16) and address < tonumber(last, 16)
        elseif inside and line:find "^VmFlags:" then
            return line:find " hg" ~= nil
        end
    end
end
for _, megabytes in ipairs { 8, 40 } do
    local large = quire.tensor { shape = { megabytes * 2 ^ 20 }, dtype = "uint8" }
    local address = tonumber(ffi.cast("uintptr_t", large.pointer))
    is(address % 2 ^ 21, 0, "%d MB begin at a huge page", megabytes)
    ok(large.pointer[0] == 0 and large.pointer[large.numel - 1] == 0, "%d MB are zeroed", megabytes)
    large.pointer[large.numel - 1] = 1
    local asks = asks_for_huge_pages(address)
    ok(asks ~= false, "%d MB ask for huge pages%s", megabytes, asks == nil and " # SKIP the kernel does not tell" or "")
end

raises(function() quire.tensor { shap = { 2 }, dtype = "fp16" } end, "unknown argument 'shap'", "a misspelt name")
raises(function() quire.tensor { shape = 2, dtype = "fp16" } end, "shape: expected a list of integers, got number",
    "a shape that is no list")
raises(function() quire.tensor() end, "tensor: expected a table of named arguments, got nil", "no arguments")
raises(function() quire.tensor { dtype = "fp16" } end, "shape: required", "neither shape nor values")
raises(function() quire.tensor { shape = { 2 }, dtype = "fp16", device = "gpu" } end, "device: expected.*gpu",
    "no such device type")
raises(function() quire.tensor { shape = { 2 }, dtype = "fp16", device = "cuda:4294967296" } end,
    'device: expected a number up to 2147483647, got "cuda:4294967296"', "a device beyond DLDevice")
raises(function() return here[2] end, "select: expected an index from 0 to 1, got 2", "an index too large")
raises(function() return here[0][3] end, "expected an integer from 0 to 2, got 3", "and in the last dimension")
raises(function() return here:get(1) end, "expected 2 indices, got 1", "an index too few")
raises(function() here:fill { 1 } end, "expected 6 values, got 1", "too few values")
raises(function() here:copy(many) end, "expected shape %[2,3%]", "a copy of another shape")
raises(function() here:slice(0, 0.5, 1) end, "slice: expected 0 <= first <= last <= 2, got 0.5 and 1",
    "a slice from within an element")
raises(function() here:slice(0, 1) end, "slice: expected.*got 1 and nil", "a slice without end")
raises(function() here:set("7", 0, 0) end, "set: expected a number, got string", "an element that is no number")
raises(function() here:same_bits(7) end, "same_bits: expected a tensor", "bits of what is no tensor")
raises(function() quire.from_dlpack(7) end, "from_dlpack: expected a DLTensor, got number", "what is no DLTensor")
for _, x in ipairs { 1.5, 2 ^ 31, -2 ^ 31 - 1, 0 / 0, math.huge } do
    local words = ("int32: expected a whole number from -2147483648 to 2147483647, got %s"):format(tostring(x))
        :gsub("%p", "%%%0")
    raises(function() quire.tensor { { x }, dtype = "int32" } end, words, "an int32 of %s", tostring(x))
    raises(function() quire.tensor { shape = { 1 }, dtype = "int32" }:set(x, 0) end, words, "... set")
end
for _, x in ipairs { 1.5, 2 ^ 63, 0 / 0, true, "7", 0xFFFFFFFFFFFFFFFFULL } do
    raises(function() quire.tensor { { x }, dtype = "int64" } end, "int64: expected a whole number from",
        "an int64 of %s", tostring(x))
end
is(quire.tensor { { 2 ^ 53 + 2, -5LL }, dtype = "int64" }:get(1), -5, "an int64_t is a number of int64")
raises(function() quire.tensor { { "7" }, dtype = "int32" } end, "int32: expected a whole number",
    "a string as an int32")
raises(function() quire.tensor { shape = { 1 }, dtype = "uint8" }:fill(256) end,
    "uint8: expected a whole number from 0", "a byte of 256")
is(quire.tensor { { 2 ^ 31 - 1, -2 ^ 31 }, dtype = "int32" }:get(1), -2 ^ 31, "the ends of int32 are numbers of it")
raises(function() here.dype = 1 end, "has no field 'dype'", "a field that tensors do not have")
raises(function() padded:view { 24 } end, "compact", "a view of padded memory in another shape")
raises(function() quire.compare(a, many) end, "one shape", "a comparison of two shapes")
if device ~= "cpu" then
    raises(function() return t:get(0, 0) end, "bring them here", "an element of a device tensor")
end
tap.done()

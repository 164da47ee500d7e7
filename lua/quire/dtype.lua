-- dtype.lua - element types: names, DLPack codes, and the small floats' bits to and from numbers
-- SPDX-License-Identifier: Apache-2.0

local ffi = require "ffi"
local C = require "quire.library".C

local dtype = {}

local number_bits = ffi.new "union { double value; int32_t word[2]; }"
local HIGH = ffi.abi "le" and 1 or 0 -- the word with sign and exponent

-- Exponent e with 2^e <= |x| < 2^(e+1); -1023 for zero and for doubles below 2^-1022.
local function exponent(x)
    number_bits.value = x
    return bit.band(bit.rshift(number_bits.word[HIGH], 20), 0x7FF) - 1023
end

local function sign_bit(x)
    number_bits.value = x
    return number_bits.word[HIGH] < 0
end

-- A float of `mantissa` stored mantissa bits and exponent bias `bias`.  `infinity` is the bits of
-- Inf, or nil where the type has none; then `largest` is where too large values end.
local function small_float(mantissa, bias, sign, nan, infinity, largest)
    local hidden = 2 ^ mantissa
    local lowest = 1 - bias -- exponent of the subnormals and of the smallest normal
    local top = infinity or largest

    -- Rounds to nearest even, straight from the double: no step in between rounds twice.
    local function from_number(x)
        if x ~= x then
            return nan
        end
        local s = sign_bit(x) and sign or 0
        x = x < 0 and -x or x
        if x == math.huge then
            return s + top
        end
        local e = exponent(x)
        if e > bias + 1 then -- beyond every finite value, e4m3's included
            return s + top
        end
        if e < lowest then
            e = lowest
        end
        -- in units of the last place; adding 2^52 lets the FPU round to an integer, ties to even
        local units = x * 2 ^ (mantissa - e) + 2 ^ 52 - 2 ^ 52
        local bits = units + (e - lowest) * hidden -- a carry into the exponent is right as it is
        return s + (bits > top and top or bits)
    end

    local function to_number(bits)
        local s = 1
        if bits >= sign then
            bits = bits - sign
            s = -1
        end
        if bits == infinity then
            return s * math.huge
        end
        if bits >= nan or (infinity and bits > infinity) then
            return 0 / 0
        end
        local e = math.floor(bits / hidden)
        local m = bits - e * hidden
        if e == 0 then
            return s * m * 2 ^ (lowest - mantissa)
        end
        return s * (hidden + m) * 2 ^ (e - 1 + lowest - mantissa)
    end

    -- Decoding through a table is what the JIT compiler likes best.
    local count = 2 * sign
    local values
    local function fast_to_number(bits)
        if not values then
            values = ffi.new("float[?]", count)
            for i = 0, count - 1 do
                values[i] = to_number(i)
            end
        end
        return values[bits]
    end
    return from_number, fast_to_number
end

local function identity(x)
    return x
end

-- What is stored for a number in an integer type: nothing that would be another number.
local function whole(name, lowest, highest)
    return function(x)
        local number = type(x) ~= "string" and tonumber(x)
        if not (number and number % 1 == 0 and number >= lowest and number <= highest) then
            error(("tensor: %s: expected a whole number from %.0f to %.0f, got %s"):format(name, lowest, highest,
                tostring(x)), 0)
        end
        return x -- as it came: an int64_t has more digits than a number
    end
end

local function add(name, code, bits, ctype, from_number, to_number)
    dtype[name] = {
        name = name,
        code = code,
        bits = bits,
        bytes = bits / 8,
        pointer = ffi.typeof(ctype .. " *"),
        array = ffi.typeof(ctype .. "[?]"),
        from_number = from_number or identity, -- what is stored for a number
        to_number = to_number or identity,     -- the number of what is stored
        is_float = code ~= C.QUIRE_CODE_INT and code ~= C.QUIRE_CODE_UINT,
    }
end

add("fp16", C.QUIRE_CODE_FLOAT, 16, "uint16_t", small_float(10, 15, 0x8000, 0x7E00, 0x7C00))
add("bf16", C.QUIRE_CODE_BFLOAT, 16, "uint16_t", small_float(7, 127, 0x8000, 0x7FC0, 0x7F80))
add("fp8e4m3", C.QUIRE_CODE_FP8E4M3, 8, "uint8_t", small_float(3, 7, 0x80, 0x7F, nil, 0x7E))
add("fp32", C.QUIRE_CODE_FLOAT, 32, "float")
add("fp64", C.QUIRE_CODE_FLOAT, 64, "double")
add("int8", C.QUIRE_CODE_INT, 8, "int8_t", whole("int8", -2 ^ 7, 2 ^ 7 - 1))
add("int32", C.QUIRE_CODE_INT, 32, "int32_t", whole("int32", -2 ^ 31, 2 ^ 31 - 1))
-- Refused as metadata; others' tensors have it. 2^63 - 1024 is the number below 2^63.
add("int64", C.QUIRE_CODE_INT, 64, "int64_t", whole("int64", -2 ^ 63, 2 ^ 63 - 1024), tonumber)
add("uint8", C.QUIRE_CODE_UINT, 8, "uint8_t", whole("uint8", 0, 2 ^ 8 - 1))

-- The description of a type by its name; raises as seen from `level` callers above.
local function get(name, level)
    local found = dtype[name]
    if not found then
        local names = {}
        for k in pairs(dtype) do
            names[#names + 1] = k
        end
        table.sort(names)
        error(("dtype: expected one of %s, got %s"):format(table.concat(names, ", "), tostring(name)),
            (level or 1) + 1)
    end
    return found
end

-- The description for DLDataType's three numbers, or nil.
local function find(code, bits, lanes)
    for _, candidate in pairs(dtype) do
        if candidate.code == code and candidate.bits == bits and lanes == 1 then
            return candidate
        end
    end
end

return { get = get, find = find }

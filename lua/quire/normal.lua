-- normal.lua - normally distributed elements from a counter: element n of a seed is the same
-- whatever is filled around it, in whatever order, on whatever machine; and random orders
-- SPDX-License-Identifier: Apache-2.0
--
-- A 64-bit hash of the seed and n / 4 gives 16 bits for each of four elements; these pick one of
-- 65536 equally likely quantiles, rounded to the element type once.  So filling costs one hash and
-- four table reads per four elements, and the JIT compiler turns it into straight machine code.

local ffi = require "ffi"

local normal = {}

local QUANTILES = 65536

-- The value below which a standard normal variable stays with probability p < 1/2: rational
-- approximations in the middle and in the tail, relative error about 1e-9.
local function lower_quantile(p)
    if p < 0.02425 then
        local q = math.sqrt(-2 * math.log(p))
        return (((((-7.784894002430293e-03 * q - 3.223964580411365e-01) * q - 2.400758277161838) * q
            - 2.549732539343734) * q + 4.374664141464968) * q + 2.938163982698783)
            / ((((7.784695709041462e-03 * q + 3.224671290700398e-01) * q + 2.445134137142996) * q
            + 3.754408661907416) * q + 1)
    end
    local q = p - 0.5
    local r = q * q
    return (((((-3.969683028665376e+01 * r + 2.209460984245205e+02) * r - 2.759285104469687e+02) * r
        + 1.383577518672690e+02) * r - 3.066479806614716e+01) * r + 2.506628277459239) * q
        / (((((-5.447609879822406e+01 * r + 1.615858368580409e+02) * r - 1.556989798598866e+02) * r
        + 6.680131188771972e+01) * r - 1.328068155288572e+01) * r + 1)
end

-- Tables by type and scale; weak, so that a program that uses many scales does not keep them all.
local tables = setmetatable({}, { __mode = "v" })

local function quantile_table(element, scale)
    local key = ("%s %.17g"):format(element.name, scale)
    local found = tables[key]
    if found then
        return found
    end
    found = ffi.new(element.array, QUANTILES)
    tables[key] = found
    for i = 0, QUANTILES / 2 - 1 do
        local x = scale * lower_quantile((i + 0.5) / QUANTILES)
        found[i] = element.from_number(x)
        found[QUANTILES - 1 - i] = element.from_number(-x)
    end
    return found
end

local function mix(z)
    z = bit.bxor(z, bit.rshift(z, 30)) * 0xBF58476D1CE4E5B9ULL
    z = bit.bxor(z, bit.rshift(z, 27)) * 0x94D049BB133111EBULL
    return bit.bxor(z, bit.rshift(z, 31))
end

local STEP = 0x9E3779B97F4A7C15ULL

-- A seed, a number or a string, as the 64 bits that its counter starts from.
function normal.seed(seed)
    local hash = 0xCBF29CE484222325ULL
    for i = 1, #tostring(seed) do
        hash = bit.bxor(hash, tostring(seed):byte(i) + 0ULL) * 0x100000001B3ULL
    end
    return mix(hash)
end

-- Stores elements first, first + 1, ... of `seed` (from normal.seed), times scale, at to[0], ...
function normal.fill(to, element, scale, seed, first, count)
    local values = quantile_table(element, scale)
    local function one(n)
        local bits = mix(seed + STEP * math.floor(n / 4))
        return values[tonumber(bit.band(bit.rshift(bits, 16 * (n % 4)), 0xFFFFULL))]
    end
    local i = 0
    while i < count and (first + i) % 4 ~= 0 do
        to[i] = one(first + i)
        i = i + 1
    end
    local counter = seed + STEP * ((first + i) / 4)
    local whole = i + math.floor((count - i) / 4) * 4
    for k = i, whole - 1, 4 do
        local bits = mix(counter)
        local low, high = tonumber(bit.band(bits, 0xFFFFFFFFULL)), tonumber(bit.rshift(bits, 32))
        to[k] = values[bit.band(low, 0xFFFF)]
        to[k + 1] = values[bit.rshift(low, 16)]
        to[k + 2] = values[bit.band(high, 0xFFFF)]
        to[k + 3] = values[bit.rshift(high, 16)]
        counter = counter + STEP
    end
    for k = whole, count - 1 do
        to[k] = one(first + k)
    end
end

-- The numbers 0 to count - 1 in an order that the seed decides.
function normal.permutation(count, seed)
    local order = {}
    for i = 1, count do
        order[i] = i - 1
    end
    local start = normal.seed(seed)
    for i = count, 2, -1 do
        local j = tonumber(mix(start + STEP * i) % i) + 1
        order[i], order[j] = order[j], order[i]
    end
    return order
end

return normal

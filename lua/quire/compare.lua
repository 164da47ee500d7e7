-- compare.lua - how far two tensors are from each other
-- SPDX-License-Identifier: Apache-2.0

local tensor = require "quire.tensor"

local Comparison = {}
Comparison.__index = Comparison

function Comparison:__tostring()
    local text = ("%d elements: largest difference %.3g at %d (%.6g against %.6g), relative %.3g"):format(
        self.numel, self.max_difference, self.worst_index, self.got, self.expected, self.relative)
    if self.special > 0 then
        text = text .. (", %d where NaN or Inf do not agree"):format(self.special)
    end
    return text
end

-- Compares `got` with `expected`, of the same shape.  First where NaN and Inf are: `special` counts
-- the elements that disagree in that, and they count nowhere else.  Then max_difference with its
-- flat index and values, and relative = ||got - expected|| / ||expected||.
local function compare(got, expected)
    for name, t in pairs { got = got, expected = expected } do
        if not tensor.is_tensor(t) then
            error(("compare: %s: expected a tensor, got %s"):format(name, type(t)), 2)
        end
    end
    local a, b = got:to "cpu", expected:to "cpu"
    if table.concat(a.shape, ",") ~= table.concat(b.shape, ",") then
        error(("compare: expected two tensors of one shape, got %s and %s"):format(
            got:describe(), expected:describe()), 2)
    end
    a, b = a:convert "fp64", b:convert "fp64"
    local x_at, r_at = a.pointer, b.pointer
    local special, worst, at, difference2, expected2 = 0, 0, 0, 0, 0
    for i = 0, got.numel - 1 do
        local x, r = x_at[i], r_at[i]
        local d = x - r
        if d ~= d or d == math.huge or d == -math.huge then
            -- NaN with NaN and an Inf with its like agree; all else is a disagreement
            if not (x == r or (x ~= x and r ~= r)) then
                special = special + 1
            end
        else
            d = math.abs(d)
            if d > worst then
                worst, at = d, i
            end
            difference2, expected2 = difference2 + d * d, expected2 + r * r
        end
    end
    return setmetatable({
        numel = got.numel,
        special = special,
        max_difference = worst,
        worst_index = at,
        got = got.numel > 0 and x_at[at] or 0,
        expected = got.numel > 0 and r_at[at] or 0,
        relative = expected2 > 0 and math.sqrt(difference2 / expected2) or 0,
    }, Comparison)
end

return compare

-- sample.lua - which requests to compare with the reference, where all would take too long
-- SPDX-License-Identifier: Apache-2.0

local tensor = require "quire.tensor"

-- Numbers of requests, from 0 and ascending: all if their costs together are within the budget, else
-- the most expensive whatever it costs, the cheapest, and then, in an order that depends on the seed,
-- as many as the budget has room for.
return function(costs, budget, seed)
    local order, total = {}, 0
    for b, cost in ipairs(costs) do
        order[b] = b
        total = total + cost
    end
    if total > budget then
        table.sort(order, function(a, b)
            return costs[a] == costs[b] and a < b or costs[a] < costs[b]
        end)
        local picked = { order[#order], #order > 1 and order[1] or nil }
        local spent = costs[order[#order]] + costs[order[1]]
        local z = tensor.new { shape = { #order }, dtype = "fp64" }:normal { seed = seed .. "/sample" }
        local first, last = order[1], order[#order]
        table.sort(order, function(a, b)
            return z[a - 1] == z[b - 1] and a < b or z[a - 1] < z[b - 1]
        end)
        for _, b in ipairs(order) do
            if b ~= first and b ~= last and spent + costs[b] <= budget then
                picked[#picked + 1] = b
                spent = spent + costs[b]
            end
        end
        order = picked
        table.sort(order)
    end
    for i, b in ipairs(order) do
        order[i] = b - 1
    end
    return order
end

-- strides.lua - shapes and strides, and walks over what they describe
-- SPDX-License-Identifier: Apache-2.0

local strides = {}

-- The strides of a row-major tensor without gaps.
function strides.compact(shape)
    local steps, step = {}, 1
    for i = #shape, 1, -1 do
        steps[i] = step
        step = step * math.max(shape[i], 1)
    end
    return steps
end

function strides.count(shape)
    local n = 1
    for _, extent in ipairs(shape) do
        n = n * extent
    end
    return n
end

-- Elements from the first to one past the last.
function strides.span(shape, steps)
    local last = 0
    for i, extent in ipairs(shape) do
        if extent == 0 then
            return 0
        end
        last = last + (extent - 1) * steps[i]
    end
    return last + 1
end

-- How many trailing dimensions of all the tensors are laid out without gaps, as a number of
-- elements: what can be handled as one run.
function strides.run_length(...)
    local tensors = { ... }
    local length, d = 1, tensors[1].rank
    while d >= 1 do
        local extent = tensors[1].shape[d]
        for _, t in ipairs(tensors) do
            if extent ~= 1 and t.strides[d] ~= length then
                return length, d
            end
        end
        length = length * extent
        d = d - 1
    end
    return length, 0
end

-- Calls visit(n, offset_a, offset_b) for every run of `length` elements, in row-major order; `n`
-- is the number of the run's first element.  `outer` dimensions are walked.
function strides.each_run(a, b, length, outer, visit)
    if a.numel == 0 then
        return
    end
    local index = {}
    for d = 1, outer do
        index[d] = 0
    end
    local n, at_a, at_b = 0, 0, 0
    while true do
        visit(n, at_a, at_b)
        n = n + length
        local d = outer
        while d >= 1 do
            index[d] = index[d] + 1
            at_a, at_b = at_a + a.strides[d], at_b + b.strides[d]
            if index[d] < a.shape[d] then
                break
            end
            at_a, at_b = at_a - index[d] * a.strides[d], at_b - index[d] * b.strides[d]
            index[d] = 0
            d = d - 1
        end
        if d == 0 then
            return
        end
    end
end

return strides

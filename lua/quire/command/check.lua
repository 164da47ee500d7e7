-- check.lua - quire check: decodes the cases of a file and compares each with the reference
-- SPDX-License-Identifier: Apache-2.0

local quire = require "quire"
local casefile = require "quire.casefile"
local cases = require "quire.cases"
local clock = require "quire.clock"
local common = require "quire.command.options"
local progress = require "quire.command.progress"
local text = require "quire.text"

local check = {}

function check.describe(command)
    command:description "Decode the cases of a CSV file and compare each with the float64 reference."
    command:argument "file"
        :description "Cases or workloads, in the format that quire(1) tells."
    common.device(command)
    command:option "--only"
        :description "Check only the case of this name; may be given again."
        :argname "ID"
        :count "*"
    command:flag "--tap"
        :description "Print TAP, for a test harness."
end

-- A case's shape in a few words.
local function describe(case)
    local queries = {}
    for _, q in ipairs(case.q_lens) do
        queries[q] = true
    end
    local several = next(queries, (next(queries))) ~= nil
    local query = several and "packed" or case.q_lens[1] .. (case.packed and " packed" or "")
    return ("B=%d q=%s %d/%d D=%d page=%d %s%s %s%s %s%s"):format(#case.kv_lens, query,
        case.hq, case.hkv, case.d, case.page,
        case.dtype, case.out_dtype ~= case.dtype and " to " .. case.out_dtype or "",
        case.mask, case.window_left >= 0 and " window=" .. case.window_left or "",
        case.pattern, case.form == "tuple" and " tuple" or "")
end

-- The promise for random data holds only there, as other patterns make results that are zero or
-- exact; every element keeps to its own bound in every pattern.
local function is_right(case, verdict, rows)
    return verdict.ok and verdict.rows == rows
        and (case.pattern ~= "random" or verdict.relative_error <= verdict.relative_bound)
end

-- Decodes a case and compares: whether it is right, and what to say.
local function run_case(case, device)
    local built, there, here = common.attempt(cases.build, case, device)
    if not built then
        return false, common.message_of(there)
    end
    local start = clock.now()
    local ran, problem = common.attempt(quire.decode, there)
    if not ran then
        return false, common.message_of(problem)
    end
    if there ~= here then
        here.out, here.lse = there.out:to "cpu", there.lse:to "cpu"
    end
    local seconds = clock.now() - start
    local verdict = quire.verify(here)
    local rows = here.out.numel / case.d
    local right = is_right(case, verdict, rows)
    local message = ("error %.2f of its bound, relative %.1e, %s"):format(
        verdict.worst_error, verdict.relative_error, text.seconds(seconds))
    if verdict.failures > 0 then
        message = ("%d of %d elements wrong; at %d: expected %.9g, got %.9g; lse error %.2g of its bound"):format(
            verdict.failures, here.out.numel, verdict.worst_index, verdict.worst_expected,
            verdict.worst_got, verdict.lse_error)
    elseif verdict.rows ~= rows then
        message = ("%d of %d query rows compared"):format(verdict.rows, rows)
    elseif not right then
        message = ("relative error %.2e, more than %.2e"):format(
            verdict.relative_error, verdict.relative_bound)
    end
    return right, message
end

function check.run(options)
    local all, problem = casefile.read(options.file)
    if not all then
        error(problem, 0)
    end
    local selected = common.select_cases(all, options.only)
    common.usable_device(options.device)
    local width = 0
    for _, case in ipairs(selected) do
        width = math.max(width, #case.id)
    end
    if options.tap then
        print(("1..%d"):format(#selected))
    end
    local failed = 0
    local bar = progress.start(#selected)
    local start = clock.now()
    for n, case in ipairs(selected) do
        bar:show(n - 1, case.id)
        local right, message = run_case(case, options.device)
        failed = failed + (right and 0 or 1)
        bar:clear()
        if options.tap then
            print(("%sok %d - %s: %s"):format(right and "" or "not ", n, case.id, describe(case)))
            print("# " .. message)
        else
            print(("%s  %s  %s: %s"):format(
                right and "right" or "WRONG", text.pad(case.id, width), describe(case), message))
        end
        common.flush()
        collectgarbage() -- the memory of the case's tensors, of which Lua does not know how much it is
        collectgarbage()
    end
    if not options.tap then
        print(("%d of %d cases right on %s, %s"):format(
            #selected - failed, #selected, options.device, text.seconds(clock.now() - start)))
    end
    return failed == 0
end

return check

-- tap.lua - Test Anything Protocol for the Lua tests; see t/0400-tensor.lua for how it is used
-- SPDX-License-Identifier: Apache-2.0

local tap = {}

local count, failed = 0, 0

local function diagnose(...)
    for line in (string.format(...) .. "\n"):gmatch "([^\n]*)\n" do
        io.stdout:write("# ", line, "\n")
    end
end

function tap.ok(passed, name, ...)
    count = count + 1
    failed = failed + (passed and 0 or 1)
    io.stdout:write(("%sok %d - %s\n"):format(passed and "" or "not ", count, name:format(...)))
    if not passed then
        local where = debug.getinfo(2, "Sl")
        if where.source == debug.getinfo(1, "S").source then
            where = debug.getinfo(3, "Sl")
        end
        diagnose("failed at %s:%d", where.short_src, where.currentline)
    end
    return passed
end

function tap.is(seen, wanted, name, ...)
    if not tap.ok(seen == wanted, name, ...) then
        diagnose("  wanted %s\n  seen   %s", tostring(wanted), tostring(seen))
    end
end

-- The text has the pattern in it.
function tap.like(text, pattern, name, ...)
    if not tap.ok(tostring(text):find(pattern) ~= nil, name, ...) then
        diagnose("  wanted %s\n  seen   %s", pattern, tostring(text))
    end
end

-- Two flat lists hold the same.
function tap.same(seen, wanted, name, ...)
    tap.is(table.concat(seen, " "), table.concat(wanted, " "), name, ...)
end

-- fn raises an error that has the pattern in it.
function tap.raises(fn, pattern, name, ...)
    local passed, problem = pcall(fn)
    if passed then
        tap.ok(false, name, ...)
        diagnose "  wanted an error, seen none"
    else
        tap.like(problem, pattern, name, ...)
    end
end

function tap.skip_all(reason)
    print("1..0 # SKIP " .. reason)
    os.exit(0)
end

-- The device to test: $QUIRE_TEST_DEVICE, else `otherwise` or the CPU.  Skips the whole test where it
-- cannot be used.
function tap.device(otherwise)
    local name = os.getenv "QUIRE_TEST_DEVICE" or otherwise or "cpu"
    local found, device = pcall(require "quire".device, name)
    if not found or device.problem ~= "" then
        tap.skip_all(found and device.problem or device)
    end
    return name
end

function tap.done()
    print(("1..%d"):format(count))
    os.exit(failed == 0 and 0 or 1)
end

return tap

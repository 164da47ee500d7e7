-- bench.lua - quire bench: the page-read rate, and each workload beside it
-- SPDX-License-Identifier: Apache-2.0

local quire = require "quire"
local bench = require "quire.bench"
local casefile = require "quire.casefile"
local common = require "quire.command.options"
local plot = require "quire.command.plot"
local progress = require "quire.command.progress"
local text = require "quire.text"
local workloads = require "quire.workloads"

local command = {}

-- The read rate of the machine that the peers' times in workload files were taken on: they are scaled
-- by the ratio of the rates before they are compared.
local PEER_RATE = 4.51e12

function command.describe(parser)
    parser:description "Measure workloads beside the rate at which their pages can be read, and check the results."
    parser:argument "file"
        :description "Workloads, in the format that quire(1) tells; without it those of --set."
        :args "?"
    common.device(parser)
    parser:option "--set"
        :description("Measure a built-in set of workloads; may be given again. Default: default. There are: "
            .. table.concat(workloads.names, ", ") .. ".")
        :argname "SET"
        :count "*"
        :choices(workloads.names)
    parser:option "--page-size"
        :description "Of rows that do not tell theirs."
        :argname "N"
        :default "16"
        :convert(common.integer("--page-size", 1))
    parser:option "--max-seq-len"
        :description "Bound of rows that do not tell theirs; default: the longest request."
        :argname "N"
        :convert(common.integer("--max-seq-len", 1))
    parser:option "--only"
        :description "Measure only the row of this name; may be given again."
        :argname "NAME"
        :count "*"
    parser:flag "--metadata-stable"
        :description "Promise that nothing on the stream writes the metadata (quire(3))."
    parser:option "--working-set"
        :description "MB that the page sets in rotation hold; default: 7 times the last-level cache."
        :argname "MB"
        :convert(common.integer("--working-set", 1))
    parser:option "--matrix-rate"
        :description "TFLOP/s that the machine multiplies matrices at: a limit besides the read rate, for many rows."
        :argname "TFLOPS"
        :convert(common.integer("--matrix-rate", 1))
    parser:flag "--csv"
        :description "Print CSV."
    parser:flag "--json"
        :description "Print one JSON object."
    parser:option "--plot"
        :description "Write a picture: achieved rate against bytes, with the read rate as a line."
        :argname "FILE.png"
end

-- The best peer's time at this machine's read rate, or nil.  A peer named by a number (peer64_us)
-- counts for that page size only.
local function best_peer(result)
    local best
    for name, us in pairs(result.read_rate and result.peers or {}) do
        local size = tonumber(name)
        if not size or size == result.page then
            local scaled = us * 1e-6 * PEER_RATE / result.read_rate
            best = math.min(best or scaled, scaled)
        end
    end
    return best
end

local function number(format, value, factor)
    return value and format:format(value * (factor or 1)) or ""
end

-- Rows are printed as they are measured, so a column is as wide as its heading or what is here; the first two, whose
-- cells are known before, are as wide as these.
local COLUMNS = {
    { "workload", function(r) return r.name end, left = true },
    { "page", function(r) return tostring(r.page) end },
    { "MB", function(r) return number("%.1f", r.bytes, 1e-6) end, "99999.9" },
    { "us", function(r) return number("%.1f", r.seconds, 1e6) end, "999999.9" },
    { "TB/s", function(r) return number("%.4f", r.rate, 1e-12) end, "9.9999" },
    { "TFLOP/s", function(r) return number("%.2f", r.flop_rate, 1e-12) end, "999.99" },
    { "% of read", function(r) return number("%.1f", r.share, 100) end },
    { "over us", function(r) return number("%.1f", r.overhead, 1e6) end, "999999.9" },
    { "time/goal", function(r) return number("%.2f", r.over_goal) end },
    { "peer/time", function(r) return number("%.2f", r.peer_ratio) end },
    { "host us", function(r) return number("%.1f", r.host_seconds, 1e6) end },
    { "checked", function(r)
        return r.verified
            and ("%s %d/%d"):format(r.right and "right" or "WRONG", r.verified_tokens, r.tokens) or ""
    end, left = true },
}

local CSV_COLUMNS = {
    "name", "page", "bytes", "kv_bytes", "flops", "seconds", "runs", "rate", "flop_rate", "read_rate", "share",
    "overhead", "over_goal", "peer_ratio", "host_seconds", "requests", "verified", "tokens", "verified_tokens",
    "right", "error", "relative_error", "problem", "skipped",
}

-- Prints a line that is to be there whatever becomes of the rest.
local function put(line)
    print(line)
    common.flush()
end

-- Each of these prints a heading, and returns what prints a row.
local printers = {}

function printers.table(list)
    local headings, widths, flush_right = {}, {}, {}
    for i, column in ipairs(COLUMNS) do
        headings[i], flush_right[i] = column[1], not column.left
        widths[i] = math.max(#column[1], #(column[3] or ""))
    end
    for _, case in ipairs(list) do
        widths[1] = math.max(widths[1], #case.id)
        widths[2] = math.max(widths[2], #tostring(case.page))
    end
    put(text.row(headings, widths, flush_right))
    return function(r)
        if not r.seconds then
            put(("%s: %s"):format(r.name, r.problem or ("skipped, it needs " .. r.skipped)))
            return
        end
        local row = {}
        for i, column in ipairs(COLUMNS) do
            row[i] = column[2](r)
        end
        put(text.row(row, widths, flush_right))
    end
end

function printers.csv()
    put(text.csv_line(CSV_COLUMNS))
    return function(r)
        local fields = {}
        for i, column in ipairs(CSV_COLUMNS) do
            fields[i] = r[column] == nil and "" or r[column]
        end
        put(text.csv_line(fields))
    end
end

-- One object, in the end.
function printers.json()
    return function() end
end

local function cases_of(options)
    local list, problem
    if options.file and #options.set > 0 then
        error("--set and a file: only one of them can be given", 0)
    elseif options.file then
        list, problem = casefile.read(options.file)
    else
        list, problem = casefile.parse(workloads.lines(#options.set > 0 and options.set or { "default" }),
            "built-in workloads")
    end
    if not list then
        error(problem, 0)
    end
    list = common.select_cases(list, options.only)
    for _, case in ipairs(list) do
        case.page = case.columns.page or options.page_size
        case.max_seq_len = case.columns.max_seq_len or options.max_seq_len or case.max_seq_len
    end
    return list
end

local function summarise(results, bench_of)
    local rates, ratios, problem = {}, {}, nil
    for _, r in ipairs(results) do
        rates[#rates + 1] = r.read_rate
        ratios[#ratios + 1] = r.peer_ratio and math.log(r.peer_ratio) or nil
        problem = problem or r.read_problem
    end
    if #rates == 0 then
        print(("\npage-read rate unknown: %s"):format(problem or "nothing was measured"))
        return
    end
    local matrix = bench_of.matrix_rate and (", or FLOPs / %.0f TFLOP/s,"):format(bench_of.matrix_rate / 1e12) or ""
    print(("\npage-read rate %.4f TB/s (median of the rows); goal: bytes / page-read rate%s + %.1f us; on %s, %s")
        :format(text.median(rates) / 1e12, matrix, bench_of.allowed * 1e6, bench_of.device, bench_of.info.name))
    if #ratios > 0 then
        local sum = 0
        for _, ratio in ipairs(ratios) do
            sum = sum + ratio
        end
        print(("best peer's time over ours, at equal read rates: geometric mean %.3f over %d rows"):format(
            math.exp(sum / #ratios), #ratios))
    end
end

-- Rows in the order in which they are measured: those of a type together, as the pool is of one type.
local function by_dtype(list)
    local order, first = {}, {}
    for n, case in ipairs(list) do
        order[n] = n
        first[case.dtype] = first[case.dtype] or n
    end
    table.sort(order, function(a, b)
        local of_a, of_b = first[list[a].dtype], first[list[b].dtype]
        return of_a == of_b and a < b or of_a < of_b
    end)
    return order
end

-- Measures all rows, each of which is printed then: their results, and whether all are right.
local function measure_all(all, list, print_row)
    local bar = progress.start(#list)
    local results, right = {}, true
    for done, n in ipairs(by_dtype(list)) do
        local case = list[n]
        bar:show(done - 1, case.id)
        local ok, result = common.attempt(all.run, all, case)
        if not ok then
            result = { name = case.id, page = case.page, problem = common.message_of(result) }
        elseif result.seconds then
            local peer = best_peer(result)
            result.peer_ratio = peer and peer / result.seconds
        end
        right = right and (result.right or result.skipped ~= nil)
        results[n] = result
        bar:clear() -- which may be on the terminal that the row goes to
        print_row(result)
        collectgarbage() -- tensors, whose size Lua does not know
        collectgarbage()
    end
    return results, right
end

-- Raises if there was room for none of the rows: nothing was measured, which nobody is to take for success.
local function need_room(results, device)
    for _, r in ipairs(results) do
        if not r.skipped then
            return
        end
    end
    error(("nothing was measured: none of the %d workloads has room on %s"):format(#results, device), 0)
end

-- Raises where every row that does not tell its page size would be refused.
local function need_page_size(size, device)
    local sizes = quire.supported(device).page_sizes
    for _, supported in ipairs(sizes) do
        if size == supported then
            return
        end
    end
    error(("--page-size: expected one of %s, got %d"):format(table.concat(sizes, ", "), size), 0)
end

function command.run(options)
    if options.csv and options.json then
        error("--csv and --json: only one of them can be given", 0)
    end
    local list = cases_of(options)
    common.usable_device(options.device)
    need_page_size(options.page_size, options.device)
    if options.plot then
        plot.need(options.plot)
    end
    local all = bench.new(list, options.device, {
        metadata_stable = options.metadata_stable or false,
        working_set = options.working_set and options.working_set * 1e6,
        matrix_rate = options.matrix_rate and options.matrix_rate * 1e12,
    })
    if options.working_set and options.working_set * 1e6 > all.limit then
        error(("--working-set: expected at most %d, which is the memory that a bench takes on %s, got %d"):format(
            all.limit / 1e6, options.device, options.working_set), 0)
    end
    local format = options.json and "json" or options.csv and "csv" or "table"
    local results, right = measure_all(all, list, printers[format](list))
    if options.json then
        for _, r in ipairs(results) do
            r.peers = nil
        end
        print(common.json {
            device = all.info, allowed_seconds = all.allowed, matrix_rate = all.matrix_rate, results = results,
        })
    elseif not options.csv then
        summarise(results, all)
    end
    need_room(results, options.device)
    if options.plot then
        plot.write(options.plot, results, options.device, all.allowed)
    end
    return right
end

return command

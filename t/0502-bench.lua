-- quire bench: what it prints, and that it tells wrong from right; no test asserts a time.
-- SPDX-License-Identifier: Apache-2.0
local ffi = require "ffi"
local cjson = require "cjson"
local tap = require "tap"
local casefile = require "quire.casefile"
local text = require "quire.text"
local work = require "quire.work"
local workloads = require "quire.workloads"

ffi.cdef [[
int posix_openpt(int flags), grantpt(int terminal), unlockpt(int terminal);
char *ptsname(int terminal);
ssize_t read(int file, void *to, size_t most);
]]
local O_RDWR_NOCTTY = 2 + 0x100

local device = tap.device()
local ok, is, like = tap.ok, tap.is, tap.like

local out_path, err_path, file_path, png_path = os.tmpname(), os.tmpname(), os.tmpname(), os.tmpname()

local function slurp(path)
    local file = assert(io.open(path, "rb"))
    local content = file:read "*a"
    file:close()
    return content
end

local function bench(line)
    local status = os.execute(("'%s' bench --working-set 4 --device %s %s >'%s' 2>'%s'"):format(
        os.getenv "QUIRE_COMMAND", device, line, out_path, err_path))
    return status / 256, slurp(out_path), slurp(err_path)
end

local function write(content)
    local file = assert(io.open(file_path, "w"))
    file:write(content)
    file:close()
end

write("name,kv_lens,q_lens,packed,hq,hkv,d,mask,window_left,dtype,page,peer64_us,peer64\n"
    .. "one,100,1,0,8,2,64,dense,-1,bf16,64,9,x\n"
    .. "packed,70 0 300,2 3 1,1,4,2,128,causal,40,fp16,16,9,x\n"
    .. "eight,33x20,1,0,8,2,64,dense,-1,fp8e4m3,32,,\n"
    .. "many,90,80,0,8,1,64,causal,-1,fp16,16,,\n")

local status, out, err = bench(file_path)
is(status, 0, "all right: exit status 0")
is(err, "", "nothing on standard error")
like(out, "^workload +page +MB +us +TB/s +TFLOP/s .*\none +64 .*right 1/1\npacked +16 .*right 6/6\n"
    .. "many +16 .*right 80/80\neight +32 .*right 20/20\n", "a line for each row, those of a type together")
do
    local at, aligned = out:find("checked\n"), 0
    for line in out:gmatch "[^\n]+" do
        aligned = aligned + (line:find "right %d+/" == at and 1 or 0)
    end
    is(aligned, 4, "the rows are as wide as the heading")
end
like(out, "page%-read rate [%d.]+ TB/s .* on " .. device, "and the read rate")
like(out, "geometric mean [%d.]+ over 1 rows", "peers are compared at their own page size")

status, out = bench("--json --matrix-rate 1 " .. file_path)
is(status, 0, "--json: exit status")
local all = cjson.decode(out)
local parsed = casefile.read(file_path)
is(#all.results, 4, "--json: all rows")
is(all.matrix_rate, 1e12, "--json: the matrix rate")
for n, r in ipairs(all.results) do
    ok(r.right and r.seconds > 0 and r.read_rate > 0 and r.verified == r.requests and r.verified_tokens == r.tokens,
        "--json: %s is right", r.name)
    ok(math.abs(r.rate * r.seconds / r.bytes - 1) < 1e-6 and math.abs(r.share * r.read_rate / r.rate - 1) < 1e-6
        and math.abs(r.flop_rate * r.seconds / r.flops - 1) < 1e-6, "--json: %s: its rates agree with its work", r.name)
    local least = work.least_seconds(parsed[n], r.read_rate, 1e12)
    ok(math.abs(r.overhead + least - r.seconds) < 1e-9
        and math.abs(r.over_goal * (least + all.allowed_seconds) - r.seconds) < 1e-9,
        "--json: %s: beyond the limit", r.name)
end
is(all.results[1].kv_bytes, 100 * 2 * 2 * 64 * 2, "--json: bytes of K and V")
is(all.results[1].bytes, 100 * 2 * 2 * 64 * 2 + 2 * 8 * 64 * 2 + 4 * (3 + 2), "--json: with Q, out and metadata")
is(all.results[1].flops, 4 * 64 * 8 * 100, "--json: operations")
is(all.results[2].kv_bytes, (42 + 41) * 2 * 2 * 128 * 2, "--json: a window counts what it sees")
is(all.results[2].flops, 4 * 128 * 4 * (41 * 2 + 41), "--json: and its operations what is not masked")
is(all.results[2].tokens .. " " .. all.results[2].requests, "6 3", "--json: query tokens and requests")

status, out = bench("--csv --metadata-stable --only one --only eight --page-size 16 --max-seq-len 9999 " .. file_path)
is(status, 0, "--csv: exit status")
local lines = {}
for line in out:gmatch "[^\n]+" do
    lines[#lines + 1] = text.csv_fields(line)
end
is(#lines, 3, "--csv: a header and two rows")
is(#lines[2], #lines[1], "--csv: as many fields as columns")
is(lines[2][1] .. lines[3][1], "oneeight", "--only picks rows")
is(lines[2][2], "64", "a row's own page size goes before --page-size")

status, out, err = bench("--plot /nonexistent/a.png " .. file_path)
if not err:find "needs gnuplot" then
    is(status .. out .. err, "2quire bench: --plot: /nonexistent/a.png: No such file or directory\n",
        "--plot: a file that cannot be written is told before anything is measured")
end
status = bench("--only one --plot " .. png_path .. " " .. file_path)
if status == 2 and slurp(err_path):find "needs gnuplot" then
    ok(true, "--plot # SKIP there is no gnuplot")
else
    is(status, 0, "--plot: exit status")
    is(slurp(png_path):sub(1, 8), "\137PNG\r\n\26\n", "--plot: a PNG")
end

status, out = bench "--only 'one short' --only '8 tokens'"
is(status, 0, "the built-in workloads: exit status")
like(out, "one short +16 .*8 tokens +16 ", "the built-in workloads")
status, out = bench "--csv --set short --set packed --set short --only '1 to 8, B8 1k' --only '8/1 B1 1k'"
is(status, 0, "--set: exit status")
lines = {}
for line in out:gmatch "[^\n]+" do
    lines[#lines + 1] = text.csv_fields(line)[1]
end
is(table.concat(lines, "; "), "name; 1 to 8, B8 1k; 8/1 B1 1k",
    "--set: rows of several sets, in the order asked for")

-- Pages that a launch sees are in no other set; of those before a window nothing is read, so they may be.
do
    local page_sets = require "quire.bench".page_sets
    local list = casefile.parse({ "name,kv_lens,hq,hkv,d,dtype,mask,window_left",
        "a window,100 40,2,1,64,bf16,causal,20", "all,100 40,2,1,64,bf16,causal," }, "here")
    local order = {}
    for i = 1, 60 do
        order[i] = (i * 7) % 61 + 100
    end
    local function look(case, rotation)
        local ids, seen, twice = page_sets(case, order, rotation), {}, 0
        for s = 0, ids.shape[1] - 1 do
            for i = 0, ids.shape[2] - 1 do
                -- keys 79 to 99 are in pages 4 to 6 of 7, 19 to 39 in 1 and 2 of 3
                if case.window_left < 0 or (i >= 4 and i ~= 7) then
                    twice = twice + (seen[ids[s][i]] and 1 or 0)
                    seen[ids[s][i]] = true
                end
            end
        end
        return ids, twice
    end
    local page = 2 * 16 * 64 * 2
    local ids, twice = look(list[1], 8 * 5 * page)
    is(ids:describe(), "int32 [8,10] on cpu", "page sets of a window: as many as the rotation has room for")
    is(twice, 0, "page sets of a window: no page that is seen is in two")
    ids, twice = look(list[2], 100 * page)
    is(ids:describe(), "int32 [6,10] on cpu", "page sets: as many as there are pages for")
    is(twice, 0, "page sets: no page is in two")
end

-- The sets, all of which one file could hold, have what they are for.
do
    local every, problem = casefile.parse(workloads.lines(workloads.names), "sets")
    ok(every, "the sets: all at once: %s", tostring(problem))
    local rows = {}
    for _, case in ipairs(casefile.parse(workloads.lines { "rows" }, "rows")) do
        local q = case.seq_len_q
        rows[("%d/%d %d %dx%d"):format(case.hq, case.hkv, q, case.kv_lens[1], #case.kv_lens)] = true
    end
    local missing = {}
    for _, hq in ipairs { 32, 64 } do
        for _, q in ipairs { 1, 2, 4, 8, 16 } do
            for _, batch in ipairs { 1, 8, 32 } do
                for _, length in ipairs { 1024, 8192, 65536 } do
                    local key = ("%d/8 %d %dx%d"):format(hq, q, length, batch)
                    missing[#missing + 1] = not rows[key] and key or nil
                end
            end
        end
    end
    is(table.concat(missing, ", "), "", "the set rows: every number of tokens with every batch and length")
    local fp8 = {}
    for _, case in ipairs(casefile.parse(workloads.lines { "fp8" }, "fp8")) do
        local shape, types = case.id:match "^(.*), ([^,]*)$"
        is(types, case.dtype == "bf16" and "bf16" or case.dtype .. " to " .. case.out_dtype, "the set fp8: %s", case.id)
        fp8[shape] = (fp8[shape] or 0) + 1
    end
    for shape, count in pairs(fp8) do
        is(count, 3, "the set fp8: %s in bf16, fp8, and fp8 to fp16", shape)
    end
end

write("name,kv_lens,q_lens,packed,hq,hkv,d,dtype\nidle,20 9,0 0,1,4,2,64,bf16\n")
status, out = bench(file_path)
is(status, 0, "no query token in the batch: exit status")
like(out, "idle .*right 0/0", "no query token in the batch: right")

-- K and V as two tensors are measured so; gaps between pages, and other data than the pool's, are refused.
write("name,kv_lens,hq,hkv,d,dtype,form,pattern,page_stride_pad\npair,10 70,8,2,64,bf16,tuple,,\n"
    .. "rises,10,8,2,64,bf16,,ascend,\ngaps,10,8,2,64,bf16,,,8\n")
status, out = bench("--only pair " .. file_path)
is(status, 0, "K and V as two tensors: exit status")
like(out, "pair .*right 2/2", "K and V as two tensors: right")
status, out = bench(file_path)
is(status, 1, "what a bench has not: exit status 1")
like(out, "right 2/2\nrises: pattern: expected random.*, got ascend\ngaps: page_stride_pad: expected 0.*, got 8\n",
    "what a bench has not: why")

-- What cannot be run is told, and is a failure; what has no room is told, and is none.
write("name,kv_lens,hq,hkv,d,dtype\nodd,10,8,2,96,bf16\ngood,10,8,2,64,bf16\nhuge,2000000000x9,8,8,256,bf16\n")
status, out = bench(file_path)
is(status, 1, "a refused row: exit status 1")
like(out, "\nodd: query: head_dim[^\n]*UNSUPPORTED[^\n]*\ngood +16 .*right 1/1\n",
    "a refused row: why, and the others run")
like(out, "huge: skipped, it needs [%d.]+ GB of pages, and room for", "a row too large is skipped")

-- Rows are there as soon as they are measured, and stay there if what follows is interrupted.
local function interrupted(options, err_to)
    local rows = { "name,kv_lens,hq,hkv,d,dtype" }
    for n = 1, 200 do
        rows[#rows + 1] = ("row %d,10,8,2,64,bf16"):format(n)
    end
    write(table.concat(rows, "\n") .. "\n")
    local wait = ("for i in $(seq 600); do grep -q '^row 2' '%s' && break; sleep 0.1; done"):format(out_path)
    local status = os.execute(("'%s' bench --working-set 4 --device %s %s '%s' >'%s' 2>'%s' & pid=$!; %s; "
        .. "kill -INT $pid; wait $pid"):format(os.getenv "QUIRE_COMMAND", device, options, file_path, out_path,
        err_to or err_path, wait))
    return status / 256, slurp(out_path), slurp(err_path)
end
for _, options in ipairs { "", "--csv" } do
    status, out, err = interrupted(options)
    local _, count = out:gsub("\nrow %d+[^\n]+", "")
    is(status, 128 + 2, "interrupted %s: ended by the signal", options)
    ok(out:find(options == "" and "^workload" or "^name,") and count >= 2 and count < 200 and out:sub(-1) == "\n",
        "interrupted %s: a heading and %d rows, all whole", options, count)
    is(err, "", "interrupted %s: nothing on standard error", options)
end

-- Interrupted after every number of instructions: the last that is written has to take the bar off the line.
local BAR = [[
    jit.off()
    local progress = require "quire.command.progress"
    local bar, last = progress.start(3), "nothing"
    io.stderr = { write = function(_, written) last = written end, flush = function() end }
    local function interrupt()
        debug.sethook()
        error "interrupted!"
    end
    local count, done = 0, false
    repeat
        count = count + 1
        done = pcall(function()
            debug.sethook(interrupt, "", count)
            bar:show(1, "row")
            bar:clear()
            debug.sethook()
        end)
        progress.clear()
        if last ~= "nothing" and last ~= "\r\27[K" then
            print(("after %d instructions: %q"):format(count, last))
        end
    until done
    print(last)
]]
do
    local terminal = ffi.C.posix_openpt(O_RDWR_NOCTTY)
    if terminal < 0 or ffi.C.grantpt(terminal) ~= 0 or ffi.C.unlockpt(terminal) ~= 0 then
        ok(true, "interrupted on a terminal # SKIP there is none to be had")
    else
        local name = ffi.string(ffi.C.ptsname(terminal))
        status, out = interrupted("", name)
        local room, parts = ffi.new "char[65536]", {}
        repeat
            local count = tonumber(ffi.C.read(terminal, room, 65536))
            parts[#parts + 1] = ffi.string(room, math.max(0, count))
        until count <= 0
        is(status, 128 + 2, "interrupted on a terminal: ended by the signal")
        like(out, "\nrow %d+[^\n]+right 1/1\n$", "interrupted on a terminal: all rows whole, none of them failed")
        like(table.concat(parts), "%[[#.]+%] %d+/200 row %d+\r\27%[K$",
            "interrupted on a terminal: the bar is off the line, and no more")

        write(BAR)
        is(os.execute(("'%s' '%s' >'%s' 2>'%s'"):format(os.getenv "LUAJIT", file_path, out_path, name)), 0,
            "a bar interrupted anywhere: runs")
        is(slurp(out_path), "\r\27[K\n", "a bar interrupted anywhere: is off the line")
    end
end
write("name,kv_lens,hq,hkv,d,dtype\nodd,10,8,2,96,bf16\ngood,10,8,2,64,bf16\nhuge,2000000000x9,8,8,256,bf16\n")

-- Where there is room for none, nothing was measured: that is no success.
status, out, err = bench("--only huge " .. file_path)
is(status, 2, "no row has room: exit status 2")
like(out, "huge: skipped", "no row has room: the table says so")
is(err, "quire bench: nothing was measured: none of the 1 workloads has room on " .. device .. "\n",
    "no row has room: why")
status = bench("--only huge --only good " .. file_path)
is(status, 0, "one row has room: exit status 0")
status = bench("--only huge --only odd " .. file_path)
is(status, 1, "one is refused, one has no room: exit status 1")

status, out, err = bench("--csv --json " .. file_path)
is(status, 2, "--csv and --json: exit status 2")
is(out, "", "--csv and --json: no output")
like(err, "^quire bench: %-%-csv and %-%-json", "--csv and --json: says why")
status, out, err = bench "/nonexistent.csv"
is(status, 2, "no such file: exit status 2")
is(out, "", "no such file: no output")
like(err, "^quire bench: /nonexistent.csv: No such file", "no such file: says why")
status, out, err = bench("--set fp8 " .. file_path)
is(status .. out .. err, "2quire bench: --set and a file: only one of them can be given\n", "--set and a file")
status, out, err = bench "--page-size 17"
is(status .. out .. err, "2quire bench: --page-size: expected one of 16, 32, 64, 128, got 17\n",
    "a page size that no row can have: said once, before anything is measured")
status, out, err = bench "--working-set 100000000"
is(status .. out, "2", "a working set of 100 TB: exit status 2")
like(err, "^quire bench: %-%-working%-set: expected at most %d+, [^\n]* on " .. device .. ", got 100000000\n$",
    "a working set of 100 TB: says so at once")
status, out, err = bench "--set fp9"
is(status .. out, "2", "no such set: exit status 2")
like(err, "'%-%-set' must be one of '" .. table.concat(workloads.names, "', '") .. "'", "no such set: says which")
write("name,kv_lens,hq,hkv,d,dtype,window_left\ngood,10,8,2,64,bf16,3\nbad,10,8,2,64,bf16,w\n")
status, out, err = bench(file_path)
is(status .. out, "2", "a bad field: exit status 2")
like(err, '^quire bench: [^:]+:3: window_left: expected an integer of at least %-1, got "w"\n$',
    "a bad field: row and column")

for _, path in ipairs { out_path, err_path, file_path, png_path } do
    os.remove(path)
end
tap.done()

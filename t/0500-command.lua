-- The quire command: what it prints, and its exit status: 0 right, 1 wrong, 2 unusable.
-- SPDX-License-Identifier: Apache-2.0
local cjson = require "cjson"
local tap = require "tap"

local device = tap.device()
local ok, is, like = tap.ok, tap.is, tap.like

local data = os.getenv "QUIRE_SOURCE" .. "/t/data/"
local out_path, err_path, file_path = os.tmpname(), os.tmpname(), os.tmpname()

local function slurp(path)
    local file = assert(io.open(path))
    local content = file:read "*a"
    file:close()
    return content
end

-- Runs quire with a command line; its exit status, standard output and standard error.
local function quire(line)
    local status = os.execute(("'%s' %s >'%s' 2>'%s'"):format(os.getenv "QUIRE_COMMAND", line, out_path, err_path))
    return status / 256, slurp(out_path), slurp(err_path)
end

local function works(line, pattern, name)
    local status, out, err = quire(line)
    is(status, 0, "%s: exit status", name)
    like(out, pattern, "%s: output", name)
    is(err, "", "%s: nothing on standard error", name)
    return out
end

-- Unusable: status 2, one line on standard error, no traceback.
local function unusable(line, pattern, name)
    local status, out, err = quire(line)
    is(status, 2, "%s: exit status", name)
    like(err, pattern, "%s: says why", name)
    ok(out == "" and not err:find "traceback" and not err:find "%.lua:", "%s: and nothing else", name)
end

-- ---- info ----------------------------------------------------------------------------------------

local version = require "quire".version
works("--version", "^quire " .. version:gsub("%.", "%%.") .. "\n$", "--version")
works("info", "quire " .. version
    .. ".*cpu: .*dtypes +fp16, bf16, fp8e4m3 to fp16, fp8e4m3\n.*head_dim +64, 128, 256\n"
    .. ".*page_size +16, 32, 64, 128\n.*1 to 32 query heads", "info")
local info = cjson.decode((works("info --json", "^{.*}\n$", "info --json")))
is(info.version, version, "info --json: version")
is(info.devices[1].device, "cpu", "info --json: the CPU is first")
is(info.devices[1].supported.max_group, 32, "info --json: what is supported")
works("--help", "info.*decode.*check", "--help")
works("check --help", "^Usage: quire check .*file.*%-%-tap", "a subcommand's --help")

-- ---- decode --------------------------------------------------------------------------------------

local on = " --device " .. device .. " --q-heads 4 --kv-heads 2 --head-dim 64 "
works("decode" .. on .. "--batch 3", "requests +3 of random.*result +right\n", "decode")
works("decode" .. on .. "--trace " .. data .. "context.csv", "requests +4 of .*min 1, median 233, max 2048.*right\n",
    "decode of a CSV trace")
local line = "decode --json" .. on .. "--lens '40x3 1 0' --seq-len-q 4 --mask causal --window 7 --dtype fp8e4m3 "
    .. "--out-dtype fp16 --page-size 32 --seed 5 "
local result = cjson.decode((works(line, "^{.*}\n$", "decode --json")))
is(result.requests, 5, "decode --json: requests")
is(result.lengths.total, 121, "decode --json: keys")
is(result.out_dtype, "fp16", "decode --json: output type")
is(result.right, true, "decode --json: right")
is(result.verified, 5, "decode --json: all are checked")
is(result.verdict.rows, 5 * 4 * 4, "decode --json: rows checked")
ok(result.verdict.empty_rows > 0, "decode --json: some rows see no key")
line = "decode --json" .. on .. "--trace " .. data .. "blocks.jsonl"
result = cjson.decode((works(line, "^{", "decode of JSON lines")))
is(result.pages_used, 190, "requests that share a prefix share its pages")
is(result.pages_shared, 69, "so many are shared")
is(result.requests, 6, "all requests of a short trace")
works("decode" .. on .. "--batch 2 --trace " .. data .. "blocks.jsonl", "requests +2 of", "the first two requests")
works("decode" .. on .. "--dtype fp8e4m3 --lens '3000 1'", "fp8e4m3 to fp8e4m3.*result +right\n", "fp8 output")

unusable("decode --trace /nonexistent", "^quire decode: /nonexistent: No such file or directory\n$", "no such trace")
unusable("decode --batch 0", "%-%-batch: expected an integer of at least 1, got '0'", "no requests")
unusable("decode --batch -5", "%-%-batch: expected an integer of at least 1, got '%-5'", "fewer than none")
works("decode" .. on .. "--lens 9 --window -1", "mask +dense\n.*right\n", "a negative number as a value")
unusable("decode --batch ten", "%-%-batch: expected an integer.*got 'ten'", "no number")
unusable("decode --lens 3,4", "%-%-lens: expected lengths such as.*got '3,4'", "no lengths")
unusable("decode --lens 3 --batch 4", "%-%-lens and %-%-batch", "lengths and a number of requests")
unusable("decode --lens 3 --trace x", "%-%-trace and %-%-lens", "lengths and a trace")
unusable("decode --batch 99 --trace " .. data .. "context.csv", "has only 4 requests", "more requests than there are")
unusable("decode --head-dim 96", "^quire decode: query: .*UNSUPPORTED%)\n$", "the library's refusal")
unusable("decode --window 4", "^quire decode: window_left: .*VALUE%)\n$", "a window without causal")
unusable("decode --dtype float", "%-%-dtype", "no such dtype")
unusable("decode --device gpu", "%-%-device: expected cpu or cuda:N, got 'gpu'", "no such kind of device")
unusable("decode --device cuda:99", "^quire decode: device cuda:99: there is no such device", "no such device")
unusable("decode --device cuda:99999999999999999999", "^quire decode: device: expected a number up to 2147483647, got",
    "no number of a device")
unusable("decode --lens 2000000000x4", "quire decode: cpu: cannot allocate %d+ bytes\n$", "more memory than there is")
unusable("decode --lens 1x99999999999", "%-%-lens: expected lengths", "more requests than a list can hold")
unusable("decode --q-heads 99999999999999999999", "%-%-q%-heads: expected an integer up to %d+, got '9+'",
    "no such number")
unusable("decode --nonsense", "unknown option '%-%-nonsense'", "an unknown option")
unusable("nonsense", "unknown command 'nonsense'", "an unknown command")
unusable("", "Usage: quire", "no command")

-- More threads than a stack has room for.
is(os.execute(("OMP_NUM_THREADS=100000 '%s' decode --q-heads 4 --kv-heads 2 --head-dim 64 --lens 40 >'%s' 2>'%s'")
    :format(os.getenv "QUIRE_COMMAND", out_path, err_path)), 0, "OMP_NUM_THREADS=100000: exit status")
like(slurp(out_path), "result +right\n", "OMP_NUM_THREADS=100000: right")

-- Without a package that the command needs.
do
    local source, build = os.getenv "QUIRE_SOURCE", os.getenv "QUIRE_BUILD"
    local status = os.execute(("env LUA_PATH='%s/lua/?.lua;%s/lua/?.lua' '%s' '%s/scripts/quire' info >'%s' 2>'%s'")
        :format(source, build, os.getenv "LUAJIT", source, out_path, err_path))
    is(status / 256, 2, "without lua-argparse: exit status")
    is(slurp(err_path), "quire: there is no Lua module 'argparse'; Debian and Ubuntu have it as lua-argparse\n",
        "without lua-argparse: says so")
end

-- ---- check ---------------------------------------------------------------------------------------

local function write(content)
    local file = assert(io.open(file_path, "w"))
    file:write(content)
    file:close()
end

local HEADER = "id,kv_lens,hq,hkv,d,page,dtype\n"
write(HEADER .. "one,40 3,4,2,64,16,bf16\ntwo,17,4,4,128,32,fp8e4m3\n")
works("check --device " .. device .. " " .. file_path, "right  one  .*right  two  .*2 of 2 cases right on " .. device,
    "check")
works("check --only two " .. file_path, "^right  two  [^\n]*\n1 of 1 cases right", "check --only")
works("check --tap " .. file_path, "^1%.%.2\nok 1 %- one: [^\n]*\n# error [^\n]*\nok 2 %- two", "check --tap")

-- A case that the library refuses is a failed check, not a way to stop.
write(HEADER .. "odd,40,4,2,96,16,bf16\ngood,40,4,2,64,16,bf16\n")
local status, out, err = quire("check " .. file_path)
is(status, 1, "a refused case: exit status 1")
like(out, "WRONG  odd   .*query: head_dim.*right  good.*1 of 2 cases right", "a refused case: and the others run")
is(err, "", "a refused case: nothing on standard error")
status, out = quire("check --tap " .. file_path)
is(status, 1, "--tap: exit status 1")
like(out, "not ok 1 %- odd.*ok 2 %- good", "--tap: not ok")

unusable("check --only three " .. file_path, "no case 'three'", "no such case")
unusable("check /nonexistent.csv", "^quire check: /nonexistent.csv: No such file", "no such file")
write(HEADER .. "one,40 3,4,2,64,x,bf16\n")
unusable("check " .. file_path,
    "^quire check: /[^\n]*:2: page: expected an integer of at least 1, got \"x\"\n$", "a bad file")
write(HEADER)
unusable("check " .. file_path, "^quire check: /[^\n]*: no cases\n$", "a file without cases")
write("\239\187\191" .. HEADER .. "one,40 3,4,2,64,16,bf16\n")
works("check " .. file_path, "1 of 1 cases right", "a byte order mark")
if io.open "/dev/full" then
    is(os.execute(("'%s' check %s >/dev/full 2>'%s'"):format(os.getenv "QUIRE_COMMAND", file_path, err_path)) / 256, 2,
        "a full disk: exit status")
    like(slurp(err_path), "^quire check: standard output: [^\n]+\n$", "a full disk: says so")
    for _, line in ipairs { "--help", "--version", "info --help", "bench -h" } do
        is(os.execute(("'%s' %s >/dev/full 2>'%s'"):format(os.getenv "QUIRE_COMMAND", line, err_path)) / 256, 2,
            "a full disk, %s: exit status", line)
        like(slurp(err_path), "^quire: standard output: [^\n]+\n$", "a full disk, %s: says so", line)
    end
end
unusable("check", "missing argument 'file'", "no file")

-- An interrupt while modules are loaded: argparse is one that raises it.
do
    local folder = file_path .. ".d"
    assert(os.execute(("mkdir '%s'"):format(folder)) == 0)
    local module = assert(io.open(folder .. "/argparse.lua", "w"))
    module:write 'local ffi = require "ffi"\nffi.cdef "int raise(int number);"\nffi.C.raise(2)\nerror "lived on"\n'
    module:close()
    local status = os.execute(("LUA_PATH='%s/?.lua;;' '%s' info >'%s' 2>'%s'; exit $?"):format(folder,
        os.getenv "QUIRE_COMMAND", out_path, err_path))
    is(status / 256, 128 + 2, "interrupted while it loads: ended by the signal")
    is(slurp(out_path) .. slurp(err_path), "", "interrupted while it loads: and nothing printed")
    os.execute(("rm -r '%s'"):format(folder))
end

os.remove(out_path)
os.remove(err_path)
os.remove(file_path)
tap.done()

-- The reader of case and workload files, and the inputs it describes.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"
local quire = require "quire"
local casefile = require "quire.casefile"
local cases = require "quire.cases"

local ok, is, same, like = tap.ok, tap.is, tap.same, tap.like

local path = os.tmpname()
local function read(content)
    local file = assert(io.open(path, "w"))
    file:write(content)
    file:close()
    return casefile.read(path)
end

-- ---- reading -------------------------------------------------------------------------------------

local HEADER = "id,kv_lens,hq,hkv,d,dtype\n"
local list = assert(read(HEADER .. "a,5 8192x3 7,32,8,128,bf16\n\nb,0,8,8,64,fp16\r\n"))
is(#list, 2, "two cases")
same(list[1].kv_lens, { 5, 8192, 8192, 8192, 7 }, "8192x3 is three lengths")
local defaults = {
    packed = false, page = 16, out_dtype = "bf16", form = "combined", mask = "dense", window_left = -1,
    page_stride_pad = 0, pattern = "random", max_seq_len = 8192, seq_len_q = 1,
}
for name, value in pairs(defaults) do
    is(list[1][name], value, "default of %s", name)
end
same(list[1].q_lens, { 1, 1, 1, 1, 1 }, "a query length for each request")
is(list[2].max_seq_len, 1, "max_seq_len of empty requests is 1")
is(list[2].dtype, "fp16", "a line may end in CR LF")

list = assert(read("name,kv_lens,q_lens,packed,hq,hkv,d,dtype,kv_bytes,peer64_us,peer64\n"
    .. '"x, with a comma",100 50,3 1,1,8,1,64,fp8e4m3,19200,5.9,xqa\ny,10,2,0,8,1,64,bf16,2560,,\n'))
is(list[1].id, "x, with a comma", "a quoted field")
is(list[1].packed, true, "packed")
same(list[1].q_lens, { 3, 1 }, "packed query lengths")
is(list[1].max_seq_len_q, 3, "max_seq_len_q is the largest of them")
is(list[1].peers["64"], 5.9, "a peer's time")
is(list[1].peer64, "xqa", "and its name")
is(list[2].seq_len_q, 2, "q_lens without packed is seq_len_q")
is(list[2].peers["64"], nil, "a peer without a time")

list = assert(read("id,kv_lens,hq,hkv,d,dtype,packed,q_lens,seq_len_q,mask,window_left,page,max_seq_len,out_dtype,"
    .. "peer64_us\na,10 20,8,1,64,fp8e4m3,1,1 3,3,causal,5,,,fp16,\nb,10x2,8,1,64,bf16,,,,,,,,,\n"))
same({ list[1].max_seq_len_q, list[1].out_dtype, list[1].window_left }, { 3, "fp16", 5 }, "optional columns")
is(list[1].seq_len_q, nil, "a packed case has no seq_len_q")
for name, value in pairs(defaults) do
    is(list[2][name], name == "max_seq_len" and 10 or value, "an empty field: default of %s", name)
end
is(list[2].columns.page, nil, "an empty field is as no column")

local many = assert(read(HEADER .. "a,16x70000,8,1,64,bf16\n"))
is(#many[1].kv_lens, 70000, "70000 requests")

-- What is wrong, with line and column.
for _, case in ipairs {
    { "", ":1: expected the names of the columns", "an empty file" },
    { "id,hq,hkv,d,dtype\n", ":1: kv_lens: the column is missing", "no kv_lens" },
    { "id,kv_lens,hq,hkv,d\n", ":1: dtype: the column is missing", "no dtype" },
    { "kv_lens,hq,hkv,d,dtype\n", ":1: id or name: the column is missing", "neither id nor name" },
    { "id,kv_lens,hq,hkv,d,dtype,window_lef\n", ":1: window_lef: no such column", "a misspelt column" },
    { "id,id,kv_lens,hq,hkv,d,dtype\n", ":1: id: the column is there twice", "a column twice" },
    { HEADER .. "a,5,32,8,128\n", ":2: expected 6 fields, got 5", "a field too few" },
    { HEADER .. "a,5,32,8,128,bf16\n\nb,5,32,x,128,bf16\n",
        ':4: hkv: expected an integer of at least 1, got "x"', "no number, after an empty line" },
    { HEADER .. "a,5,0,8,128,bf16\n", ':2: hq: expected an integer of at least 1, got "0"', "no heads" },
    { HEADER .. "a,5 -1,8,8,128,bf16\n", ':2: kv_lens: expected lengths.*got "5 %-1"', "a negative length" },
    { HEADER .. "a,5x0,8,8,128,bf16\n", ":2: kv_lens: expected lengths", "no times 5" },
    { HEADER .. "a,,8,8,128,bf16\n", ":2: kv_lens: expected lengths", "no lengths" },
    { HEADER .. "a,5,8,8,128,float\n",
        ':2: dtype: expected one of fp16, bf16, fp8e4m3, got "float"', "no such dtype" },
    { HEADER .. "a,5,8,8,128,bf16\na,6,8,8,128,bf16\n", ':3: id: "a" is on line 2 too', "an id twice" },
    { HEADER .. ',5,8,8,128,bf16\n', ":2: id: expected some text", "no id" },
    { HEADER .. '"a,5,8,8,128,bf16\n', ":2: a quote is not closed", "an open quote" },
    { "id,kv_lens,hq,hkv,d,dtype,packed,q_lens\na,5 6,8,8,128,bf16,1,3\n",
        ":2: q_lens: expected 2 query lengths, one a request, got 1", "packed query lengths missing" },
    { "id,kv_lens,hq,hkv,d,dtype,q_lens\na,5 6,8,8,128,bf16,3 4\n",
        ":2: q_lens: expected one query length", "two query lengths without packed" },
    { "id,kv_lens,hq,hkv,d,dtype,q_lens,seq_len_q\na,5 6,8,8,128,bf16,3,4\n",
        ":2: q_lens: expected 4, as seq_len_q says, got 3", "two columns that disagree" },
    { "id,kv_lens,hq,hkv,d,dtype,packed,q_lens,seq_len_q\na,5 6,8,8,128,bf16,1,2 4,3\n",
        ":2: seq_len_q: expected nothing, 1, or 4.*got 3", "packed, and another seq_len_q" },
    { "id,kv_lens,hq,hkv,d,dtype,window_left\na,5,8,8,128,bf16,-2\n",
        ':2: window_left: expected an integer of at least %-1, got "%-2"', "no window" },
    { "id,kv_lens,hq,hkv,d,dtype,packed,q_lens\na,5 6,8,8,128,bf16,1,2;4\n",
        ':2: q_lens: expected lengths.*got "2;4"', "no query lengths" },
    { "id,kv_lens,hq,hkv,d,dtype,kv_bytes\na,5,8,8,128,bf16,1\n",
        ":2: kv_bytes: expected 20480.*got 1", "wrong bytes" },
    { "id,kv_lens,hq,hkv,d,dtype,peer64_us\na,5,8,8,128,bf16,-1\n", ":2: peer64_us: expected a time", "no time" },
    { "id,kv_lens,hq,hkv,d,dtype,peer64_us\na,5,8,8,128,bf16,inf\n", ":2: peer64_us: expected a time",
        "an endless time" },
} do
    local got, message = read(case[1])
    is(got, nil, "%s: refused", case[3])
    like(message, case[2], "%s: line and column", case[3])
end
os.remove(path)
local _, missing = casefile.read "/nonexistent.csv"
like(missing, "/nonexistent.csv: No such file", "no such file")

-- ---- inputs --------------------------------------------------------------------------------------

local function build(columns, fields)
    local file = assert(io.open(path, "w"))
    file:write("id,kv_lens,hq,hkv,d,dtype", columns, "\n", fields, "\n")
    file:close()
    local case = assert(casefile.read(path))[1]
    os.remove(path)
    return cases.build(case, "cpu"), case
end

-- Element 0 of the keys (plane 0) or values (plane 1) of a request, in order of position.
local function first_of(args, plane, b)
    local block = args.kv_cache
    local size = block.shape[4]
    local list_of = {}
    for position = 0, args.seq_lens[b] - 1 do
        local page = args.paged_kv_indices[args.paged_kv_indptr[b] + math.floor(position / size)]
        list_of[position + 1] = block:get(page, plane, 0, position % size, 0)
    end
    return list_of
end

local args, case = build(",mask,page", "r,300 40 16,8,2,64,bf16,causal,16")
is(args.query:describe(), "bf16 [3,8,64] on cpu", "query of one token")
is(args.kv_cache.shape[1], 19 + 3 + 1 + 3, "a pool 3 pages larger than needed")
is(args.mask_type, "causal", "mask_type")
is(args.bmm1_scale, nil, "16-bit types keep the default scales")
for b = 0, 1 do
    local ascending = true
    for i = args.paged_kv_indptr[b] + 1, args.paged_kv_indptr[b + 1] - 1 do
        ascending = ascending and args.paged_kv_indices[i] > args.paged_kv_indices[i - 1]
    end
    ok(not ascending, "the pages of request %d are not in order", b)
end
local again = cases.build(case, "cpu")
ok(again.query:same_bits(args.query) and again.kv_cache:same_bits(args.kv_cache)
    and again.paged_kv_indices:same_bits(args.paged_kv_indices), "the same case has the same bytes")
local live = 0
for _, x in ipairs(args.kv_cache:totable()) do
    live = live + (x == x and 1 or 0)
end
is(live, 2 * (300 + 40 + 16) * 2 * 64, "all that may not be read is NaN")
ok(args.out:get(0, 0, 0) ~= args.out:get(0, 0, 0), "out starts as NaN")

args = build(",q_lens,packed", "p,30 40,8,2,64,fp16,1 4,1")
is(args.query:describe(), "fp16 [5,8,64] on cpu", "packed query")
same(args.qo_indptr:totable(), { 0, 1, 5 }, "qo_indptr")
is(args.max_seq_len_q, 4, "max_seq_len_q")
args = build(",q_lens,out_dtype,form,page_stride_pad", "s,30 40,8,2,64,fp8e4m3,3,fp16,tuple,32")
is(args.query:describe(), "fp8e4m3 [2,3,8,64] on cpu", "query of three tokens")
is(args.out.dtype, "fp16", "out_dtype")
same(args.kv_cache[1].strides, { 2 * 16 * 64 + 32, 16 * 64, 64, 1 }, "a padded page stride")
is(args.bmm1_scale, 0.5 * 0.25 / 8, "bmm1_scale of fp8")
is(args.bmm2_scale, 0.75, "bmm2_scale of fp8 to fp16")
args = build("", "s,30,8,2,64,fp8e4m3")
is(args.bmm2_scale, 0.75 / 0.625, "bmm2_scale of fp8 to fp8")
for _, length in ipairs { 300, 301, 1024, 8192 } do -- a right result of any length keeps to the bound for random data
    args = build("", "l" .. length .. "," .. length .. ",8,2,128,fp8e4m3")
    args.out = quire.decode(args)
    local verdict = quire.verify(args)
    ok(verdict.ok and verdict.relative_error <= verdict.relative_bound, "fp8 to fp8, %d keys: relative error %.2g",
        length, verdict.relative_error)
end

args = build(",pattern", "rs,300,8,2,64,bf16,rescale-same")
local keys = first_of(args, 0, 0)
ok(keys[1] == 32 and keys[128] == 32 and keys[129] == 31 and keys[300] == 30, "rescale: keys fall every 128")
is(args.query:get(0, 3, 0), 1, "rescale-same: element 0 of the query")
is(args.query:get(0, 3, 1), 0, "and the others")
args = build(",pattern,q_lens", "rm,300,3,3,64,fp8e4m3,rescale-mixed,2")
same({ args.query:get(0, 0, 0, 0), args.query:get(0, 0, 1, 0), args.query:get(0, 1, 0, 0) }, { 8, -8, -8 },
    "rescale-mixed: signs alternate with token*Hq + head")
args = build(",pattern", "as,2100,8,2,64,fp8e4m3,ascend")
keys = first_of(args, 0, 0)
ok(keys[128] == 0 and keys[129] == 16 and keys[1920] == 14 * 16 and keys[1921] == 240 and keys[2100] == 240,
    "ascend: keys rise every 128, to 240")
is(args.query:get(0, 7, 0), 64, "ascend: the query of fp8")
args = build(",pattern,q_lens,packed", "ta,20 2,8,2,64,bf16,tail,2 4,1")
keys = first_of(args, 0, 0)
same({ keys[17], keys[18], keys[19], keys[20] }, { 0, 80, 80, 80 }, "tail: the last 3 keys")
local values = first_of(args, 1, 0)
same({ values[17], values[18], values[19], values[20] }, { 0, 8, 16, 24 }, "tail: their values")
same(first_of(args, 1, 1), { 16, 24 }, "tail: a request with fewer keys has the last of them")
tap.done()

-- However many CTAs share the work, the result is right and is rounded once: a process for each number of them, and
-- for the kernels of older GPUs, which any newer one runs too.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"
local quire = require "quire"
local gpu = require "gpu"

local kinds = {
    { kv_lens = { 4096, 17, 1 } },
    { kv_lens = { 2000, 0, 300 }, hq = 32, hkv = 8, dtype = "fp16", d = 64, mask = "dense", page = 64 },
    { kv_lens = { 1500, 700 }, d = 256, page = 32, form = "tuple", page_stride_pad = 128 },
    { kv_lens = { 2600 }, dtype = "fp8e4m3", out_dtype = "fp16", hq = 16, hkv = 2 },
    { kv_lens = { 1100, 64 }, dtype = "fp8e4m3", d = 64, page = 128 },
    { kv_lens = { 900, 3 }, dtype = "fp8e4m3", d = 256 },
    { kv_lens = { 1900, 33 }, seq_len_q = 3, hq = 28, hkv = 4, dtype = "fp16" },
    { kv_lens = { 1900, 1901 }, seq_len_q = 8, hq = 32, hkv = 2 },
    { kv_lens = { 4000, 100 }, seq_len_q = 2, window_left = 1500 },
    { kv_lens = { 1300, 65, 0, 700 }, q_lens = { 5, 1, 2, 0 }, hq = 24, hkv = 2 },
    { kv_lens = { 1025 }, seq_len_q = 40, hq = 8, hkv = 1, d = 256 },
    { kv_lens = { 1500, 130 }, seq_len_q = 12, hq = 8, hkv = 2, page = 32, page_stride_pad = 128 },
    { kv_lens = { 1500, 130, 12 }, seq_len_q = 12, hq = 8, hkv = 2, page = 128, dtype = "fp16", window_left = 200 },
    { kv_lens = { 1100, 40 }, seq_len_q = 16, hq = 8, hkv = 2, d = 256, page = 64, form = "tuple" },
    { kv_lens = { 777, 64, 100 }, seq_len_q = 16, hq = 10, hkv = 2, d = 64 },
    { kv_lens = { 900, 260 }, seq_len_q = 100, hq = 4, hkv = 2, page = 64 },
    { kv_lens = { 700, 20, 90, 513, 0 }, q_lens = { 130, 1, 4, 0, 7 }, hq = 6, hkv = 2, d = 64, dtype = "fp16" },
    { kv_lens = { 1300, 64, 100 }, seq_len_q = 12, hq = 8, hkv = 2, dtype = "fp8e4m3", out_dtype = "fp16", page = 32 },
    { kv_lens = { 700, 20, 90, 513, 0 }, q_lens = { 130, 1, 40, 0, 7 }, hq = 6, hkv = 2, dtype = "fp8e4m3",
        window_left = 300 },
    { kv_lens = { 1100, 400 }, seq_len_q = 35, hq = 8, hkv = 2, d = 64, dtype = "fp8e4m3", page = 128 },
    { kv_lens = { 600, 300 }, q_lens = { 65, 300 }, hq = 4, hkv = 2, window_left = 77, page = 32 },
    { kv_lens = { 600 }, pattern = "ascend", dtype = "fp16" },
    { kv_lens = { 2000 }, pattern = "rescale-mixed" },
}

-- P08: keys whose mean is a bf16 number, while the means of halves are not.
local function rounded_once()
    local cache = quire.cache { pages = 16, page_size = 16, kv_heads = 1, head_dim = 64, dtype = "bf16" }
    local sequence = cache:sequence(256)
    local page_of = {}
    for i, page in ipairs(sequence.pages) do
        page_of[page] = i - 1
    end
    cache.v:fill(function(page, _, slot)
        local t = page_of[page] * 16 + slot
        return (t < 63 or t > 127) and 1.0078125 or 1
    end)
    local batch = cache:batch { sequence }
    local out = quire.decode {
        query = quire.tensor { shape = { 1, 8, 64 }, dtype = "bf16", device = gpu.device },
        kv_cache = cache.kv:to(gpu.device), paged_kv_indptr = batch.indptr:to(gpu.device),
        paged_kv_indices = batch.indices:to(gpu.device), seq_lens = batch.seq_lens:to(gpu.device), max_seq_len = 256,
    }
    gpu.sync()
    out = out:to "cpu"
    return out:get(0, 0, 0) == 1.0078125 and out:get(0, 7, 63) == 1.0078125
end

-- Elements that are not the float64 answer, rounded once.
local function misrounded()
    local args = gpu.decode_fresh(gpu.build { kv_lens = { 3000 }, hq = 64, hkv = 4, id = "P08" })
    local out, wanted = args.out:to "cpu", quire.reference(args):convert "bf16"
    local count = 0
    for i = 0, out.numel - 1 do
        count = count + (out.pointer[i] == wanted.pointer[i] and 0 or 1)
    end
    return count
end

-- In a process of its own: prints what is wrong, P08's answer, and how many elements are rounded otherwise.
if arg[1] == "child" then
    local wrong = {}
    for i, kind in ipairs(kinds) do
        kind.id = "kind " .. i
        if not quire.verify(gpu.decode_fresh(gpu.build(kind))).ok then
            wrong[#wrong + 1] = i
        end
    end
    print(("wrong kinds:%s; rounded once: %s; misrounded: %d"):format(
        table.concat(wrong, ","), tostring(rounded_once()), misrounded()))
    os.exit(0)
end

local function run(grid, kernels)
    local command = ("QUIRE_TEST_GRID=%d QUIRE_TEST_KERNELS=%s '%s' '%s' child 2>&1"):format(
        grid, kernels, arg[-1], arg[0])
    local pipe = assert(io.popen(command))
    local text = pipe:read "*a"
    pipe:close()
    local wrong, once, count = text:match "wrong kinds:(%S*); rounded once: (%a+); misrounded: (%d+)"
    return text, wrong, once == "true", tonumber(count)
end

for _, kernels in ipairs { "wgmma", "tma", "async" } do
    local unsplit
    for _, grid in ipairs(kernels == "wgmma" and { 1, 2, 3, 16, 17, 100, 0 } or { 1, 3, 17, 0 }) do
        local name = ("%s%s"):format(grid == 0 and "all CTAs" or ("%d CTA%s"):format(grid, grid == 1 and "" or "s"),
            kernels == "wgmma" and "" or ", kernels: " .. kernels)
        local text, wrong, once, count = run(grid, kernels)
        if not wrong then
            tap.is(text, "a line of results", "%s: runs", name)
        else
            tap.is(wrong, "", "%s: all kinds are right", name)
            tap.ok(once, "%s: a result is rounded once", name)
            unsplit = unsplit or count
            tap.ok(count <= unsplit * 1.1 + 16, "%s: %d elements of %d rounded otherwise, %d with one CTA", name, count,
                64 * 128, unsplit)
        end
    end
end
tap.done()

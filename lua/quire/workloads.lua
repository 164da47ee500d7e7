-- workloads.lua - what quire bench measures without a file: named sets of rows, in casefile's grammar
-- SPDX-License-Identifier: Apache-2.0

local text = require "quire.text"

local COLUMNS = {
    "name", "kv_lens", "hq", "hkv", "d", "seq_len_q", "packed", "q_lens", "mask", "window_left", "max_seq_len",
    "dtype", "out_dtype",
}

local ANY_LENGTH = 2147483520 -- the largest max_seq_len there may be

-- A row; what it leaves out is 32/8 heads of 128, bf16, and casefile's defaults. Several query tokens, and a
-- window, are causal.
local function row(name, kv_lens, t)
    t = t or {}
    local fields = {
        name = name, kv_lens = kv_lens, hq = t.hq or 32, hkv = t.hkv or 8, d = t.d or 128,
        seq_len_q = t.q, packed = t.q_lens and 1, q_lens = t.q_lens,
        mask = t.mask or (t.q or t.q_lens or t.window) and "causal" or "dense",
        window_left = t.window, max_seq_len = t.max_seq_len, dtype = t.dtype or "bf16", out_dtype = t.out_dtype,
    }
    local line = {}
    for i, column in ipairs(COLUMNS) do
        line[i] = fields[column] or ""
    end
    return text.csv_line(line)
end

-- 512, 1k, 64k
local function short_number(n)
    return n % 1024 == 0 and ("%dk"):format(n / 1024) or tostring(n)
end

local sets = {}

-- One of each kind, none above 1.1 GB of keys.
sets.default = {
    -- one request: latency
    row("one short", "256"),
    row("one of 4k", "4096"),
    row("one of 32k", "32768"),
    -- batches of equal lengths
    row("64 short", "256x64"),
    row("32 of 1k", "1024x32"),
    row("32 of 8k", "8192x32"),
    -- and of lengths that differ
    row("skewed", "512x60 65536x3"),
    row("mixed", "100x16 700x16 1500x16 3000x8 6000x6 16000x2"),
    -- heads: few, many to one, one to one
    row("one KV head", "4096x32", { hq = 8, hkv = 1 }),
    row("ratio 8", "4096x16", { hq = 64 }),
    row("ratio 1", "4096x4", { hkv = 32 }),
    -- several query tokens, of one number or mixed, and a window
    row("4 tokens", "8192x8", { q = 4 }),
    row("8 tokens", "8192x8", { q = 8 }),
    row("1 to 8 tokens", "8192x8", { q_lens = "1 2 3 4 5 6 7 8" }),
    row("128 tokens", "4096", { q = 128 }),
    row("window 511", "65536x4", { window = 511 }),
    -- the other types and head sizes
    row("fp16", "8192x8", { dtype = "fp16" }),
    row("fp8", "8192x32", { dtype = "fp8e4m3" }),
    row("fp8 to fp16", "8192x32", { dtype = "fp8e4m3", out_dtype = "fp16" }),
    row("d64", "4096x32", { d = 64 }),
    row("d256", "4096x16", { d = 256 }),
}

-- Launches of microseconds, where what is not reading counts; and what should not count: windows' lengths, bounds.
sets.short = {}
for _, pair in ipairs {
    { 1, 16 }, { 1, 128 }, { 1, 512 }, { 1, 1024 }, { 1, 2048 }, { 1, 4096 }, { 1, 8192 },
    { 4, 128 }, { 4, 1024 }, { 4, 4096 }, { 16, 128 }, { 16, 512 }, { 16, 1024 }, { 16, 2048 },
    { 64, 16 }, { 64, 128 }, { 64, 512 }, { 512, 16 }, { 512, 128 }, { 2048, 16 }, { 2048, 64 },
} do
    local batch, length = unpack(pair)
    local lens, of = ("%dx%d"):format(length, batch), ("B%d %s"):format(batch, short_number(length))
    table.insert(sets.short, row("32/8 " .. of, lens))
    table.insert(sets.short, row("64/8 " .. of, lens, { hq = 64 }))
    if batch * length >= 128 then -- as less would take ten thousands of page sets to be larger than a cache
        table.insert(sets.short, row("8/1 " .. of, lens, { hq = 8, hkv = 1 }))
    end
end
for _, length in ipairs { 1024, 65536 } do
    for _, batch in ipairs { 1, 32 } do
        table.insert(sets.short, row(("window 511 B%d %s"):format(batch, short_number(length)),
            ("%dx%d"):format(length, batch), { window = 511 }))
    end
end
for _, bound in ipairs { 8192, ANY_LENGTH } do
    table.insert(sets.short, row(("B8 8k, lengths up to %d"):format(bound), "8192x8", { max_seq_len = bound }))
end

-- Heads: how many query heads share a KV head, powers of two and not, and their sizes.
sets.heads = {}
for _, ratio in ipairs { 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32 } do
    for _, q in ipairs { 1, 4 } do
        table.insert(sets.heads, row(("ratio %d q%d"):format(ratio, q), "8192x16",
            { hq = 8 * ratio, q = q }))
    end
end
for _, d in ipairs { 64, 128, 256 } do
    for _, dtype in ipairs { "bf16", "fp16", "fp8e4m3" } do
        table.insert(sets.heads, row(("d%d %s"):format(d, dtype), "4096x32", { d = d, dtype = dtype }))
    end
end

-- The usual shapes in bf16, in fp8, and in fp8 to fp16.
sets.fp8 = {}
for _, shape in ipairs {
    { "B1 4k", "4096" }, { "B1 32k", "32768" }, { "B64 256", "256x64" }, { "B8 1k", "1024x8" },
    { "B8 32k", "32768x8" }, { "B32 1k", "1024x32" }, { "B32 8k", "8192x32" }, { "B128 1k", "1024x128" },
    { "B128 8k", "8192x128" }, { "8/1 B64 16k", "16384x64", { hq = 8, hkv = 1 } },
    { "64/8 B16 4k", "4096x16", { hq = 64 } }, { "32/32 B16 4k", "4096x16", { hkv = 32 } },
    { "60 of 512, 4 of 64k", "512x60 65536x4" },
    { "mixed", "100x32 700x32 1500x32 3000x16 6000x12 16000x4" },
    { "q4 B32 8k", "8192x32", { q = 4 } }, { "q8 B32 8k", "8192x32", { q = 8 } },
    { "window 511 B32 64k", "65536x32", { window = 511 } },
    { "d64 B64 4k", "4096x64", { d = 64 } }, { "d256 B64 4k", "4096x64", { d = 256 } },
} do
    for _, types in ipairs { { "bf16" }, { "fp8e4m3", "fp8e4m3" }, { "fp8e4m3", "fp16" } } do
        local t = { dtype = types[1], out_dtype = types[2] }
        for name, value in pairs(shape[3] or {}) do
            t[name] = value
        end
        table.insert(sets.fp8, row(("%s, %s"):format(shape[1], table.concat(types, " to ")), shape[2], t))
    end
end

-- Several query tokens, as with drafts: all with all.
sets.rows = {}
for _, heads in ipairs { { 32, 8 }, { 64, 8 } } do
    for _, batch in ipairs { 1, 8, 32 } do
        for _, length in ipairs { 1024, 8192, 65536 } do
            for _, q in ipairs { 1, 2, 4, 8, 16 } do
                table.insert(sets.rows, row(
                    ("%d/%d B%d %s q%d"):format(heads[1], heads[2], batch, short_number(length), q),
                    ("%dx%d"):format(length, batch), { hq = heads[1], hkv = heads[2], q = q }))
            end
        end
    end
end

-- Query tokens that differ from request to request, and windows over several tokens.
sets.packed = {
    row("1 to 8, B8 1k", "1024x8", { q_lens = "1 2 3 4 5 6 7 8" }),
    row("1 to 8, B8 64k", "65536x8", { q_lens = "3 7 1 8 2 6 4 5" }),
    row("1 to 8, B32 1k", "1024x32", { q_lens = "1x4 8 2x4 7 3x4 6 4x4 5 1x8 8x4" }),
    row("1 to 8, B32 8k", "8192x32", { q_lens = "1x4 8 2x4 7 3x4 6 4x4 5 1x8 8x4" }),
    row("1 to 8, 64/8 B32 8k", "8192x32", { hq = 64, q_lens = "1x4 8 2x4 7 3x4 6 4x4 5 1x8 8x4" }),
    row("1 to 8, B32 of 100 to 32k", "100x8 1000x8 4000x8 8000x6 32000x2",
        { q_lens = "1x4 8 2x4 7 3x4 6 4x4 5 1x8 8x4" }),
    row("1 to 8, B32 8k, fp8", "8192x32", { dtype = "fp8e4m3", q_lens = "1x4 8 2x4 7 3x4 6 4x4 5 1x8 8x4" }),
    row("0 to 8, B32 8k", "8192x32", { q_lens = "0x8 1x8 4x8 8x8" }),
    row("1 and 4 of 512, B32 8k", "8192x32", { q_lens = "1x14 512x2 1x14 512x2" }),
    row("1 to 512, B32 8k", "8192x32", { q_lens = "1x12 2x4 4x4 8x4 32x4 128x2 512x2" }),
    row("1 to 512, B32 of 512 to 32k", "512x8 2048x8 8192x12 32768x4",
        { q_lens = "1x4 512 8x3 1x4 128x2 4x2 1x8 32x2 512x2 1x4" }),
    row("1 to 512, 64/8 B32 8k", "8192x32", { hq = 64, q_lens = "1x12 2x4 4x4 8x4 32x4 128x2 512x2" }),
    row("1 to 512, window 511, B32 8k", "8192x32", { window = 511, q_lens = "1x12 2x4 4x4 8x4 32x4 128x2 512x2" }),
}
for _, q in ipairs { 1, 4, 8, 16 } do
    for _, batch in ipairs { 1, 8, 32 } do
        for _, length in ipairs { 1024, 65536 } do
            table.insert(sets.packed, row(("window 511 B%d %s q%d"):format(batch, short_number(length), q),
                ("%dx%d"):format(length, batch), { window = 511, q = q }))
        end
    end
end

-- Many query tokens: where products, not bytes, take the time.
sets.long = {
    row("q32 B8 8k", "8192x8", { q = 32 }),
    row("q64 B8 8k", "8192x8", { q = 64 }),
    row("q128 B8 8k", "8192x8", { q = 128 }),
    row("q512 B1 8k", "8192", { q = 512 }),
    row("q512 B4 8k", "8192x4", { q = 512 }),
    row("q512 B4 8k, fp16", "8192x4", { q = 512, dtype = "fp16" }),
    row("q512 B4 8k, fp8", "8192x4", { q = 512, dtype = "fp8e4m3" }),
    row("q512 B4 8k, fp8 to fp16", "8192x4", { q = 512, dtype = "fp8e4m3", out_dtype = "fp16" }),
    row("q512 B4 8k, dense", "8192x4", { q = 512, mask = "dense" }),
    row("q512 B4 8k, 64/8", "8192x4", { q = 512, hq = 64 }),
    row("q512 B4 8k, 32/32", "8192x4", { q = 512, hkv = 32 }),
    row("q512 B4 8k, d64", "8192x4", { q = 512, d = 64 }),
    row("q512 B4 8k, d256", "8192x4", { q = 512, d = 256 }),
    row("q512 B4 8k, window 511", "8192x4", { q = 512, window = 511 }),
    row("q512 B4 512", "512x4", { q = 512 }),
    row("q512 B1 64k", "65536", { q = 512 }),
    row("q2048 B1 8k", "8192", { q = 2048 }),
}

local workloads = { names = { "default", "short", "heads", "fp8", "rows", "packed", "long" } }

-- The lines of some of the sets, as of one file; a row that is in two of them is there once.
function workloads.lines(names)
    local lines, seen = { text.csv_line(COLUMNS) }, {}
    for _, name in ipairs(names) do
        for _, line in ipairs(sets[name]) do
            lines[#lines + 1] = not seen[line] and line or nil
            seen[line] = true
        end
    end
    return lines
end

return workloads

-- Sizes at which counters and offsets of 16 and 32 bits end: many requests, many heads, caches beyond 2^32 elements.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"
local quire = require "quire"
local gpu = require "gpu"

local ok = tap.ok
local stream = gpu.stream()

-- P37: B requests of one key each; every third has none. V is one key's row, so it is the answer.
local function many(batch, heads)
    local cache = quire.cache { pages = 1, page_size = 16, kv_heads = heads, head_dim = 64, dtype = "fp16" }
    cache.v:fill(function(_, head, slot, dim)
        return slot > 0 and 1000 or head + dim
    end)
    local function int32(count, value)
        return quire.tensor { shape = { count }, dtype = "int32" }:fill(value):to(gpu.device)
    end
    local rows = batch * heads
    local args = {
        query = quire.tensor { shape = { batch, heads, 64 }, dtype = "fp16", device = gpu.device },
        kv_cache = cache.kv:to(gpu.device),
        paged_kv_indptr = int32(batch + 1, function(b) return b end),
        paged_kv_indices = int32(batch, 0),
        seq_lens = int32(batch, function(b) return b % 3 == 1 and 0 or 1 end),
        max_seq_len = 16,
        out = quire.tensor { shape = { 1 }, dtype = "fp16", device = gpu.device },
    }
    args = gpu.decode_fresh(args, stream)
    local out, lse = args.out:to "cpu", args.lse:to "cpu"
    local from_bits, expected = out.element.to_number, {}
    for i = 0, heads * 64 - 1 do
        expected[i] = math.floor(i / 64) + i % 64
    end
    local wrong = 0
    for row = 0, rows - 1 do
        local empty = math.floor(row / heads) % 3 == 1
        local head = row % heads
        for d = 0, 63 do
            if from_bits(out.pointer[row * 64 + d]) ~= (empty and 0 or expected[head * 64 + d]) then
                wrong = wrong + 1
            end
        end
        if lse.pointer[row] ~= (empty and -math.huge or 0) then
            wrong = wrong + 1
        end
    end
    ok(wrong == 0, "B = %d, %d heads: every row is its one key's (%d wrong)", batch, heads, wrong)
end

for _, batch in ipairs { 1, 2, 3, 31, 32, 33, 127, 128, 129, 1000, 4097, 65535, 65536, 70000 } do
    many(batch, 1)
end
many(2050, 32)

-- A launch so long that kernels read the heads of a page together, though with few pages: 64 requests share them.
do
    local cache = quire.cache { pages = 160, page_size = 16, kv_heads = 8, head_dim = 64, dtype = "bf16" }
    for t, tensor in ipairs { cache.k, cache.v } do
        tensor:fill(function(page, head, slot, dim)
            return math.sin(page * 61 + head * 17.3 + slot * 3.7 + dim * 1.9 * t + t)
        end)
    end
    local sequences = { cache:sequence(2301) }
    for b = 2, 64 do
        sequences[b] = cache:fork(sequences[1])
    end
    local batch = cache:batch(sequences)
    local query = quire.tensor { shape = { 64, 32, 64 }, dtype = "bf16" }:fill(function(row, head, dim)
        return 2 * math.sin(row * 7.1 + head * 2.3 + dim * dim)
    end)
    local args = gpu.decode_fresh({
        query = query:to(gpu.device), kv_cache = cache.kv:to(gpu.device), paged_kv_indptr = batch.indptr:to(gpu.device),
        paged_kv_indices = batch.indices:to(gpu.device), seq_lens = batch.seq_lens:to(gpu.device), max_seq_len = 2301,
        out = quire.tensor { shape = { 1 }, dtype = "bf16", device = gpu.device },
    }, stream)
    ok(quire.verify(args).ok, "64 requests of 2301 keys, 8 KV heads, D = 64: right")
    ok(gpu.on_cpu or gpu.all_zero(args.workspace_buffer), "... and the workspace is zero again")
    ok(gpu.same_bits(args, gpu.decode_fresh(args, stream)), "... with the same bits again")
end

-- P35: pages 2^31 elements apart: in 32 bits their offsets wrap to 0, and page 0 is read instead. K and V may be the
-- same memory; Q = 0, so only V counts. On the CPU the pages that are not touched take no memory.
do
    local STRIDE = 2 ^ 31
    local bytes = 2 * (2 * STRIDE + 16 * 64)
    local free = gpu.on_cpu and math.huge or quire.cuda.mem_info(gpu.id)
    if free < bytes + 2 ^ 30 then
        print(("# not run, as only %.1f GiB of the device are free: pages 2^31 elements apart"):format(free / 2 ^ 30))
    else
        local pool = quire.tensor { shape = { 3, 1, 16, 64 }, strides = { STRIDE, 1024, 64, 1 }, dtype = "fp16",
            device = gpu.device }
        for page = 0, 2 do
            pool:select(0, page):fill(2 * page + 1)
        end
        local block = gpu.metadata(1, 3)
        local args = gpu.fresh {
            query = quire.tensor { shape = { 1, 4, 64 }, dtype = "fp16", device = gpu.device },
            kv_cache = { pool, pool }, paged_kv_indptr = block.indptr, paged_kv_indices = block.indices,
            seq_lens = block.seq_lens, max_seq_len = 48,
            out = quire.tensor { shape = { 1 }, dtype = "fp16", device = gpu.device },
        }
        for _, case in ipairs { { { 2 }, 16, 5 }, { { 1 }, 16, 3 }, { { 0 }, 1, 1 }, { { 2, 0, 1 }, 48, 3 } } do
            block:set({ case[2] }, { case[1] }):store()
            quire.decode(gpu.with(args, { out = gpu.fill_nan(args.out) }), stream)
            gpu.sync(stream)
            local out = args.out:to "cpu"
            ok(out:get(0, 0, 0) == case[3] and out:get(0, 3, 63) == case[3],
                "pages %s, 4 GiB apart: %d", table.concat(case[1], ","), case[3])
        end
    end
end
tap.done()

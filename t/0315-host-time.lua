-- What a launch costs the host: printed, not judged; a machine's speed is no test. The launches are.
-- SPDX-License-Identifier: Apache-2.0
local ffi = require "ffi"
local tap = require "tap"
local quire = require "quire"
local gpu = require "gpu"
local clock = require "quire.clock"
local library = require "quire.library"

local ok, is = tap.ok, tap.is
local ROUNDS, EACH = 50, 200 -- few enough at a time that no launch waits for room in the queue
local C = library.C
local stream = gpu.stream()
local handle = ffi.cast("void *", stream and stream:live() or nil)

local function measure(name, args)
    args = gpu.fresh(args)
    quire.prepare(args)
    -- A struct of our own: the time is the library's, not that of making arguments.
    local call = ffi.new "quire_decode_args"
    C.quire_decode_args_init(call)
    for _, field in ipairs { "query", "kv_cache", "paged_kv_indptr", "paged_kv_indices", "seq_lens", "workspace_buffer",
        "out", "lse", "qo_indptr" } do
        if args[field] then
            call[field] = args[field].dl
        end
    end
    call.max_seq_len, call.seq_len_q = args.max_seq_len, args.seq_len_q or 1
    call.max_seq_len_q = args.max_seq_len_q or 0
    call.mask_type = C.QUIRE_MASK_CAUSAL

    local failed, best, sum = 0, math.huge, 0
    for _ = 1, ROUNDS do
        local start = clock.now()
        for _ = 1, EACH do
            if C.quire_decode(call, handle) ~= C.QUIRE_OK then
                failed = failed + 1
            end
        end
        local each = (clock.now() - start) / EACH * 1e6
        best, sum = math.min(best, each), sum + each
        gpu.sync(stream)
    end
    is(failed, 0, "%s: %d launches", name, ROUNDS * EACH)
    print(("# host time per launch, %s: %.2f us on average, %.2f at best"):format(name, sum / ROUNDS, best))
    ok(quire.verify(args).ok, "%s: the last one is right", name)
end

measure("B 1, one token", gpu.build { kv_lens = { 17 }, hq = 8, hkv = 1 })
measure("B 3, packed", gpu.build { kv_lens = { 17, 3, 20 }, q_lens = { 2, 1, 3 }, dtype = "fp16" })
tap.done()

-- quire.lua - batch decode attention over a paged KV cache, from LuaJIT
-- SPDX-License-Identifier: Apache-2.0
--
--     local quire = require "quire"
--     local cache = quire.cache{ pages = 64, page_size = 16, kv_heads = 2, head_dim = 128, dtype = "bf16" }
--     local a, b = cache:sequence(100), cache:sequence(7)
--     local batch = cache:batch{ a, b }
--     local out = quire.decode{ query = q, kv_cache = cache.kv, paged_kv_indptr = batch.indptr,
--         paged_kv_indices = batch.indices, seq_lens = batch.seq_lens, max_seq_len = batch.max_seq_len }
--
-- Errors are raised, with the library's words.  Unknown argument names are errors.

local library = require "quire.library"
local decode = require "quire.decode"
local tensor = require "quire.tensor"

local quire = {
    version = library.version,
    library = library.path,
    build_config = library.build_config,
    devices = library.devices, -- quire.devices "cpu" or "cuda": a list of descriptions
    device = library.device,   -- quire.device "cuda:0": one of them
    supported = require "quire.supported",

    tensor = tensor.new,
    from_dlpack = tensor.from_dlpack,
    is_tensor = tensor.is_tensor,
    compare = require "quire.compare",

    cache = require "quire.cache".new,

    decode = decode.decode,
    bind = decode.bind,
    workspace_size = decode.workspace_size,
    prepare = decode.prepare,
    check = decode.check,
    reference = decode.reference,
    verify = decode.verify,
}

-- quire.cuda asks for the driver's functions; whoever does not use it does not load it.
return setmetatable(quire, {
    __index = function(_, name)
        if name == "cuda" then
            return require "quire.cuda"
        end
    end,
})

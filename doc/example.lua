-- example.lua - three chats with one system prompt: share its pages, then decode a few tokens
--
--     luajit example.lua [cpu | cuda:0]
--
-- SPDX-License-Identifier: Apache-2.0
local quire = require "quire"

local device = arg[1] or "cpu"
local Q_HEADS, KV_HEADS, DIM, PROMPT, STEPS = 8, 2, 128, 1000, 4

-- What a model would compute: here random numbers, the same at every run.
local function from_model(what, shape)
    return quire.tensor { shape = shape, dtype = "bf16", device = device }:normal { seed = what }
end
local function keys(what, count)
    return from_model(what, { count, KV_HEADS, DIM })
end

-- One pool of pages for all chats. The prompt's keys and values are stored once.
local cache = quire.cache {
    device = device, pages = 256, page_size = 16, kv_heads = KV_HEADS, head_dim = DIM, dtype = "bf16",
}
local prompt = cache:sequence():append(keys("prompt k", PROMPT), keys("prompt v", PROMPT))

-- A fork shares the prompt's pages; its last page is half full, and is copied when the chat goes on.
local chats = {}
for c = 1, 3 do
    chats[c] = cache:fork(prompt)
    local question = ("question %d"):format(c)
    chats[c]:append(keys(question .. " k", 10 * c), keys(question .. " v", 10 * c))
end
prompt:free() -- the chats keep its pages

for step = 1, STEPS do
    -- every chat gets the key and value of its newest token, which then looks at all of them
    for c, chat in ipairs(chats) do
        local token = ("chat %d step %d"):format(c, step)
        chat:append(keys(token .. " k", 1), keys(token .. " v", 1))
    end
    local batch = cache:batch(chats)
    local args = {
        query = from_model(("query %d"):format(step), { #chats, Q_HEADS, DIM }),
        kv_cache = cache.kv,
        paged_kv_indptr = batch.indptr,
        paged_kv_indices = batch.indices,
        seq_lens = batch.seq_lens,
        max_seq_len = batch.max_seq_len,
    }
    args.out = quire.decode(args)
    local verdict = quire.verify(args) -- against the float64 reference, on the CPU
    print(("step %d: %s; largest error %.2f of its bound%s"):format(step, args.out:describe(), verdict.worst_error,
        verdict.ok and "" or ": WRONG"))
    if not verdict.ok then
        os.exit(1)
    end
end

print(("%s; %d pages are shared"):format(tostring(cache), cache:pages_shared()))

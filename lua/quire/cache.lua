-- cache.lua - a paged KV cache: pages, the sequences that own or share them, and batches of these
-- SPDX-License-Identifier: Apache-2.0
--
--     local cache = quire.cache{ pages = 4096, page_size = 16, kv_heads = 8, head_dim = 128, dtype = "bf16" }
--     local a = cache:sequence(1000)         -- owns 63 pages
--     local b = cache:fork(a)                -- shares them
--     b:append(k, v)                         -- copies the last, half full page first
--     local batch = cache:batch{ a, b }      -- indptr, indices, seq_lens, max_seq_len
--     a:free(); b:free()                     -- or leave it to the garbage collector

local ffi = require "ffi"
local library = require "quire.library"
local dtype = require "quire.dtype"
local memory = require "quire.memory"
local normal = require "quire.normal"
local strides_of = require "quire.strides"
local tensor = require "quire.tensor"

local Cache, Sequence = {}, {}
Cache.__index, Sequence.__index = Cache, Sequence

local NAN_BYTE = 0xFF -- repeated, it is a NaN in every element type

-- ---- pages ---------------------------------------------------------------------------------------

local defaults = {
    device = "cpu", pages = false, page_size = 16, kv_heads = false, head_dim = false, dtype = false,
    form = "combined",   -- or "tuple": K and V apart
    page_stride_pad = 0, -- elements between a page and the next
    shuffle = false,     -- a seed: hand the pages out in random order, not from 0 on
}

local function need_integer(value, lowest, what, level)
    if type(value) ~= "number" or value < lowest or value % 1 ~= 0 then
        error(("cache: %s: expected an integer of at least %d, got %s"):format(
            what, lowest, tostring(value or nil)), level + 1)
    end
end

local function new(arguments)
    library.check_names(arguments, defaults, "cache", 2)
    local options = {}
    for name, value in pairs(defaults) do
        options[name] = arguments[name] == nil and value or arguments[name]
    end
    for _, name in ipairs { "pages", "page_size", "kv_heads", "head_dim" } do
        need_integer(options[name], 1, name, 2)
    end
    need_integer(options.page_stride_pad, 0, "page_stride_pad", 2)
    library.parse_device(options.device, 2)
    local element = dtype.get(options.dtype, 2)
    local pages, pad = options.pages, options.page_stride_pad
    local plane = { pages, options.kv_heads, options.page_size, options.head_dim }

    local function allocate(shape)
        local strides = strides_of.compact(shape)
        strides[1] = strides[1] + pad
        return tensor.new { shape = shape, strides = strides, dtype = element.name, device = options.device }
    end
    local kv, k, v
    if options.form == "combined" then
        kv = allocate { pages, 2, options.kv_heads, options.page_size, options.head_dim }
        k, v = kv:select(1, 0), kv:select(1, 1)
    elseif options.form == "tuple" then
        k, v = allocate(plane), allocate(plane)
        kv = { k, v }
    else
        error(("cache: form: expected \"combined\" or \"tuple\", got %s"):format(tostring(options.form)), 2)
    end

    local free = ffi.new("int32_t[?]", pages)
    local order = options.shuffle and normal.permutation(pages, options.shuffle)
    for i = 0, pages - 1 do
        free[i] = order and order[i + 1] or pages - 1 - i
    end
    return setmetatable({
        kv = kv, -- what quire.decode takes as kv_cache
        k = k,   -- views [pages, kv_heads, page_size, head_dim]
        v = v,
        device = options.device,
        dtype = element.name,
        pages = pages,
        page_size = options.page_size,
        kv_heads = options.kv_heads,
        head_dim = options.head_dim,
        -- A stack with a count of its own: LuaJIT up to 2022 can take the length of a table that was
        -- appended to by another name for what it was before.
        free = free,
        free_count = pages, -- the last of them is handed out first
        owners = ffi.new("int32_t[?]", pages), -- sequences that list the page
        live = ffi.new("int32_t[?]", pages),   -- slots of the page that hold keys
    }, Cache)
end

local function take_page(cache)
    cache.free_count = cache.free_count - 1
    local page = cache.free[cache.free_count]
    cache.owners[page] = 1
    return page
end

local function release_page(cache, page)
    cache.owners[page] = cache.owners[page] - 1
    if cache.owners[page] == 0 then
        cache.live[page] = 0
        cache.free[cache.free_count] = page
        cache.free_count = cache.free_count + 1
    end
end

local function need_pages(cache, count, level)
    if count > cache.free_count then
        error(("cache: out of pages: %d more needed, %d of %d free"):format(
            count, cache.free_count, cache.pages), level + 1)
    end
end

function Cache:pages_free()
    return self.free_count
end

function Cache:pages_shared()
    local shared = 0
    for page = 0, self.pages - 1 do
        if self.owners[page] > 1 then
            shared = shared + 1
        end
    end
    return shared
end

-- Bytes of K and V of one page.
function Cache:page_bytes()
    return 2 * self.kv_heads * self.page_size * self.head_dim * self.k.element.bytes
end

-- Fills all that no sequence may read with NaN: slots past the lengths, free pages, gaps between
-- pages.  A decode that reads any of it shows.
function Cache:poison()
    local slot = self.head_dim * self.k.element.bytes
    local head = slot * self.page_size
    local function fill(at, bytes)
        memory.fill(at, self.device, NAN_BYTE, bytes)
    end
    for page = 0, self.pages - 1 do
        local live = self.live[page]
        if live < self.page_size then
            for _, plane in ipairs { self.k, self.v } do
                local base = ffi.cast("char *", plane.pointer + page * plane.strides[1])
                if live == 0 then
                    fill(base, head * self.kv_heads)
                else
                    for h = 0, self.kv_heads - 1 do
                        fill(base + h * head + live * slot, (self.page_size - live) * slot)
                    end
                end
            end
        end
    end
    local blocks = tensor.is_tensor(self.kv) and { self.kv } or self.kv
    for _, block in ipairs(blocks) do
        local filled = block.numel / block.shape[1]
        local gap = block.strides[1] - filled
        for page = 0, gap > 0 and self.pages - 2 or -1 do
            fill(ffi.cast("char *", block.pointer + page * block.strides[1] + filled),
                gap * block.element.bytes)
        end
    end
    return self
end

-- ---- sequences -----------------------------------------------------------------------------------

-- Gives the pages back when the last reference to the sequence is gone.  The finalizer must not
-- know the sequence, or that would never happen.
local function new_sequence(cache)
    local pages = {}
    local function release()
        for i = #pages, 1, -1 do
            release_page(cache, pages[i])
            pages[i] = nil
        end
    end
    return setmetatable({
        cache = cache,
        length = 0,    -- keys
        pages = pages, -- page ids
        release = release,
        guard = ffi.gc(ffi.new "char[1]", release),
    }, Sequence)
end

local function pages_for(cache, length)
    return math.ceil(length / cache.page_size)
end

-- Raises unless it is a sequence of the cache that has not been freed.
local function need_sequence(cache, sequence, what, level)
    if getmetatable(sequence) ~= Sequence or sequence.cache ~= cache then
        error(("cache: %s: expected a sequence of this cache"):format(what), level + 1)
    elseif not sequence.guard then
        error(("cache: %s: the sequence has been freed"):format(what), level + 1)
    end
end

-- Room for `count` more keys: takes pages, and a page of its own for a last one that is shared.
local function grow(sequence, count, level)
    local cache, pages = sequence.cache, sequence.pages
    if not sequence.guard then
        error("cache: the sequence has been freed", level + 1)
    end
    local offset = sequence.length % cache.page_size
    local last = pages_for(cache, sequence.length)
    local copies = count > 0 and offset > 0 and cache.owners[pages[last]] > 1
    local wanted = pages_for(cache, sequence.length + count) - last
    need_pages(cache, wanted + (copies and 1 or 0), level + 1)
    if copies then
        local old, own = pages[last], take_page(cache)
        for _, plane in ipairs { cache.k, cache.v } do
            plane:select(0, own):copy(plane:select(0, old))
        end
        cache.live[own] = offset
        pages[last] = own
        release_page(cache, old)
    end
    for i = last + 1, last + wanted do
        pages[i] = take_page(cache)
    end
    local from = sequence.length
    sequence.length = from + count
    for i = math.floor(from / cache.page_size) + 1, last + wanted do
        cache.live[pages[i]] = math.max(cache.live[pages[i]],
            math.min(cache.page_size, sequence.length - (i - 1) * cache.page_size))
    end
    return from
end

-- A new sequence of `length` keys (default 0), whose pages hold whatever they held.
function Cache:sequence(length)
    length = length or 0
    need_integer(length, 0, "sequence", 2)
    local sequence = new_sequence(self)
    grow(sequence, length, 2)
    return sequence
end

-- A new sequence with the first `length` keys of another (default all), in the same pages.
function Cache:fork(from, length)
    need_sequence(self, from, "fork", 2)
    length = length or from.length
    need_integer(length, 0, "fork", 2)
    if length > from.length then
        error(("cache: fork: expected at most the %d keys of the sequence, got %d"):format(
            from.length, length), 2)
    end
    local sequence = new_sequence(self)
    for i = 1, pages_for(self, length) do
        sequence.pages[i] = from.pages[i]
        self.owners[from.pages[i]] = self.owners[from.pages[i]] + 1
    end
    sequence.length = length
    return sequence
end

-- Makes room for `count` more keys, whose contents are for others to write.
function Sequence:extend(count)
    need_integer(count, 0, "extend", 2)
    grow(self, count, 2)
    return self
end

local function check_rows(sequence, rows, name)
    local cache = sequence.cache
    if not tensor.is_tensor(rows) then
        error(("cache: append: %s: expected a tensor, got %s"):format(name, type(rows)), 3)
    end
    local shape = rows.shape
    if rows.dtype ~= cache.dtype or rows.rank ~= 3 or shape[2] ~= cache.kv_heads
        or shape[3] ~= cache.head_dim then
        error(("cache: append: %s: expected %s [n,%d,%d], got %s"):format(
            name, cache.dtype, cache.kv_heads, cache.head_dim, rows:describe()), 3)
    end
end

-- Writes keys, token-major in `rows`, at position `from` on into head-major pages.
local function write(sequence, plane, rows, from)
    local cache = sequence.cache
    local source = rows:to "cpu"
    source = source:is_compact() and source or source:clone()
    local count, heads, size, dim = rows.shape[1], cache.kv_heads, cache.page_size, cache.head_dim
    local row = dim * source.element.bytes
    local staged = ffi.new("char[?]", size * row) -- one head's part of one page
    local done = 0
    while done < count do
        local position = from + done
        local slot = position % size
        local slots = math.min(size - slot, count - done)
        local page = sequence.pages[math.floor(position / size) + 1]
        local base = plane.pointer + page * plane.strides[1]
        for h = 0, heads - 1 do
            for i = 0, slots - 1 do
                ffi.copy(staged + i * row, source.pointer + ((done + i) * heads + h) * dim, row)
            end
            memory.copy(base + (h * size + slot) * dim, cache.device, staged, "cpu", slots * row)
        end
        done = done + slots
    end
end

-- Appends the keys of tensors k and v, [n, kv_heads, head_dim].  Raises when the cache is out of
-- pages; nothing has changed then.
function Sequence:append(k, v)
    check_rows(self, k, "k")
    check_rows(self, v, "v")
    if k.shape[1] ~= v.shape[1] then
        error(("cache: append: v: expected %d keys, as many as k, got %d"):format(k.shape[1], v.shape[1]), 2)
    end
    local from = grow(self, k.shape[1], 2)
    write(self, self.cache.k, k, from)
    write(self, self.cache.v, v, from)
    return self
end

-- Gives the pages back; may be called twice.
function Sequence:free()
    if self.guard then
        ffi.gc(self.guard, nil)
        self.guard = nil
        self.release()
        self.length = 0
    end
end

function Sequence:__tostring()
    return ("sequence of %d keys in %d pages"):format(self.length, #self.pages)
end

-- ---- batches -------------------------------------------------------------------------------------

local Batch = {}
Batch.__index = Batch

-- The CSR metadata of a list of sequences as Lua tables, and their largest length.
local function metadata(cache, sequences, level)
    if type(sequences) ~= "table" then
        error(("cache: batch: expected a list of sequences, got %s"):format(type(sequences)), level + 1)
    end
    local indptr, indices, lengths, longest = { 0 }, {}, {}, 0
    for b = 1, #sequences do
        local sequence = sequences[b]
        need_sequence(cache, sequence, ("batch: entry %d"):format(b), level + 1)
        for _, page in ipairs(sequence.pages) do
            indices[#indices + 1] = page
        end
        indptr[b + 1] = #indices
        lengths[b] = sequence.length
        longest = math.max(longest, sequence.length)
    end
    return indptr, indices, lengths, longest
end

local batch_options = { indices = true, max_seq_len = true }

-- A batch: indptr [B+1], indices and seq_lens [B], int32 tensors on the cache's device, and
-- max_seq_len, the largest length, at least 1.  For a batch that will be updated, options say how
-- many indices there will be room for, and the bound on the lengths.
function Cache:batch(sequences, options)
    options = options or {}
    library.check_names(options, batch_options, "batch", 2)
    need_integer(options.indices or 0, 0, "batch: indices", 2)
    need_integer(options.max_seq_len or 1, 1, "batch: max_seq_len", 2)
    local indptr, indices, lengths, longest = metadata(self, sequences, 2)
    local function int32(count)
        return tensor.new { shape = { count }, dtype = "int32", device = self.device }
    end
    local batch = setmetatable({
        cache = self,
        size = #sequences,
        indptr = int32(#indptr),
        indices = int32(math.max(options.indices or 0, #indices)),
        seq_lens = int32(#lengths),
        max_seq_len = math.max(options.max_seq_len or 1, longest),
    }, Batch)
    return batch:update(sequences)
end

-- Writes the metadata of as many sequences into the same tensors, as a captured graph reads them.
-- The memory must not be in use by a launch.
function Batch:update(sequences)
    local indptr, indices, lengths, longest = metadata(self.cache, sequences, 2)
    if #sequences ~= self.size then
        error(("batch: update: expected %d sequences, got %d"):format(self.size, #sequences), 2)
    elseif #indices > self.indices.numel then
        error(("batch: update: room for %d page ids, got %d"):format(self.indices.numel, #indices), 2)
    elseif longest > self.max_seq_len then
        error(("batch: update: expected at most max_seq_len %d keys, got %d"):format(self.max_seq_len, longest), 2)
    end
    self.indptr:fill(indptr)
    self.indices:slice(0, 0, #indices):fill(indices)
    self.seq_lens:fill(lengths)
    return self
end

function Cache:__tostring()
    return ("cache of %d pages of %d, %d kv heads of %d, %s on %s; %d pages free"):format(self.pages,
        self.page_size, self.kv_heads, self.head_dim, self.dtype, self.device, self.free_count)
end

return { new = new }

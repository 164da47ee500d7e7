-- tensor.lua - tensors on any device: what quire.decode takes, with their memory
-- SPDX-License-Identifier: Apache-2.0
--
--     local t = quire.tensor{ shape = {2, 3}, dtype = "bf16" }           -- zeroed, on the CPU
--     local s = quire.tensor{ {7, 0, 33}, dtype = "int32", device = "cuda:0" }
--
-- Indices and dimensions count from 0, as in the formulas of quire.h.  Elements of a small float
-- type read and write as numbers.  Elements can be reached from Lua on the CPU only; :to("cpu")
-- brings a device tensor there.

local ffi = require "ffi"
local library = require "quire.library"
local dtype = require "quire.dtype"
local memory = require "quire.memory"
local normal = require "quire.normal"
local strides_of = require "quire.strides"

local C = library.C

local run_length, each_run = strides_of.run_length, strides_of.each_run

local Tensor = {}
local methods = {}

local function is_tensor(t)
    return getmetatable(t) == Tensor
end

local function shape_text(shape)
    return ("[%s]"):format(table.concat(shape, ","))
end

-- A tensor over memory that `owner` keeps; every tensor is made here.
local function over(owner, data, element, shape, strides, device)
    local device_type, device_id = library.parse_device(device, 3)
    local rank = #shape
    local extents = ffi.new("int64_t[?]", math.max(rank, 1), shape)
    local steps = ffi.new("int64_t[?]", math.max(rank, 1), strides)
    local dl = ffi.new "DLTensor"
    dl.data = data
    dl.device.device_type, dl.device.device_id = device_type, device_id
    dl.ndim = rank
    dl.dtype.code, dl.dtype.bits, dl.dtype.lanes = element.code, element.bits, 1
    dl.shape, dl.strides = extents, steps
    return setmetatable({
        dl = dl,                -- what C sees; it points into the next three
        owner = owner,
        extents = extents,
        steps = steps,
        element = element,
        dtype = element.name,
        device = device,
        shape = shape,
        strides = strides,
        rank = rank,
        numel = strides_of.count(shape),
        pointer = ffi.cast(element.pointer, data), -- on a device: an address, not to be read here
    }, Tensor)
end

local function check_extents(list, what, lowest, level)
    if type(list) ~= "table" then
        error(("tensor: %s: expected a list of integers, got %s"):format(what, type(list)), level + 1)
    end
    for i, extent in ipairs(list) do
        if type(extent) ~= "number" or extent < lowest or extent % 1 ~= 0 then
            error(("tensor: %s[%d]: expected an integer of at least %d, got %s"):format(
                what, i - 1, lowest, tostring(extent)), level + 1)
        end
    end
    return list
end

-- The shape of nested tables of numbers.
local function shape_of(values)
    local shape = {}
    while type(values) == "table" do
        shape[#shape + 1] = #values
        values = values[1]
    end
    return shape
end

local known = { [1] = true, shape = true, strides = true, dtype = true, device = true, data = true }

-- quire.tensor{ values, shape =, strides =, dtype =, device =, data = }: `values` (nested tables)
-- or `shape` is needed.  `strides` count elements.  `data` is memory of the caller's, a pointer or
-- an array, kept alive as far as Lua owns it; without it zeroed memory is allocated.
local function new(t)
    library.check_names(t, known, "tensor", 2)
    local values = t[1]
    local shape = t.shape or (values and shape_of(values))
    if not shape then
        error("tensor: shape: required where no values are given", 2)
    end
    check_extents(shape, "shape", 0, 2)
    local strides = t.strides and check_extents(t.strides, "strides", 0, 2) or strides_of.compact(shape)
    if #strides ~= #shape then
        error(("tensor: strides: expected %d, one for each dimension, got %d"):format(
            #shape, #strides), 2)
    end
    local element = dtype.get(t.dtype, 2)
    local device = t.device or "cpu"
    library.parse_device(device, 2)
    local owner, data = t.data, t.data
    if type(data) == "nil" then -- a NULL pointer of the caller's is a pointer
        owner, data = memory.allocate(device, strides_of.span(shape, strides) * element.bytes)
    end
    -- copies of the lists: the caller may go on using its own
    local tensor = over(owner, data, element, { unpack(shape) }, { unpack(strides) }, device)
    if values then
        tensor:fill(values)
    end
    return tensor
end

local function need_host(t, what)
    if t.device ~= "cpu" then
        error(("tensor: %s: the elements are on %s; bring them here with :to(\"cpu\")"):format(
            what, t.device), 3)
    end
end

local function offset_of(t, what, ...)
    local count = select("#", ...)
    if count ~= t.rank then
        error(("tensor: %s: expected %d indices, got %d"):format(what, t.rank, count), 3)
    end
    local offset = 0
    for i = 1, count do
        local index = select(i, ...)
        if type(index) ~= "number" or index < 0 or index >= t.shape[i] or index % 1 ~= 0 then
            error(("tensor: %s: index %d: expected an integer from 0 to %d, got %s"):format(
                what, i - 1, t.shape[i] - 1, tostring(index)), 3)
        end
        offset = offset + index * t.strides[i]
    end
    return offset
end

function methods:get(...)
    need_host(self, "get")
    return self.element.to_number(self.pointer[offset_of(self, "get", ...)])
end

function methods:set(value, ...)
    need_host(self, "set")
    if type(value) ~= "number" and not (type(value) == "cdata" and tonumber(value)) then
        error(("tensor: set: expected a number, got %s"):format(type(value)), 2)
    end
    self.pointer[offset_of(self, "set", ...)] = self.element.from_number(value)
end

-- ---- views: the same memory ----------------------------------------------------------------------

local function view(t, offset, shape, strides)
    local data = ffi.cast("char *", t.dl.data) + offset * t.element.bytes
    return over(t.owner, data, t.element, shape, strides, t.device)
end

local function check_dimension(t, dimension, what)
    if type(dimension) ~= "number" or dimension < 0 or dimension >= t.rank or dimension % 1 ~= 0 then
        error(("tensor: %s: expected a dimension from 0 to %d, got %s"):format(
            what, t.rank - 1, tostring(dimension)), 3)
    end
    return dimension + 1
end

-- Element `index` of a dimension, which goes away.
function methods:select(dimension, index)
    local d = check_dimension(self, dimension, "select")
    if type(index) ~= "number" or index < 0 or index >= self.shape[d] or index % 1 ~= 0 then
        error(("tensor: select: expected an index from 0 to %d, got %s"):format(
            self.shape[d] - 1, tostring(index)), 2)
    end
    local shape, strides = { unpack(self.shape) }, { unpack(self.strides) }
    table.remove(shape, d)
    return view(self, index * table.remove(strides, d), shape, strides)
end

local function is_index(value, last)
    return type(value) == "number" and value >= 0 and value <= last and value % 1 == 0
end

-- Elements from `first` to before `last` of a dimension.
function methods:slice(dimension, first, last)
    local d = check_dimension(self, dimension, "slice")
    if not (is_index(first, self.shape[d]) and is_index(last, self.shape[d])) or last < first then
        error(("tensor: slice: expected 0 <= first <= last <= %d, got %s and %s"):format(
            self.shape[d], tostring(first), tostring(last)), 2)
    end
    local shape = { unpack(self.shape) }
    shape[d] = last - first
    return view(self, first * self.strides[d], shape, { unpack(self.strides) })
end

function methods:is_compact()
    local step = 1
    for i = self.rank, 1, -1 do
        if self.shape[i] ~= 1 and self.strides[i] ~= step then
            return false
        end
        step = step * self.shape[i]
    end
    return true
end

-- The same elements in another shape; compact tensors only.
function methods:view(shape)
    check_extents(shape, "shape", 0, 2)
    if not self:is_compact() then
        error("tensor: view: expected a compact tensor", 2)
    elseif strides_of.count(shape) ~= self.numel then
        error(("tensor: view: expected a shape of %d elements, got %s"):format(
            self.numel, shape_text(shape)), 2)
    end
    return view(self, 0, { unpack(shape) }, strides_of.compact(shape))
end

-- ---- whole tensors -------------------------------------------------------------------------------

local function fill_run(pointer, bits, count)
    for i = 0, count - 1 do
        pointer[i] = bits
    end
end

local function flatten(values, into)
    for _, v in ipairs(values) do
        if type(v) == "table" then
            flatten(v, into)
        else
            into[#into + 1] = v
        end
    end
    return into
end

local function fill_host(t, value)
    local element, pointer = t.element, t.pointer
    if type(value) == "table" then
        local flat = flatten(value, {})
        if #flat ~= t.numel then
            error(("tensor: fill: expected %d values, got %d"):format(t.numel, #flat), 3)
        end
        each_run(t, t, 1, t.rank, function(n, at)
            pointer[at] = element.from_number(flat[n + 1])
        end)
    elseif type(value) == "function" then
        local index = {}
        each_run(t, t, 1, t.rank, function(n, at)
            for d = t.rank, 1, -1 do
                index[d] = n % t.shape[d]
                n = (n - index[d]) / t.shape[d]
            end
            pointer[at] = element.from_number(value(unpack(index, 1, t.rank)))
        end)
    else
        local bits = element.from_number(value)
        local length, outer = run_length(t)
        each_run(t, t, length, outer, function(_, at)
            fill_run(pointer + at, bits, length)
        end)
    end
end

-- Runs `how` on the tensor if it is here, else on a host tensor that is then copied over.
local function on_host(t, how)
    if t.device == "cpu" then
        how(t)
    else
        local here = new { shape = t.shape, dtype = t.dtype }
        how(here)
        t:copy(here)
    end
    return t
end

-- Fills with a number, with (nested) tables of numbers, or with what function(i, j, ...) returns.
function methods:fill(value)
    local kind = type(value)
    if kind ~= "number" and kind ~= "table" and kind ~= "function" and kind ~= "cdata" then
        error(("tensor: fill: expected a number, a table or a function, got %s"):format(kind), 2)
    end
    return on_host(self, function(t)
        fill_host(t, value)
    end)
end

-- Fills with normally distributed numbers; the same seed (a number or a string), scale and
-- number of elements give the same bytes everywhere, whatever the strides.
function methods:normal(options)
    library.check_names(options, { seed = true, scale = true }, "normal", 2)
    if type(options.scale or 1) ~= "number" then
        error(("tensor: normal: scale: expected a number, got %s"):format(type(options.scale)), 2)
    end
    local seed, scale = normal.seed(options.seed or 0), options.scale or 1
    return on_host(self, function(t)
        local length, outer = run_length(t)
        each_run(t, t, length, outer, function(n, at)
            normal.fill(t.pointer + at, t.element, scale, seed, n, length)
        end)
    end)
end

-- Stores another tensor's elements here.  Shapes agree; between devices the types do too.
function methods:copy(from)
    if not is_tensor(from) then
        error(("tensor: copy: expected a tensor, got %s"):format(type(from)), 2)
    elseif shape_text(from.shape) ~= shape_text(self.shape) then
        error(("tensor: copy: expected shape %s, got %s"):format(
            shape_text(self.shape), shape_text(from.shape)), 2)
    end
    if self.element == from.element then
        local bytes = self.element.bytes
        local length, outer = run_length(self, from)
        each_run(self, from, length, outer, function(_, to_at, from_at)
            memory.copy(self.pointer + to_at, self.device, from.pointer + from_at, from.device,
                length * bytes)
        end)
        return self
    end
    local source = from:to "cpu"
    return on_host(self, function(t)
        local decode, encode = source.element.to_number, t.element.from_number
        local length, outer = run_length(t, source)
        each_run(t, source, length, outer, function(_, to_at, from_at)
            local to_run, from_run = t.pointer + to_at, source.pointer + from_at
            for i = 0, length - 1 do
                to_run[i] = encode(decode(from_run[i]))
            end
        end)
    end)
end

-- A compact copy.
function methods:clone()
    return new { shape = self.shape, dtype = self.dtype, device = self.device }:copy(self)
end

-- This tensor if it is on the device already, else a copy there.
function methods:to(device)
    if device == self.device then
        return self
    end
    return new { shape = self.shape, dtype = self.dtype, device = device }:copy(self)
end

-- A copy on a device with the same strides, what lies in the gaps included.
function methods:mirror(device)
    local copy = new { shape = self.shape, strides = self.strides, dtype = self.dtype, device = device }
    memory.copy(copy.pointer, device, self.pointer, self.device,
        strides_of.span(self.shape, self.strides) * self.element.bytes)
    return copy
end

-- A copy of another element type.
function methods:convert(name)
    dtype.get(name, 2)
    return new { shape = self.shape, dtype = name, device = self.device }:copy(self)
end

-- Whether both hold the same bits (so NaN equals itself, and -0 differs from 0).
function methods:same_bits(other)
    if not is_tensor(other) then
        error(("tensor: same_bits: expected a tensor, got %s"):format(type(other)), 2)
    end
    if self.element ~= other.element or shape_text(self.shape) ~= shape_text(other.shape) then
        return false
    end
    local a, b = self:to "cpu", other:to "cpu"
    local length, outer = run_length(a, b)
    local same = true
    each_run(a, b, length, outer, function(_, at_a, at_b)
        same = same and memory.equal(a.pointer + at_a, b.pointer + at_b, length * a.element.bytes)
    end)
    return same
end

-- Elements in row-major order as a flat Lua table.
function methods:totable()
    local t, list = self:to "cpu", {}
    each_run(t, t, 1, t.rank, function(n, at)
        list[n + 1] = t.element.to_number(t.pointer[at])
    end)
    return list
end

-- Bytes of the elements, gaps not counted.
function methods:bytes()
    return self.numel * self.element.bytes
end

-- ---- printing ------------------------------------------------------------------------------------

local SHOWN = 8 -- elements of a dimension

local function describe(t)
    return ("%s %s on %s"):format(t.dtype, shape_text(t.shape), t.device)
end

local function write_elements(t, into, indent)
    if t.rank == 0 then
        into[#into + 1] = ("%.6g"):format(t:get())
        return
    end
    local extent = t.shape[1]
    local shown = math.min(extent, SHOWN)
    into[#into + 1] = "{"
    for i = 0, shown - 1 do
        if i > 0 then
            into[#into + 1] = t.rank > 1 and ("\n" .. indent) or " "
        end
        write_elements(t:select(0, i), into, indent .. " ")
    end
    if shown < extent then
        into[#into + 1] = (" ... %d more"):format(extent - shown)
    end
    into[#into + 1] = "}"
end

function methods:describe()
    return describe(self)
end

function Tensor.__tostring(t)
    local into = { describe(t), " " }
    if t.numel > 0 then
        write_elements(t:to "cpu", into, " ")
    end
    return table.concat(into)
end

-- t[i]: an element of a tensor of rank 1, else a view of the i-th part.
function Tensor.__index(t, key)
    if type(key) ~= "number" then
        return methods[key]
    elseif rawget(t, "rank") == 1 then
        return methods.get(t, key)
    end
    return methods.select(t, 0, key)
end

function Tensor.__newindex(t, key, value)
    if type(key) ~= "number" then
        error(("tensor: has no field '%s'"):format(tostring(key)), 2)
    elseif t.rank == 1 then
        methods.set(t, value, key)
    elseif is_tensor(value) then
        methods.select(t, 0, key):copy(value)
    else
        methods.select(t, 0, key):fill(value)
    end
end

local function is_dlpack(value)
    return ffi.istype("DLTensor", value) or ffi.istype("DLTensor *", value) or ffi.istype("const DLTensor *", value)
end

-- A tensor over a DLTensor of somebody else's, which is kept alive as far as Lua owns it.
local function from_dlpack(dl)
    if not is_dlpack(dl) then
        error(("tensor: from_dlpack: expected a DLTensor, got %s"):format(type(dl)), 2)
    end
    local element = dtype.find(dl.dtype.code, dl.dtype.bits, dl.dtype.lanes)
    if not element then
        error(("tensor: no dtype has DLPack code %d with %d bits and %d lanes"):format(
            dl.dtype.code, dl.dtype.bits, dl.dtype.lanes), 2)
    end
    local shape, strides = {}, {}
    for i = 0, dl.ndim - 1 do
        shape[i + 1] = tonumber(dl.shape[i])
    end
    if dl.strides == nil then
        strides = strides_of.compact(shape)
    else
        for i = 0, dl.ndim - 1 do
            strides[i + 1] = tonumber(dl.strides[i])
        end
    end
    local device = "cpu"
    if dl.device.device_type == C.QUIRE_DEVICE_CUDA then
        device = ("cuda:%d"):format(dl.device.device_id)
    elseif dl.device.device_type ~= C.QUIRE_DEVICE_CPU then
        error(("tensor: device type %d is neither CPU nor CUDA"):format(dl.device.device_type), 2)
    end
    return over(dl, ffi.cast("char *", dl.data) + dl.byte_offset, element, shape, strides, device)
end

return {
    new = new,
    from_dlpack = from_dlpack,
    is_dlpack = is_dlpack,
    is_tensor = is_tensor,
    methods = methods,
}

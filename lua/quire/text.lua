-- text.lua - lines of text in, numbers and tables for people out
-- SPDX-License-Identifier: Apache-2.0

local text = {}

-- All lines of a file, without their LF or CR LF; nil and why not.
function text.lines(path)
    local file, problem = io.open(path, "rb")
    if not file then
        return nil, problem
    end
    local content, read_problem = file:read "*a"
    file:close()
    if not content then
        return nil, ("%s: %s"):format(path, read_problem)
    end
    content = content:gsub("^\239\187\191", "") -- the byte order mark that some editors put first
    local lines = {}
    for line in (content .. "\n"):gmatch "([^\n]*)\n" do
        lines[#lines + 1] = line:gsub("\r$", "")
    end
    return lines
end

-- The fields of a CSV line; quotes around a field and doubled quotes within are understood.
function text.csv_fields(line)
    local fields, at = {}, 1
    repeat
        local field, after
        if line:sub(at, at) == '"' then
            local close = at
            repeat
                close = line:find('"', close + 1, true)
                local doubled = close and line:sub(close + 1, close + 1) == '"'
                close = doubled and close + 1 or close
            until not doubled
            if not close then
                return nil, "a quote is not closed"
            end
            field, after = line:sub(at + 1, close - 1):gsub('""', '"'), close + 1
        else
            after = line:find(",", at, true) or #line + 1
            field = line:sub(at, after - 1)
        end
        fields[#fields + 1] = field
        at = after + 1
    until after > #line
    return fields
end

-- A CSV line of fields.
function text.csv_line(fields)
    local quoted = {}
    for i, field in ipairs(fields) do
        field = tostring(field)
        quoted[i] = field:find '[",\n]' and ('"%s"'):format(field:gsub('"', '""')) or field
    end
    return table.concat(quoted, ",")
end

local LARGEST = 2 ^ 53 -- numbers are exact up to here

-- A decimal integer; nil and what was expected where it is none, or below `lowest`.
function text.integer(value, lowest)
    local number = value:match "^%-?%d+$" and tonumber(value)
    if not number or number < lowest then
        return nil, ("an integer of at least %d"):format(lowest)
    elseif number > LARGEST then
        return nil, ("an integer up to %.0f"):format(LARGEST)
    end
    return number
end

local MOST_LENGTHS = 2 ^ 24 -- requests of a batch that a list in Lua can hold

-- "8192x32 100" as a list of 33 lengths; nil and the piece that is none or one too many.
function text.lengths(list)
    local lengths = {}
    for piece in list:gmatch "%S+" do
        local length, count = piece:match "^(%d+)x(%d+)$"
        length, count = tonumber(length or piece:match "^%d+$"), tonumber(count or 1)
        if not length or count < 1 or #lengths + count > MOST_LENGTHS then
            return nil, piece
        end
        for _ = 1, count do
            lengths[#lengths + 1] = length
        end
    end
    return lengths
end

-- The largest of a list, and at least `lowest`; any number of entries.
function text.largest(list, lowest)
    local largest = lowest
    for _, value in ipairs(list) do
        largest = math.max(largest, value)
    end
    return largest
end

function text.bytes(bytes)
    local units = { "B", "kB", "MB", "GB", "TB" }
    local unit = 1
    while bytes >= 1000 and unit < #units do
        bytes, unit = bytes / 1000, unit + 1
    end
    return (unit == 1 and "%d %s" or bytes < 10 and "%.2f %s" or bytes < 100 and "%.1f %s" or "%.0f %s")
        :format(bytes, units[unit])
end

function text.seconds(seconds)
    if seconds < 1e-3 then
        return ("%.1f us"):format(seconds * 1e6)
    elseif seconds < 1 then
        return ("%.2f ms"):format(seconds * 1e3)
    end
    return ("%.2f s"):format(seconds)
end

function text.median(list)
    local sorted = {}
    for i, value in ipairs(list) do -- unpack has no room for many
        sorted[i] = value
    end
    table.sort(sorted)
    local middle = math.floor(#sorted / 2)
    if #sorted % 2 == 1 then
        return sorted[middle + 1]
    end
    return #sorted > 0 and (sorted[middle] + sorted[middle + 1]) / 2 or 0
end

-- `cell` with blanks after it, or before it if `right`.  (string.format has no widths above 99.)
function text.pad(cell, width, right)
    local blanks = (" "):rep(width - #cell)
    return right and blanks .. cell or cell .. blanks
end

-- A line of cells of such widths; a cell is flush right if its column's entry in `right` is true.
function text.row(cells, widths, right)
    local padded = {}
    for i, cell in ipairs(cells) do
        padded[i] = text.pad(tostring(cell), widths[i], right[i])
    end
    return (table.concat(padded, "  "):gsub("%s+$", ""))
end

-- Rows of cells as aligned lines.
function text.table(rows, right)
    local widths = {}
    for _, row in ipairs(rows) do
        for i, cell in ipairs(row) do
            widths[i] = math.max(widths[i] or 0, #tostring(cell))
        end
    end
    local lines = {}
    for n, row in ipairs(rows) do
        lines[n] = text.row(row, widths, right)
    end
    return table.concat(lines, "\n")
end

return text

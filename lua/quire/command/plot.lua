-- plot.lua - the picture of a bench: achieved rate against bytes, through gnuplot
-- SPDX-License-Identifier: Apache-2.0

local plot = {}

local function open(path, mode)
    local file, problem = io.open(path, mode)
    if not file then
        error("--plot: " .. problem, 0)
    end
    return file
end

-- Raises if there is no gnuplot, or no way to write the file, before anything is measured.
function plot.need(path)
    if os.execute "gnuplot --version >/dev/null 2>&1" ~= 0 then
        error("--plot: needs gnuplot (Debian, Ubuntu: apt-get install gnuplot-nox)", 0)
    end
    open(path, "ab"):close()
end

-- Writes a PNG of results (of bench.lua); `allowed` is what a launch may take beyond its bytes.
function plot.write(path, results, device, allowed)
    local points, labels, read_rate, smallest, largest = {}, {}, 0, math.huge, 0
    for _, r in ipairs(results) do
        if r.read_rate then
            points[#points + 1] = ("%.17g %.17g"):format(r.bytes, r.rate / 1e9)
            labels[#labels + 1] = ("%.17g %.17g %q"):format(r.bytes, r.rate / 1e9, (r.name:gsub('[\\"]', "")))
            read_rate = math.max(read_rate, r.read_rate)
            smallest, largest = math.min(smallest, r.bytes), math.max(largest, r.bytes)
        end
    end
    if #points == 0 then
        error("--plot: no workload has a page-read rate to stand beside", 0)
    end
    open(path, "wb"):close() -- an older picture must not pass for this one
    -- a path in gnuplot's single quotes
    local pipe = assert(io.popen("gnuplot", "w"))
    pipe:write(([[
set terminal pngcairo size 1200,800
set output '%s'
set title 'quire bench on %s'
set logscale xy
set grid
set xlabel 'bytes of a launch'
set ylabel 'GB/s'
set key bottom right
set xrange [%.17g:%.17g]
limit = %.17g
allowed = %.17g
$points << END
%s
END
$labels << END
%s
END
plot limit / 1e9 title 'page-read rate' lw 2, \
     x / (x / limit + allowed) / 1e9 title sprintf('bytes / page-read rate + %%.1f us', allowed * 1e6) dt 2, \
     $points title 'decode' pt 7, \
     $labels with labels font ',8' offset 0,0.8 notitle
]]):format(path:gsub("'", "''"), device, smallest / 2, largest * 2, read_rate, allowed,
        table.concat(points, "\n"), table.concat(labels, "\n")))
    pipe:close()
    local file = open(path, "rb")
    local written = file:seek "end" > 0
    file:close()
    if not written then
        error(("--plot: gnuplot wrote no %s"):format(path), 0)
    end
end

return plot

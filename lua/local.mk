# The LuaJIT module: $(luadir)/quire.lua and $(luadir)/quire/*.lua.
#
# To add a file: append it to dist_lua_DATA (lua/quire.lua) or dist_luaquire_DATA (lua/quire/NAME.lua).
# In the build tree the module is found through LUA_PATH (scripts/run.in).
# SPDX-License-Identifier: Apache-2.0
dist_lua_DATA = %D%/quire.lua

luaquiredir = $(luadir)/quire
dist_luaquire_DATA = \
	%D%/quire/bench.lua \
	%D%/quire/cache.lua \
	%D%/quire/casefile.lua \
	%D%/quire/cases.lua \
	%D%/quire/clock.lua \
	%D%/quire/command.lua \
	%D%/quire/compare.lua \
	%D%/quire/cuda.lua \
	%D%/quire/decode.lua \
	%D%/quire/driver.lua \
	%D%/quire/dtype.lua \
	%D%/quire/library.lua \
	%D%/quire/measure.lua \
	%D%/quire/memory.lua \
	%D%/quire/normal.lua \
	%D%/quire/sample.lua \
	%D%/quire/strides.lua \
	%D%/quire/subset.lua \
	%D%/quire/supported.lua \
	%D%/quire/tensor.lua \
	%D%/quire/text.lua \
	%D%/quire/trace.lua \
	%D%/quire/work.lua \
	%D%/quire/workloads.lua

# The quire command's own: one file for each subcommand, and what they share.
luacommanddir = $(luaquiredir)/command
dist_luacommand_DATA = \
	%D%/quire/command/bench.lua \
	%D%/quire/command/check.lua \
	%D%/quire/command/decode.lua \
	%D%/quire/command/info.lua \
	%D%/quire/command/options.lua \
	%D%/quire/command/plot.lua \
	%D%/quire/command/progress.lua

nodist_luaquire_DATA = %D%/quire/cdef.lua %D%/quire/paths.lua

# quire/cdef.lua: the C declarations, whose one source is quire.h. DLPack's, which come first, may be
# there already, from another module; they are declared only if they are not.
cdef_cpp = $(CPP) -P -undef -nostdinc -DQUIRE_CDEF
%D%/quire/cdef.lua: lib/quire.h Makefile
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(cdef_cpp) -o $@.all $(srcdir)/lib/quire.h && \
	$(cdef_cpp) -DDLPACK_DLPACK_H_ -o $@.own $(srcdir)/lib/quire.h && \
	{ echo '-- Made from lib/quire.h.'; \
	  echo 'local ffi = require "ffi"'; \
	  echo 'if not pcall(ffi.typeof, "DLTensor") then ffi.cdef [['; \
	  $(SED) '/} DLTensor;/q' $@.all; \
	  echo ']] end'; \
	  echo 'ffi.cdef [['; \
	  cat $@.own; \
	  echo ']]'; } > $@.tmp && mv $@.tmp $@
	@rm -f $@.all $@.own

# quire/paths.lua: where the installed library is. Made by make, as $(libdir) is whole only there.
%D%/quire/paths.lua: Makefile
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)printf '%s\n' '-- Where the library was configured to be installed.' \
	  'return { libdir = "$(libdir)", soname = "$(QUIRE_SONAME)", version = "$(VERSION)" }' > $@

CLEANFILES += $(nodist_luaquire_DATA)

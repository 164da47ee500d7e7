# Tests, all of which speak TAP; `make check` runs them, and so does prove (CONTRIBUTING.md).
#
# To add a C test t/NAME.t, where %C%_NAME_t stands for its name with every odd letter as _:
#   check_PROGRAMS += %D%/0100-status.t
#   %C%_0100_status_t_SOURCES = %D%/0100-status.c %D%/tap.h
# It links libquire.la, the public face. One that calls internal functions says instead
#   %C%_0100_status_t_LDADD = libinternal.la
# To add a Lua or shell test: append it to script_tests. Helpers that are no tests: to EXTRA_DIST.
# Numbers by layer: 00xx build, 01xx C face, 02xx CPU, 03xx CUDA, 04xx Lua module, 05xx command,
# 06xx inputs that broke other implementations. Tests in Lua take another device from the environment:
# QUIRE_TEST_DEVICE=cuda:0.
# SPDX-License-Identifier: Apache-2.0
LDADD = libquire.la
# Programs and not libtool's wrapper scripts, for the sake of gdb and compute-sanitizer.
AM_LDFLAGS = -no-install

script_tests = \
	%D%/0001-library.sh \
	%D%/0002-install.sh \
	%D%/0003-readme.sh

TESTS += $(check_PROGRAMS) $(script_tests)
EXTRA_DIST += $(script_tests)

TEST_EXTENSIONS = .t .lua .sh
TAP_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
T_LOG_DRIVER   = $(TAP_DRIVER)
LUA_LOG_DRIVER = $(TAP_DRIVER)
SH_LOG_DRIVER  = $(TAP_DRIVER)
SH_LOG_COMPILER = $(SHELL)
if HAVE_LUAJIT
if SANITIZERS
LUA_LOG_COMPILER = env LD_PRELOAD='$(ASAN_RUNTIME)' ASAN_OPTIONS='$(ASAN_LUA_OPTIONS)' $(LUAJIT)
else
LUA_LOG_COMPILER = $(LUAJIT)
endif
else
LUA_LOG_COMPILER = $(SHELL) -c 'echo "1..0 \# SKIP configure found no luajit"'
endif

# What a test may rely on, besides $srcdir, is set in scripts/run.in.
AM_TESTS_ENVIRONMENT = $(abs_top_builddir)/run

# ---- C interface -----------------------------------------------------------------------------------
check_PROGRAMS += \
	%D%/0100-tensor.t \
	%D%/0101-metadata.t \
	%D%/0102-layout.t \
	%D%/0103-status.t \
	%D%/0104-refusals.t \
	%D%/0105-limits.t \
	%D%/0106-versions.t \
	%D%/0107-threads.t \
	%D%/0108-memory.t \
	%D%/0111-measure.t
script_tests += %D%/0109-example.sh %D%/0110-cxx.sh %D%/0112-manual.sh
fixture = %D%/fixture.c %D%/fixture.h %D%/tap.h
%C%_0100_tensor_t_SOURCES   = %D%/0100-tensor.c %D%/tap.h
%C%_0100_tensor_t_LDADD     = libinternal.la
%C%_0101_metadata_t_SOURCES = %D%/0101-metadata.c %D%/tap.h
%C%_0101_metadata_t_LDADD   = libinternal.la
%C%_0102_layout_t_SOURCES   = %D%/0102-layout.c %D%/layout-dlpack.c %D%/layout.h %D%/tap.h
%C%_0103_status_t_SOURCES   = %D%/0103-status.c %D%/tap.h
%C%_0103_status_t_LDADD     = libquire.la -lpthread
%C%_0104_refusals_t_SOURCES = %D%/0104-refusals.c $(fixture)
%C%_0105_limits_t_SOURCES   = %D%/0105-limits.c $(fixture)
%C%_0106_versions_t_SOURCES = %D%/0106-versions.c $(fixture)
%C%_0107_threads_t_SOURCES  = %D%/0107-threads.c $(fixture)
%C%_0107_threads_t_LDADD    = libquire.la -lpthread
%C%_0108_memory_t_SOURCES   = %D%/0108-memory.c $(fixture)
%C%_0111_measure_t_SOURCES  = %D%/0111-measure.c $(fixture)

# ---- the CPU backend --------------------------------------------------------------------------------
check_PROGRAMS += %D%/0200-kernels.t %D%/0201-bits.t
%C%_0200_kernels_t_SOURCES = %D%/0200-kernels.c $(fixture)
%C%_0201_bits_t_SOURCES    = %D%/0201-bits.c $(fixture)
# The same with AMX in plain C: the program's own kernel_amx comes before the library's.
if HAVE_AMX
check_PROGRAMS += %D%/0202-amx-kernel.t %D%/0203-amx-bits.t
amx = %D%/amx_emulated.c %D%/amx_emulated.h
amx_cppflags = $(AM_CPPFLAGS) -I$(srcdir)/%D% -DQUIRE_AMX_EMULATED
%C%_0202_amx_kernel_t_SOURCES  = %D%/0200-kernels.c $(amx) $(fixture)
%C%_0202_amx_kernel_t_CPPFLAGS = $(amx_cppflags)
%C%_0202_amx_kernel_t_LDADD    = libinternal.la
%C%_0203_amx_bits_t_SOURCES    = %D%/0201-bits.c $(amx) $(fixture)
%C%_0203_amx_bits_t_CPPFLAGS   = $(amx_cppflags)
%C%_0203_amx_bits_t_LDADD      = libinternal.la
endif

# ---- the Lua module and the command -----------------------------------------------------------------
EXTRA_DIST += %D%/tap.lua %D%/pitfall.lua %D%/cases/decode.csv %D%/data/context.csv %D%/data/blocks.jsonl
script_tests += \
	%D%/0400-tensor.lua \
	%D%/0401-cache.lua \
	%D%/0402-layout.lua \
	%D%/0403-decode.lua \
	%D%/0404-cases.lua \
	%D%/0405-trace.lua \
	%D%/0406-example.lua \
	%D%/0407-sample.lua \
	%D%/0500-command.lua \
	%D%/0501-check.lua \
	%D%/0502-bench.lua \
	%D%/0503-manual.lua \
	%D%/0600-pitfall-pages.lua \
	%D%/0601-pitfall-softmax.lua \
	%D%/0602-pitfall-heads.lua \
	%D%/0603-pitfall-masks.lua \
	%D%/0604-pitfall-workspace.lua \
	%D%/0605-pitfall-limits.lua \
	%D%/0606-pitfall-range.lua

# ---- the CUDA kernels on the CPU --------------------------------------------------------------------
# The same .cu files, compiled as C++ with t/emulator's headers; of the C++ library nothing is needed. Without
# optimization the test takes minutes.
check_PROGRAMS += %D%/0304-emulated.t
%C%_0304_emulated_t_SOURCES = %D%/0304-emulated.c $(fixture)
%C%_0304_emulated_t_CFLAGS  = $(AM_CFLAGS) -Wno-psabi
%C%_0304_emulated_t_LDADD   = libinternal.la
if HAVE_CXX17
emulated_objects = $(patsubst kernels/%.cu,%D%/emulator/%.o,$(filter-out %/read.cu,$(cuda_sources)))
%C%_0304_emulated_t_SOURCES += %D%/emulator/emulator.c %D%/emulator/emulator.h %D%/emulator/fiber.h
%C%_0304_emulated_t_LDADD   += $(emulated_objects)
EXTRA_%C%_0304_emulated_t_DEPENDENCIES = $(emulated_objects)
if !HAVE_CUDA
%C%_0304_emulated_t_SOURCES += lib/policy.c lib/policy.h
endif
%D%/emulator/%.o: kernels/%.cu config.h
	@$(MKDIR_P) $(@D)
	$(AM_V_CXX)$(CXX) -x c++ -std=c++17 -O2 -fPIE -fno-exceptions -fno-rtti -fno-threadsafe-statics -Wall -Wextra \
	  -Wno-unknown-pragmas -Wno-sign-compare -Wno-unused-parameter -Wno-missing-field-initializers -Wno-psabi \
	  -DQUIRE_EMULATED -DQUIRE_SHORT_LAUNCH=200 \
	  -I$(srcdir)/%D% -I$(top_srcdir)/kernels -I$(top_srcdir)/lib -I$(top_srcdir) \
	  $(SANITIZER_CFLAGS) -MD -MP -c -o $@ $<
AM_V_CXX    = $(am__v_CXX_@AM_V@)
am__v_CXX_  = $(am__v_CXX_@AM_DEFAULT_V@)
am__v_CXX_0 = @echo "  CXX     " $@;
am__v_CXX_1 =
-include $(emulated_objects:.o=.d)
MOSTLYCLEANFILES += $(emulated_objects) $(emulated_objects:.o=.d)
endif
EXTRA_DIST += %D%/emulator/cuda.h %D%/emulator/ptx.h %D%/emulator/wgmma.h

# ---- CUDA -------------------------------------------------------------------------------------------
# A driver that runs no kernels, in a folder of its own: nothing may take it for the real one by accident.
if HAVE_CUDA
check_LTLIBRARIES = %D%/fake/libcuda.la
%C%_fake_libcuda_la_SOURCES = %D%/fake/libcuda.c
%C%_fake_libcuda_la_LDFLAGS = -rpath /nowhere -version-info 1:0:0 -no-undefined

check_PROGRAMS += %D%/0300-fatbins.t %D%/0301-driver.t %D%/0303-policy.t %D%/0314-threads.t \
	%D%/0317-host-time.t
%C%_0303_policy_t_SOURCES  = %D%/0303-policy.c %D%/tap.h
%C%_0303_policy_t_LDADD    = libinternal.la
%C%_0300_fatbins_t_SOURCES = %D%/0300-fatbins.c %D%/tap.h
%C%_0300_fatbins_t_LDADD   = libinternal.la
%C%_0301_driver_t_SOURCES  = %D%/0301-driver.c %D%/fixture.c %D%/fixture.h %D%/tap.h
%C%_0301_driver_t_CPPFLAGS = $(AM_CPPFLAGS) \
	-DCUDA_STUB='"$(patsubst %/include,%/lib64/stubs/libcuda.so,$(filter %/include,$(CUDA_CPPFLAGS)))"'

on_gpu = $(fixture) %D%/gpu.c %D%/gpu.h
%C%_0314_threads_t_SOURCES   = %D%/0314-threads.c $(on_gpu)
%C%_0317_host_time_t_SOURCES = %D%/0317-host-time.c $(on_gpu)

# Kernels for the tests, in $(QUIRE_BUILD)/t.
check_DATA = %D%/foreign.fatbin
%D%/foreign.fatbin: %D%/foreign.cu config.h
	@$(MKDIR_P) $(@D)
	$(AM_V_NVCC)$(NVCC) -std=c++17 $(CUDA_GENCODE) $(NVCCFLAGS) -fatbin -o $@ $(srcdir)/%D%/foreign.cu
endif
script_tests += \
	%D%/0302-cuda.lua \
	%D%/0310-graphs.lua \
	%D%/0311-workspace.lua \
	%D%/0312-large.lua \
	%D%/0313-streams.lua \
	%D%/0315-host-time.lua \
	%D%/0316-splits.lua \
	%D%/0318-devices.lua
EXTRA_DIST += %D%/foreign.cu %D%/gpu.lua
CLEANFILES += %D%/foreign.fatbin

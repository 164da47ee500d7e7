# The C library.
#
# To add a source: append it (and its header) to libinternal_la_SOURCES, or to the HAVE_CUDA list.
# libinternal.la holds every object; libquire.la is the same with only quire_* visible, so a test of an
# internal function links libinternal.la and a test of the public face libquire.la (see t/local.mk).
#
# To give a file flags of its own, say -mavx512f, make it a library of its own:
#   noinst_LTLIBRARIES    += libavx512.la
#   libavx512_la_SOURCES   = %D%/cpu/avx512.c
#   libavx512_la_CFLAGS    = $(AM_CFLAGS) -mavx512f
#   libinternal_la_LIBADD += libavx512.la
# SPDX-License-Identifier: Apache-2.0
include_HEADERS += %D%/quire.h

noinst_LTLIBRARIES += libinternal.la
libinternal_la_LIBADD  =
libinternal_la_SOURCES = \
	%D%/quire.h \
	%D%/args.c \
	%D%/args.h \
	%D%/argument.c \
	%D%/argument.h \
	%D%/backend.h \
	%D%/contract.c \
	%D%/contract.h \
	%D%/decode.c \
	%D%/dtype.c \
	%D%/dtype.h \
	%D%/info.c \
	%D%/measure.c \
	%D%/metadata.c \
	%D%/metadata.h \
	%D%/problem.h \
	%D%/status.c \
	%D%/status.h \
	%D%/tensor.c \
	%D%/tensor.h

# The CPU backend. A kernel_*.c sets its own instruction set, and is empty on other processors.
libinternal_la_SOURCES += \
	%D%/cpu/amx.h \
	%D%/cpu/amx_score.h \
	%D%/cpu/amx_weigh.h \
	%D%/cpu/decode.c \
	%D%/cpu/fp8_avx512.h \
	%D%/cpu/kernel.h \
	%D%/cpu/kernel_ahead.h \
	%D%/cpu/kernel_amx.c \
	%D%/cpu/kernel_avx2.c \
	%D%/cpu/kernel_avx512.c \
	%D%/cpu/kernel_avx512bf16.c \
	%D%/cpu/kernel_blocks.h \
	%D%/cpu/kernel_exp2.h \
	%D%/cpu/kernel_hold.h \
	%D%/cpu/kernel_impl.h \
	%D%/cpu/kernel_neon.c \
	%D%/cpu/kernel_portable.c \
	%D%/cpu/kernel_query.h \
	%D%/cpu/kernel_score.h \
	%D%/cpu/kernel_softmax.h \
	%D%/cpu/kernel_stage.h \
	%D%/cpu/kernel_weigh.h \
	%D%/cpu/plan.c \
	%D%/cpu/plan.h \
	%D%/cpu/read.c \
	%D%/cpu/reference.c \
	%D%/cpu/reference.h \
	%D%/cpu/round.h \
	%D%/cpu/select.c \
	%D%/cpu/select.h \
	%D%/cpu/vec_avx512.h \
	%D%/cpu/verdict.c

# CUDA: the driver side in C, and the kernels of kernels/local.mk.
if HAVE_CUDA
libinternal_la_SOURCES += \
	%D%/cuda/arch.c \
	%D%/cuda/arch.h \
	%D%/cuda/device.c \
	%D%/cuda/device.h \
	%D%/cuda/driver.c \
	%D%/cuda/driver.h \
	%D%/cuda/fatbins.c \
	%D%/cuda/fatbins.h \
	%D%/cuda/launch.c \
	%D%/cuda/tensor_map.c \
	%D%/cuda/tensor_map.h \
	%D%/policy.c \
	%D%/policy.h \
	$(cuda_sources)
endif
EXTRA_DIST += %D%/cuda/embed.S

lib_LTLIBRARIES += libquire.la
libquire_la_SOURCES =
libquire_la_LIBADD  = libinternal.la
libquire_la_LDFLAGS = -version-info $(QUIRE_ABI) -no-undefined
if VERSION_SCRIPT
libquire_la_LDFLAGS += -Wl,--version-script,$(srcdir)/%D%/libquire.map
# OpenMP's threads outlive a dlclose, and must find their code where they left it.
libquire_la_LDFLAGS += -Wl,-z,nodelete
# A function that no file defines fails the link, not the first call. The sanitizers come with the program.
if !SANITIZERS
libquire_la_LDFLAGS += -Wl,-z,defs
endif
endif
EXTRA_libquire_la_DEPENDENCIES = $(srcdir)/%D%/libquire.map
EXTRA_DIST += %D%/libquire.map

# CUDA C, one fatbin per .cu, embedded in the library by lib/cuda/embed.S.
#
# To add a kernel file NAME.cu: append it to cuda_sources and _(NAME) to FATBINS in lib/cuda/fatbins.h.
# Headers go to cuda_headers. A plain C header shared with lib/ can be in either folder: nvcc sees both.
# SPDX-License-Identifier: Apache-2.0
cuda_sources = \
	%D%/read.cu \
	%D%/decode_fp16_d64.cu \
	%D%/decode_fp16_d128.cu \
	%D%/decode_fp16_d256.cu \
	%D%/decode_bf16_d64.cu \
	%D%/decode_bf16_d128.cu \
	%D%/decode_bf16_d256.cu \
	%D%/decode_fp8e4m3_d64.cu \
	%D%/decode_fp8e4m3_d128.cu \
	%D%/decode_fp8e4m3_d256.cu
cuda_headers = \
	%D%/compute.cuh \
	%D%/convert.cuh \
	%D%/decode.cuh \
	%D%/items.cuh \
	%D%/layout.h \
	%D%/load.cuh \
	%D%/many.cuh \
	%D%/many_item.cuh \
	%D%/merge.cuh \
	%D%/params.h \
	%D%/ptx.cuh \
	%D%/schedule.cuh \
	%D%/swapab.cuh \
	%D%/swapab_item.cuh \
	%D%/traits.cuh \
	%D%/variants.h \
	%D%/wgmma.cuh
cuda_objects = $(cuda_sources:.cu=.lo)
EXTRA_DIST  += $(cuda_headers)

AM_V_NVCC    = $(am__v_NVCC_@AM_V@)
am__v_NVCC_  = $(am__v_NVCC_@AM_DEFAULT_V@)
am__v_NVCC_0 = @echo "  NVCC    " $@;
am__v_NVCC_1 =

# One rule makes fatbin and object, as gcc's dependencies do not see what .incbin reads. -MP: a header
# that is renamed does not break the next make.
SUFFIXES = .cu
.cu.lo:
	@$(MKDIR_P) $(@D)
	$(AM_V_NVCC)$(NVCC) -std=c++17 $(CUDA_GENCODE) -I$(top_srcdir)/kernels -I$(top_srcdir)/lib $(NVCCFLAGS) \
	  -MD -MP -MT $@ -MF $*.d -fatbin -o $*.fatbin $<
	$(AM_V_at)$(LTCOMPILE) -DBLOB_NAME=$(*F) '-DBLOB_FILE="$*.fatbin"' -c -o $@ $(top_srcdir)/lib/cuda/embed.S

# config.h changes with --with-cuda-arch.
$(cuda_objects): $(top_srcdir)/lib/cuda/embed.S config.h
if HAVE_CUDA
-include $(cuda_sources:.cu=.d)
endif
MOSTLYCLEANFILES += $(cuda_sources:.cu=.fatbin)
DISTCLEANFILES   += $(cuda_sources:.cu=.d)

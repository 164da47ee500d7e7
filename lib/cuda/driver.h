/* driver.h - the CUDA driver, opened at run time
 * SPDX-License-Identifier: Apache-2.0
 *
 * Nothing links to libcuda, so the library loads where there is no driver.  cuda.h lends its types
 * only: its macros give functions new names from toolkit to toolkit (cuMemFree is cuMemFree_v2,
 * cuEventElapsedTime became _v2 in 12.8), and a name that the toolkit knows may be missing from the
 * driver.  So the list below states the exported names and their parameters itself. */
#ifndef QUIRE_CUDA_DRIVER_H
#define QUIRE_CUDA_DRIVER_H

#include <cuda.h>
#include <stdbool.h>

#include "quire.h"

/* _(need, name, parameters): need is `required` (all of CUDA 12.0) or `optional` (NULL if the driver
 * lacks it).  Every function returns CUresult. */
#define DRIVER_FUNCTIONS(_)                                                                        \
    _(required, cuInit, (unsigned flags))                                                          \
    _(required, cuGetErrorName, (CUresult error, const char **name))                               \
    _(required, cuGetErrorString, (CUresult error, const char **text))                             \
    _(required, cuDeviceGetCount, (int *count))                                                    \
    _(required, cuDeviceGet, (CUdevice *device, int ordinal))                                      \
    _(required, cuDeviceGetName, (char *name, int size, CUdevice device))                          \
    _(required, cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device))                             \
    _(required, cuDeviceGetAttribute, (int *value, CUdevice_attribute which, CUdevice device))     \
    _(required, cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device))                   \
    _(required, cuCtxGetCurrent, (CUcontext *context))                                             \
    _(required, cuCtxGetDevice, (CUdevice *device))                                                \
    _(required, cuCtxPushCurrent_v2, (CUcontext context))                                          \
    _(required, cuCtxPopCurrent_v2, (CUcontext *context))                                          \
    _(required, cuLibraryLoadData, (CUlibrary *library, const void *code,                          \
        CUjit_option *jit_options, void **jit_values, unsigned jit_count,                          \
        CUlibraryOption *options, void **values, unsigned count))                                  \
    _(required, cuLibraryGetKernel, (CUkernel *kernel, CUlibrary library, const char *name))       \
    _(required, cuKernelGetAttribute, (int *value, CUfunction_attribute which, CUkernel kernel,    \
        CUdevice device))                                                                          \
    _(required, cuKernelSetAttribute, (CUfunction_attribute which, int value, CUkernel kernel,     \
        CUdevice device))                                                                          \
    _(required, cuKernelGetFunction, (CUfunction *function, CUkernel kernel))                      \
    _(optional, cuFuncLoad, (CUfunction function))               /* 12.4: loads before a launch */ \
    _(required, cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function,              \
        void **parameters, void **extra))                                                          \
    _(required, cuTensorMapEncodeTiled, (CUtensorMap *map, CUtensorMapDataType type,               \
        cuuint32_t rank, void *address, const cuuint64_t *extent, const cuuint64_t *stride,        \
        const cuuint32_t *box, const cuuint32_t *element_stride, CUtensorMapInterleave interleave, \
        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,                              \
        CUtensorMapFloatOOBfill fill))                                                             \
    _(required, cuMemcpyDtoHAsync_v2, (void *host, CUdeviceptr from, size_t bytes,                 \
        CUstream stream))                                                                          \
    _(required, cuStreamGetCtx, (CUstream stream, CUcontext *context))                             \
    _(required, cuStreamSynchronize, (CUstream stream))                                            \
    _(required, cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status))             \
    _(required, cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *mode))

struct driver {
#define DRIVER_FIELD(need, name, parameters) CUresult(CUDAAPI *name) parameters;
    DRIVER_FUNCTIONS(DRIVER_FIELD)
#undef DRIVER_FIELD
};

/* Opens and initialises the driver in the process's first call, from any thread; a failure stays. NULL
 * if there is none that works: *problem is then a sentence, and *absent is true if the machine has no
 * driver or no GPU, which is no error for those who only ask how many devices there are. */
const struct driver *driver_open(const char **problem, bool *absent);

/* Puts the driver's name and text of `result` into the thread's message, after what was being done:
 * "cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE (invalid argument)".  A GPU for which the library holds
 * no code is UNSUPPORTED, all else DEVICE. */
quire_status driver_fail(const struct driver *driver, CUresult result, const char *doing);

/* Calls one driver function and leaves the enclosing function with driver_fail's status if it fails. */
#define DRIVER_CALL(driver, name, ...)                                                             \
    do {                                                                                           \
        const CUresult driver_result_ = (driver)->name(__VA_ARGS__);                               \
        if (driver_result_ != CUDA_SUCCESS)                                                        \
            return driver_fail((driver), driver_result_, #name);                                   \
    } while (0)

#endif

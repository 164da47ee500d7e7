/* libcuda.c - a CUDA driver without a GPU, for what can be tested without one
 * SPDX-License-Identifier: Apache-2.0
 *
 * Device memory is host memory and copies are real; kernels do not run, but their launches are kept to be
 * looked at. Contexts, captures and their rules are as the driver's, as far as the library depends on them:
 * a call that a capture forbids fails and spoils it. A test loads it by its path before anything asks for
 * libcuda.so.1: its soname is the same, so the dynamic linker then has it already. fake_* tell what happened.
 *
 *   FAKE_CUDA_DEVICES     number of devices (default 2)
 *   FAKE_CUDA_CAPABILITY  of all of them (default 90)
 *   FAKE_CUDA_FAIL        FUNCTION:ERROR, a function that fails with that number */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>

#include <cuda.h>

#define EXPORT __attribute__((visibility("default")))

enum { MAX_DEVICES = 8, MAX_DEPTH = 16, MAX_NODES = 4096 };

struct CUctx_st {
    int device;
};
struct CUstream_st {
    struct CUctx_st *context;
    struct CUgraph_st *capture; /* being recorded, or NULL */
    bool spoilt;
};
struct CUgraphNode_st {
    CUgraphNodeType type;
};
struct CUgraph_st {
    int count;
    struct CUgraphNode_st nodes[MAX_NODES];
};

static struct CUctx_st primaries[MAX_DEVICES];
static _Thread_local struct CUctx_st *stack[MAX_DEPTH];
static _Thread_local int depth;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static struct CUstream_st *capturing; /* one at a time is all that the tests need */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- what tests ask ------------------------------------------------------------------------------- */

#define MAX_NAMES 128
static struct {
    const char *name;
    long count;
} calls[MAX_NAMES];
static struct fake_launch {
    CUfunction function;
    unsigned grid, block, shared;
    CUstream stream;
    CUcontext context;
    bool programmatic;
    unsigned char parameters[1024];
} last_launch;
static size_t parameter_bytes = sizeof last_launch.parameters;

EXPORT long fake_calls(const char *name);
EXPORT long fake_calls(const char *name)
{
    long count = 0;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_NAMES && calls[i].name; i++)
        if (strcmp(calls[i].name, name) == 0)
            count = calls[i].count;
    pthread_mutex_unlock(&lock);
    return count;
}

/* Calls of all functions. */
EXPORT long fake_all_calls(void);
EXPORT long fake_all_calls(void)
{
    long count = 0;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_NAMES && calls[i].name; i++)
        count += calls[i].count;
    pthread_mutex_unlock(&lock);
    return count;
}

EXPORT const struct fake_launch *fake_last_launch(void);
EXPORT const struct fake_launch *fake_last_launch(void) { return &last_launch; }

/* How many bytes of the kernel's one parameter to keep. */
EXPORT void fake_set_parameter_bytes(size_t bytes);
EXPORT void fake_set_parameter_bytes(size_t bytes) { parameter_bytes = bytes; }

static CUresult begin(const char *name)
{
    const char *fail = getenv("FAKE_CUDA_FAIL");
    const size_t length = strlen(name);
    int i = 0;

    pthread_mutex_lock(&lock);
    while (calls[i].name && strcmp(calls[i].name, name) != 0)
        i++;
    if (i == MAX_NAMES - 1)
        abort();
    calls[i].name = name;
    calls[i].count++;
    pthread_mutex_unlock(&lock);
    if (fail && strncmp(fail, name, length) == 0 && fail[length] == ':')
        return (CUresult)atoi(fail + length + 1);
    return CUDA_SUCCESS;
}

#define BEGIN(name)                                \
    do {                                           \
        const CUresult result_ = begin(name);      \
        if (result_ != CUDA_SUCCESS)               \
            return result_;                        \
    } while (0)

static struct CUctx_st *current(void) { return depth ? stack[depth - 1] : NULL; }

/* For calls that wait or allocate: forbidden while anything is captured, except to a relaxed thread. */
static CUresult unsafe(void)
{
    if (capturing && thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
        capturing->spoilt = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

#define UNSAFE(name)                               \
    do {                                           \
        BEGIN(name);                               \
        const CUresult result_ = unsafe();         \
        if (result_ != CUDA_SUCCESS)               \
            return result_;                        \
    } while (0)

/* True if the work was recorded instead of run. */
static CUresult enqueue(CUstream stream, CUgraphNodeType type, bool *recorded)
{
    *recorded = false;
    if (!current())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stream && stream->context != current())
        return CUDA_ERROR_INVALID_HANDLE;
    if (!stream && capturing) {
        capturing->spoilt = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream && stream->capture) {
        if (stream->capture->count == MAX_NODES)
            abort();
        stream->capture->nodes[stream->capture->count++].type = type;
        *recorded = true;
    }
    return CUDA_SUCCESS;
}

/* ---- the driver ----------------------------------------------------------------------------------- */

static int setting(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int device_total(void) { return setting("FAKE_CUDA_DEVICES", 2); }

EXPORT CUresult cuInit(unsigned flags)
{
    (void)flags;
    BEGIN("cuInit");
    return device_total() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
    *name = error == CUDA_ERROR_NO_BINARY_FOR_GPU ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
            : error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : error == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
                                                               : NULL;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    const char *name;

    cuGetErrorName(error, &name);
    *text = name ? "words of the fake driver" : NULL;
    return name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    BEGIN("cuDeviceGetCount");
    *count = device_total();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    BEGIN("cuDeviceGet");
    *device = ordinal;
    return ordinal >= 0 && ordinal < device_total() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    BEGIN("cuDeviceGetName");
    snprintf(name, (size_t)size, "Fake GPU %d", device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    (void)device;
    BEGIN("cuDeviceTotalMem_v2");
    *bytes = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    const int capability = setting("FAKE_CUDA_CAPABILITY", 90);

    (void)device;
    BEGIN("cuDeviceGetAttribute");
    switch ((int)which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = capability / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = capability % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = capability >= 90 ? 232448 : 101376; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = capability >= 90 ? 233472 : 102400; break;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 60 << 20; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    BEGIN("cuDevicePrimaryCtxRetain");
    primaries[device].device = device;
    *context = &primaries[device];
    return CUDA_SUCCESS;
}

/* The parameter that 13.0 put in front is not looked at by any test. */
EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    (void)flags;
    *context = calloc(1, sizeof **context);
    (*context)->device = device;
    stack[depth++] = *context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    BEGIN("cuCtxGetCurrent");
    *context = current();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    BEGIN("cuCtxGetDevice");
    if (!current())
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = current()->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    BEGIN("cuCtxPushCurrent_v2");
    if (depth == MAX_DEPTH)
        abort();
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    BEGIN("cuCtxPopCurrent_v2");
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack[--depth];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    UNSAFE("cuCtxSynchronize");
    return CUDA_SUCCESS;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    const CUstreamCaptureMode before = thread_mode;

    BEGIN("cuThreadExchangeStreamCaptureMode");
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* A library and its kernels are told apart by their addresses alone. */
EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options, void **values,
                                  unsigned count, CUlibraryOption *library_options, void **library_values,
                                  unsigned library_count)
{
    (void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count;
    BEGIN("cuLibraryLoadData");
    if (capturing && thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
        capturing->spoilt = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    *library = (CUlibrary)(uintptr_t)code;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    (void)library;
    BEGIN("cuLibraryUnload");
    return CUDA_SUCCESS;
}

/* The name, kept so that a launch can be recognised by it. */
EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    (void)library;
    BEGIN("cuLibraryGetKernel");
    *kernel = (CUkernel)(void *)strdup(name);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetAttribute(int *value, CUfunction_attribute which, CUkernel kernel, CUdevice device)
{
    (void)which, (void)kernel, (void)device;
    BEGIN("cuKernelGetAttribute");
    *value = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel kernel, CUdevice device)
{
    (void)which, (void)value, (void)kernel, (void)device;
    BEGIN("cuKernelSetAttribute");
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    UNSAFE("cuKernelGetFunction");
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncLoad(CUfunction function)
{
    (void)function;
    UNSAFE("cuFuncLoad");
    return CUDA_SUCCESS;
}

EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                       const cuuint64_t *extent, const cuuint64_t *stride, const cuuint32_t *box,
                                       const cuuint32_t *element_stride, CUtensorMapInterleave interleave,
                                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                       CUtensorMapFloatOOBfill fill)
{
    BEGIN("cuTensorMapEncodeTiled");
    (void)interleave, (void)promotion, (void)fill;
    /* the driver's own rules for what the library encodes */
    if ((uintptr_t)map % 64 || (uintptr_t)address % 16 || rank < 3 || rank > 5)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < rank; i++)
        if (!extent[i] || extent[i] > (cuuint64_t)1 << 32 || !box[i] || box[i] > 256 || element_stride[i] != 1 ||
            (i && (stride[i - 1] % 16 || stride[i - 1] >= (cuuint64_t)1 << 40)))
            return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof *map);
    map->opaque[0] = (cuuint64_t)(uintptr_t)address;
    map->opaque[1] = stride[rank - 2];
    map->opaque[2] = extent[rank - 1];
    map->opaque[3] = (cuuint64_t)type << 32 | (cuuint64_t)swizzle;
    map->opaque[4] = box[1];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    bool recorded;
    CUresult result;

    (void)extra;
    BEGIN("cuLaunchKernelEx");
    result = enqueue(config->hStream, CU_GRAPH_NODE_TYPE_KERNEL, &recorded);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    last_launch.function = function;
    last_launch.grid = config->gridDimX;
    last_launch.block = config->blockDimX;
    last_launch.shared = config->sharedMemBytes;
    last_launch.stream = config->hStream;
    last_launch.context = current();
    last_launch.programmatic = false;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            last_launch.programmatic = config->attrs[i].value.programmaticStreamSerializationAllowed;
    memcpy(last_launch.parameters, parameters[0], parameter_bytes);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra)
{
    bool recorded;

    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)parameters;
    (void)extra;
    BEGIN("cuLaunchKernel");
    return enqueue(stream, CU_GRAPH_NODE_TYPE_KERNEL, &recorded);
}

EXPORT CUresult cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr pointer);
EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
    UNSAFE("cuMemGetInfo_v2");
    *available = *total = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

/* Which memory is a device's: the allocations that live. */
static struct {
    char *start;
    size_t bytes;
    int device;
} memory[MAX_NODES];

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    UNSAFE("cuMemAlloc_v2");
    char *start = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!start)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (memory[i].start)
        if (++i == MAX_NODES)
            abort();
    memory[i].start = start, memory[i].bytes = bytes, memory[i].device = current()->device;
    pthread_mutex_unlock(&lock);
    *pointer = (CUdeviceptr)(uintptr_t)start;
    return CUDA_SUCCESS;
}

static int find(const char *p)
{
    for (int i = 0; i < MAX_NODES; i++)
        if (memory[i].start && p >= memory[i].start && p < memory[i].start + memory[i].bytes)
            return i;
    return -1;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    char *start = (char *)(uintptr_t)pointer;
    int i;

    UNSAFE("cuMemFree_v2");
    pthread_mutex_lock(&lock);
    i = find(start);
    if (i >= 0 && memory[i].start == start)
        memory[i].start = NULL;
    else
        i = -1;
    pthread_mutex_unlock(&lock);
    if (i < 0)
        return CUDA_ERROR_INVALID_VALUE;
    free(start);
    return CUDA_SUCCESS;
}

/* Allocations that nobody has freed. */
EXPORT long fake_allocations(void);
EXPORT long fake_allocations(void)
{
    long count = 0;

    for (int i = 0; i < MAX_NODES; i++)
        count += memory[i].start != NULL;
    return count;
}

EXPORT CUresult cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr pointer)
{
    int i;

    (void)which;
    BEGIN("cuPointerGetAttribute");
    pthread_mutex_lock(&lock);
    i = find((const char *)(uintptr_t)pointer);
    if (i >= 0)
        *(int *)value = memory[i].device;
    pthread_mutex_unlock(&lock);
    return i < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult copy(void *to, const void *from, size_t bytes, CUstream stream)
{
    bool recorded;
    const CUresult result = enqueue(stream, CU_GRAPH_NODE_TYPE_MEMCPY, &recorded);

    if (result == CUDA_SUCCESS && !recorded)
        memmove(to, from, bytes);
    return result;
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    BEGIN("cuMemcpyAsync");
    return copy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes, stream);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    BEGIN("cuMemcpyDtoHAsync_v2");
    return copy(to, (const void *)(uintptr_t)from, bytes, stream);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
    bool recorded;
    CUresult result;

    BEGIN("cuMemsetD8Async");
    result = enqueue(stream, CU_GRAPH_NODE_TYPE_MEMSET, &recorded);
    if (result == CUDA_SUCCESS && !recorded)
        memset((void *)(uintptr_t)to, value, bytes);
    return result;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    (void)flags;
    UNSAFE("cuStreamCreate");
    *stream = calloc(1, sizeof **stream);
    (*stream)->context = current();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    BEGIN("cuStreamGetCtx");
    *context = stream->context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    BEGIN("cuStreamDestroy_v2");
    free(stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    UNSAFE("cuStreamSynchronize");
    if (stream && stream->capture) {
        stream->spoilt = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamQuery(CUstream stream)
{
    (void)stream;
    UNSAFE("cuStreamQuery");
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    BEGIN("cuStreamIsCapturing");
    if (!stream && capturing)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = stream && stream->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    (void)mode;
    BEGIN("cuStreamBeginCapture_v2");
    if (!stream || capturing)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream->capture = calloc(1, sizeof *stream->capture);
    stream->spoilt = false;
    capturing = stream;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    BEGIN("cuStreamEndCapture");
    if (stream != capturing)
        return CUDA_ERROR_ILLEGAL_STATE;
    *graph = stream->capture;
    stream->capture = NULL;
    capturing = NULL;
    if (!stream->spoilt)
        return CUDA_SUCCESS;
    free(*graph);
    *graph = NULL;
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    BEGIN("cuStreamWaitEvent");
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    BEGIN("cuEventCreate");
    *event = malloc(1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    BEGIN("cuEventDestroy_v2");
    free(event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    (void)event, (void)stream;
    BEGIN("cuEventRecord");
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    (void)event;
    UNSAFE("cuEventSynchronize");
    return CUDA_SUCCESS;
}

#undef cuEventElapsedTime
EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent stop);
EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent stop)
{
    (void)start, (void)stop;
    BEGIN("cuEventElapsedTime");
    *milliseconds = 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    BEGIN("cuGraphGetNodes");
    for (int i = 0; nodes && i < graph->count; i++)
        nodes[i] = &graph->nodes[i];
    *count = (size_t)graph->count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    BEGIN("cuGraphNodeGetType");
    *type = node->type;
    return CUDA_SUCCESS;
}

#undef cuGraphInstantiateWithFlags
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)graph, (void)flags;
    UNSAFE("cuGraphInstantiateWithFlags");
    *exec = malloc(1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    (void)exec, (void)stream;
    BEGIN("cuGraphLaunch");
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    BEGIN("cuGraphExecDestroy");
    free(exec);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    BEGIN("cuGraphDestroy");
    free(graph);
    return CUDA_SUCCESS;
}

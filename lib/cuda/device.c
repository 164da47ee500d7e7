/* device.c - what the library knows and keeps of each GPU
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "device.h"
#include "fatbins.h"
#include "status.h"

/* ---- what is kept of a kernel -------------------------------------------------------------------- */

/* Contexts of a device in which a kernel is known to be loaded. One more than these only makes device_kernel
 * ask the driver again; so does no harm a context that was destroyed and whose address came back: the driver
 * then loads the kernel by itself when it is launched. */
enum { READY_CONTEXTS = 4 };

struct ready_kernel {
    CUkernel kernel;
    CUcontext contexts[READY_CONTEXTS]; /* written atomically after `kernel` */
    unsigned next;
};

/* ---- devices -------------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct device *devices;
static int device_total;
static quire_status trouble; /* why there are no devices; trouble_text says it in words */
static char trouble_text[256];
static bool absent;          /* the machine has no driver or no GPU */

static quire_status look_at(const struct driver *driver, int ordinal, struct device *device)
{
    int major, minor;
    const struct {
        CUdevice_attribute which;
        int *to;
    } attributes[] = {
        { CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major },
        { CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor },
        { CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &device->sm_count },
        { CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &device->shared_per_block },
        { CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &device->l2_bytes },
    };

    device->driver = driver;
    device->ordinal = ordinal;
    device->ready = calloc((size_t)policy_variants(), sizeof *device->ready);
    if (!device->ready)
        return quire_fail(QUIRE_ERROR_MEMORY, "no memory for the kernels of cuda:%d", ordinal);
    DRIVER_CALL(driver, cuDeviceGet, &device->handle, ordinal);
    DRIVER_CALL(driver, cuDeviceGetName, device->name, sizeof device->name, device->handle);
    DRIVER_CALL(driver, cuDeviceTotalMem_v2, &device->memory_bytes, device->handle);
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        DRIVER_CALL(driver, cuDeviceGetAttribute, attributes[i].to, attributes[i].which, device->handle);
    device->capability = major * 10 + minor;
    device->code = arch_choose(CUDA_ARCH_LIST, device->capability);
    if (!device->code.built_for)
        snprintf(device->problem, sizeof device->problem,
                 "no kernel was built for a %s of compute capability %d.%d; this library has %s",
                 device->name, major, minor, CUDA_ARCH_LIST);
    return QUIRE_OK;
}

static quire_status look_at_all(const struct driver *driver)
{
    quire_status status;
    int count;

    DRIVER_CALL(driver, cuDeviceGetCount, &count);
    devices = calloc(count > 0 ? (size_t)count : 1, sizeof *devices);
    if (!devices)
        return quire_fail(QUIRE_ERROR_MEMORY, "no memory for the state of %d CUDA devices", count);
    for (int i = 0; i < count; i++) {
        status = look_at(driver, i, &devices[i]);
        if (status != QUIRE_OK)
            return status;
    }
    device_total = count;
    return QUIRE_OK;
}

static void look(void)
{
    const char *problem;
    const struct driver *driver = driver_open(&problem, &absent);

    trouble = driver ? look_at_all(driver) : QUIRE_ERROR_DEVICE;
    if (trouble != QUIRE_OK)
        snprintf(trouble_text, sizeof trouble_text, "%s", driver ? quire_last_error() : problem);
}

quire_status device_count(int *count)
{
    pthread_once(&once, look);
    if (trouble != QUIRE_OK && !absent)
        return quire_fail(trouble, "%s", trouble_text);
    *count = device_total;
    return QUIRE_OK;
}

quire_status device_get(int ordinal, struct device **device)
{
    pthread_once(&once, look);
    if (trouble != QUIRE_OK)
        return quire_fail(trouble, "device cuda:%d: %s", ordinal, trouble_text);
    if (ordinal < 0 || ordinal >= device_total)
        return quire_fail(QUIRE_ERROR_DEVICE, "device cuda:%d: this machine has %d CUDA device%s, counted from 0",
                          ordinal, device_total, device_total == 1 ? "" : "s");
    *device = &devices[ordinal];
    return QUIRE_OK;
}

quire_status device_check(const struct device *device)
{
    if (device->code.built_for)
        return QUIRE_OK;
    return quire_fail(QUIRE_ERROR_UNSUPPORTED, "device cuda:%d: %s", device->ordinal, device->problem);
}

/* ---- contexts ------------------------------------------------------------------------------------- */

/* Contexts and libraries are loaded one at a time; what is loaded is then read without the lock. */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static quire_status primary_context(struct device *device, CUcontext *context)
{
    CUresult result = CUDA_SUCCESS;

    *context = __atomic_load_n(&device->primary, __ATOMIC_ACQUIRE);
    if (*context)
        return QUIRE_OK;
    pthread_mutex_lock(&loading);
    *context = device->primary;
    if (!*context) {
        result = device->driver->cuDevicePrimaryCtxRetain(context, device->handle);
        if (result == CUDA_SUCCESS)
            __atomic_store_n(&device->primary, *context, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&loading);
    if (result != CUDA_SUCCESS)
        return driver_fail(device->driver, result, "cuDevicePrimaryCtxRetain");
    return QUIRE_OK;
}

static int ordinal_of(CUdevice handle)
{
    int i = 0;

    while (i < device_total && devices[i].handle != handle)
        i++;
    return i;
}

static quire_status enter_stream(struct device *device, CUstream stream, struct device_scope *scope)
{
    const struct driver *driver = device->driver;
    const CUcontext current = scope->context;
    CUdevice handle;
    CUresult result;

    DRIVER_CALL(driver, cuStreamGetCtx, stream, &scope->context);
    if (scope->context != current) {
        DRIVER_CALL(driver, cuCtxPushCurrent_v2, scope->context);
        scope->pushed = true;
    }
    result = driver->cuCtxGetDevice(&handle);
    if (result == CUDA_SUCCESS && handle == device->handle)
        return QUIRE_OK;
    device_leave(device, scope);
    if (result != CUDA_SUCCESS)
        return driver_fail(driver, result, "cuCtxGetDevice");
    return quire_fail(QUIRE_ERROR_TYPE, "stream: expected one of the tensors' device, cuda:%d, got one of cuda:%d",
                      device->ordinal, ordinal_of(handle));
}

quire_status device_enter(struct device *device, CUstream stream, struct device_scope *scope)
{
    const struct driver *driver = device->driver;
    CUdevice handle;
    quire_status status;

    DRIVER_CALL(driver, cuCtxGetCurrent, &scope->context);
    scope->pushed = false;
    if (stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD)
        return enter_stream(device, stream, scope);
    /* A current context that has been destroyed has no device; it is as good as another device's. */
    if (scope->context && driver->cuCtxGetDevice(&handle) == CUDA_SUCCESS && handle == device->handle)
        return QUIRE_OK;
    status = primary_context(device, &scope->context);
    if (status != QUIRE_OK)
        return status;
    DRIVER_CALL(driver, cuCtxPushCurrent_v2, scope->context);
    scope->pushed = true;
    return QUIRE_OK;
}

void device_leave(struct device *device, const struct device_scope *scope)
{
    CUcontext popped;

    if (scope->pushed)
        device->driver->cuCtxPopCurrent_v2(&popped);
}

/* ---- kernels -------------------------------------------------------------------------------------- */

static CUlibrary libraries[FATBIN_COUNT]; /* under `loading` */

static quire_status load_kernel(struct device *device, const struct launch_plan *plan, CUkernel *kernel)
{
    const struct driver *driver = device->driver;
    const struct fatbin *fatbin = fatbin_find(plan->image);
    CUlibrary *library;
    CUfunction function;
    int own_shared;

    if (!fatbin)
        return quire_fail(QUIRE_ERROR_UNSUPPORTED, "this library was built without %s", plan->image);
    library = &libraries[fatbin - fatbins];
    if (!*library) {
        CUlibrary loaded = NULL;
        DRIVER_CALL(driver, cuLibraryLoadData, &loaded, fatbin->data, NULL, NULL, 0, NULL, NULL, 0);
        *library = loaded;
    }
    DRIVER_CALL(driver, cuLibraryGetKernel, kernel, *library, plan->kernel);
    /* Always the same value: two threads that come here at once cannot lower each other's. */
    DRIVER_CALL(driver, cuKernelGetAttribute, &own_shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, *kernel,
                device->handle);
    DRIVER_CALL(driver, cuKernelSetAttribute, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                device->shared_per_block - own_shared, *kernel, device->handle);
    /* Drivers load lazily: a kernel that was never asked for is loaded by its first launch. */
    DRIVER_CALL(driver, cuKernelGetFunction, &function, *kernel);
    if (driver->cuFuncLoad)
        DRIVER_CALL(driver, cuFuncLoad, function);
    return QUIRE_OK;
}

static quire_status load_in_any_capture(struct device *device, const struct launch_plan *plan, CUkernel *kernel)
{
    const struct driver *driver = device->driver;
    /* Loading may allocate, which a capture in global or thread-local mode forbids the thread. */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    quire_status status;

    DRIVER_CALL(driver, cuThreadExchangeStreamCaptureMode, &mode);
    pthread_mutex_lock(&loading);
    status = load_kernel(device, plan, kernel);
    pthread_mutex_unlock(&loading);
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    return status;
}

quire_status device_kernel(struct device *device, const struct device_scope *scope, const struct launch_plan *plan,
                           CUkernel *kernel)
{
    struct ready_kernel *ready = &device->ready[plan->variant];
    quire_status status;

    for (int i = 0; i < READY_CONTEXTS; i++)
        if (__atomic_load_n(&ready->contexts[i], __ATOMIC_ACQUIRE) == scope->context) {
            *kernel = __atomic_load_n(&ready->kernel, __ATOMIC_RELAXED);
            return QUIRE_OK;
        }
    status = load_in_any_capture(device, plan, kernel);
    if (status == QUIRE_OK) {
        const unsigned at = __atomic_fetch_add(&ready->next, 1, __ATOMIC_RELAXED) % READY_CONTEXTS;

        __atomic_store_n(&ready->kernel, *kernel, __ATOMIC_RELAXED); /* the same whoever loads it */
        __atomic_store_n(&ready->contexts[at], scope->context, __ATOMIC_RELEASE);
    } else if (status == QUIRE_ERROR_UNSUPPORTED) {
        char words[256];

        snprintf(words, sizeof words, "%s", quire_last_error());
        return quire_fail(status, "device cuda:%d: a %s of compute capability %d.%d cannot run this library's %s: %s",
                          device->ordinal, device->name, device->capability / 10, device->capability % 10,
                          CUDA_ARCH_LIST, words);
    }
    return status;
}

/* ---- lib/backend.h -------------------------------------------------------------------------------- */

quire_status cuda_count(int32_t *count)
{
    int found = 0;
    const quire_status status = device_count(&found);

    if (status == QUIRE_OK)
        *count = found;
    return status;
}

quire_status cuda_describe(int32_t device_id, quire_device_info *info)
{
    struct device *device;
    quire_status status = device_get(device_id, &device);

    if (status != QUIRE_OK)
        return status;
    info->memory_bytes = (int64_t)device->memory_bytes;
    info->cache_bytes = device->l2_bytes;
    info->compute_units = device->sm_count;
    info->capability = device->capability;
    snprintf(info->name, sizeof info->name, "%s", device->name);
    snprintf(info->kernels, sizeof info->kernels, "%s", device->code.name);
    snprintf(info->problem, sizeof info->problem, "%s", device->problem);
    return QUIRE_OK;
}

quire_status cuda_read_int32(DLDevice where, void *stream, int32_t *host, const int32_t *from, int64_t count)
{
    struct device *device;
    struct device_scope scope;
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result;
    const char *doing;
    quire_status status = device_get(where.device_id, &device);

    if (status == QUIRE_OK)
        status = device_enter(device, stream, &scope);
    if (status != QUIRE_OK)
        return status;
    /* Waiting for a stream under capture would spoil the capture, so look before touching it. */
    doing = "cuStreamIsCapturing";
    result = device->driver->cuStreamIsCapturing(stream, &capturing);
    if (result == CUDA_SUCCESS && capturing == CU_STREAM_CAPTURE_STATUS_NONE && count > 0) {
        doing = "cuMemcpyDtoHAsync";
        result = device->driver->cuMemcpyDtoHAsync_v2(host, (CUdeviceptr)(uintptr_t)from,
                                                      (size_t)count * sizeof *host, stream);
        if (result == CUDA_SUCCESS) {
            doing = "cuStreamSynchronize";
            result = device->driver->cuStreamSynchronize(stream);
        }
    }
    device_leave(device, &scope);
    if (result != CUDA_SUCCESS)
        return driver_fail(device->driver, result, doing);
    if (capturing != CU_STREAM_CAPTURE_STATUS_NONE)
        return quire_fail(QUIRE_ERROR_DEVICE,
                          "stream: is being captured, and the metadata can be read only outside a capture");
    return QUIRE_OK;
}

/* launch.c - one decode on a GPU: plan, kernel, tensor maps, launch
 * SPDX-License-Identifier: Apache-2.0
 *
 * After prepare a decode costs the driver one call beside those that find the context: nothing is
 * synchronised, allocated, set or copied, and no lock is taken. Whatever is kept between calls belongs to
 * a device and is the same for all threads and streams. */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "device.h"
#include "policy.h"
#include "status.h"
#include "tensor_map.h"

/* ---- the plan ------------------------------------------------------------------------------------- */

/* For tests, read once in a process: QUIRE_TEST_GRID=N takes at most N CTAs, so that items are split less
 * often, or each in more pieces (0: as without it); QUIRE_TEST_KERNELS=tma or async takes the kernels of GPUs that have
 * no better ones (wgmma: the best there are). */
static struct {
    pthread_once_t once;
    int max_grid;
    enum kernel_generation best;
    char problem[128]; /* a value that means nothing: "" if there is none */
} hooks = { .once = PTHREAD_ONCE_INIT };

static void read_hooks(void)
{
    static const char *const names[] = {
        [KERNELS_ASYNC] = "async", [KERNELS_TMA] = "tma", [KERNELS_WGMMA] = "wgmma"
    };
    const char *grid = getenv("QUIRE_TEST_GRID"), *kernels = getenv("QUIRE_TEST_KERNELS");
    char *end = "";
    const long ctas = grid ? strtol(grid, &end, 10) : 0;
    int best = KERNELS_WGMMA;

    if (grid && (end == grid || *end || ctas < 0 || ctas > INT32_MAX))
        snprintf(hooks.problem, sizeof hooks.problem,
                 "QUIRE_TEST_GRID: expected a number of CTAs, got \"%.32s\"", grid);
    hooks.max_grid = (int)ctas;
    while (kernels && best >= 0 && strcmp(kernels, names[best]) != 0)
        best--;
    if (best < 0)
        snprintf(hooks.problem, sizeof hooks.problem,
                 "QUIRE_TEST_KERNELS: expected wgmma, tma or async, got \"%.32s\"", kernels);
    hooks.best = best < 0 ? KERNELS_WGMMA : (enum kernel_generation)best;
}

static quire_status limits_of(DLDevice of, struct device **device, struct device_limits *limits)
{
    quire_status status = device_get(of.device_id, device);

    if (status == QUIRE_OK)
        status = device_check(*device);
    if (status != QUIRE_OK)
        return status;
    pthread_once(&hooks.once, read_hooks);
    if (*hooks.problem)
        return quire_fail(QUIRE_ERROR_UNSUPPORTED, "%s", hooks.problem);
    /* What was built for an older GPU has no kernels of the newer kind, even where the driver compiles it. */
    const struct arch *code = &(*device)->code;
    const enum kernel_generation there = code->built_for < 90                   ? KERNELS_ASYNC
                                         : code->built_for == 90 && code->exact ? KERNELS_WGMMA : KERNELS_TMA;
    *limits = (struct device_limits){
        .capability = (*device)->capability,
        .sm_count = (*device)->sm_count,
        .shared_bytes = (*device)->shared_per_block,
        .max_grid = hooks.max_grid,
        .kernels = there < hooks.best ? there : hooks.best,
    };
    return QUIRE_OK;
}

static quire_status plan_on_device(const struct problem *p, struct device **device, struct launch_plan *plan)
{
    struct device_limits limits;
    const quire_status status = limits_of(p->device, device, &limits);

    return status == QUIRE_OK ? policy_plan(p, &limits, plan) : status;
}

quire_status cuda_workspace_size(const struct problem *p, size_t *bytes)
{
    struct device *device;
    struct launch_plan plan;
    const quire_status status = plan_on_device(p, &device, &plan);

    if (status == QUIRE_OK)
        *bytes = plan.workspace_bytes;
    return status;
}

quire_status cuda_prepare(const struct problem *p)
{
    struct device *device;
    struct device_scope scope;
    struct launch_plan plan;
    CUkernel kernel;
    quire_status status = plan_on_device(p, &device, &plan);

    if (status == QUIRE_OK)
        status = device_enter(device, NULL, &scope);
    if (status != QUIRE_OK)
        return status;
    status = device_kernel(device, &scope, &plan, &kernel);
    device_leave(device, &scope);
    return status;
}

/* ---- the launch ----------------------------------------------------------------------------------- */

static quire_status encode_maps(const struct driver *driver, const struct problem *p, const struct launch_plan *plan,
                                struct decode_params *params)
{
    const int32_t elem_bytes = p->dtype == QUIRE_DTYPE_FP8E4M3 ? 1 : 2;
    quire_status status = QUIRE_OK;

    for (int i = 0; i < 2 * BOX_KINDS && status == QUIRE_OK; i++) {
        const int kind = i / 2, is_v = i % 2;
        const struct cache_shape shape = {
            .base = is_v ? p->v : p->k,
            .page_stride = is_v ? p->v_page_stride : p->k_page_stride,
            .pages = params->pages,
            .kv_heads = p->kv_heads,
            .page_size = p->page_size,
            .row_bytes = p->head_dim * elem_bytes,
            .elem_bytes = elem_bytes,
            .box_slots = plan->boxes[kind].slots,
            .box_panels = plan->boxes[kind].panels,
            .box_heads = plan->boxes[kind].heads,
        };
        if (shape.box_slots > 0)
            status = tensor_map_get(driver, &shape, &params->maps[kind][is_v]);
    }
    return status;
}

static quire_status launch(const struct device *device, CUkernel kernel, const struct launch_plan *plan,
                           void *params, CUstream stream)
{
    /* A launch may begin while the work before it ends: the kernel waits where it has to. Code built for GPUs that
     * know no such launches does not wait. */
    CUlaunchAttribute overlap = {
        .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        .value.programmaticStreamSerializationAllowed = 1,
    };
    const CUlaunchConfig config = {
        .gridDimX = (unsigned)plan->grid,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = (unsigned)plan->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = (unsigned)plan->shared_bytes,
        .hStream = stream,
        .attrs = &overlap,
        .numAttrs = device->code.built_for >= 90,
    };
    void *parameters[] = { params };

    /* A kernel stands for its function in whichever context is current. */
    DRIVER_CALL(device->driver, cuLaunchKernelEx, &config, (CUfunction)kernel, parameters, NULL);
    return QUIRE_OK;
}

quire_status cuda_decode(const struct problem *p, void *stream)
{
    struct device *device;
    struct device_scope scope;
    struct launch_plan plan;
    struct decode_params params;
    CUkernel kernel;
    quire_status status = plan_on_device(p, &device, &plan);

    if (status != QUIRE_OK)
        return status;
    policy_params(p, &plan, &params);
    status = device_enter(device, stream, &scope);
    if (status != QUIRE_OK)
        return status;
    if (plan.uses_tensor_maps)
        status = encode_maps(device->driver, p, &plan, &params); /* wants a current context */
    if (status == QUIRE_OK)
        status = device_kernel(device, &scope, &plan, &kernel);
    if (status == QUIRE_OK)
        status = launch(device, kernel, &plan, &params, stream);
    device_leave(device, &scope);
    return status;
}

quire_status cuda_read_blocks(const struct blocks *b, void *stream)
{
    struct device *device;
    struct device_limits limits;
    struct device_scope scope;
    struct launch_plan plan;
    CUkernel kernel;
    struct read_params params = {
        .data = b->data,
        .stride = b->stride,
        .order = b->order,
        .block_pieces = b->bytes / 16,
        .pieces = b->bytes / 16 * b->order_len,
    };
    quire_status status = limits_of(b->device, &device, &limits);

    if (status != QUIRE_OK)
        return status;
    policy_read_plan(&limits, &plan);
    status = device_enter(device, stream, &scope);
    if (status != QUIRE_OK)
        return status;
    status = device_kernel(device, &scope, &plan, &kernel);
    if (status == QUIRE_OK && params.pieces > 0)
        status = launch(device, kernel, &plan, &params, stream);
    device_leave(device, &scope);
    return status;
}

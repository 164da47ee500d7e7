/* gpu.c - a fixture's decode on a GPU, for tests in C
 * SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    CUresult (*retain)(CUcontext *, CUdevice);
    CUresult (*push)(CUcontext);
    CUresult (*alloc)(CUdeviceptr *, size_t);
    CUresult (*copy)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
    CUresult (*fill)(CUdeviceptr, unsigned char, size_t, CUstream);
    CUresult (*stream_create)(CUstream *, unsigned);
    CUresult (*stream_wait)(CUstream);
} driver;
static CUcontext context;

static void check(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        printf("Bail out! %s: CUDA error %d\n", what, (int)result);
        exit(1);
    }
}
#define CHECK(name, ...) check(driver.name(__VA_ARGS__), #name)

bool gpu_open(const char *otherwise, const char **why)
{
    /* in the order of the struct */
    static const char *const names[] = { "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuMemAlloc_v2",
                                         "cuMemcpyAsync", "cuMemsetD8Async", "cuStreamCreate",
                                         "cuStreamSynchronize" };
    static char reason[512];
    quire_device_info info = { .struct_size = sizeof info };
    void *file = dlopen("libcuda.so.1", RTLD_NOW);

    *why = reason;
    if (!file && otherwise)
        file = dlopen(otherwise, RTLD_NOW);
    if (!file) {
        snprintf(reason, sizeof reason, "%s", dlerror());
        return false;
    }
    if (quire_device_describe(QUIRE_DEVICE_CUDA, 0, &info) != QUIRE_OK || *info.problem) {
        snprintf(reason, sizeof reason, "%s", *info.problem ? info.problem : quire_last_error());
        return false;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *symbol = dlsym(file, names[i]);

        if (!symbol) {
            snprintf(reason, sizeof reason, "the driver has no %s", names[i]);
            return false;
        }
        memcpy((char *)&driver + i * sizeof symbol, &symbol, sizeof symbol);
    }
    CHECK(retain, &context, 0);
    gpu_enter();
    return true;
}

void gpu_enter(void) { CHECK(push, context); }

static CUdeviceptr address(const void *p) { return (CUdeviceptr)(uintptr_t)p; }

static void *on_device(size_t bytes)
{
    CUdeviceptr p;

    CHECK(alloc, &p, bytes ? bytes : 1);
    return (void *)(uintptr_t)p;
}

/* Gives a tensor memory on the device, with what it holds here. */
static void move(struct gpu_fixture *g, struct tensor *t)
{
    const void *from = t->t.data;

    if (!t->t.shape)
        return; /* this shape has none */
    t->t.data = on_device(tensor_bytes(t));
    t->t.device = (DLDevice){ QUIRE_DEVICE_CUDA, 0 };
    if (tensor_bytes(t))
        CHECK(copy, address(t->t.data), address(from), tensor_bytes(t), g->stream);
}

void gpu_fixture_new(struct gpu_fixture *g, const struct fixture_shape *shape)
{
    struct fixture *f;
    size_t bytes = 0;

    g->host = fixture_new(shape);
    g->there = f = fixture_new(shape);
    CHECK(stream_create, &g->stream, 1 /* CU_STREAM_NON_BLOCKING */);
    struct tensor *const tensors[] = { &f->query, &f->kv, &f->k, &f->v, &f->indptr, &f->indices, &f->seq_lens,
                                       &f->qo_indptr, &f->out, &f->lse };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        move(g, tensors[i]);
    f->args.workspace_buffer = NULL; /* it is the host's */
    if (quire_decode_workspace_size(&f->args, &bytes) != QUIRE_OK) {
        printf("Bail out! workspace_size: %s\n", quire_last_error());
        exit(1);
    }
    tensor_set(&f->workspace, UINT8, on_device(bytes), SHAPE((int64_t)bytes));
    f->workspace.t.device = (DLDevice){ QUIRE_DEVICE_CUDA, 0 };
    f->args.workspace_buffer = &f->workspace.t;
    if (bytes)
        CHECK(fill, address(f->workspace.t.data), 0, bytes, g->stream);
    g->out_bytes = tensor_bytes(&f->out);
    gpu_sync(g);
}

void gpu_fill_out(struct gpu_fixture *g) { CHECK(fill, address(g->there->out.t.data), 0xFF, g->out_bytes, g->stream); }

void gpu_read_out(struct gpu_fixture *g, void *to)
{
    CHECK(copy, address(to), address(g->there->out.t.data), g->out_bytes, g->stream);
    gpu_sync(g);
}

void gpu_sync(struct gpu_fixture *g) { CHECK(stream_wait, g->stream); }

int64_t gpu_failures(struct gpu_fixture *g, const void *out)
{
    quire_verdict verdict = { .struct_size = sizeof verdict };
    quire_decode_args args = g->host->args;

    memcpy(g->host->out.t.data, out, g->out_bytes);
    args.lse = NULL;
    return quire_decode_verify(&args, &verdict) == QUIRE_OK ? verdict.failures : -1;
}

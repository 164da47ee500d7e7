/* Host threads that decode on one GPU at once, each with its stream and workspace: the bits of one thread alone.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <pthread.h>

#include <cuda.h>

#include "fixture.h"
#include "tap.h"

enum { THREADS = 4, ROUNDS = 200, TENSORS = 8 };

/* ---- the driver, as far as this test needs it ------------------------------------------------------- */

static struct {
    CUresult (*retain)(CUcontext *, CUdevice);
    CUresult (*set_current)(CUcontext);
    CUresult (*alloc)(CUdeviceptr *, size_t);
    CUresult (*copy)(CUdeviceptr, CUdeviceptr, size_t);
    CUresult (*fill)(CUdeviceptr, unsigned char, size_t);
    CUresult (*stream_create)(CUstream *, unsigned);
    CUresult (*stream_wait)(CUstream);
} driver;

static void check(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        printf("Bail out! %s: CUDA error %d\n", what, (int)result);
        exit(1);
    }
}
#define CHECK(name, ...) check(driver.name(__VA_ARGS__), #name)

static bool open_driver(void)
{
    /* in the order of the struct */
    static const char *const names[] = { "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2", "cuMemcpy",
                                         "cuMemsetD8_v2", "cuStreamCreate", "cuStreamSynchronize" };
    void *file = dlopen("libcuda.so.1", RTLD_NOW);

    for (size_t i = 0; file && i < sizeof names / sizeof *names; i++) {
        void *symbol = dlsym(file, names[i]);

        if (!symbol)
            return false;
        memcpy((char *)&driver + i * sizeof symbol, &symbol, sizeof symbol);
    }
    return file != NULL;
}

static CUdeviceptr address(const void *p) { return (CUdeviceptr)(uintptr_t)p; }

/* ---- one thread's decode ---------------------------------------------------------------------------- */

/* Long enough that every item is cut over many CTAs. */
static const int32_t lens[THREADS][3] = { { 3000, 1, 40 }, { 0, 2500, 700 }, { 17, 18, 4000 }, { 1, 1, 1 } };

struct side {
    struct fixture *host;
    struct fixture *there; /* the same with its tensors on the device */
    CUstream stream;
    unsigned char *wanted, *got;
    size_t out_bytes;
    quire_status status;
    int differ;
};

static CUcontext context;

static DLTensor *tensor_of(struct fixture *f, int i)
{
    const DLTensor *const tensors[TENSORS] = { f->args.query,   f->args.kv_cache, f->args.workspace_buffer,
                                               f->args.paged_kv_indptr, f->args.paged_kv_indices, f->args.seq_lens,
                                               f->args.out, f->args.lse };
    return (DLTensor *)tensors[i];
}

static size_t bytes_of(const DLTensor *t)
{
    size_t bytes = t->dtype.bits / 8;

    for (int axis = 0; axis < t->ndim; axis++)
        bytes *= (size_t)t->shape[axis];
    return bytes;
}

static void *on_device(size_t bytes)
{
    CUdeviceptr p;

    CHECK(alloc, &p, bytes ? bytes : 1);
    return (void *)(uintptr_t)p;
}

static void make(struct side *side, int i)
{
    struct fixture_shape shape = SMALL;

    shape.seq_lens = lens[i];
    shape.seq_len_q = i % 2 ? 3 : 1;
    shape.head_dim = i < 2 ? 128 : 64;
    side->host = fixture_new(&shape);
    side->there = fixture_new(&shape);
    for (int n = 0; n < TENSORS; n++) {
        DLTensor *t = tensor_of(side->there, n), *from = tensor_of(side->host, n);

        if (!t || t == tensor_of(side->there, 2))
            continue;
        t->data = on_device(bytes_of(t));
        t->device = (DLDevice){ QUIRE_DEVICE_CUDA, 0 };
        CHECK(copy, address(t->data), address(from->data), bytes_of(t));
    }
    struct tensor *workspace = &side->there->workspace;
    size_t bytes = 0;
    workspace->t.device = (DLDevice){ QUIRE_DEVICE_CUDA, 0 };
    if (quire_decode_workspace_size(&side->there->args, &bytes) != QUIRE_OK)
        printf("Bail out! workspace_size: %s\n", quire_last_error()), exit(1);
    workspace->shape[0] = (int64_t)bytes;
    workspace->t.data = on_device(bytes);
    if (bytes)
        CHECK(fill, address(workspace->t.data), 0, bytes);
    side->there->args.workspace_buffer = &workspace->t;
    side->out_bytes = bytes_of(side->there->args.out);
    side->wanted = malloc(side->out_bytes);
    side->got = malloc(side->out_bytes);
    CHECK(stream_create, &side->stream, 1 /* CU_STREAM_NON_BLOCKING */);
}

static void decode_once(struct side *side, unsigned char *to)
{
    const CUdeviceptr out = address(side->there->args.out->data);

    CHECK(fill, out, 0xFF, side->out_bytes);
    CHECK(stream_wait, NULL); /* the fill is on the default stream, for which ours does not wait */
    if (side->status == QUIRE_OK)
        side->status = quire_decode(&side->there->args, side->stream);
    CHECK(stream_wait, side->stream);
    CHECK(copy, address(to), out, side->out_bytes);
}

static void *decode_often(void *argument)
{
    struct side *side = argument;

    CHECK(set_current, context);
    for (int i = 0; i < ROUNDS; i++) {
        decode_once(side, side->got);
        side->differ += memcmp(side->wanted, side->got, side->out_bytes) != 0;
    }
    return NULL;
}

static void compare_with_reference(struct side *side, int i)
{
    quire_verdict verdict = { .struct_size = sizeof verdict };

    memcpy(side->host->args.out->data, side->wanted, side->out_bytes);
    side->host->args.lse = NULL;
    ok(quire_decode_verify(&side->host->args, &verdict) == QUIRE_OK && verdict.failures == 0,
       "problem %d alone is right (worst error %.3f of its bound)", i, verdict.worst_error);
}

int main(void)
{
    static struct side sides[THREADS];
    pthread_t thread[THREADS];
    quire_device_info info = { .struct_size = sizeof info };

    if (quire_device_describe(QUIRE_DEVICE_CUDA, 0, &info) != QUIRE_OK) {
        printf("1..0 # SKIP %s\n", quire_last_error());
        return 0;
    }
    if (*info.problem || !open_driver()) {
        printf("1..0 # SKIP %s\n", *info.problem ? info.problem : "the driver is too old");
        return 0;
    }
    plan(0);
    CHECK(retain, &context, 0);
    CHECK(set_current, context);
    for (int i = 0; i < THREADS; i++) {
        make(&sides[i], i);
        decode_once(&sides[i], sides[i].wanted);
        compare_with_reference(&sides[i], i);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, decode_often, &sides[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        is_int(QUIRE_OK, sides[i].status, "thread %d: every decode succeeds", i);
        is_int(0, sides[i].differ, "thread %d: %d decodes beside others, the bits of one alone", i, ROUNDS);
    }
    return done();
}

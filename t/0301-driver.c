/* What the library does with a CUDA driver, on a driver that runs no kernels (fake/libcuda.c): every scenario
 * is a process of its own, as a driver is opened once in a process.
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"
#include "tap.h"
#include <cuda.h>

/* ---- scenarios ------------------------------------------------------------------------------------ */

/* What a scenario found, for the parent to judge. */
struct report {
    bool reached_end;
    quire_status status[8];
    char text[8][512];
    long number[16];
};
static struct report *report; /* shared with the scenario's process */

static void run(void (*scenario)(void), const char *environment)
{
    fflush(stdout);
    memset(report, 0, sizeof *report);
    const pid_t child = fork();
    if (child == 0) {
        char copy[256], *next = copy;

        snprintf(copy, sizeof copy, "%s", environment);
        for (char *word; (word = strsep(&next, " "));)
            if (*word)
                putenv(strdup(word));
        scenario();
        report->reached_end = true;
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (!report->reached_end)
        diag("the scenario ended with wait status %d", status);
}

static void note(int i, quire_status status)
{
    report->status[i] = status;
    snprintf(report->text[i], sizeof report->text[i], "%s", status == QUIRE_OK ? "" : quire_last_error());
}

static bool has(int i, const char *words)
{
    if (strstr(report->text[i], words))
        return true;
    diag("expected \"%s\" in \"%s\"", words, report->text[i]);
    return false;
}

/* ---- the fake driver ------------------------------------------------------------------------------ */

static void *fake;

/* As no function and no object pointer convert to each other. */
static void symbol(void *to, const char *name)
{
    void *found = dlsym(fake, name);

    if (!found)
        abort();
    memcpy(to, &found, sizeof found);
}

static long (*fake_calls)(const char *);
static long (*fake_all_calls)(void);
static void (*fake_set_parameter_bytes)(size_t);
struct fake_launch {
    const char *function;
    unsigned grid, block, shared;
    CUstream stream;
    CUcontext context;
    bool programmatic;
};
static const struct fake_launch *(*fake_last_launch)(void);
static CUresult (*context_create)(CUcontext *, unsigned, CUdevice);
static CUresult (*context_current)(CUcontext *);
static CUresult (*context_pop)(CUcontext *);
static CUresult (*stream_create)(CUstream *, unsigned);
static CUresult (*capture_begin)(CUstream, CUstreamCaptureMode);
static CUresult (*capture_end)(CUstream, CUgraph *);
static CUresult (*graph_nodes)(CUgraph, CUgraphNode *, size_t *);
static CUresult (*primary_context)(CUcontext *, CUdevice);

/* The soname is that of the real driver, so whoever opens that one afterwards gets this. */
static void load_fake(void)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/t/fake/.libs/libcuda.so.1", getenv("QUIRE_BUILD"));
    fake = dlopen(path, RTLD_NOW);
    if (!fake) {
        snprintf(report->text[0], sizeof report->text[0], "%s", dlerror());
        _exit(1);
    }
    symbol(&fake_calls, "fake_calls");
    symbol(&fake_all_calls, "fake_all_calls");
    symbol(&fake_set_parameter_bytes, "fake_set_parameter_bytes");
    symbol(&fake_last_launch, "fake_last_launch");
    symbol(&context_create, "cuCtxCreate_v2");
    symbol(&context_current, "cuCtxGetCurrent");
    symbol(&context_pop, "cuCtxPopCurrent_v2");
    symbol(&stream_create, "cuStreamCreate");
    symbol(&capture_begin, "cuStreamBeginCapture_v2");
    symbol(&capture_end, "cuStreamEndCapture");
    symbol(&graph_nodes, "cuGraphGetNodes");
    symbol(&primary_context, "cuDevicePrimaryCtxRetain");
    fake_set_parameter_bytes(64);
}

static CUcontext current(void)
{
    CUcontext context = NULL;

    context_current(&context);
    return context;
}

/* The small decode as the fake's device sees it: its memory is the host's. */
static struct fixture *cuda_fixture(int device)
{
    struct fixture *f = fixture_new(&SMALL);
    const DLTensor *tensors[] = { f->args.query,   f->args.kv_cache, f->args.workspace_buffer, f->args.paged_kv_indptr,
                                  f->args.paged_kv_indices, f->args.seq_lens, f->args.out, f->args.lse };
    size_t bytes = 0;

    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        if (tensors[i])
            ((DLTensor *)tensors[i])->device = (DLDevice){ QUIRE_DEVICE_CUDA, device };
    if (quire_decode_workspace_size(&f->args, &bytes) == QUIRE_OK) {
        f->workspace.shape[0] = (int64_t)bytes;
        f->workspace.t.data = fixture_memory(f, bytes);
    }
    return f;
}

/* ---- no GPU --------------------------------------------------------------------------------------- */

static void look_around(void)
{
    quire_device_info info = { .struct_size = sizeof info };
    int32_t count = -1;

    note(0, quire_device_count(QUIRE_DEVICE_CUDA, &count));
    report->number[0] = count;
    /* a call that succeeds leaves the message alone */
    report->number[1] = (long)strlen(quire_last_error());
    note(1, quire_device_describe(QUIRE_DEVICE_CUDA, 0, &info));
    if (report->status[1] == QUIRE_OK) {
        snprintf(report->text[2], sizeof report->text[2], "%s", info.name);
        snprintf(report->text[3], sizeof report->text[3], "%s", info.kernels);
        snprintf(report->text[4], sizeof report->text[4], "%s", info.problem);
        report->number[2] = info.capability;
        report->number[3] = info.compute_units;
        report->number[4] = (long)info.memory_bytes;
        report->number[5] = (long)info.cache_bytes;
    }
    note(5, quire_decode_prepare(&cuda_fixture(0)->args));
    note(6, quire_device_describe(QUIRE_DEVICE_CUDA, 7, &info));
}

static void look_around_on_fake(void)
{
    load_fake();
    look_around();
}

static void look_around_on_stub(void)
{
    if (!dlopen(CUDA_STUB, RTLD_NOW))
        _exit(1);
    look_around();
}

/* Not in this process: what is loaded here once would be every scenario's driver. */
static void look_for_driver(void)
{
    report->number[0] = dlopen("libcuda.so.1", RTLD_LAZY) != NULL;
}

static void test_machines(void)
{
    run(look_for_driver, "");
    if (report->number[0]) {
        skip("this machine has a driver, so its absence cannot be seen");
    } else {
        run(look_around, "");
        ok(report->reached_end && report->status[0] == QUIRE_OK && report->number[0] == 0 &&
               report->status[1] == QUIRE_ERROR_DEVICE && has(1, "libcuda.so.1") &&
               report->status[5] == QUIRE_ERROR_DEVICE && has(5, "no CUDA driver"),
           "without a driver there are no devices, and using one says why");
    }

    if (access(CUDA_STUB, R_OK) != 0) {
        skip("the toolkit has no stub driver");
    } else {
        run(look_around_on_stub, "");
        ok(report->reached_end && report->status[0] == QUIRE_ERROR_DEVICE && has(0, "34"),
           "the toolkit's stub driver has every function asked for, and refuses to start");
    }

    run(look_around_on_fake, "FAKE_CUDA_DEVICES=0");
    ok(report->reached_end && report->status[0] == QUIRE_OK && report->number[0] == 0 && report->number[1] == 0,
       "a driver without a GPU has 0 devices, which is no error");
    ok(report->status[5] == QUIRE_ERROR_DEVICE && has(5, "cuda:0") && has(5, "100"), "... and prepare tells");

    run(look_around_on_fake, "FAKE_CUDA_DEVICES=3");
    is_int(3, report->number[0], "devices are counted");
    ok(report->status[1] == QUIRE_OK && strcmp(report->text[2], "Fake GPU 0") == 0 && report->number[2] == 90 &&
           report->number[3] == 132 && report->number[4] == 1 << 30 && report->number[5] == 60 << 20,
       "a device is described");
    is_str("", report->text[4], "... and nothing speaks against it");
    ok(report->status[6] == QUIRE_ERROR_DEVICE && has(6, "cuda:7") && has(6, "3 CUDA devices"),
       "a device that is not there is refused by its number");

    run(look_around_on_fake, "FAKE_CUDA_FAIL=cuDeviceGetName:999");
    ok(report->reached_end && report->status[0] == QUIRE_ERROR_DEVICE && has(0, "cuDeviceGetName") && has(0, "999"),
       "a driver that does not work is an error even of counting");
}

/* Which code serves which GPU: by the architectures that the library was built for. */
static void test_architectures(void)
{
    static const struct {
        int capability;
        const char *code;
    } gpus[] = { { 75, "" },       { 80, "sm_80" },      { 86, "sm_80" },       { 89, "sm_80" },
                 { 90, "sm_90a" }, { 100, "compute_90" }, { 120, "compute_90" } };

    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        char environment[64];

        if (strcmp(CUDA_ARCH_LIST, "80,90a,ptx90") != 0) {
            skip("the library was built for %s", CUDA_ARCH_LIST);
            continue;
        }
        snprintf(environment, sizeof environment, "FAKE_CUDA_CAPABILITY=%d", gpus[i].capability);
        run(look_around_on_fake, environment);
        ok(report->reached_end && report->status[1] == QUIRE_OK && strcmp(report->text[3], gpus[i].code) == 0 &&
               report->status[5] == (*gpus[i].code ? QUIRE_OK : QUIRE_ERROR_UNSUPPORTED),
           "compute capability %d is served by \"%s\"", gpus[i].capability, gpus[i].code);
    }

    run(look_around_on_fake, "FAKE_CUDA_CAPABILITY=61");
    ok(report->status[1] == QUIRE_OK && has(4, "6.1") && has(4, CUDA_ARCH_LIST), "an old GPU is described as such");
    ok(report->status[5] == QUIRE_ERROR_UNSUPPORTED && has(5, "cuda:0") && has(5, "6.1") && has(5, CUDA_ARCH_LIST),
       "... and using it is refused in the same words");
}

/* ---- the driver's errors -------------------------------------------------------------------------- */

static void prepare_and_decode(void)
{
    load_fake();
    struct fixture *f = cuda_fixture(0);

    note(0, quire_decode_prepare(&f->args));
    note(1, quire_decode(&f->args, NULL));
    report->number[0] = current() == NULL;
}

static void test_errors(void)
{
    run(prepare_and_decode, "");
    ok(report->reached_end && report->status[0] == QUIRE_OK && report->status[1] == QUIRE_OK,
       "prepare and decode work");
    if (report->status[0] != QUIRE_OK)
        diag("%s", report->text[0]);

    run(prepare_and_decode, "FAKE_CUDA_FAIL=cuLibraryLoadData:209");
    ok(report->status[0] == QUIRE_ERROR_UNSUPPORTED && has(0, "CUDA_ERROR_NO_BINARY_FOR_GPU") && has(0, "Fake GPU 0"),
       "a GPU for which there is no code is unsupported");

    run(prepare_and_decode, "FAKE_CUDA_FAIL=cuLibraryLoadData:2");
    ok(report->status[0] == QUIRE_ERROR_DEVICE && has(0, "cuLibraryLoadData: CUDA_ERROR_OUT_OF_MEMORY") &&
           has(0, "words of the fake driver"),
       "other errors come with the driver's name and text");

    run(prepare_and_decode, "FAKE_CUDA_FAIL=cuLaunchKernelEx:700");
    ok(report->status[0] == QUIRE_OK && report->status[1] == QUIRE_ERROR_DEVICE &&
           has(1, "cuLaunchKernelEx: CUDA_ERROR_ILLEGAL_ADDRESS"),
       "a launch that fails says so");

    run(prepare_and_decode, "FAKE_CUDA_FAIL=cuKernelGetFunction:2");
    ok(report->status[0] == QUIRE_ERROR_DEVICE && report->number[0] == 1,
       "after a failure the current context is what it was");
}

/* ---- contexts ------------------------------------------------------------------------------------- */

static void contexts(void)
{
    load_fake();
    struct fixture *f = cuda_fixture(1);
    CUcontext primary, own, other;
    CUstream stream;

    primary_context(&primary, 1);
    note(0, quire_decode_prepare(&f->args));
    note(1, quire_decode(&f->args, NULL));
    report->number[0] = current() == NULL;
    report->number[1] = fake_last_launch()->context == primary;

    context_create(&own, 0, 1);
    note(2, quire_decode(&f->args, NULL));
    report->number[2] = current() == own;
    report->number[3] = fake_last_launch()->context == own;

    context_create(&other, 0, 0);
    note(3, quire_decode(&f->args, NULL));
    report->number[4] = current() == other;
    report->number[5] = fake_last_launch()->context == primary;
    context_pop(&other);
    report->number[6] = current() == own;

    stream_create(&stream, 0);
    context_create(&other, 0, 0);
    note(4, quire_decode(&f->args, stream));
    note(5, quire_decode_check(&f->args, stream));
    report->number[7] = fake_last_launch()->context == own && fake_last_launch()->stream == stream;
    report->number[8] = current() == other;
    report->number[9] = fake_calls("cuLaunchKernelEx");
    stream_create(&stream, 0);
    note(6, quire_decode(&f->args, stream));
    note(7, quire_decode_check(&f->args, stream));
    report->number[10] = fake_calls("cuLaunchKernelEx");
    report->number[11] = current() == other;
}

static void test_contexts(void)
{
    run(contexts, "");
    for (int i = 0; i < 6; i++)
        ok(report->status[i] == QUIRE_OK, "call %d succeeds", i + 1);
    ok(report->number[1], "without a current context the device's primary one is used");
    ok(report->number[0], "... and none is current afterwards");
    ok(report->number[3], "a context of the tensors' device is used");
    ok(report->number[2], "... and stays current");
    ok(report->number[5], "a context of another device is not");
    ok(report->number[4] && report->number[6], "... and is current again afterwards");
    ok(report->number[7], "a stream's own context is used, whichever is current");
    ok(report->number[8], "... and that is current again afterwards");
    for (int i = 6; i < 8; i++)
        ok(report->status[i] == QUIRE_ERROR_TYPE &&
               has(i, "stream: expected one of the tensors' device, cuda:1, got one of cuda:0"),
           "a stream of another device is refused: %s", report->text[i]);
    is_int(report->number[9], report->number[10], "... and nothing is launched");
    ok(report->number[11], "... and what was current is so again");
}

/* ---- the launch path ------------------------------------------------------------------------------ */

static void launches(void)
{
    load_fake();
    struct fixture *f = cuda_fixture(0);
    CUstream stream;
    CUcontext context;
    const char *const finding[] = { "cuCtxGetCurrent", "cuStreamGetCtx", "cuCtxGetDevice" };
    long before;

    context_create(&context, 0, 0);
    stream_create(&stream, 0);
    note(0, quire_decode_prepare(&f->args));
    note(1, quire_decode(&f->args, stream));
    report->number[0] = fake_last_launch()->stream == stream;
    report->number[1] = fake_last_launch()->programmatic;
    snprintf(report->text[2], sizeof report->text[2], "%s", fake_last_launch()->function);
    report->number[2] = fake_last_launch()->grid;
    report->number[3] = fake_last_launch()->block;
    report->number[4] = fake_last_launch()->shared;

    before = fake_all_calls();
    for (int i = 0; i < 3; i++)
        before -= fake_calls(finding[i]);
    for (int i = 0; i < 1000 && report->status[1] == QUIRE_OK; i++)
        note(1, quire_decode(&f->args, stream));
    report->number[5] = fake_calls("cuLaunchKernelEx");
    report->number[6] = fake_all_calls() - before - 1000;
    for (int i = 0; i < 3; i++)
        report->number[6] -= fake_calls(finding[i]);
}

/* A model's decodes: each layer has a cache of its own. */
static void layers(void)
{
    enum { LAYERS = 100, APART = 1 << 20 };
    load_fake();
    struct fixture *f = cuda_fixture(0);
    CUstream stream;
    CUcontext context;
    char *const cache = f->kv.t.data;

    context_create(&context, 0, 0);
    stream_create(&stream, 0);
    note(0, quire_decode_prepare(&f->args));
    for (int token = 0; token < 2; token++) {
        const long before = fake_calls("cuTensorMapEncodeTiled");

        for (int layer = 0; layer < LAYERS && report->status[0] == QUIRE_OK; layer++) {
            f->kv.t.data = cache + (size_t)layer * APART;
            note(0, quire_decode(&f->args, stream));
        }
        report->number[token] = fake_calls("cuTensorMapEncodeTiled") - before;
    }
}

static void refused_hook(void)
{
    load_fake();
    note(0, quire_decode_prepare(&cuda_fixture(0)->args));
}

static void test_launches(void)
{
    run(launches, "");
    ok(report->status[0] == QUIRE_OK && report->status[1] == QUIRE_OK, "a thousand decodes succeed");
    is_int(1001, report->number[5], "each is one launch");
    is_int(0, report->number[6], "... and calls nothing else of the driver but to find the context");
    ok(report->number[0], "it is on the caller's stream");
    ok(report->number[1], "it may overlap the end of what comes before it");
    ok(has(2, "decode_"), "it is a decode kernel");
    ok(report->number[2] > 0 && report->number[3] % 32 == 0 && report->number[4] > 0,
       "grid %ld, block %ld and shared memory %ld are set", report->number[2], report->number[3], report->number[4]);

    const long grid = report->number[2];
    run(layers, "");
    ok(report->status[0] == QUIRE_OK && report->number[0] >= 200 && report->number[1] <= report->number[0] / 8,
       "of %ld tensor maps of 100 layers %ld, of %ld at most, are made again for the next token", report->number[0],
       report->number[1], report->number[0] / 8);
    run(launches, "QUIRE_TEST_GRID=3");
    is_int(grid < 3 ? grid : 3, report->number[2], "the test hook lowers the number of CTAs");
    run(launches, "QUIRE_TEST_GRID=100000");
    is_int(grid, report->number[2], "... and cannot raise it");
    run(refused_hook, "QUIRE_TEST_GRID=3x");
    ok(report->status[0] == QUIRE_ERROR_UNSUPPORTED && has(0, "QUIRE_TEST_GRID") && has(0, "3x"),
       "a wrong number is refused: %s", report->text[0]);
    run(refused_hook, "QUIRE_TEST_KERNELS=asnyc");
    ok(report->status[0] == QUIRE_ERROR_UNSUPPORTED && has(0, "wgmma, tma or async") && has(0, "asnyc"),
       "so are kernels that there are not: %s", report->text[0]);
}

/* ---- captures ------------------------------------------------------------------------------------- */

static void capture_unprepared(void)
{
    load_fake();
    struct fixture *f = cuda_fixture(0);
    CUstream stream;
    CUcontext context;
    CUgraph graph = NULL;
    size_t nodes = 0;

    context_create(&context, 0, 0);
    stream_create(&stream, 0);
    capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    note(0, quire_decode(&f->args, stream));
    note(1, quire_decode_check(&f->args, stream));
    report->number[0] = capture_end(stream, &graph);
    if (graph)
        graph_nodes(graph, NULL, &nodes);
    report->number[1] = (long)nodes;
    note(2, quire_decode(&f->args, stream));
    note(3, quire_decode_check(&f->args, stream));
}

static void test_captures(void)
{
    run(capture_unprepared, "");
    ok(report->status[0] == QUIRE_OK, "an unprepared decode loads what it needs inside a capture");
    ok(report->status[1] == QUIRE_ERROR_DEVICE && has(1, "captured"), "a check cannot be captured, and says so");
    is_int(CUDA_SUCCESS, report->number[0], "... which leaves the capture whole");
    is_int(1, report->number[1], "the graph has one node");
    ok(report->status[2] == QUIRE_OK && report->status[3] == QUIRE_OK, "decode and check work after it");

    run(capture_unprepared, "FAKE_CUDA_FAIL=cuLibraryLoadData:900");
    ok(report->status[0] == QUIRE_ERROR_DEVICE && has(0, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
       "a driver that loads nothing inside a capture: the decode fails");
    ok(report->number[0] == CUDA_SUCCESS && report->number[1] == 0, "... and the capture stays usable");
}

/* ---- threads -------------------------------------------------------------------------------------- */

enum { THREADS = 8, ROUNDS = 200 };

static void *decode_often(void *argument)
{
    struct fixture *f = argument;
    quire_status status = QUIRE_OK;

    for (int i = 0; i < ROUNDS && status == QUIRE_OK; i++)
        status = quire_decode(&f->args, NULL);
    return (void *)(intptr_t)status;
}

static void threads(void)
{
    pthread_t thread[THREADS];
    struct fixture *fixture[THREADS];

    load_fake();
    for (int i = 0; i < THREADS; i++)
        fixture[i] = cuda_fixture(i % 2);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, decode_often, fixture[i]);
    for (int i = 0; i < THREADS; i++) {
        void *status;

        pthread_join(thread[i], &status);
        report->number[0] += status == NULL;
    }
    report->number[1] = fake_calls("cuLaunchKernelEx");
    report->number[2] = fake_calls("cuInit");
    report->number[3] = fake_calls("cuLibraryLoadData");
    report->number[4] = fake_calls("cuDevicePrimaryCtxRetain");
}

static void test_threads(void)
{
    run(threads, "");
    is_int(THREADS, report->number[0], "threads that all come first all succeed");
    is_int(THREADS * ROUNDS, report->number[1], "... in every launch");
    is_int(1, report->number[2], "the driver starts once");
    is_int(1, report->number[3], "kernels are loaded once");
    is_int(2, report->number[4], "each device's context is retained once");
}

int main(void)
{
    report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED || !getenv("QUIRE_BUILD")) {
        puts("Bail out! no shared memory, or QUIRE_BUILD is not set: see CONTRIBUTING.md");
        return 1;
    }
    plan(0);
    test_machines();
    test_architectures();
    test_errors();
    test_contexts();
    test_launches();
    test_captures();
    test_threads();
    return done();
}

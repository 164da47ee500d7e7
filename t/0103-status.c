/* Names, messages, versions, defaults, devices: what needs no tensor.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "quire.h"
#include "tap.h"

static void test_names(void)
{
    static const struct {
        int status;
        const char *name;
    } rows[] = {
        {0, "QUIRE_OK"},
        {-1, "QUIRE_ERROR_TYPE"},
        {-2, "QUIRE_ERROR_VALUE"},
        {-3, "QUIRE_ERROR_UNSUPPORTED"},
        {-4, "QUIRE_ERROR_DEVICE"},
        {-5, "QUIRE_ERROR_MEMORY"},
        {-6, "unknown status"},
        {1, "unknown status"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        is_str(rows[i].name, quire_status_name((quire_status)rows[i].status), "name of status %d", rows[i].status);
    is_int(1, QUIRE_DTYPE_FP16, "QUIRE_DTYPE_FP16");
    is_int(2, QUIRE_DTYPE_BF16, "QUIRE_DTYPE_BF16");
    is_int(3, QUIRE_DTYPE_FP8E4M3, "QUIRE_DTYPE_FP8E4M3");
    is_int(1, QUIRE_MASK_CAUSAL, "QUIRE_MASK_CAUSAL");
    is_int(1, QUIRE_LAYOUT_NHD, "QUIRE_LAYOUT_NHD");
    is_int(10, QUIRE_CODE_FP8E4M3, "QUIRE_CODE_FP8E4M3 is DLPack 1.1's");
}

static void test_version(void)
{
    char wanted[32];

    snprintf(wanted, sizeof wanted, "%d.%d.%d", QUIRE_VERSION_MAJOR, QUIRE_VERSION_MINOR, QUIRE_VERSION_PATCH);
    is_str(wanted, quire_version(), "the version that runs is the header's");

    const char *config = quire_build_config();
    static const char *const keys[] = {"compiler=", "openmp=", "cuda=", "cuda_arch="};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *at = strstr(config, keys[i]);
        ok(at != NULL && (at == config || at[-1] == '\n'), "build_config has a line %s", keys[i]);
    }
    ok(config[strlen(config) - 1] == '\n', "build_config ends its last line");
}

static void test_init(void)
{
    quire_decode_args macro = QUIRE_DECODE_ARGS_INIT, function;

    memset(&function, 0xFF, sizeof function);
    quire_decode_args_init(&function);
    quire_decode_args_init(NULL);
    ok(memcmp(&macro, &function, sizeof macro) == 0, "args_init writes what the macro says");
    is_int(sizeof macro, (long long)macro.struct_size, "struct_size");
    is_int(1, macro.seq_len_q, "seq_len_q");
    is_int(-1, macro.window_left, "window_left");
    ok(macro.bmm1_scale == QUIRE_SCALE_DEFAULT && macro.bmm2_scale == QUIRE_SCALE_DEFAULT, "scales");
}

/* What another thread saw: its first message, its status, its message afterwards. */
struct seen {
    char first[64], after[128];
    quire_status status;
};

static void *fail_elsewhere(void *to)
{
    struct seen *seen = to;
    int32_t count;

    snprintf(seen->first, sizeof seen->first, "%s", quire_last_error());
    seen->status = quire_device_count(77, &count);
    snprintf(seen->after, sizeof seen->after, "%s", quire_last_error());
    return NULL;
}

static void test_messages(void)
{
    struct seen seen;
    pthread_t thread;
    int32_t count;

    is_str("", quire_last_error(), "no message before the first failure");
    is_int(QUIRE_ERROR_TYPE, quire_decode_prepare(NULL), "prepare(NULL)");
    is_str("args: expected a quire_decode_args, got NULL", quire_last_error(), "its words");
    if (pthread_create(&thread, NULL, fail_elsewhere, &seen) != 0 || pthread_join(thread, NULL) != 0) {
        printf("Bail out! no thread\n");
        exit(1);
    }
    is_str("", seen.first, "another thread starts without a message");
    is_int(QUIRE_ERROR_TYPE, seen.status, "and fails in its own way");
    is_str("device_type: expected 1 (cpu) or 2 (cuda), got 77", seen.after, "with its own words");
    is_int(QUIRE_OK, quire_device_count(QUIRE_DEVICE_CPU, &count), "success here");
    is_str("args: expected a quire_decode_args, got NULL", quire_last_error(), "leaves this thread's words");
}

static void test_devices(void)
{
    quire_device_info info;
    int32_t count = -1;

    is_int(QUIRE_OK, quire_device_count(QUIRE_DEVICE_CPU, &count), "count of CPUs");
    is_int(1, count, "is 1");
    is_int(QUIRE_ERROR_TYPE, quire_device_count(QUIRE_DEVICE_CPU, NULL), "nowhere to store it");
    is_int(QUIRE_OK, quire_device_count(QUIRE_DEVICE_CUDA, &count), "count of GPUs, with or without any");
    ok(count >= 0, "is 0 or more");

    memset(&info, 0xFF, sizeof info);
    info.struct_size = sizeof info;
    is_int(QUIRE_ERROR_TYPE, quire_device_describe(QUIRE_DEVICE_CPU, 0, NULL), "describe into NULL");
    is_int(QUIRE_ERROR_TYPE, quire_device_describe(9, 0, &info), "describe a device of no type");
    is_int(QUIRE_ERROR_DEVICE, quire_device_describe(QUIRE_DEVICE_CPU, 1, &info), "describe cpu:1");
    is_str("device_id: there is no device cpu:1", quire_last_error(), "its words");
    is_int(QUIRE_ERROR_DEVICE, quire_device_describe(QUIRE_DEVICE_CUDA, -1, &info), "describe cuda:-1");
    is_int(QUIRE_ERROR_DEVICE, quire_device_describe(QUIRE_DEVICE_CUDA, count + 100, &info), "describe a GPU too many");
    ok(info.memory_bytes == -1 && (unsigned char)info.name[0] == 0xFF, "nothing was written so far");
    is_int(QUIRE_OK, quire_device_describe(QUIRE_DEVICE_CPU, 0, &info), "describe the CPU");
    is_int(sizeof info, (long long)info.struct_size, "struct_size stays");
    ok(info.memory_bytes > 0 && info.compute_units > 0 && info.capability == 0, "memory, threads, no capability");
    ok(memchr(info.name, 0, sizeof info.name) != NULL && info.name[0] != '\0', "a name");
    ok(info.kernels[0] != '\0' && info.problem[0] == '\0', "kernels and no problem");

    static const size_t wrong[] = {0, 8, sizeof info - 8, sizeof info - 1, sizeof info + 1, (size_t)-8};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        info.struct_size = wrong[i];
        is_int(QUIRE_ERROR_VALUE, quire_device_describe(QUIRE_DEVICE_CPU, 0, &info), "struct_size %zu", wrong[i]);
    }
    struct {
        quire_device_info info;
        char later[16];
    } newer;
    memset(&newer, 0x11, sizeof newer);
    newer.info.struct_size = sizeof newer;
    is_int(QUIRE_OK, quire_device_describe(QUIRE_DEVICE_CPU, 0, &newer.info), "a newer caller's larger struct");
    is_int(sizeof newer, (long long)newer.info.struct_size, "its struct_size stays");
    is_int(0x11, newer.later[0], "its unknown tail stays");
}

int main(void)
{
    plan(0);
    test_names();
    test_version();
    test_init();
    test_messages();
    test_devices();
    return done();
}

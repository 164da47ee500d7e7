/* Element types and tensor views: names, compactness, spans, and numbers that overflow.
 * SPDX-License-Identifier: Apache-2.0 */
#include "dtype.h"
#include "tap.h"
#include "tensor.h"

static DLTensor view(DLDataType type, int32_t rank, int64_t *shape, int64_t *strides)
{
    return (DLTensor){.device = {QUIRE_DEVICE_CPU, 0}, .ndim = rank, .dtype = type, .shape = shape, .strides = strides};
}

static const DLDataType fp16 = {QUIRE_CODE_FLOAT, 16, 1};

static void test_dtypes(void)
{
    static const struct {
        DLDataType type;
        const char *name;
        quire_dtype dtype;
        int bytes;
    } rows[] = {
        {{2, 16, 1}, "fp16", QUIRE_DTYPE_FP16, 2},
        {{4, 16, 1}, "bf16", QUIRE_DTYPE_BF16, 2},
        {{10, 8, 1}, "fp8e4m3", QUIRE_DTYPE_FP8E4M3, 1},
        {{2, 32, 1}, "fp32", QUIRE_DTYPE_DEFAULT, 0},
        {{2, 64, 1}, "fp64", QUIRE_DTYPE_DEFAULT, 0},
        {{0, 64, 1}, "int64", QUIRE_DTYPE_DEFAULT, 0},
        {{1, 8, 1}, "uint8", QUIRE_DTYPE_DEFAULT, 0},
        {{12, 8, 1}, "fp8e5m2", QUIRE_DTYPE_DEFAULT, 0},
        {{2, 16, 4}, "fp16x4", QUIRE_DTYPE_DEFAULT, 0},
        {{99, 8, 1}, "type(99, 8 bits)", QUIRE_DTYPE_DEFAULT, 0},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        is_str(rows[i].name, dtype_text(rows[i].type).s, "name of %s", rows[i].name);
        is_int(rows[i].dtype, dtype_from_dlpack(rows[i].type), "%s as a quire_dtype", rows[i].name);
        is_int(rows[i].bytes, dtype_bytes(rows[i].dtype), "bytes of %s as a quire_dtype", rows[i].name);
    }
    is_str("bf16", dtype_name(QUIRE_DTYPE_BF16), "name of QUIRE_DTYPE_BF16");
    is_str("unknown", dtype_name((quire_dtype)77), "name of no dtype");
}

static void test_compact(void)
{
    static const struct {
        int64_t shape[3], strides[3];
        bool compact;
        const char *what;
    } rows[] = {
        {{2, 3, 4}, {12, 4, 1}, true, "row-major"},
        {{2, 3, 4}, {16, 4, 1}, false, "padded outside"},
        {{2, 3, 4}, {12, 4, 2}, false, "every other element"},
        {{2, 3, 4}, {4, 8, 1}, false, "transposed"},
        {{1, 3, 4}, {-7, 4, 1}, true, "any stride of extent 1, outside"},
        {{2, 3, 1}, {3, 1, 99}, true, "any stride of extent 1, inside"},
        {{2, 0, 4}, {5, 5, 5}, true, "no elements"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        DLTensor t = view(fp16, 3, (int64_t *)rows[i].shape, (int64_t *)rows[i].strides);
        is_int(rows[i].compact, tensor_is_compact(&t, 0), "compact: %s", rows[i].what);
    }
    DLTensor t = view(fp16, 3, (int64_t[]){2, 3, 4}, NULL);
    ok(tensor_is_compact(&t, 0), "compact: no strides");
    t = view(fp16, 3, (int64_t[]){2, 3, 4}, (int64_t[]){99, 4, 1});
    ok(tensor_is_compact(&t, 1), "compact behind the first axis");
    is_int(99, tensor_outer_stride(&t), "outer stride as told");
    t.shape = (int64_t[]){1, 3, 4};
    is_int(12, tensor_outer_stride(&t), "outer stride of extent 1 is the compact one");
}

static void test_spans(void)
{
    static const struct {
        int64_t shape[2], strides[2];
        bool fits;
        int64_t bytes;
        const char *what;
    } rows[] = {
        {{3, 4}, {4, 1}, true, 24, "compact"},
        {{3, 4}, {100, 1}, true, 408, "padded: the last gap does not count"},
        {{0, 4}, {4, 1}, true, 0, "no elements"},
        {{1, 4}, {INT64_MIN, 1}, true, 8, "stride of extent 1"},
        {{3, 4}, {-100, 1}, false, 0, "negative stride"},
        {{-1, 4}, {4, 1}, false, 0, "negative extent"},
        {{3, 4}, {INT64_MAX / 2, 1}, false, 0, "last element beyond int64"},
        {{INT64_MAX, 4}, {4, 1}, false, 0, "count beyond int64"},
        {{INT64_MAX / 4, 4}, {4, 1}, false, 0, "bytes beyond int64"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        DLTensor t = view(fp16, 2, (int64_t *)rows[i].shape, (int64_t *)rows[i].strides);
        int64_t bytes = 0;

        is_int(rows[i].fits, tensor_span(&t, &bytes), "span fits: %s", rows[i].what);
        is_int(rows[i].bytes, bytes, "span: %s", rows[i].what);
    }

    DLTensor t = view(fp16, 0, NULL, NULL);
    int64_t bytes = 0, count = 0;
    ok(tensor_span(&t, &bytes) && bytes == 2, "span of a scalar");
    t = view(fp16, 2, (int64_t[]){INT64_MAX, 0}, NULL);
    ok(tensor_count(&t, 0, &count) && count == 0, "an extent of 0 empties any product");

    uintptr_t at = 0;
    t.data = (void *)16;
    t.byte_offset = 32;
    ok(tensor_address(&t, &at) && at == 48, "byte_offset counts");
    t.byte_offset = UINT64_MAX;
    ok(!tensor_address(&t, &at), "byte_offset out of the address space");
}

static void test_texts(void)
{
    DLTensor t = view(fp16, 2, (int64_t[]){3, 4}, (int64_t[]){8, 1});

    is_str("fp16 [3, 4]", tensor_text(&t).s, "text of a tensor");
    is_str("fp16 [3, 4] strides [8, 1]", tensor_text_strides(&t).s, "text with strides");
    is_str("NULL", tensor_text(NULL).s, "text of NULL");
    t.ndim = 0;
    is_str("fp16 []", tensor_text(&t).s, "text of a scalar");
    t.ndim = 1 << 20;
    is_str("fp16 of rank 1048576", tensor_text(&t).s, "the extents of a garbage rank are not read");
    t.ndim = 2;
    t.shape = NULL;
    is_str("fp16 of rank 2 with a NULL shape", tensor_text(&t).s, "text without a shape");
    t = view(fp16, 8,
             (int64_t[]){INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN},
             (int64_t[]){INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN});
    is_int(255, (int)strlen(tensor_text_strides(&t).s), "a text that does not fit is cut");
    is_str("cpu", device_text((DLDevice){QUIRE_DEVICE_CPU, 0}).s, "text of the CPU");
    is_str("cuda:3", device_text((DLDevice){QUIRE_DEVICE_CUDA, 3}).s, "text of a GPU");
    is_str("device type 13", device_text((DLDevice){13, 0}).s, "text of another device");
}

int main(void)
{
    plan(0);
    test_dtypes();
    test_compact();
    test_spans();
    test_texts();
    return done();
}

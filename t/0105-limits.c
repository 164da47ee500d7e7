/* The edges of the contract: what is just allowed is accepted, what is just beyond is refused.  No data: only
 * shapes are looked at, so none of these sizes takes memory.
 * SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"
#include "tap.h"

/* A decode's tensors without data. */
struct shapes {
    quire_decode_args args;
    struct tensor query, kv, indptr, indices, seq_lens, qo_indptr;
};

static void fixed(struct shapes *s, DLDataType dtype, int64_t batch, int64_t seq_len_q, int64_t q_heads,
                  int64_t kv_heads, int64_t head_dim, int64_t page_size)
{
    memset(s, 0, sizeof *s);
    s->args = (quire_decode_args)QUIRE_DECODE_ARGS_INIT;
    s->args.seq_len_q = seq_len_q;
    s->args.max_seq_len = 4096;
    if (seq_len_q > 1)
        tensor_set(&s->query, dtype, NULL, SHAPE(batch, seq_len_q, q_heads, head_dim));
    else
        tensor_set(&s->query, dtype, NULL, SHAPE(batch, q_heads, head_dim));
    tensor_set(&s->kv, dtype, NULL, SHAPE(1000, 2, kv_heads, page_size, head_dim));
    tensor_set(&s->indptr, INT32, NULL, SHAPE(batch + 1));
    tensor_set(&s->indices, INT32, NULL, SHAPE(1000));
    tensor_set(&s->seq_lens, INT32, NULL, SHAPE(batch));
    s->args.query = &s->query.t;
    s->args.kv_cache = &s->kv.t;
    s->args.paged_kv_indptr = &s->indptr.t;
    s->args.paged_kv_indices = &s->indices.t;
    s->args.seq_lens = &s->seq_lens.t;
}

static void packed(struct shapes *s, int64_t batch, int64_t total_q, int64_t max_seq_len_q, int64_t q_heads)
{
    fixed(s, BF16, batch, 1, q_heads, q_heads, 64, 16);
    tensor_set(&s->query, BF16, NULL, SHAPE(total_q, q_heads, 64));
    tensor_set(&s->qo_indptr, INT32, NULL, SHAPE(batch + 1));
    s->args.qo_indptr = &s->qo_indptr.t;
    s->args.max_seq_len_q = max_seq_len_q;
}

TAP_FORMAT(4) static void answer(struct shapes *s, quire_status wanted, size_t *bytes, const char *format, ...)
{
    size_t got = 0;
    quire_status status = quire_decode_workspace_size(&s->args, &got);

    TAP_REPORT(status == wanted);
    if (status != wanted)
        diag("wanted %s, got %s: %s", quire_status_name(wanted), quire_status_name(status), quire_last_error());
    if (bytes != NULL)
        *bytes = got;
}

static void test_sizes(void)
{
    static const DLDataType dtypes[] = {{QUIRE_CODE_FLOAT, 16, 1}, {QUIRE_CODE_BFLOAT, 16, 1},
                                        {QUIRE_CODE_FP8E4M3, 8, 1}};
    static const int head_dims[] = {64, 128, 256}, pages[] = {16, 32, 64, 128};
    static const int no_head_dims[] = {1, 32, 63, 96, 192, 512}, no_pages[] = {1, 8, 24, 48, 256};
    struct shapes s;

    for (int d = 0; d < 3; d++)
        for (int h = 0; h < 3; h++)
            for (int i = 0; i < 4; i++) {
                fixed(&s, dtypes[d], 2, 1, 8, 2, head_dims[h], pages[i]);
                answer(&s, QUIRE_OK, NULL, "dtype %d, head_dim %d, page_size %d", d, head_dims[h], pages[i]);
            }
    for (size_t i = 0; i < sizeof no_head_dims / sizeof *no_head_dims; i++) {
        fixed(&s, FP16, 2, 1, 8, 2, no_head_dims[i], 16);
        answer(&s, QUIRE_ERROR_UNSUPPORTED, NULL, "head_dim %d", no_head_dims[i]);
    }
    for (size_t i = 0; i < sizeof no_pages / sizeof *no_pages; i++) {
        fixed(&s, FP16, 2, 1, 8, 2, 64, no_pages[i]);
        answer(&s, QUIRE_ERROR_UNSUPPORTED, NULL, "page_size %d", no_pages[i]);
    }
    for (int group = 1; group <= 34; group++) {
        fixed(&s, FP16, 2, 1, 3 * group, 3, 64, 16);
        answer(&s, group <= 32 ? QUIRE_OK : QUIRE_ERROR_UNSUPPORTED, NULL, "Hq/Hkv = %d", group);
    }
}

static void test_lengths(void)
{
    struct shapes s;

    fixed(&s, BF16, 1, 1, 8, 2, 128, 16);
    s.args.max_seq_len = 1;
    answer(&s, QUIRE_OK, NULL, "max_seq_len 1");
    s.args.max_seq_len = 2147483520;
    answer(&s, QUIRE_OK, NULL, "max_seq_len 2147483520");
    s.args.max_seq_len = 2147483521;
    answer(&s, QUIRE_ERROR_VALUE, NULL, "max_seq_len 2147483521");
    s.args.max_seq_len = 4096;
    s.args.mask_type = QUIRE_MASK_CAUSAL;
    s.args.window_left = 0;
    answer(&s, QUIRE_OK, NULL, "window_left 0");
    s.args.window_left = 2147483646;
    answer(&s, QUIRE_OK, NULL, "window_left 2147483646");
    s.args.window_left = 2147483647;
    answer(&s, QUIRE_ERROR_VALUE, NULL, "window_left 2147483647");

    fixed(&s, BF16, 1, 4096, 32, 8, 128, 16);
    answer(&s, QUIRE_OK, NULL, "seq_len_q 4096");
    s.args.max_seq_len_q = 4096;
    answer(&s, QUIRE_OK, NULL, "max_seq_len_q equal to seq_len_q without qo_indptr");
    packed(&s, 3, 20, 7, 4);
    answer(&s, QUIRE_OK, NULL, "packed with seq_len_q 1");
    s.args.seq_len_q = 7;
    answer(&s, QUIRE_OK, NULL, "packed with seq_len_q equal to max_seq_len_q");
    s.args.seq_len_q = 2;
    answer(&s, QUIRE_ERROR_VALUE, NULL, "packed with another seq_len_q");
}

static void test_int32(void)
{
    struct shapes s;

    /* 2^31 - 1 is prime: the largest products on either side of it that a shape can have */
    fixed(&s, BF16, 2147483647, 1, 1, 1, 64, 16);
    answer(&s, QUIRE_OK, NULL, "B*seq_len_q*Hq of 2^31 - 1");
    fixed(&s, BF16, 1073741824, 1, 2, 1, 64, 16);
    answer(&s, QUIRE_ERROR_VALUE, NULL, "B*seq_len_q*Hq of 2^31");
    fixed(&s, BF16, 65535, 32767, 1, 1, 64, 16);
    answer(&s, QUIRE_OK, NULL, "65535*32767*1");
    fixed(&s, BF16, 65536, 32768, 1, 1, 64, 16);
    answer(&s, QUIRE_ERROR_VALUE, NULL, "65536*32768*1");
    fixed(&s, BF16, 1LL << 32, 1LL << 32, 1, 1, 64, 16);
    answer(&s, QUIRE_ERROR_VALUE, NULL, "a product that wraps to 0 in 64 bits");
    packed(&s, 4, 2147483647, 1, 1);
    answer(&s, QUIRE_OK, NULL, "packed, total_q*Hq of 2^31 - 1");
    packed(&s, 4, 1073741824, 1, 2);
    answer(&s, QUIRE_ERROR_VALUE, NULL, "packed, total_q*Hq of 2^31");
    packed(&s, 2, 5, 1073741823, 1);
    answer(&s, QUIRE_OK, NULL, "packed, B*max_seq_len_q*Hq of 2^31 - 2");
    packed(&s, 2, 5, 1073741824, 1);
    answer(&s, QUIRE_ERROR_VALUE, NULL, "packed, B*max_seq_len_q*Hq of 2^31");

    /* caches beyond 2^32 elements */
    fixed(&s, BF16, 1, 1, 8, 8, 128, 16);
    s.kv.shape[0] = 1LL << 40;
    answer(&s, QUIRE_OK, NULL, "2^55 elements of cache");
    s.kv.shape[0] = 1LL << 60;
    answer(&s, QUIRE_ERROR_VALUE, NULL, "a cache beyond 2^63 bytes");
    s.kv.shape[0] = 3;
    tensor_use_strides(&s.kv);
    s.kv.strides[0] = 1LL << 31;
    answer(&s, QUIRE_OK, NULL, "a page stride of 2^31 elements");
    s.indices.shape[0] = 1LL << 33;
    answer(&s, QUIRE_OK, NULL, "2^33 page table entries");
    s.indices.shape[0] = 1LL << 62;
    answer(&s, QUIRE_ERROR_VALUE, NULL, "a page table beyond 2^63 bytes");
}

static void test_strides(void)
{
    struct shapes s;

    fixed(&s, FP8E4M3, 2, 1, 8, 2, 64, 16);
    tensor_use_strides(&s.kv);
    answer(&s, QUIRE_OK, NULL, "compact strides");
    s.kv.strides[0] = 4096 + 16;
    answer(&s, QUIRE_OK, NULL, "16 bytes between pages");
    s.kv.strides[0] = 4096 + 8;
    answer(&s, QUIRE_ERROR_VALUE, NULL, "8 bytes between pages");
    s.kv.strides[0] = 4096 - 16;
    answer(&s, QUIRE_ERROR_VALUE, NULL, "pages that overlap by 16 bytes");
    s.kv.shape[0] = 1;
    s.kv.strides[0] = -3;
    answer(&s, QUIRE_OK, NULL, "any page stride of a single page");
    fixed(&s, FP16, 2, 1, 1, 1, 64, 16);
    tensor_use_strides(&s.query);
    s.query.strides[1] = 12345;
    answer(&s, QUIRE_OK, NULL, "any stride of a single head");
    tensor_use_strides(&s.kv);
    s.kv.strides[2] = 1;
    answer(&s, QUIRE_OK, NULL, "any stride of a single KV head");
}

static void test_empty(void)
{
    struct fixture_shape shape = SMALL;
    struct shapes s;
    size_t bytes = 99;

    fixed(&s, BF16, 0, 1, 8, 2, 128, 16);
    answer(&s, QUIRE_OK, &bytes, "B = 0");
    is_int(0, (long long)bytes, "needs no workspace");
    is_int(QUIRE_OK, quire_decode_prepare(&s.args), "and can be prepared");
    packed(&s, 3, 0, 5, 4);
    answer(&s, QUIRE_OK, NULL, "total_q = 0");
    packed(&s, 0, 0, 5, 4);
    answer(&s, QUIRE_OK, NULL, "packed B = 0");

    shape.batch = 0;
    struct fixture *f = fixture_new(&shape);
    f->args.workspace_buffer = NULL;
    f->query.t.data = f->out.t.data = f->lse.t.data = f->seq_lens.t.data = f->indices.t.data = NULL;
    is_int(QUIRE_OK, quire_decode(&f->args, NULL), "decode of B = 0 without data and workspace");
    is_int(QUIRE_OK, quire_decode_reference(&f->args), "reference of B = 0");
    is_int(QUIRE_OK, quire_decode_check(&f->args, NULL), "check of B = 0");
    fixture_free(f);

    static const int32_t none[] = {0, 0, 0};
    shape = SMALL;
    shape.q_lens = none;
    f = fixture_new(&shape);
    f->args.workspace_buffer = NULL;
    f->query.t.data = f->out.t.data = f->lse.t.data = NULL;
    is_int(QUIRE_OK, quire_decode(&f->args, NULL), "decode of total_q = 0 without data and workspace");
    fixture_free(f);
}

/* One sizing function: 64 bits, the same whoever asks, and never smaller for more. */
static void test_workspace(void)
{
    static const int64_t batches[] = {1, 2, 3, 7, 8, 64, 528, 1024, 65536, 100000};
    static const int64_t lengths[] = {1, 16, 100, 4096, 131072, 1 << 22, 2147483520};
    struct shapes s;
    size_t bytes, before, again;
    bool grows = true, same = true;

    fixed(&s, FP8E4M3, 528, 1, 64, 8, 256, 16);
    answer(&s, QUIRE_OK, &bytes, "B 528, Hq 64, Hkv 8, D 256");
    ok(bytes <= (size_t)64 << 20, "fits 64 MiB: %zu bytes", bytes);
    fixed(&s, BF16, 3, 64, 16, 4, 128, 16);
    s.args.max_seq_len = 16384;
    answer(&s, QUIRE_OK, &bytes, "B 3, seq_len_q 64, Hq 16, Hkv 4, D 128");
    ok(bytes <= (size_t)64 << 20, "fits 64 MiB: %zu bytes", bytes);

    before = 0;
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        fixed(&s, BF16, batches[i], 1, 32, 8, 128, 16);
        if (quire_decode_workspace_size(&s.args, &bytes) != QUIRE_OK || bytes < before)
            grows = false;
        if (quire_decode_workspace_size(&s.args, &again) != QUIRE_OK || again != bytes)
            same = false;
        before = bytes;
    }
    ok(grows, "the size does not shrink with B");
    ok(same, "asked twice, answered twice the same");
    grows = true;
    before = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        fixed(&s, BF16, 8, 1, 32, 8, 128, 16);
        s.args.max_seq_len = lengths[i];
        if (quire_decode_workspace_size(&s.args, &bytes) != QUIRE_OK || bytes < before)
            grows = false;
        before = bytes;
    }
    ok(grows, "the size does not shrink with max_seq_len");
}

static void test_dtypes(void)
{
    static const struct {
        DLDataType in;
        quire_dtype out;
        quire_status status;
        const char *what;
    } rows[] = {
        {{QUIRE_CODE_FLOAT, 16, 1}, QUIRE_DTYPE_DEFAULT, QUIRE_OK, "fp16 to query's"},
        {{QUIRE_CODE_FLOAT, 16, 1}, QUIRE_DTYPE_FP16, QUIRE_OK, "fp16 to fp16"},
        {{QUIRE_CODE_FLOAT, 16, 1}, QUIRE_DTYPE_BF16, QUIRE_ERROR_UNSUPPORTED, "fp16 to bf16"},
        {{QUIRE_CODE_FLOAT, 16, 1}, QUIRE_DTYPE_FP8E4M3, QUIRE_ERROR_UNSUPPORTED, "fp16 to fp8e4m3"},
        {{QUIRE_CODE_BFLOAT, 16, 1}, QUIRE_DTYPE_BF16, QUIRE_OK, "bf16 to bf16"},
        {{QUIRE_CODE_BFLOAT, 16, 1}, QUIRE_DTYPE_FP16, QUIRE_ERROR_UNSUPPORTED, "bf16 to fp16"},
        {{QUIRE_CODE_BFLOAT, 16, 1}, QUIRE_DTYPE_FP8E4M3, QUIRE_ERROR_UNSUPPORTED, "bf16 to fp8e4m3"},
        {{QUIRE_CODE_FP8E4M3, 8, 1}, QUIRE_DTYPE_DEFAULT, QUIRE_OK, "fp8e4m3 to query's"},
        {{QUIRE_CODE_FP8E4M3, 8, 1}, QUIRE_DTYPE_FP8E4M3, QUIRE_OK, "fp8e4m3 to fp8e4m3"},
        {{QUIRE_CODE_FP8E4M3, 8, 1}, QUIRE_DTYPE_FP16, QUIRE_OK, "fp8e4m3 to fp16"},
        {{QUIRE_CODE_FP8E4M3, 8, 1}, QUIRE_DTYPE_BF16, QUIRE_ERROR_UNSUPPORTED, "fp8e4m3 to bf16"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct shapes s;

        fixed(&s, rows[i].in, 2, 1, 8, 2, 128, 16);
        s.args.out_dtype = rows[i].out;
        answer(&s, rows[i].status, NULL, "%s", rows[i].what);
    }
}

int main(void)
{
    plan(0);
    test_sizes();
    test_lengths();
    test_int32();
    test_strides();
    test_empty();
    test_workspace();
    test_dtypes();
    return done();
}

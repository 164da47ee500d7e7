/* A table of bad arguments: each is refused with its status and its words, by every call that looks at it;
 * nothing is written, and the next good decode gives the bits it always gave.
 *
 * A row is KIND(STATUS, "words of the message", statements); `f` is the fixture to spoil and `a` its
 * arguments.  KIND says which calls refuse; all others must accept.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "fixture.h"
#include "tap.h"

static const int32_t some_lens[] = {5, 33, 16}, some_q_lens[] = {2, 3, 1};
static struct fixture_shape kind;   /* of the rows that follow */
static struct fixture *good;
static unsigned char *good_out;

static struct fixture_shape shape(int32_t seq_len_q, bool packed, bool pair, DLDataType in, DLDataType out)
{
    struct fixture_shape s = SMALL;

    s.seq_lens = some_lens;
    s.seq_len_q = seq_len_q;
    s.q_lens = packed ? some_q_lens : NULL;
    s.pair = pair;
    s.dtype = in;
    s.out_dtype = out;
    return s;
}

/* Where a row's out, lse and workspace are, whatever it does to the tensors. */
struct outputs {
    unsigned char *out, *lse, *workspace;
    size_t out_bytes, lse_bytes, workspace_bytes;
};

static bool untouched(const unsigned char *bytes, size_t count, unsigned char fill)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != fill)
            return false;
    return true;
}

enum { DECODE = 1, SIZE = 2, PREPARE = 4, CHECK = 8 };

static bool answers(const char *call, bool refusal, quire_status wanted, quire_status got, const char *words)
{
    if (refusal ? got == wanted && strstr(quire_last_error(), words) != NULL : got == QUIRE_OK)
        return true;
    diag("%s: wanted %s", call, refusal ? words : "acceptance");
    diag("got %s: %s", quire_status_name(got), got == QUIRE_OK ? "" : quire_last_error());
    return false;
}

static void row(struct fixture *f, const struct outputs *o, int calls, quire_status status, const char *words,
                const char *what)
{
    quire_decode_args *a = &f->args;
    size_t bytes = 12345;
    bool right = answers("decode", calls & DECODE, status, quire_decode(a, NULL), words);

    right &= answers("workspace_size", calls & SIZE, status, quire_decode_workspace_size(a, &bytes), words);
    right &= answers("prepare", calls & PREPARE, status, quire_decode_prepare(a), words);
    right &= answers("check", calls & CHECK, status, quire_decode_check(a, NULL), words);
    if ((calls & SIZE) && bytes != 12345) {
        diag("workspace_size stored something");
        right = false;
    }
    if (!untouched(o->out, o->out_bytes, FIXTURE_FILL) || !untouched(o->lse, o->lse_bytes, FIXTURE_FILL) ||
        !untouched(o->workspace, o->workspace_bytes, 0)) {
        diag("something was written");
        right = false;
    }
    if (quire_decode(&good->args, NULL) != QUIRE_OK ||
        memcmp(good_out, good->out.t.data, tensor_bytes(&good->out)) != 0) {
        diag("a good decode afterwards is not what it was");
        right = false;
    }
    ok(right, "%s: %s", quire_status_name(status), what);
    fixture_free(f);
}

static struct fixture *begin(struct outputs *o)
{
    struct fixture *f = fixture_new(&kind);

    *o = (struct outputs){f->out.t.data, f->lse.t.data, f->workspace.t.data, tensor_bytes(&f->out),
                          tensor_bytes(&f->lse), tensor_bytes(&f->workspace)};
    return f;
}

#define ROW(calls, status, words, ...)                                                                                 \
    do {                                                                                                               \
        struct outputs before;                                                                                         \
        struct fixture *f = begin(&before);                                                                            \
        quire_decode_args *a = &f->args;                                                                               \
        (void)a;                                                                                                       \
        __VA_ARGS__;                                                                                                   \
        row(f, &before, calls, QUIRE_ERROR_##status, words, #__VA_ARGS__);                                             \
    } while (0)
#define SHAPED(...) ROW(DECODE | SIZE | PREPARE | CHECK, __VA_ARGS__)
#define LAUNCHED(...) ROW(DECODE | SIZE | PREPARE, __VA_ARGS__) /* what check has no use for */
#define DATA(...) ROW(DECODE, __VA_ARGS__)
#define METADATA(...) ROW(DECODE | CHECK, __VA_ARGS__)

static void test_query(void)
{
    kind = shape(1, false, false, FP16, FP16);
    SHAPED(TYPE, "query: expected fp16, bf16 or fp8e4m3 [B, Hq, D] (seq_len_q = 1), got NULL", a->query = NULL);
    SHAPED(TYPE, "query: expected a tensor on cpu or cuda:N, got device type 3", f->query.t.device.device_type = 3);
    SHAPED(TYPE, "query: expected a tensor on cpu or cuda:N, got device type 13", f->query.t.device.device_type = 13);
    SHAPED(DEVICE, "query: there is no device cpu:1", f->query.t.device.device_id = 1);
    SHAPED(TYPE, "query: expected", f->query.t.ndim = 2);
    SHAPED(TYPE, "query: expected", f->query.t.ndim = -1);
    SHAPED(TYPE, "query: expected", f->query.t.ndim = 1000000);
    SHAPED(TYPE, "NULL shape", f->query.t.shape = NULL);
    SHAPED(TYPE, "[3, 1, 4, 64]", tensor_set(&f->query, FP16, f->query.t.data, SHAPE(3, 1, 4, 64)));
    SHAPED(TYPE, "got fp32 [3, 4, 64]", f->query.t.dtype = FP32);
    SHAPED(TYPE, "got fp64 [3, 4, 64]", f->query.t.dtype = FP64);
    SHAPED(TYPE, "got fp8e5m2", f->query.t.dtype = (DLDataType){12, 8, 1});
    SHAPED(TYPE, "got fp16x2", f->query.t.dtype.lanes = 2);
    SHAPED(VALUE, "query: expected", f->query.shape[0] = -1);
    SHAPED(VALUE, "query: expected", f->query.shape[1] = 0);
    SHAPED(VALUE, "query: expected", f->query.shape[2] = 0);
    SHAPED(VALUE, "query: expected B*seq_len_q*Hq up to 2147483647", f->query.shape[0] = 536870912);
    SHAPED(VALUE, "query: expected extents up to 2147483647", f->query.shape[0] = 1LL << 33);
    SHAPED(VALUE, "query: expected extents up to 2147483647", f->query.shape[0] = 0, f->query.shape[1] = 1LL << 40);
    SHAPED(UNSUPPORTED, "query: head_dim 64, 128 and 256 are supported", f->query.shape[2] = 96);
    SHAPED(VALUE, "query: expected a compact", tensor_use_strides(&f->query), f->query.strides[0] = 512);
    SHAPED(VALUE, "query: expected a compact", tensor_use_strides(&f->query), f->query.strides[2] = 2);
    DATA(TYPE, "query: expected data, got NULL", f->query.t.data = NULL);
    DATA(VALUE, "query: expected data aligned to 16 bytes", f->query.t.byte_offset = 8);
    DATA(VALUE, "query: expected 1536 bytes of memory", f->query.t.byte_offset = UINT64_MAX);

    kind = shape(3, false, false, FP16, FP16);
    SHAPED(TYPE, "[B, seq_len_q, Hq, D]", tensor_set(&f->query, FP16, f->query.t.data, SHAPE(9, 4, 64)));
    SHAPED(VALUE, "seq_len_q = 3, got fp16 [3, 2, 4, 64]", f->query.shape[1] = 2);
    SHAPED(VALUE, "seq_len_q = 2, got fp16 [3, 3, 4, 64]", a->seq_len_q = 2);
    SHAPED(VALUE, "query: expected B*seq_len_q*Hq up to 2147483647", f->query.shape[1] = a->seq_len_q = 178956971);
    SHAPED(VALUE, "seq_len_q: expected at least 1, got 0", a->seq_len_q = 0);
    SHAPED(VALUE, "seq_len_q: expected at least 1, got -3", a->seq_len_q = -3);

    kind = shape(1, true, false, FP16, FP16);
    SHAPED(TYPE, "[total_q, Hq, D]", tensor_set(&f->query, FP16, f->query.t.data, SHAPE(2, 3, 4, 64)));
    SHAPED(VALUE, "query: expected total_q*Hq up to 2147483647", f->query.shape[0] = 536870912);
}

static void test_cache(void)
{
    kind = shape(1, false, false, BF16, BF16);
    SHAPED(TYPE, "kv_cache: expected kv_cache, or k_cache and v_cache, got none", a->kv_cache = NULL);
    SHAPED(VALUE, "kv_cache: expected either", a->k_cache = a->kv_cache);
    SHAPED(VALUE, "got kv_cache and v_cache", a->v_cache = a->kv_cache);
    SHAPED(TYPE, "kv_cache: expected the device of the tensor before it, cpu, got cuda:0",
           f->kv.t.device.device_type = QUIRE_DEVICE_CUDA);
    SHAPED(TYPE, "kv_cache: expected the device of the tensor before it, cpu, got cpu:2", f->kv.t.device.device_id = 2);
    SHAPED(TYPE, "kv_cache: expected [pages, 2, Hkv, page_size, D]", f->kv.t.ndim = 4);
    SHAPED(TYPE, "got int8", f->kv.t.dtype = (DLDataType){QUIRE_CODE_INT, 8, 1});
    SHAPED(UNSUPPORTED, "kv_cache: a cache of query's dtype bf16 is supported, got fp16", f->kv.t.dtype = FP16);
    SHAPED(UNSUPPORTED, "kv_cache: a cache of query's dtype bf16 is supported, got fp8e4m3", f->kv.t.dtype = FP8E4M3);
    SHAPED(VALUE, "kv_cache: expected extents of at least 1", f->kv.shape[0] = 0);
    SHAPED(VALUE, "kv_cache: expected extents of at least 1", f->kv.shape[2] = -2);
    SHAPED(VALUE, "kv_cache: expected [pages, 2, Hkv, page_size, D]", f->kv.shape[1] = 3);
    SHAPED(VALUE, "query's D = 64", f->kv.shape[4] = 128);
    SHAPED(UNSUPPORTED, "kv_cache: page_size 16, 32, 64 and 128 are supported", f->kv.shape[3] = 8);
    SHAPED(UNSUPPORTED, "kv_cache: page_size 16, 32, 64 and 128 are supported", f->kv.shape[3] = 256);
    SHAPED(VALUE, "kv_cache: expected Hkv to divide query's Hq = 4", f->kv.shape[2] = 3);
    SHAPED(VALUE, "kv_cache: expected Hkv to divide query's Hq = 4", f->kv.shape[2] = 8);
    SHAPED(UNSUPPORTED, "kv_cache: Hq/Hkv up to 32 is supported, got 33", f->query.shape[1] = 33, f->kv.shape[2] = 1);
    SHAPED(VALUE, "compact behind their outer stride", tensor_use_strides(&f->kv), f->kv.strides[3] = 128);
    SHAPED(VALUE, "compact behind their outer stride", tensor_use_strides(&f->kv), f->kv.strides[1] = 4096);
    SHAPED(VALUE, "at least 4096 elements (pages may not overlap)", tensor_use_strides(&f->kv),
           f->kv.strides[0] = 2048);
    SHAPED(VALUE, "at least 4096 elements (pages may not overlap)", tensor_use_strides(&f->kv),
           f->kv.strides[0] = -4096);
    SHAPED(VALUE, "at least 4096 elements (pages may not overlap)", tensor_use_strides(&f->kv), f->kv.strides[0] = 0);
    SHAPED(VALUE, "a multiple of 16 bytes", tensor_use_strides(&f->kv), f->kv.strides[0] = 4100);
    SHAPED(VALUE, "kv_cache: expected less than 2^63 bytes", tensor_use_strides(&f->kv), f->kv.strides[0] = 1LL << 60);
    DATA(TYPE, "kv_cache: expected data, got NULL", f->kv.t.data = NULL);
    DATA(VALUE, "kv_cache: expected data aligned to 16 bytes", f->kv.t.byte_offset = 2);

    kind = shape(1, false, true, FP16, FP16);
    SHAPED(TYPE, "k_cache: expected [pages, Hkv, page_size, D] of query's dtype, got NULL", a->k_cache = NULL);
    SHAPED(TYPE, "v_cache: expected [pages, Hkv, page_size, D] of query's dtype, got NULL", a->v_cache = NULL);
    SHAPED(TYPE, "k_cache: expected [pages, Hkv, page_size, D]", f->k.t.ndim = 3);
    SHAPED(TYPE, "v_cache: expected [pages, Hkv, page_size, D]", f->v.t.ndim = 3);
    SHAPED(TYPE, "v_cache: expected the device of", f->v.t.device.device_type = QUIRE_DEVICE_CUDA);
    SHAPED(UNSUPPORTED, "v_cache: a cache of query's dtype fp16 is supported, got bf16", f->v.t.dtype = BF16);
    SHAPED(VALUE, "v_cache: expected k_cache's shape", f->v.shape[0]--);
    SHAPED(VALUE, "v_cache: expected k_cache's shape", f->v.shape[2] = 32);
    SHAPED(VALUE, "k_cache: expected a page stride", tensor_use_strides(&f->k), f->k.strides[0] = 2040);
    SHAPED(VALUE, "v_cache: expected a page stride", tensor_use_strides(&f->v), f->v.strides[0] = 2049);
    DATA(TYPE, "k_cache: expected data, got NULL", f->k.t.data = NULL);
    DATA(TYPE, "v_cache: expected data, got NULL", f->v.t.data = NULL);
    DATA(VALUE, "v_cache: expected data aligned", f->v.t.byte_offset = 4);
}

static void test_workspace(void)
{
    kind = shape(1, false, false, FP16, FP16);
    LAUNCHED(TYPE, "workspace_buffer: expected the device of", f->workspace.t.device.device_type = QUIRE_DEVICE_CUDA);
    LAUNCHED(TYPE, "workspace_buffer: expected contiguous int8 or uint8", f->workspace.t.dtype = FP32);
    LAUNCHED(TYPE, "workspace_buffer: expected contiguous int8 or uint8", f->workspace.t.ndim = 0);
    LAUNCHED(VALUE, "workspace_buffer: expected", f->workspace.shape[0] = -1);
    LAUNCHED(VALUE, "workspace_buffer: expected a compact", f->workspace.t.strides = f->workspace.strides,
             f->workspace.strides[0] = 2);
    DATA(TYPE, "workspace_buffer: expected at least", a->workspace_buffer = NULL);
    DATA(TYPE, "workspace_buffer: expected at least", f->workspace.t.data = NULL);
    DATA(VALUE, "workspace_buffer: expected data aligned to 32 bytes", f->workspace.t.byte_offset = 16);
    DATA(VALUE, "workspace_buffer: expected at least", f->workspace.shape[0]--);
    DATA(VALUE, "workspace_buffer: expected memory of its own", f->workspace.t.data = f->query.t.data);
    DATA(VALUE, "an overlap of 32 bytes with kv_cache",
         f->workspace.t.data = (char *)f->kv.t.data + tensor_bytes(&f->kv) - 32);
    DATA(VALUE, "paged_kv_indptr: expected memory of its own, got an overlap of 16 bytes with workspace_buffer",
         f->workspace.t.data = f->indptr.t.data, f->workspace.shape[0] = 32);
    DATA(VALUE, "paged_kv_indices: expected memory of its own, got an overlap of 20 bytes with workspace_buffer",
         f->workspace.t.data = f->indices.t.data, f->workspace.shape[0] = 32);
    DATA(VALUE, "seq_lens: expected memory of its own, got an overlap of 1 bytes with workspace_buffer",
         f->workspace.t.data = f->seq_lens.t.data, f->workspace.shape[0] = 1);
    DATA(VALUE, "out: expected memory of its own", f->out.t.data = f->workspace.t.data);
    DATA(VALUE, "lse: expected memory of its own", f->lse.t.data = f->workspace.t.data);
    kind = shape(1, true, false, FP16, FP16);
    DATA(VALUE, "qo_indptr: expected memory of its own, got an overlap of 16 bytes with workspace_buffer",
         f->workspace.t.data = f->qo_indptr.t.data, f->workspace.shape[0] = 32);
}

static void test_metadata(void)
{
    kind = shape(1, false, false, FP16, FP16);
    SHAPED(TYPE, "paged_kv_indptr: expected int32 [4] (B + 1, with B of query), got NULL", a->paged_kv_indptr = NULL);
    SHAPED(TYPE, "paged_kv_indptr: expected int32 [4] (B + 1, with B of query), got int64 [4]",
           f->indptr.t.dtype = INT64);
    SHAPED(TYPE, "paged_kv_indptr: expected int32 [4]", f->indptr.t.dtype.code = QUIRE_CODE_UINT);
    SHAPED(TYPE, "paged_kv_indptr: expected int32 [4]", f->indptr.t.ndim = 2);
    SHAPED(TYPE, "paged_kv_indptr: expected the device of", f->indptr.t.device.device_type = QUIRE_DEVICE_CUDA);
    SHAPED(VALUE, "got int32 [5]", f->indptr.shape[0] = 5);
    SHAPED(VALUE, "got int32 [3]", f->indptr.shape[0] = 3);
    SHAPED(VALUE, "paged_kv_indptr: expected a compact", tensor_use_strides(&f->indptr), f->indptr.strides[0] = 2);
    METADATA(TYPE, "paged_kv_indptr: expected data, got NULL", f->indptr.t.data = NULL);
    METADATA(VALUE, "paged_kv_indptr: expected data aligned to 4 bytes", f->indptr.t.byte_offset = 2);
    SHAPED(TYPE, "paged_kv_indices: expected int32 [n] (page ids), got NULL", a->paged_kv_indices = NULL);
    SHAPED(TYPE, "got int64 [5]", f->indices.t.dtype = INT64);
    SHAPED(TYPE, "paged_kv_indices: expected the device of", f->indices.t.device.device_id = 1);
    SHAPED(VALUE, "got int32 [-5]", f->indices.shape[0] = -5);
    SHAPED(VALUE, "paged_kv_indices: expected a compact", tensor_use_strides(&f->indices), f->indices.strides[0] = -1);
    METADATA(TYPE, "paged_kv_indices: expected data, got NULL", f->indices.t.data = NULL);
    METADATA(VALUE, "paged_kv_indices: expected data aligned to 4 bytes", f->indices.t.byte_offset = 1);
    SHAPED(TYPE, "seq_lens: expected int32 [3] (B of query), got NULL", a->seq_lens = NULL);
    SHAPED(TYPE, "got int64 [3]", f->seq_lens.t.dtype = INT64);
    SHAPED(VALUE, "seq_lens: expected int32 [3] (B of query), got int32 [4]", f->seq_lens.shape[0] = 4);
    SHAPED(TYPE, "seq_lens: expected the device of", f->seq_lens.t.device.device_type = QUIRE_DEVICE_CUDA);
    METADATA(TYPE, "seq_lens: expected data, got NULL", f->seq_lens.t.data = NULL);
    METADATA(VALUE, "seq_lens: expected data aligned", f->seq_lens.t.byte_offset = 3);

    /* live values, which a decode on the CPU checks */
    METADATA(VALUE, "paged_kv_indptr: expected to start at 0, got 1", ((int32_t *)f->indptr.t.data)[0] = 1);
    METADATA(VALUE, "request 1: paged_kv_indptr goes down from 1 to 0", ((int32_t *)f->indptr.t.data)[2] = 0);
    METADATA(VALUE, "beyond the 5 entries", ((int32_t *)f->indptr.t.data)[3] = 6);
    METADATA(VALUE, "request 1: seq_lens = 65 needs 5 pages of 16, its row owns 3",
             ((int32_t *)f->seq_lens.t.data)[1] = 65, a->max_seq_len = 128);
    METADATA(VALUE, "request 2: seq_lens = -1", ((int32_t *)f->seq_lens.t.data)[2] = -1);
    METADATA(VALUE, "request 1: seq_lens = 33 is not from 0 to max_seq_len = 32", a->max_seq_len = 32);
    METADATA(VALUE, "request 1: paged_kv_indices[3] = -1", ((int32_t *)f->indices.t.data)[3] = -1);
    METADATA(VALUE, "request 2: paged_kv_indices[4] = 8", ((int32_t *)f->indices.t.data)[4] = 8);

    kind = shape(1, true, false, FP16, FP16);
    SHAPED(TYPE, "paged_kv_indptr: expected int32 [n] (n = B + 1), got NULL", a->paged_kv_indptr = NULL);
    SHAPED(VALUE, "paged_kv_indptr: expected int32 [n]", f->indptr.shape[0] = 0);
    SHAPED(VALUE, "seq_lens: expected int32 [4] (B of paged_kv_indptr), got int32 [3]", f->indptr.shape[0] = 5);
    SHAPED(TYPE, "qo_indptr: expected int32 [4] (B + 1, with B of paged_kv_indptr), got int64 [4]",
           f->qo_indptr.t.dtype = INT64);
    SHAPED(TYPE, "qo_indptr: expected int32 [4]", f->qo_indptr.t.ndim = 0);
    SHAPED(VALUE, "qo_indptr: expected int32 [4]", f->qo_indptr.shape[0] = 3);
    SHAPED(TYPE, "qo_indptr: expected the device of", f->qo_indptr.t.device.device_type = QUIRE_DEVICE_CUDA);
    METADATA(TYPE, "qo_indptr: expected data, got NULL", f->qo_indptr.t.data = NULL);
    METADATA(VALUE, "qo_indptr: expected to start at 0, got 1", ((int32_t *)f->qo_indptr.t.data)[0] = 1);
    METADATA(VALUE, "request 1: qo_indptr goes down from 2 to 1", ((int32_t *)f->qo_indptr.t.data)[2] = 1);
    METADATA(VALUE, "qo_indptr: ends at 7, beyond the 6 rows of query", ((int32_t *)f->qo_indptr.t.data)[3] = 7);
    METADATA(VALUE, "request 1: qo_indptr gives it 3 query tokens, max_seq_len_q is 2", a->max_seq_len_q = 2);
}

static void test_scalars(void)
{
    kind = shape(1, false, false, FP16, FP16);
    SHAPED(VALUE, "max_seq_len: expected 1 to 2147483520, got 0", a->max_seq_len = 0);
    SHAPED(VALUE, "max_seq_len: expected 1 to 2147483520, got -1", a->max_seq_len = -1);
    SHAPED(VALUE, "max_seq_len: expected 1 to 2147483520, got 2147483521", a->max_seq_len = 2147483521);
    SHAPED(VALUE, "max_seq_len: expected", a->max_seq_len = INT64_MIN);
    SHAPED(VALUE, "seq_len_q: expected at least 1, got 0", a->seq_len_q = 0);
    SHAPED(VALUE, "seq_len_q: expected at least 1", a->seq_len_q = INT64_MIN);
    SHAPED(VALUE, "max_seq_len_q: expected 0 or seq_len_q = 1 without qo_indptr, got 2", a->max_seq_len_q = 2);
    SHAPED(VALUE, "max_seq_len_q: expected 0 or seq_len_q = 1 without qo_indptr, got -1", a->max_seq_len_q = -1);
    SHAPED(VALUE, "bmm1_scale: expected above 0 and finite", a->bmm1_scale = 0);
    SHAPED(VALUE, "bmm1_scale: expected above 0 and finite", a->bmm1_scale = -1);
    SHAPED(VALUE, "bmm1_scale: expected above 0 and finite", a->bmm1_scale = (double)NAN);
    SHAPED(VALUE, "bmm1_scale: expected above 0 and finite", a->bmm1_scale = (double)INFINITY);
    SHAPED(VALUE, "also as a float32, got 1e+39", a->bmm1_scale = 1e39);
    SHAPED(VALUE, "also as a float32, got 1e-50", a->bmm1_scale = 1e-50);
    SHAPED(VALUE, "bmm2_scale: expected above 0 and finite", a->bmm2_scale = 0);
    SHAPED(VALUE, "bmm2_scale: expected above 0 and finite", a->bmm2_scale = -0.5);
    SHAPED(VALUE, "bmm2_scale: expected above 0 and finite", a->bmm2_scale = (double)NAN);
    SHAPED(VALUE, "also as a float32, got -1.79769e+308", a->bmm2_scale = -DBL_MAX);
    SHAPED(VALUE, "mask_type: expected dense (0) or causal (1), got 2", a->mask_type = (quire_mask)2);
    SHAPED(VALUE, "window_left: expected -1 to 2147483646, got -2", a->window_left = -2);
    SHAPED(VALUE, "window_left: expected -1 to 2147483646, got 2147483647",
           a->window_left = INT32_MAX, a->mask_type = QUIRE_MASK_CAUSAL);
    SHAPED(VALUE, "window_left: expected -1 with a dense mask, got 0", a->window_left = 0);
    SHAPED(UNSUPPORTED, "kv_layout: HND is supported, got NHD", a->kv_layout = QUIRE_LAYOUT_NHD);
    SHAPED(UNSUPPORTED, "kv_layout: HND is supported, got NHD", /* whatever the shape says */
           a->kv_layout = QUIRE_LAYOUT_NHD, f->kv.shape[2] = 16, f->kv.shape[3] = 2);
    SHAPED(VALUE, "kv_layout: expected HND (0), got 5", a->kv_layout = (quire_layout)5);
    SHAPED(VALUE, "metadata_stable: expected 0 or 1, got 2", a->metadata_stable = 2);

    kind = shape(1, true, false, FP16, FP16);
    SHAPED(VALUE, "max_seq_len_q: expected 1 to 2147483647 with qo_indptr, got 0", a->max_seq_len_q = 0);
    SHAPED(VALUE, "max_seq_len_q: expected 1 to 2147483647 with qo_indptr, got -1", a->max_seq_len_q = -1);
    SHAPED(VALUE, "max_seq_len_q: expected 1 to 2147483647", a->max_seq_len_q = 1LL << 40);
    SHAPED(VALUE, "B*max_seq_len_q*Hq up to 2147483647, got 3*178956971*4", a->max_seq_len_q = 178956971);
    SHAPED(VALUE, "seq_len_q: expected 1 or max_seq_len_q = 3 with qo_indptr, got 2", a->seq_len_q = 2);
}

static void test_outputs(void)
{
    kind = shape(1, false, false, FP16, FP16);
    DATA(TYPE, "out: expected query's shape, got NULL", a->out = NULL);
    SHAPED(TYPE, "out: expected the device of", f->out.t.device.device_type = QUIRE_DEVICE_CUDA);
    SHAPED(TYPE, "out: expected query's shape, got fp16 [3, 1, 4, 64]",
           tensor_set(&f->out, FP16, f->out.t.data, SHAPE(3, 1, 4, 64)));
    SHAPED(TYPE, "out: expected fp16, bf16 or fp8e4m3, got fp32", f->out.t.dtype = FP32);
    SHAPED(TYPE, "out: expected fp16, bf16 or fp8e4m3, got fp64", f->out.t.dtype = FP64);
    SHAPED(VALUE, "out: expected query's shape, which is fp16 [3, 4, 64], got fp16 [2, 4, 64]", f->out.shape[0] = 2);
    SHAPED(VALUE, "out: expected a compact", tensor_use_strides(&f->out), f->out.strides[0] = 512);
    SHAPED(UNSUPPORTED, "out: fp16 from fp16 is supported, got bf16", f->out.t.dtype = BF16);
    SHAPED(UNSUPPORTED, "out: fp16 from fp16 is supported, got fp8e4m3", f->out.t.dtype = FP8E4M3);
    SHAPED(TYPE, "out_dtype: expected out's dtype fp16, got bf16", a->out_dtype = QUIRE_DTYPE_BF16);
    SHAPED(VALUE, "out_dtype: expected a quire_dtype, got 9", a->out_dtype = (quire_dtype)9);
    DATA(TYPE, "out: expected data, got NULL", f->out.t.data = NULL);
    DATA(VALUE, "out: expected data aligned to 16 bytes", f->out.t.byte_offset = 8);
    DATA(VALUE, "an overlap of 1536 bytes with query", f->out.t.data = f->query.t.data);
    DATA(VALUE, "an overlap of 16 bytes with kv_cache",
         f->out.t.data = (char *)f->kv.t.data + tensor_bytes(&f->kv) - 16);
    DATA(VALUE, "out: expected memory of its own", f->out.t.data = f->indptr.t.data);
    DATA(VALUE, "out: expected memory of its own", f->out.t.data = f->indices.t.data);
    DATA(VALUE, "out: expected memory of its own", f->out.t.data = f->seq_lens.t.data);
    SHAPED(TYPE, "lse: expected the device of", f->lse.t.device.device_type = QUIRE_DEVICE_CUDA);
    SHAPED(TYPE, "lse: expected fp32 of query's shape without D, got fp32 [3, 4, 1]",
           tensor_set(&f->lse, FP32, f->lse.t.data, SHAPE(3, 4, 1)));
    SHAPED(TYPE, "lse: expected fp32, got fp64", f->lse.t.dtype = FP64);
    SHAPED(TYPE, "lse: expected fp32, got fp16", f->lse.t.dtype = FP16);
    SHAPED(VALUE, "lse: expected fp32 of query's shape without D", f->lse.shape[1] = 3);
    SHAPED(VALUE, "lse: expected a compact", tensor_use_strides(&f->lse), f->lse.strides[0] = 8);
    DATA(TYPE, "lse: expected data, got NULL", f->lse.t.data = NULL);
    DATA(VALUE, "lse: expected data aligned to 4 bytes", f->lse.t.byte_offset = 2);
    DATA(VALUE, "an overlap of 48 bytes with query", f->lse.t.data = f->query.t.data);
    DATA(VALUE, "an overlap of 48 bytes with out", f->lse.t.data = f->out.t.data);
    DATA(VALUE, "an overlap of 4 bytes with out",
         f->lse.t.data = (char *)f->out.t.data + tensor_bytes(&f->out) - 4);

    kind = shape(1, false, false, BF16, BF16);
    SHAPED(UNSUPPORTED, "out: bf16 from bf16 is supported, got fp16", f->out.t.dtype = FP16);
    kind = shape(1, false, true, FP8E4M3, FP16);
    SHAPED(UNSUPPORTED, "out: fp16 or fp8e4m3 from fp8e4m3 is supported, got bf16", f->out.t.dtype = BF16);
    kind = shape(1, true, true, FP16, FP16);
    DATA(VALUE, "out: expected memory of its own", f->out.t.data = f->k.t.data);
    DATA(VALUE, "out: expected memory of its own", f->out.t.data = f->v.t.data);
    DATA(VALUE, "out: expected memory of its own", f->out.t.data = f->qo_indptr.t.data);
    DATA(VALUE, "lse: expected memory of its own", f->lse.t.data = f->v.t.data);
}

/* Of two faults the one that stands first in quire(3)'s list answers. */
static void test_order(void)
{
    kind = shape(1, false, false, FP16, FP16);
    SHAPED(TYPE, "query: ", f->query.t.dtype = FP32, a->kv_cache = NULL, a->seq_lens = NULL);
    SHAPED(TYPE, "kv_cache: ", a->kv_cache = NULL, f->workspace.t.dtype = FP32, a->paged_kv_indptr = NULL);
    SHAPED(TYPE, "paged_kv_indptr: ", f->indptr.t.dtype = INT64, f->seq_lens.t.dtype = INT64, a->max_seq_len = 0);
    SHAPED(TYPE, "seq_lens: ", f->seq_lens.t.dtype = INT64, a->max_seq_len = 0);
    SHAPED(VALUE, "max_seq_len: ", a->max_seq_len = 0, a->bmm1_scale = 0, a->out_dtype = QUIRE_DTYPE_BF16);
    SHAPED(VALUE, "bmm1_scale: ", a->bmm1_scale = 0, a->bmm2_scale = 0, f->out.shape[0] = 7);
    SHAPED(VALUE, "bmm2_scale: ", a->bmm2_scale = 0, f->out.shape[0] = 7, a->window_left = -9);
    SHAPED(VALUE, "out: ", f->out.shape[0] = 7, f->lse.t.dtype = FP16);
    SHAPED(TYPE, "lse: ", f->lse.t.dtype = FP16, a->mask_type = (quire_mask)9);
    SHAPED(VALUE, "mask_type: ", a->mask_type = (quire_mask)9, a->window_left = -9);
    SHAPED(VALUE, "window_left: ", a->window_left = -9, a->kv_layout = QUIRE_LAYOUT_NHD);
    SHAPED(UNSUPPORTED, "kv_layout: ", a->kv_layout = QUIRE_LAYOUT_NHD, a->metadata_stable = 7);
}

/* Arguments that no struct holds, and the two functions that need no workspace. */
static void test_the_rest(void)
{
    struct fixture *f;
    quire_verdict verdict = {.struct_size = sizeof verdict, .rows = -77};
    size_t bytes = 1;
    int stream;

    kind = shape(1, false, false, FP16, FP16);
    f = fixture_new(&kind);
    is_int(QUIRE_ERROR_TYPE, quire_decode(NULL, NULL), "TYPE: decode(NULL)");
    is_int(QUIRE_ERROR_TYPE, quire_decode_check(NULL, NULL), "TYPE: check(NULL)");
    is_int(QUIRE_ERROR_TYPE, quire_decode_reference(NULL), "TYPE: reference(NULL)");
    is_int(QUIRE_ERROR_TYPE, quire_decode_verify(NULL, &verdict), "TYPE: verify(NULL)");
    is_int(QUIRE_ERROR_TYPE, quire_decode_workspace_size(NULL, &bytes), "TYPE: workspace_size(NULL)");
    is_int(QUIRE_ERROR_TYPE, quire_decode_workspace_size(&f->args, NULL), "TYPE: workspace_size into NULL");
    is_int(QUIRE_ERROR_TYPE, quire_decode_verify(&f->args, NULL), "TYPE: verify into NULL");
    is_int(QUIRE_ERROR_UNSUPPORTED, quire_decode(&f->args, &stream), "UNSUPPORTED: decode on the CPU with a stream");
    ok(strstr(quire_last_error(), "stream: NULL is supported with tensors on cpu") != NULL, "its words");
    is_int(QUIRE_ERROR_UNSUPPORTED, quire_decode_check(&f->args, &stream),
           "UNSUPPORTED: check on the CPU with a stream");

    f->args.workspace_buffer = NULL;
    is_int(QUIRE_OK, quire_decode_reference(&f->args), "the reference needs no workspace");
    is_int(QUIRE_OK, quire_decode_verify(&f->args, &verdict), "nor does verify");
    is_int(12, verdict.rows, "which compared all rows");
    is_int(0, verdict.failures, "and found none wrong");
    verdict.rows = -77;
    ((int32_t *)f->seq_lens.t.data)[1] = 1000;
    is_int(QUIRE_ERROR_VALUE, quire_decode_reference(&f->args), "VALUE: the reference checks live metadata");
    is_int(QUIRE_ERROR_VALUE, quire_decode_verify(&f->args, &verdict), "VALUE: so does verify");
    is_int(-77, verdict.rows, "which then leaves the verdict as it was");
    ((int32_t *)f->seq_lens.t.data)[1] = 33;
    f->out.t.dtype = FP64;
    is_int(QUIRE_ERROR_TYPE, quire_decode_verify(&f->args, &verdict), "TYPE: verify wants out as a decode left it");
    f->out.t.dtype = FP16;
    f->query.t.device.device_type = QUIRE_DEVICE_CUDA;
    is_int(QUIRE_ERROR_UNSUPPORTED, quire_decode_reference(&f->args), "UNSUPPORTED: the reference of CUDA tensors");
    is_int(QUIRE_ERROR_UNSUPPORTED, quire_decode_verify(&f->args, &verdict), "UNSUPPORTED: verify of CUDA tensors");
    if (strstr(quire_build_config(), "cuda=no\n") != NULL) {
        is_int(QUIRE_ERROR_UNSUPPORTED, quire_decode(&f->args, NULL), "UNSUPPORTED: CUDA tensors without CUDA");
        is_str("query: on cuda:0, but this build has no CUDA backend", quire_last_error(), "its words");
    } else {
        is_int(QUIRE_ERROR_TYPE, quire_decode(&f->args, NULL), "TYPE: a CUDA query with the rest on the CPU");
        is_str("kv_cache: expected the device of the tensor before it, cuda:0, got cpu", quire_last_error(),
               "its words");
    }
    fixture_free(f);
}

int main(void)
{
    plan(0);
    kind = shape(1, false, false, FP16, FP16);
    good = fixture_new(&kind);
    is_int(QUIRE_OK, quire_decode(&good->args, NULL), "the fixture decodes");
    good_out = fixture_memory(good, tensor_bytes(&good->out));
    memcpy(good_out, good->out.t.data, tensor_bytes(&good->out));
    test_query();
    test_cache();
    test_workspace();
    test_metadata();
    test_scalars();
    test_outputs();
    test_order();
    test_the_rest();
    fixture_free(good);
    return done();
}

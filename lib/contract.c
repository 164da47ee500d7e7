/* contract.c - the rules of a decode's arguments, in the order in which quire(3) lists them
 *
 * One function per argument, one `return quire_fail` per rule; a message names the argument, what was
 * expected and what came.  The rules of live metadata are in metadata.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include "contract.h"

#include <math.h>
#include <string.h>

#include "args.h"
#include "argument.h"
#include "dtype.h"
#include "status.h"
#include "tensor.h"

enum {
    MAX_SEQ_LEN = 2147483520, /* the end of a tile of 128 keys still fits int32 */
    MAX_GROUP = 32,
    DATA_ALIGNMENT = 16,      /* bytes: query, cache pages, out */
    WORKSPACE_ALIGNMENT = 32
};

/* One check under way. */
struct draft {
    const quire_decode_args *args;
    enum contract_call call;
    struct problem *p;
    struct spans spans;
};

static bool reads_data(const struct draft *d)
{
    return d->call != CONTRACT_WORKSPACE_SIZE && d->call != CONTRACT_PREPARE && d->call != CONTRACT_CHECK;
}

static bool reads_metadata(const struct draft *d)
{
    return reads_data(d) || d->call == CONTRACT_CHECK;
}

/* ---- argument by argument ------------------------------------------------------------------------ */

static quire_status check_device(struct draft *d, DLDevice device)
{
    if (device.device_type != QUIRE_DEVICE_CPU && device.device_type != QUIRE_DEVICE_CUDA)
        return quire_fail(QUIRE_ERROR_TYPE, "query: expected a tensor on cpu or cuda:N, got %s", device_text(device).s);
    if (device.device_type == QUIRE_DEVICE_CPU ? device.device_id != 0 : device.device_id < 0)
        return quire_fail(QUIRE_ERROR_DEVICE, "query: there is no device %s", device_text(device).s);
    if (device.device_type == QUIRE_DEVICE_CUDA && (d->call == CONTRACT_REFERENCE || d->call == CONTRACT_VERIFY))
        return quire_fail(QUIRE_ERROR_UNSUPPORTED, "query: the reference takes tensors on cpu, got %s",
                          device_text(device).s);
#ifndef HAVE_CUDA
    if (device.device_type == QUIRE_DEVICE_CUDA)
        return quire_fail(QUIRE_ERROR_UNSUPPORTED, "query: on %s, but this build has no CUDA backend",
                          device_text(device).s);
#endif
    d->p->device = device;
    return QUIRE_OK;
}

static quire_status check_query(struct draft *d)
{
    const quire_decode_args *a = d->args;
    const DLTensor *t = a->query;
    struct problem *p = d->p;
    bool packed = a->qo_indptr != NULL;
    /* seq_len_q below 1 has its own turn later: here it forgives either rank */
    bool four = !packed && (a->seq_len_q > 1 || (a->seq_len_q < 1 && t != NULL && t->ndim == 4));
    const char *want = packed ? "fp16, bf16 or fp8e4m3 [total_q, Hq, D]"
                     : four   ? "fp16, bf16 or fp8e4m3 [B, seq_len_q, Hq, D]"
                              : "fp16, bf16 or fp8e4m3 [B, Hq, D] (seq_len_q = 1)";
    quire_status status;
    int64_t rows;
    void *data;

    if (t == NULL)
        return quire_fail(QUIRE_ERROR_TYPE, "query: expected %s, got NULL", want);
    status = check_device(d, t->device);
    if (status == QUIRE_OK)
        status = argument_tensor(d->p->device, "query", t, four ? 4 : 3, want);
    if (status != QUIRE_OK)
        return status;
    p->dtype = dtype_from_dlpack(t->dtype);
    if (p->dtype == QUIRE_DTYPE_DEFAULT)
        return quire_fail(QUIRE_ERROR_TYPE, "query: expected %s, got %s", want, tensor_text(t).s);
    if (t->shape[0] < 0)
        return quire_fail(QUIRE_ERROR_VALUE, "query: expected %s, got %s", want, tensor_text(t).s);
    for (int axis = 1; axis < t->ndim; axis++)
        if (t->shape[axis] < 1)
            return quire_fail(QUIRE_ERROR_VALUE, "query: expected extents of at least 1 behind the first, got %s",
                              tensor_text(t).s);
    if (four && a->seq_len_q > 1 && t->shape[1] != a->seq_len_q)
        return quire_fail(QUIRE_ERROR_VALUE, "query: expected %s with seq_len_q = %lld, got %s", want,
                          LL(a->seq_len_q), tensor_text(t).s);
    /* Each extent too: B = 0 must not hide the others. */
    for (int axis = 0; axis < t->ndim; axis++)
        if (t->shape[axis] > INT32_MAX)
            return quire_fail(QUIRE_ERROR_VALUE, "query: expected extents up to 2147483647, got %s", tensor_text(t).s);
    p->q_heads = (int32_t)t->shape[t->ndim - 2];
    p->head_dim = (int32_t)t->shape[t->ndim - 1];
    rows = t->shape[0];
    if (__builtin_mul_overflow(rows, four ? t->shape[1] : 1, &rows) ||
        __builtin_mul_overflow(rows, p->q_heads, &rows) || rows > INT32_MAX)
        return quire_fail(QUIRE_ERROR_VALUE, "query: expected %s up to 2147483647, got %s",
                          packed ? "total_q*Hq" : "B*seq_len_q*Hq", tensor_text(t).s);
    if (p->head_dim != 64 && p->head_dim != 128 && p->head_dim != 256)
        return quire_fail(QUIRE_ERROR_UNSUPPORTED, "query: head_dim 64, 128 and 256 are supported, got %s",
                          tensor_text(t).s);
    p->packed = packed;
    p->total_q = (int32_t)(rows / p->q_heads);
    if (!packed) {
        p->batch = (int32_t)t->shape[0];
        p->seq_len_q = four ? (int32_t)t->shape[1] : 1;
    }
    status = argument_compact("query", t);
    if (status == QUIRE_OK)
        status = argument_place(&d->spans, "query", t, DATA_ALIGNMENT, reads_data(d), false, &data);
    if (status == QUIRE_OK)
        p->query = data;
    return status;
}

/* One tensor of pages: the combined cache (rank 5), or K or V alone (rank 4). */
static quire_status check_pages(struct draft *d, const char *name, const DLTensor *t, int32_t rank,
                                int64_t *page_stride, void **data)
{
    const char *want = rank == 5 ? "[pages, 2, Hkv, page_size, D] of query's dtype"
                                 : "[pages, Hkv, page_size, D] of query's dtype";
    struct problem *p = d->p;
    quire_status status = argument_tensor(d->p->device, name, t, rank, want);
    int64_t stride, page;
    int element = dtype_bytes(p->dtype);

    if (status != QUIRE_OK)
        return status;
    if (dtype_from_dlpack(t->dtype) == QUIRE_DTYPE_DEFAULT)
        return quire_fail(QUIRE_ERROR_TYPE, "%s: expected %s, got %s", name, want, tensor_text(t).s);
    if (dtype_from_dlpack(t->dtype) != p->dtype)
        return quire_fail(QUIRE_ERROR_UNSUPPORTED, "%s: a cache of query's dtype %s is supported, got %s", name,
                          dtype_name(p->dtype), tensor_text(t).s);
    for (int axis = 0; axis < rank; axis++)
        if (t->shape[axis] < 1)
            return quire_fail(QUIRE_ERROR_VALUE, "%s: expected extents of at least 1, got %s", name, tensor_text(t).s);
    if (rank == 5 && t->shape[1] != 2)
        return quire_fail(QUIRE_ERROR_VALUE, "%s: expected %s, got %s", name, want, tensor_text(t).s);
    if (d->args->kv_layout == QUIRE_LAYOUT_HND) { /* another layout is refused in its turn */
        int64_t heads = t->shape[rank - 3], slots = t->shape[rank - 2];

        if (t->shape[rank - 1] != p->head_dim)
            return quire_fail(QUIRE_ERROR_VALUE, "%s: expected %s with query's D = %d, got %s", name, want,
                              p->head_dim, tensor_text(t).s);
        if (slots != 16 && slots != 32 && slots != 64 && slots != 128)
            return quire_fail(QUIRE_ERROR_UNSUPPORTED, "%s: page_size 16, 32, 64 and 128 are supported, got %s", name,
                              tensor_text(t).s);
        if (p->q_heads % heads != 0)
            return quire_fail(QUIRE_ERROR_VALUE, "%s: expected Hkv to divide query's Hq = %d, got %s", name,
                              p->q_heads, tensor_text(t).s);
        if (p->q_heads / heads > MAX_GROUP)
            return quire_fail(QUIRE_ERROR_UNSUPPORTED, "%s: Hq/Hkv up to %d is supported, got %lld with Hq = %d and %s",
                              name, MAX_GROUP, LL(p->q_heads / heads), p->q_heads, tensor_text(t).s);
        p->kv_heads = (int32_t)heads;
        p->group = p->q_heads / p->kv_heads;
        p->page_size = (int32_t)slots;
    }
    if (!tensor_count(t, 1, &page) || !tensor_is_compact(t, 1))
        return quire_fail(QUIRE_ERROR_VALUE, "%s: expected pages that are compact behind their outer stride, got %s",
                          name, tensor_text_strides(t).s);
    stride = tensor_outer_stride(t);
    if (stride < page)
        return quire_fail(QUIRE_ERROR_VALUE,
                          "%s: expected a page stride of at least %lld elements (pages may not overlap), got %s",
                          name, LL(page), tensor_text_strides(t).s);
    if (__builtin_mul_overflow(stride, element, page_stride) || *page_stride % DATA_ALIGNMENT != 0)
        return quire_fail(QUIRE_ERROR_VALUE,
                          "%s: expected a page stride of a multiple of %d bytes, got %lld elements of %s",
                          name, DATA_ALIGNMENT, LL(stride), dtype_name(p->dtype));
    p->pages = t->shape[0];
    return argument_place(&d->spans, name, t, DATA_ALIGNMENT, reads_data(d), false, data);
}

static quire_status check_kv_cache(struct draft *d)
{
    const quire_decode_args *a = d->args;
    struct problem *p = d->p;
    quire_status status;
    void *k, *v = NULL;

    if (a->kv_cache != NULL) {
        if (a->k_cache != NULL || a->v_cache != NULL)
            return quire_fail(QUIRE_ERROR_VALUE,
                              "kv_cache: expected either kv_cache, or k_cache and v_cache, got kv_cache and %s",
                              a->k_cache != NULL ? "k_cache" : "v_cache");
        status = check_pages(d, "kv_cache", a->kv_cache, 5, &p->k_page_stride, &k);
        if (status != QUIRE_OK)
            return status;
        p->v_page_stride = p->k_page_stride;
        if (k != NULL)
            v = (char *)k + (int64_t)p->kv_heads * p->page_size * p->head_dim * dtype_bytes(p->dtype);
    } else {
        if (a->k_cache == NULL && a->v_cache == NULL)
            return quire_fail(QUIRE_ERROR_TYPE, "kv_cache: expected kv_cache, or k_cache and v_cache, got none");
        status = check_pages(d, "k_cache", a->k_cache, 4, &p->k_page_stride, &k);
        if (status == QUIRE_OK && a->v_cache != NULL && a->v_cache->ndim == 4 && a->v_cache->shape != NULL)
            for (int axis = 0; axis < 4; axis++)
                if (a->v_cache->shape[axis] != a->k_cache->shape[axis])
                    return quire_fail(QUIRE_ERROR_VALUE, "v_cache: expected k_cache's shape, %s, got %s",
                                      tensor_text(a->k_cache).s, tensor_text(a->v_cache).s);
        if (status == QUIRE_OK)
            status = check_pages(d, "v_cache", a->v_cache, 4, &p->v_page_stride, &v);
        if (status != QUIRE_OK)
            return status;
    }
    p->k = k;
    p->v = v;
    return QUIRE_OK;
}

static quire_status check_workspace(struct draft *d)
{
    const DLTensor *t = d->args->workspace_buffer;
    const char *want = "contiguous int8 or uint8";
    struct problem *p = d->p;
    quire_status status;
    int64_t bytes;

    /* Whether it may be absent, and its size, are for contract_workspace. */
    if (t == NULL || d->call == CONTRACT_CHECK || d->call == CONTRACT_REFERENCE || d->call == CONTRACT_VERIFY)
        return QUIRE_OK;
    status = argument_tensor(d->p->device, "workspace_buffer", t, t->ndim < 1 ? 1 : t->ndim, want);
    if (status != QUIRE_OK)
        return status;
    if (!dtype_is(t->dtype, QUIRE_CODE_INT, 8) && !dtype_is(t->dtype, QUIRE_CODE_UINT, 8))
        return quire_fail(QUIRE_ERROR_TYPE, "workspace_buffer: expected %s, got %s", want, tensor_text(t).s);
    if (!tensor_count(t, 0, &bytes))
        return quire_fail(QUIRE_ERROR_VALUE,
                          "workspace_buffer: expected extents of at least 0 and less than 2^63 bytes, got %s",
                          tensor_text(t).s);
    status = argument_compact("workspace_buffer", t);
    if (status == QUIRE_OK)
        status = argument_place(&d->spans, "workspace_buffer", t, WORKSPACE_ALIGNMENT,
                                reads_data(d) && t->data != NULL, true, &p->workspace);
    if (status == QUIRE_OK && p->workspace != NULL)
        p->workspace_bytes = (size_t)bytes;
    return status;
}

static quire_status check_vector(struct draft *d, const char *name, const DLTensor *t, int64_t count, const char *why,
                                 const int32_t **where)
{
    quire_status status = argument_vector(d->p->device, name, t, count, why);
    void *data;

    if (status == QUIRE_OK)
        status = argument_place(&d->spans, name, t, sizeof **where, reads_metadata(d), false, &data);
    if (status == QUIRE_OK)
        *where = data;
    return status;
}

/* paged_kv_indptr, paged_kv_indices, seq_lens */
static quire_status check_metadata(struct draft *d)
{
    const quire_decode_args *a = d->args;
    const DLTensor *t = a->paged_kv_indptr;
    struct problem *p = d->p;
    quire_status status;

    if (p->packed) { /* nothing before it tells B */
        status = argument_vector(p->device, "paged_kv_indptr", t, -1, "n = B + 1");
        if (status != QUIRE_OK)
            return status;
        if (t->shape[0] < 1 || t->shape[0] > INT32_MAX)
            return quire_fail(QUIRE_ERROR_VALUE,
                              "paged_kv_indptr: expected int32 [n] (n = B + 1, 1 to 2147483647), got %s",
                              tensor_text(t).s);
        p->batch = (int32_t)(t->shape[0] - 1);
    }
    status = check_vector(d, "paged_kv_indptr", t, (int64_t)p->batch + 1, "B + 1, with B of query", &p->indptr);
    if (status == QUIRE_OK)
        status = check_vector(d, "paged_kv_indices", a->paged_kv_indices, -1, "page ids", &p->indices);
    if (status != QUIRE_OK)
        return status;
    p->indices_len = a->paged_kv_indices->shape[0];
    return check_vector(d, "seq_lens", a->seq_lens, p->batch, p->packed ? "B of paged_kv_indptr" : "B of query",
                        &p->seq_lens);
}

/* max_seq_len, seq_len_q, qo_indptr, max_seq_len_q */
static quire_status check_lengths(struct draft *d)
{
    const quire_decode_args *a = d->args;
    struct problem *p = d->p;
    quire_status status;
    int64_t rows;

    if (a->max_seq_len < 1 || a->max_seq_len > MAX_SEQ_LEN)
        return quire_fail(QUIRE_ERROR_VALUE, "max_seq_len: expected 1 to %d, got %lld", MAX_SEQ_LEN,
                          LL(a->max_seq_len));
    p->max_seq_len = (int32_t)a->max_seq_len;
    if (a->seq_len_q < 1)
        return quire_fail(QUIRE_ERROR_VALUE, "seq_len_q: expected at least 1, got %lld", LL(a->seq_len_q));
    if (!p->packed) {
        if (a->max_seq_len_q != 0 && a->max_seq_len_q != a->seq_len_q)
            return quire_fail(QUIRE_ERROR_VALUE,
                              "max_seq_len_q: expected 0 or seq_len_q = %lld without qo_indptr, got %lld",
                              LL(a->seq_len_q), LL(a->max_seq_len_q));
        return QUIRE_OK;
    }
    if (a->seq_len_q != 1 && a->seq_len_q != a->max_seq_len_q)
        return quire_fail(QUIRE_ERROR_VALUE, "seq_len_q: expected 1 or max_seq_len_q = %lld with qo_indptr, got %lld",
                          LL(a->max_seq_len_q), LL(a->seq_len_q));
    status = check_vector(d, "qo_indptr", a->qo_indptr, (int64_t)p->batch + 1, "B + 1, with B of paged_kv_indptr",
                          &p->qo_indptr);
    if (status != QUIRE_OK)
        return status;
    if (a->max_seq_len_q < 1 || a->max_seq_len_q > INT32_MAX)
        return quire_fail(QUIRE_ERROR_VALUE, "max_seq_len_q: expected 1 to 2147483647 with qo_indptr, got %lld",
                          LL(a->max_seq_len_q));
    if (__builtin_mul_overflow(a->max_seq_len_q, p->q_heads, &rows) || __builtin_mul_overflow(rows, p->batch, &rows) ||
        rows > INT32_MAX)
        return quire_fail(QUIRE_ERROR_VALUE,
                          "max_seq_len_q: expected B*max_seq_len_q*Hq up to 2147483647, got %d*%lld*%d",
                          p->batch, LL(a->max_seq_len_q), p->q_heads);
    p->seq_len_q = (int32_t)a->max_seq_len_q;
    return QUIRE_OK;
}

static quire_status check_scale(const char *name, double given, double otherwise, float *scale)
{
    if (given == QUIRE_SCALE_DEFAULT)
        given = otherwise;
    *scale = (float)given;
    if (!isfinite(*scale) || !(*scale > 0))
        return quire_fail(QUIRE_ERROR_VALUE, "%s: expected above 0 and finite, also as a float32, got %g", name, given);
    return QUIRE_OK;
}

/* A tensor of query's shape, or of its first axes. */
static quire_status check_like_query(const struct draft *d, const char *name, const DLTensor *t, int32_t rank,
                                     const char *want)
{
    const DLTensor *query = d->args->query;
    quire_status status = argument_tensor(d->p->device, name, t, rank, want);

    for (int axis = 0; status == QUIRE_OK && axis < rank; axis++)
        if (t->shape[axis] != query->shape[axis])
            status = quire_fail(QUIRE_ERROR_VALUE, "%s: expected %s, which is %s, got %s", name, want,
                                tensor_text(query).s, tensor_text(t).s);
    return status;
}

static bool supported_pair(quire_dtype in, quire_dtype out)
{
    return out == in || (in == QUIRE_DTYPE_FP8E4M3 && out == QUIRE_DTYPE_FP16);
}

/* out and out_dtype */
static quire_status check_out(struct draft *d, struct reference_out *to)
{
    const quire_decode_args *a = d->args;
    const DLTensor *t = a->out;
    struct problem *p = d->p;
    bool required = reads_data(d), fp64 = false;
    quire_dtype given = QUIRE_DTYPE_DEFAULT;
    quire_status status;
    void *data = NULL;

    if (t != NULL || required) {
        status = check_like_query(d, "out", t, a->query->ndim, "query's shape");
        if (status != QUIRE_OK)
            return status;
        fp64 = d->call == CONTRACT_REFERENCE && dtype_is(t->dtype, QUIRE_CODE_FLOAT, 64);
        given = dtype_from_dlpack(t->dtype);
        if (given == QUIRE_DTYPE_DEFAULT && !fp64)
            return quire_fail(QUIRE_ERROR_TYPE, "out: expected fp16, bf16 or fp8e4m3%s, got %s",
                              d->call == CONTRACT_REFERENCE ? ", or fp64" : "", tensor_text(t).s);
    }
    if (a->out_dtype != QUIRE_DTYPE_DEFAULT && dtype_bytes(a->out_dtype) == 0)
        return quire_fail(QUIRE_ERROR_VALUE, "out_dtype: expected a quire_dtype, got %d", (int)a->out_dtype);
    if (a->out_dtype != QUIRE_DTYPE_DEFAULT && given != QUIRE_DTYPE_DEFAULT && a->out_dtype != given)
        return quire_fail(QUIRE_ERROR_TYPE, "out_dtype: expected out's dtype %s, got %s", dtype_name(given),
                          dtype_name(a->out_dtype));
    p->out_dtype = given != QUIRE_DTYPE_DEFAULT          ? given
                 : a->out_dtype != QUIRE_DTYPE_DEFAULT ? a->out_dtype
                                                       : p->dtype;
    if (!supported_pair(p->dtype, p->out_dtype))
        return quire_fail(QUIRE_ERROR_UNSUPPORTED, "%s: %s from %s is supported, got %s", given ? "out" : "out_dtype",
                          p->dtype == QUIRE_DTYPE_FP8E4M3 ? "fp16 or fp8e4m3" : dtype_name(p->dtype),
                          dtype_name(p->dtype), dtype_name(p->out_dtype));
    if (t == NULL)
        return QUIRE_OK;
    status = argument_compact("out", t);
    if (status == QUIRE_OK)
        status = argument_place(&d->spans, "out", t, DATA_ALIGNMENT, required, true, &data);
    if (status != QUIRE_OK)
        return status;
    if (to != NULL) {
        to->out = data;
        to->out_is_float64 = fp64;
    }
    p->out = fp64 ? NULL : data;
    return QUIRE_OK;
}

static quire_status check_lse(struct draft *d, struct reference_out *to)
{
    const DLTensor *t = d->args->lse;
    quire_status status;
    void *data;
    bool fp64;

    if (t == NULL)
        return QUIRE_OK;
    status = check_like_query(d, "lse", t, d->args->query->ndim - 1, "fp32 of query's shape without D");
    if (status != QUIRE_OK)
        return status;
    fp64 = d->call == CONTRACT_REFERENCE && dtype_is(t->dtype, QUIRE_CODE_FLOAT, 64);
    if (!fp64 && !dtype_is(t->dtype, QUIRE_CODE_FLOAT, 32))
        return quire_fail(QUIRE_ERROR_TYPE, "lse: expected fp32%s, got %s",
                          d->call == CONTRACT_REFERENCE ? " or fp64" : "", tensor_text(t).s);
    status = argument_compact("lse", t);
    if (status == QUIRE_OK)
        status = argument_place(&d->spans, "lse", t, fp64 ? sizeof(double) : sizeof(float), reads_data(d), true, &data);
    if (status != QUIRE_OK)
        return status;
    if (to != NULL) {
        to->lse = data;
        to->lse_is_float64 = fp64;
    }
    d->p->lse = fp64 ? NULL : data;
    return QUIRE_OK;
}

/* mask_type, window_left, kv_layout, metadata_stable */
static quire_status check_modes(struct draft *d)
{
    const quire_decode_args *a = d->args;

    if (a->mask_type != QUIRE_MASK_DENSE && a->mask_type != QUIRE_MASK_CAUSAL)
        return quire_fail(QUIRE_ERROR_VALUE, "mask_type: expected dense (0) or causal (1), got %d", (int)a->mask_type);
    if (a->window_left < -1 || a->window_left >= INT32_MAX)
        return quire_fail(QUIRE_ERROR_VALUE, "window_left: expected -1 to 2147483646, got %lld", LL(a->window_left));
    if (a->window_left >= 0 && a->mask_type != QUIRE_MASK_CAUSAL)
        return quire_fail(QUIRE_ERROR_VALUE, "window_left: expected -1 with a dense mask, got %lld",
                          LL(a->window_left));
    if (a->kv_layout == QUIRE_LAYOUT_NHD)
        return quire_fail(QUIRE_ERROR_UNSUPPORTED, "kv_layout: HND is supported, got NHD");
    if (a->kv_layout != QUIRE_LAYOUT_HND)
        return quire_fail(QUIRE_ERROR_VALUE, "kv_layout: expected HND (0), got %d", (int)a->kv_layout);
    if (a->metadata_stable > 1)
        return quire_fail(QUIRE_ERROR_VALUE, "metadata_stable: expected 0 or 1, got %u", (unsigned)a->metadata_stable);
    d->p->causal = a->mask_type == QUIRE_MASK_CAUSAL;
    d->p->window_left = (int32_t)a->window_left;
    d->p->metadata_stable = a->metadata_stable == 1;
    return QUIRE_OK;
}

/* ---- the whole ----------------------------------------------------------------------------------- */

quire_status contract_problem(const quire_decode_args *args, enum contract_call call, void *stream,
                              struct problem *p, struct reference_out *to)
{
    quire_decode_args known;
    struct draft d = {.args = &known, .call = call, .p = p};
    quire_status status = args_read(args, &known);

    memset(p, 0, sizeof *p);
    if (to != NULL)
        memset(to, 0, sizeof *to);
    if (status != QUIRE_OK ||
        (status = check_query(&d)) != QUIRE_OK ||
        (status = check_kv_cache(&d)) != QUIRE_OK ||
        (status = check_workspace(&d)) != QUIRE_OK ||
        (status = check_metadata(&d)) != QUIRE_OK ||
        (status = check_lengths(&d)) != QUIRE_OK ||
        (status = check_scale("bmm1_scale", known.bmm1_scale, 1 / sqrt(p->head_dim), &p->bmm1_scale)) != QUIRE_OK ||
        (status = check_scale("bmm2_scale", known.bmm2_scale, 1, &p->bmm2_scale)) != QUIRE_OK ||
        (status = check_out(&d, to)) != QUIRE_OK ||
        (status = check_lse(&d, to)) != QUIRE_OK ||
        (status = check_modes(&d)) != QUIRE_OK)
        return status;
    if (stream != NULL && p->device.device_type == QUIRE_DEVICE_CPU)
        return quire_fail(QUIRE_ERROR_UNSUPPORTED, "stream: NULL is supported with tensors on cpu, got %p", stream);
    return QUIRE_OK;
}

quire_status contract_workspace(const struct problem *p, size_t need)
{
    if (need > 0 && p->workspace == NULL)
        return quire_fail(QUIRE_ERROR_TYPE, "workspace_buffer: expected at least %zu bytes, got NULL", need);
    if (need > p->workspace_bytes)
        return quire_fail(QUIRE_ERROR_VALUE, "workspace_buffer: expected at least %zu bytes, got %zu", need,
                          p->workspace_bytes);
    return QUIRE_OK;
}

bool contract_empty(const struct problem *p)
{
    return p->batch == 0 || p->total_q == 0;
}

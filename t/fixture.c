/* fixture.c - one valid decode on the CPU
 * SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const DLDataType FP16 = {QUIRE_CODE_FLOAT, 16, 1}, BF16 = {QUIRE_CODE_BFLOAT, 16, 1},
                 FP8E4M3 = {QUIRE_CODE_FP8E4M3, 8, 1}, FP32 = {QUIRE_CODE_FLOAT, 32, 1},
                 FP64 = {QUIRE_CODE_FLOAT, 64, 1}, INT32 = {QUIRE_CODE_INT, 32, 1},
                 INT64 = {QUIRE_CODE_INT, 64, 1}, UINT8 = {QUIRE_CODE_UINT, 8, 1};

static const int32_t small_lens[] = {5, 33, 16};

const struct fixture_shape SMALL = {
    .batch = 3, .seq_len_q = 1, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .page_size = 16,
    .seq_lens = small_lens, .dtype = {QUIRE_CODE_FLOAT, 16, 1}, .out_dtype = {QUIRE_CODE_FLOAT, 16, 1},
};

static void bail_out(const char *why)
{
    printf("Bail out! fixture: %s\n", why);
    exit(1);
}

void *fixture_memory(struct fixture *f, size_t bytes)
{
    size_t rounded = (bytes + 63) / 64 * 64;
    void *block = aligned_alloc(64, rounded > 0 ? rounded : 64);

    if (block == NULL || f->n_blocks == (int)(sizeof f->blocks / sizeof *f->blocks))
        bail_out("no memory");
    memset(block, 0, rounded);
    return f->blocks[f->n_blocks++] = block;
}

void tensor_set(struct tensor *t, DLDataType dtype, void *data, int32_t rank, const int64_t *shape)
{
    memset(t, 0, sizeof *t);
    memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
    t->t = (DLTensor){.data = data, .device = {QUIRE_DEVICE_CPU, 0}, .ndim = rank, .dtype = dtype, .shape = t->shape};
}

void tensor_use_strides(struct tensor *t)
{
    int64_t stride = 1;

    for (int axis = t->t.ndim - 1; axis >= 0; axis--) {
        t->strides[axis] = stride;
        stride *= t->shape[axis];
    }
    t->t.strides = t->strides;
}

size_t tensor_bytes(const struct tensor *t)
{
    size_t bytes = t->t.dtype.bits / 8;

    for (int axis = 0; axis < t->t.ndim; axis++)
        bytes *= (size_t)t->shape[axis];
    return bytes;
}

/* A tensor with memory of its own, zeroed; extents of 0 at the end of `shape` count for the rank. */
static const DLTensor *make(struct fixture *f, struct tensor *t, DLDataType dtype, int32_t rank, const int64_t *shape)
{
    tensor_set(t, dtype, NULL, rank, shape);
    t->t.data = fixture_memory(f, tensor_bytes(t));
    return &t->t;
}

/* The same, with `padding` elements behind each of the first axis. */
static const DLTensor *make_padded(struct fixture *f, struct tensor *t, DLDataType dtype, int32_t rank,
                                   const int64_t *shape, int32_t padding)
{
    tensor_set(t, dtype, NULL, rank, shape);
    t->t.data = fixture_memory(f, tensor_bytes(t) + (size_t)(shape[0] * padding) * dtype.bits / 8);
    if (padding > 0) {
        tensor_use_strides(t);
        t->strides[0] += padding;
    }
    return &t->t;
}

/* Finite values of either sign below 1, spread over four binades, by bit pattern. */
static void fill_random(const struct tensor *t, uint64_t seed)
{
    size_t element = t->t.dtype.bits / 8, count = tensor_bytes(t) / element;

    if (t->t.strides != NULL) /* the padding too */
        count = (size_t)(t->t.shape[0] * t->t.strides[0]);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;

        seed = seed * 6364136223846793005u + 1442695040888963407u;
        bits = (uint32_t)(seed >> 32);
        if (t->t.dtype.code == QUIRE_CODE_FP8E4M3)
            ((uint8_t *)t->t.data)[i] = (uint8_t)((bits & 0x87) | (3 + (bits >> 8) % 4) << 3);
        else if (t->t.dtype.code == QUIRE_CODE_BFLOAT)
            ((uint16_t *)t->t.data)[i] = (uint16_t)((bits & 0x807F) | (123 + (bits >> 16) % 4) << 7);
        else
            ((uint16_t *)t->t.data)[i] = (uint16_t)((bits & 0x83FF) | (11 + (bits >> 16) % 4) << 10);
    }
}

struct fixture *fixture_without_workspace(const struct fixture_shape *s)
{
    struct fixture *f = calloc(1, sizeof *f);
    quire_decode_args *a;
    int64_t total_q = (int64_t)s->batch * s->seq_len_q, pages = 0, used = 0;
    int32_t *indptr, longest = 1;

    if (f == NULL)
        bail_out("no memory");
    a = &f->args;
    *a = (quire_decode_args)QUIRE_DECODE_ARGS_INIT;
    a->paged_kv_indptr = make(f, &f->indptr, INT32, SHAPE(s->batch + 1));
    a->seq_lens = make(f, &f->seq_lens, INT32, SHAPE(s->batch));
    indptr = f->indptr.t.data;
    for (int32_t b = 0; b < s->batch; b++) {
        ((int32_t *)f->seq_lens.t.data)[b] = s->seq_lens[b];
        indptr[b + 1] = indptr[b] + (s->seq_lens[b] + s->page_size - 1) / s->page_size + s->spare_entries;
        longest = s->seq_lens[b] > longest ? s->seq_lens[b] : longest;
    }
    used = indptr[s->batch];
    pages = used + 3;
    pages += pages % 7 == 0; /* so that 7 * i visits every page */
    a->paged_kv_indices = make(f, &f->indices, INT32, SHAPE(used));
    for (int64_t i = 0; i < used; i++)
        ((int32_t *)f->indices.t.data)[i] = (int32_t)((7 * i + 3) % pages);
    for (int32_t b = 0; b < s->batch; b++)
        for (int32_t i = 0; i < s->spare_entries; i++)
            ((int32_t *)f->indices.t.data)[indptr[b + 1] - 1 - i] = i % 2 ? -1 : INT32_MAX;
    a->max_seq_len = longest;

    if (s->q_lens != NULL) {
        int32_t *offsets;

        a->qo_indptr = make(f, &f->qo_indptr, INT32, SHAPE(s->batch + 1));
        offsets = f->qo_indptr.t.data;
        a->max_seq_len_q = 1;
        for (int32_t b = 0; b < s->batch; b++) {
            offsets[b + 1] = offsets[b] + s->q_lens[b];
            a->max_seq_len_q = s->q_lens[b] > a->max_seq_len_q ? s->q_lens[b] : a->max_seq_len_q;
        }
        total_q = offsets[s->batch] + s->spare_rows;
    } else {
        a->seq_len_q = s->seq_len_q;
    }
    if (s->q_lens == NULL && s->seq_len_q > 1) {
        a->query = make(f, &f->query, s->dtype, SHAPE(s->batch, s->seq_len_q, s->q_heads, s->head_dim));
        a->out = make(f, &f->out, s->out_dtype, SHAPE(s->batch, s->seq_len_q, s->q_heads, s->head_dim));
        a->lse = make(f, &f->lse, FP32, SHAPE(s->batch, s->seq_len_q, s->q_heads));
    } else {
        a->query = make(f, &f->query, s->dtype, SHAPE(total_q, s->q_heads, s->head_dim));
        a->out = make(f, &f->out, s->out_dtype, SHAPE(total_q, s->q_heads, s->head_dim));
        a->lse = make(f, &f->lse, FP32, SHAPE(total_q, s->q_heads));
    }
    fill_random(&f->query, 1);
    if (s->pair) {
        a->k_cache = make_padded(f, &f->k, s->dtype, SHAPE(pages, s->kv_heads, s->page_size, s->head_dim),
                                 s->page_padding);
        a->v_cache = make_padded(f, &f->v, s->dtype, SHAPE(pages, s->kv_heads, s->page_size, s->head_dim),
                                 s->page_padding);
        fill_random(&f->k, 2);
        fill_random(&f->v, 3);
    } else {
        a->kv_cache = make_padded(f, &f->kv, s->dtype, SHAPE(pages, 2, s->kv_heads, s->page_size, s->head_dim),
                                  s->page_padding);
        fill_random(&f->kv, 4);
    }
    memset(f->out.t.data, FIXTURE_FILL, tensor_bytes(&f->out));
    memset(f->lse.t.data, FIXTURE_FILL, tensor_bytes(&f->lse));
    return f;
}

struct fixture *fixture_new(const struct fixture_shape *shape)
{
    struct fixture *f = fixture_without_workspace(shape);
    size_t bytes;

    if (quire_decode_workspace_size(&f->args, &bytes) != QUIRE_OK)
        bail_out(quire_last_error());
    f->args.workspace_buffer = make(f, &f->workspace, UINT8, SHAPE((int64_t)bytes));
    return f;
}

void fixture_free(struct fixture *f)
{
    for (int i = 0; i < f->n_blocks; i++)
        free(f->blocks[i]);
    free(f);
}

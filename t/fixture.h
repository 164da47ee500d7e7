/* fixture.h - one valid decode on the CPU, with memory of its own, for tests to run or to spoil
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIXTURE_H
#define FIXTURE_H

#include <stdbool.h>

#include "quire.h"

/* A DLTensor with room for its shape and strides; t.strides is NULL until a test sets it. */
struct tensor {
    DLTensor t;
    int64_t shape[5], strides[5];
};

extern const DLDataType FP16, BF16, FP8E4M3, FP32, FP64, INT32, INT64, UINT8;

struct fixture_shape {
    int32_t batch, seq_len_q, q_heads, kv_heads, head_dim, page_size;
    const int32_t *seq_lens;
    const int32_t *q_lens;  /* NULL: fixed Q */
    DLDataType dtype, out_dtype;
    bool pair;              /* k_cache and v_cache instead of kv_cache */
    int32_t spare_rows;     /* with q_lens: rows of Q behind the last request's */
    int32_t spare_entries;  /* page ids of every request behind those in use: outside the cache */
    int32_t page_padding;   /* elements between pages */
};

/* Three requests, 5, 33 and 16 keys long, fp16, 4 query heads over 2 KV heads of 64. */
extern const struct fixture_shape SMALL;

struct fixture {
    quire_decode_args args; /* points at the tensors below, those that the shape asks for */
    struct tensor query, kv, k, v, workspace, indptr, indices, seq_lens, qo_indptr, out, lse;
    void *blocks[24];
    int n_blocks;
};

/* Random Q, K and V, pages in no order, a zeroed workspace of the size asked for, out and lse filled with
 * FIXTURE_FILL.  Ends the test program with "Bail out!" if that is refused. */
enum { FIXTURE_FILL = 0xA5 };
struct fixture *fixture_new(const struct fixture_shape *shape);
/* The same but for the workspace, of which there is none. */
struct fixture *fixture_without_workspace(const struct fixture_shape *shape);
void fixture_free(struct fixture *f);

/* Zeroed and aligned to 64 bytes; freed with the fixture. */
void *fixture_memory(struct fixture *f, size_t bytes);

/* Sets dtype, rank, extents and data; compact strides stay NULL. */
void tensor_set(struct tensor *t, DLDataType dtype, void *data, int32_t rank, const int64_t *shape);
#define SHAPE(...) (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__}

/* Writes compact strides into t->strides and uses them. */
void tensor_use_strides(struct tensor *t);

size_t tensor_bytes(const struct tensor *t);

#endif

/* problem.h - one validated, normalised decode: where the contract and the backends meet
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_PROBLEM_H
#define QUIRE_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

#include "quire.h"

/* Filled by contract.c and by nothing else; holds no pointer to a caller's struct.  Every rule that
 * the host can check without reading device memory holds. */
struct problem {
    DLDevice device;
    quire_dtype dtype;      /* of Q, K and V */
    quire_dtype out_dtype;
    int32_t batch;          /* B */
    int32_t q_heads;        /* Hq */
    int32_t kv_heads;       /* Hkv */
    int32_t group;          /* Hq / Hkv */
    int32_t head_dim;       /* D */
    int32_t page_size;
    int32_t max_seq_len;
    int32_t seq_len_q;      /* query tokens of every request; packed: bound on one request's */
    int32_t total_q;        /* query tokens in all: B * seq_len_q, or packed Q's extent */
    int32_t window_left;    /* -1: none */
    bool packed;
    bool causal;
    bool metadata_stable;
    float bmm1_scale;
    float bmm2_scale;
    int64_t pages;          /* of the cache; page ids are below it */
    int64_t indices_len;    /* entries of paged_kv_indices */
    int64_t k_page_stride;  /* bytes from a page to the next; heads, slots and dims within are compact */
    int64_t v_page_stride;
    size_t workspace_bytes;

    /* NULL where the call does not need them (workspace_size, prepare) */
    const void *query;      /* [total_q, Hq, D] */
    const void *k, *v;      /* head h, slot s of page p: k + p*k_page_stride + (h*page_size + s)*D */
    const int32_t *indptr, *indices, *seq_lens;
    const int32_t *qo_indptr; /* NULL unless packed */
    void *workspace;
    void *out;              /* [total_q, Hq, D] */
    float *lse;             /* [total_q, Hq], or NULL */
};

/* The reference's outputs, which alone may be float64. */
struct reference_out {
    bool out_is_float64, lse_is_float64;
    void *out;              /* of problem.out_dtype, or double */
    void *lse;              /* float, double, or NULL */
};

#endif

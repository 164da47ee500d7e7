/* params.h - what a decode kernel is launched with; plain C, shared by the host and the kernels
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_PARAMS_H
#define QUIRE_PARAMS_H

/* A CUtensorMap, without cuda.h.  The 64-byte alignment is the driver's demand. */
struct tensor_map {
#ifdef __cplusplus
    alignas(64)
#else
    _Alignas(64)
#endif
        unsigned long long opaque[16];
};

enum decode_flags {
    DECODE_CAUSAL = 1,
    DECODE_PACKED = 2,          /* qo_indptr gives each request's query tokens */
    DECODE_METADATA_STABLE = 4, /* metadata may be read before the work before this launch is done */
    DECODE_OUT_FP8 = 8,         /* fp8 kernels only; else they write fp16 */
    DECODE_READ_ONCE = 16,      /* each K/V byte is read by one work item: do not keep it in L2 */
    DECODE_HEADS_TOGETHER = 32  /* long launches read the heads of a page together (schedule.cuh) */
};

/* Boxes that the copy engine brings: a tile's slots of one page and head; a solo tile's of one page and some of its
 * heads; and LAYOUT_PART_SLOTS of either, of one panel and head, where others are seen by no row. */
enum box_kind { BOX_TILE, BOX_SOLO, BOX_PART, BOX_KINDS };

struct decode_params {
    /* of K and of V, [pages][Hkv][panel][slots][128 bytes], where 128 bytes hold part of a slot, or two slots of 64 */
    struct tensor_map maps[BOX_KINDS][2];
    const void *query;              /* [total_q][Hq][D] */
    const void *k, *v;              /* [pages][Hkv][page_size][D], pages k_page_stride bytes apart */
    const int *indptr, *indices, *seq_lens, *qo_indptr;
    void *out;                      /* [total_q][Hq][D] */
    float *lse;                     /* [total_q][Hq] or NULL */
    float *partials;                /* the workspace: one slot per CTA, zero between launches */
    long long k_page_stride, v_page_stride; /* bytes */
    int batch, q_heads, kv_heads, group;    /* group = Hq / Hkv */
    int page_shift;                 /* log2 of page_size */
    int pages;                      /* page ids are below it; others read as zeros */
    int indices_len, max_seq_len;   /* live metadata is clamped to these */
    int seq_len_q;                  /* query tokens per request, or the bound when packed */
    int total_q;
    int window_left;                /* INT_MAX: none */
    int flags;                      /* enum decode_flags */
    int even_shares;                /* CTAs to use when all requests are alike and merging pieces costs much, */
    int even_solo_shares;           /* and when all of them are solo besides */
    float scale_log2;               /* bmm1_scale * log2(e): scores in log2 units */
    float out_scale;                /* bmm2_scale */
};

/* read.cu: blocks order[0], order[1], ... of data, each of block_pieces pieces of 16 bytes */
struct read_params {
    const void *data;
    long long stride;               /* bytes from a block to the next */
    const int *order;
    long long block_pieces, pieces; /* of one block, of all */
    unsigned *sink;                 /* not written */
};

#endif

/* reference.h - what the float64 reference computes, for those who store it and those who judge by it
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_CPU_REFERENCE_H
#define QUIRE_CPU_REFERENCE_H

#include "backend.h"

/* An element type. */
struct format {
    int mantissa_bits, exponent_bits, bias;
    double max;         /* largest finite value */
    double overflow;    /* from here on rounding to nearest leaves the finite values */
    double tiny;        /* smallest normal */
    bool saturates;     /* no Inf; NaN is all ones */
};

extern const struct format reference_formats[]; /* by quire_dtype */

double reference_element(quire_dtype dtype, const void *from, int64_t i);

/* Up to BAND rows of a request and KV head are computed together, to convert each K and V once for all. */
enum { BAND = 16, MAX_DIM = 256 };

struct band {
    int32_t request, kv_head, first_row, rows; /* row = token * group + head within the group */
    int32_t tokens, length;
    int64_t first_token;
    int32_t begin[BAND], end[BAND];  /* keys each row sees */
    int32_t key_begin, key_end;      /* keys that any row sees */
    double query[MAX_DIM][BAND];
    double out[MAX_DIM][BAND];       /* the result */
    double spread[MAX_DIM][BAND];    /* bmm2_scale * sum_j p_j |v_j| */
    double lse[BAND];
    double *scores;                  /* [max keys][BAND], of this band's thread */
};

/* Where the band's row r is in query, out and lse. */
int64_t band_row_place(const struct problem *p, const struct band *b, int r);

/* One key of the band's request and KV head, in K or V. */
const void *band_key(const struct problem *p, const struct band *b, const void *cache, int64_t page_stride,
                     int32_t key);

/* Sets what the rows see. */
void band_find_visible(const struct problem *p, struct band *b);

static inline bool band_sees(const struct band *b, int r, int32_t key)
{
    return key >= b->begin[r] && key < b->end[r];
}

/* Takes a computed band; `context` is shared by all threads. */
typedef void band_taker(const struct problem *p, const struct band *b, void *context);

/* Computes every band, with all threads; QUIRE_ERROR_MEMORY if there is no memory for the scores. */
quire_status reference_compute(const struct problem *p, band_taker *take, void *context);

/* First row of a packed query that belongs to no request. */
int64_t reference_first_unused_row(const struct problem *p);

#endif

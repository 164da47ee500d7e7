/* metadata.c - the rules of live metadata
 * SPDX-License-Identifier: Apache-2.0 */
#include "metadata.h"

#include "status.h"

/* Without the overflow of (n + page_size - 1) at the largest n. */
static int32_t pages_of(int32_t seq_len, int32_t page_size)
{
    return seq_len / page_size + (seq_len % page_size != 0);
}

/* What both offset arrays keep: from 0, never down, at most `limit`. */
static quire_status check_offsets(const char *name, const int32_t *offsets, int32_t batch, int64_t limit,
                                  const char *what)
{
    if (offsets[0] != 0)
        return quire_fail(QUIRE_ERROR_VALUE, "%s: expected to start at 0, got %d", name, offsets[0]);
    for (int32_t b = 0; b < batch; b++)
        if (offsets[b + 1] < offsets[b])
            return quire_fail(QUIRE_ERROR_VALUE, "request %d: %s goes down from %d to %d", b, name, offsets[b],
                              offsets[b + 1]);
    if (offsets[batch] > limit)
        return quire_fail(QUIRE_ERROR_VALUE, "%s: ends at %d, beyond the %lld %s", name, offsets[batch],
                          (long long)limit, what);
    return QUIRE_OK;
}

quire_status metadata_check_rows(const struct problem *p, const int32_t *indptr, const int32_t *seq_lens,
                                 const int32_t *qo_indptr)
{
    quire_status status = check_offsets("paged_kv_indptr", indptr, p->batch, p->indices_len,
                                        "entries of paged_kv_indices");

    for (int32_t b = 0; status == QUIRE_OK && b < p->batch; b++) {
        int32_t owned = indptr[b + 1] - indptr[b], needed;

        if (seq_lens[b] < 0 || seq_lens[b] > p->max_seq_len)
            return quire_fail(QUIRE_ERROR_VALUE, "request %d: seq_lens = %d is not from 0 to max_seq_len = %d", b,
                              seq_lens[b], p->max_seq_len);
        needed = pages_of(seq_lens[b], p->page_size);
        if (needed > owned)
            return quire_fail(QUIRE_ERROR_VALUE, "request %d: seq_lens = %d needs %d pages of %d, its row owns %d", b,
                              seq_lens[b], needed, p->page_size, owned);
    }
    if (status == QUIRE_OK && p->packed)
        status = check_offsets("qo_indptr", qo_indptr, p->batch, p->total_q, "rows of query");
    for (int32_t b = 0; status == QUIRE_OK && p->packed && b < p->batch; b++)
        if (qo_indptr[b + 1] - qo_indptr[b] > p->seq_len_q)
            return quire_fail(QUIRE_ERROR_VALUE, "request %d: qo_indptr gives it %d query tokens, max_seq_len_q is %d",
                              b, qo_indptr[b + 1] - qo_indptr[b], p->seq_len_q);
    return status;
}

quire_status metadata_check_pages(const struct problem *p, const int32_t *indptr, const int32_t *seq_lens,
                                  const int32_t *indices)
{
    for (int32_t b = 0; b < p->batch; b++)
        for (int64_t i = indptr[b], end = i + pages_of(seq_lens[b], p->page_size); i < end; i++)
            if (indices[i] < 0 || indices[i] >= p->pages)
                return quire_fail(QUIRE_ERROR_VALUE,
                                  "request %d: paged_kv_indices[%lld] = %d is no page of the cache's %lld",
                                  b, (long long)i, indices[i], (long long)p->pages);
    return QUIRE_OK;
}

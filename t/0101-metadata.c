/* The rules of live metadata, each broken once: the words name request and values.
 * SPDX-License-Identifier: Apache-2.0 */
#include "metadata.h"
#include "tap.h"

enum { B = 4 };

/* Four requests over 8 pages of 16; request 2 is empty, request 3 owns a page more than it needs. */
struct arrays {
    struct problem p;
    int32_t indptr[B + 1], seq_lens[B], qo_indptr[B + 1], indices[10];
};

static struct arrays sound(void)
{
    return (struct arrays){
        .p = {.batch = B, .page_size = 16, .max_seq_len = 100, .pages = 8, .indices_len = 10, .packed = true,
              .seq_len_q = 3, .total_q = 6},
        .indptr = {0, 1, 5, 5, 8},
        .seq_lens = {16, 49, 0, 32},
        .qo_indptr = {0, 1, 4, 4, 6},
        .indices = {7, 0, 3, 3, 1, 5, 6, -1, INT32_MAX, INT32_MIN}, /* nothing follows the last three */
    };
}

static quire_status check(const struct arrays *a)
{
    quire_status status = metadata_check_rows(&a->p, a->indptr, a->seq_lens, a->qo_indptr);

    return status == QUIRE_OK ? metadata_check_pages(&a->p, a->indptr, a->seq_lens, a->indices) : status;
}

#define BROKEN(message, ...)                                                                                           \
    do {                                                                                                               \
        struct arrays a = sound();                                                                                     \
        __VA_ARGS__;                                                                                                   \
        is_int(QUIRE_ERROR_VALUE, check(&a), "VALUE: " #__VA_ARGS__);                                                  \
        is_str(message, quire_last_error(), "its words");                                                              \
    } while (0)

#define SOUND(...)                                                                                                     \
    do {                                                                                                               \
        struct arrays a = sound();                                                                                     \
        __VA_ARGS__;                                                                                                   \
        if (!is_int(QUIRE_OK, check(&a), "sound: " #__VA_ARGS__))                                                      \
            diag("%s", quire_last_error());                                                                            \
    } while (0)

int main(void)
{
    plan(0);
    SOUND((void)a);
    SOUND(a.indices[0] = 0);
    SOUND(a.seq_lens[3] = 0, a.indices[5] = a.indices[6] = -5);
    SOUND(a.indices[8] = 7, a.p.indices_len = 8);
    SOUND(a.p.packed = false, a.qo_indptr[0] = 99);
    SOUND(a.p.total_q = 100);
    SOUND(a.seq_lens[1] = 64);
    SOUND(a.qo_indptr[1] = 0, a.qo_indptr[2] = 3);

    BROKEN("paged_kv_indptr: expected to start at 0, got 1", a.indptr[0] = 1);
    BROKEN("paged_kv_indptr: expected to start at 0, got -1", a.indptr[0] = -1);
    BROKEN("request 2: paged_kv_indptr goes down from 5 to 4", a.indptr[3] = 4);
    BROKEN("request 0: paged_kv_indptr goes down from 0 to -2147483648", a.indptr[1] = INT32_MIN);
    BROKEN("paged_kv_indptr: ends at 8, beyond the 7 entries of paged_kv_indices", a.p.indices_len = 7);
    BROKEN("request 0: seq_lens = -1 is not from 0 to max_seq_len = 100", a.seq_lens[0] = -1);
    BROKEN("request 3: seq_lens = 101 is not from 0 to max_seq_len = 100", a.seq_lens[3] = 101);
    BROKEN("request 1: seq_lens = 65 needs 5 pages of 16, its row owns 4", a.seq_lens[1] = 65);
    BROKEN("request 2: seq_lens = 1 needs 1 pages of 16, its row owns 0", a.seq_lens[2] = 1);
    BROKEN("request 0: seq_lens = 2147483520 needs 134217720 pages of 16, its row owns 1",
           a.p.max_seq_len = a.seq_lens[0] = 2147483520);
    BROKEN("qo_indptr: expected to start at 0, got 2", a.qo_indptr[0] = 2);
    BROKEN("request 2: qo_indptr goes down from 4 to 3", a.qo_indptr[3] = 3);
    BROKEN("qo_indptr: ends at 6, beyond the 5 rows of query", a.p.total_q = 5);
    BROKEN("request 1: qo_indptr gives it 3 query tokens, max_seq_len_q is 2", a.p.seq_len_q = 2);
    BROKEN("request 0: paged_kv_indices[0] = 8 is no page of the cache's 8", a.indices[0] = 8);
    BROKEN("request 1: paged_kv_indices[4] = -1 is no page of the cache's 8", a.indices[4] = -1);
    BROKEN("request 3: paged_kv_indices[7] = -1 is no page of the cache's 8", a.seq_lens[3] = 33);

    /* The first in this order: offsets, lengths, query offsets, page ids. */
    BROKEN("request 1: seq_lens = 65 needs 5 pages of 16, its row owns 4",
           a.seq_lens[1] = 65, a.indices[0] = -1, a.qo_indptr[0] = 1);
    return done();
}

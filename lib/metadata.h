/* metadata.h - the rules of live metadata, on arrays that the host can read
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_METADATA_H
#define QUIRE_METADATA_H

#include "problem.h"

/* paged_kv_indptr [B+1], seq_lens [B] and, if the problem is packed, qo_indptr [B+1], read in full.  VALUE
 * and a message with the request and its values at the first broken rule. */
quire_status metadata_check_rows(const struct problem *p, const int32_t *indptr, const int32_t *seq_lens,
                                 const int32_t *qo_indptr);

/* The page ids of rows that metadata_check_rows passed.  Reads the first ceil(seq_lens[b] / page_size)
 * entries of each row of `indices`, and no other. */
quire_status metadata_check_pages(const struct problem *p, const int32_t *indptr, const int32_t *seq_lens,
                                  const int32_t *indices);

#endif

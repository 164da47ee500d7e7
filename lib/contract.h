/* contract.h - arguments in, one validated problem out: every rule that needs no device memory
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_CONTRACT_H
#define QUIRE_CONTRACT_H

#include "problem.h"

enum contract_call {
    CONTRACT_WORKSPACE_SIZE, /* shapes, dtypes and devices; no data, out and lse may be absent */
    CONTRACT_PREPARE,        /* likewise */
    CONTRACT_DECODE,         /* everything but lse */
    CONTRACT_CHECK,          /* the metadata's data; out and lse may be absent */
    CONTRACT_REFERENCE,      /* as decode, on the CPU, without a workspace; out and lse may be fp64 */
    CONTRACT_VERIFY          /* as decode, on the CPU, without a workspace */
};

/* Checks in the order of quire(3)'s list; the first fault answers.  `to` is filled for
 * CONTRACT_REFERENCE only and may be NULL otherwise.  On failure *p is not to be used. */
quire_status contract_problem(const quire_decode_args *args, enum contract_call call, void *stream,
                              struct problem *p, struct reference_out *to);

/* Whether the problem's workspace holds the bytes that its backend needs. */
quire_status contract_workspace(const struct problem *p, size_t need);

/* Whether the problem has no query row: then nothing is to be done, and no workspace needed. */
bool contract_empty(const struct problem *p);

#endif

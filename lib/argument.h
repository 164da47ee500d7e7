/* argument.h - what any tensor argument must be, whichever it is
 *
 * Each function answers with a status and a message that begins with the argument's name.  Words for what
 * was expected are put together on failure only: these run at every launch.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_ARGUMENT_H
#define QUIRE_ARGUMENT_H

#include <stdbool.h>

#include "quire.h"

#define LL(x) ((long long)(x)) /* for %lld */

/* There, on this device, of this rank; `want` says in words what is expected. */
quire_status argument_tensor(DLDevice device, const char *name, const DLTensor *t, int32_t rank, const char *want);

quire_status argument_compact(const char *name, const DLTensor *t);

/* A compact int32 vector of `count` elements, any number if negative; `why` explains the count. */
quire_status argument_vector(DLDevice device, const char *name, const DLTensor *t, int64_t count, const char *why);

/* The bytes of the arguments so far. */
struct spans {
    int count;
    struct span {
        const char *name;
        uintptr_t begin, end;
        bool written;
    } of[12];
};

/* Notes where a tensor's bytes are and stores the address of the first; what is written may overlap
 * nothing that was noted before, nor what is noted later.  Without `read` the data pointer means nothing
 * and *where becomes NULL, as for a tensor without elements. */
quire_status argument_place(struct spans *spans, const char *name, const DLTensor *t, uintptr_t alignment, bool read,
                            bool written, void **where);

#endif

/* status.h - how a failure gets its words
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_STATUS_H
#define QUIRE_STATUS_H

#include "quire.h"

/* Stores the thread's message and returns `status`, so that a check reads
 * `return quire_fail(QUIRE_ERROR_VALUE, "page_size: expected 16, 32, 64 or 128, got %lld", ...)`. */
__attribute__((format(printf, 2, 3))) quire_status quire_fail(quire_status status, const char *format, ...);

#endif

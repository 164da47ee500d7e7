/* dtype.h - element types: their names, and quire_dtype <-> DLDataType
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_DTYPE_H
#define QUIRE_DTYPE_H

#include <stdbool.h>

#include "quire.h"

bool dtype_is(DLDataType type, enum quire_type_code code, int bits);

/* What decode computes with; QUIRE_DTYPE_DEFAULT if it is none of these. */
quire_dtype dtype_from_dlpack(DLDataType type);

/* Bytes of an element of a quire_dtype; 0 of QUIRE_DTYPE_DEFAULT. */
int dtype_bytes(quire_dtype dtype);

/* "fp16", "bf16", "fp8e4m3"; "default" or "unknown" otherwise. */
const char *dtype_name(quire_dtype dtype);

/* Any DLPack type, known to decode or not: "fp16", "int64", "fp8e5m2", "fp32x4". */
struct dtype_text {
    char s[32];
};
struct dtype_text dtype_text(DLDataType type);

#endif

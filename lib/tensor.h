/* tensor.h - views over a DLTensor: extents, compactness, the bytes it spans, its words
 *
 * Nothing here trusts a tensor's numbers: sums and products are checked.  A dimension of extent 1
 * (or of a tensor without elements) has no stride that matters.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_TENSOR_H
#define QUIRE_TENSOR_H

#include <stdbool.h>

#include "quire.h"

/* Elements in axes `from` to the last; false if an extent is negative or the product overflows. */
bool tensor_count(const DLTensor *t, int from, int64_t *count);

/* Whether axes `from` to the last are laid out row-major with nothing between. */
bool tensor_is_compact(const DLTensor *t, int from);

/* Elements from an index of axis 0 to the next; the compact stride where none is told or matters.
 * The extents behind axis 0 must have a count. */
int64_t tensor_outer_stride(const DLTensor *t);

/* Bytes from the first element to the end of the last, gaps included; 0 without elements; false if
 * that, or a step on the way, does not fit int64.  Strides must not be negative. */
bool tensor_span(const DLTensor *t, int64_t *bytes);

/* Address of the first element; false if byte_offset leads out of the address space. */
bool tensor_address(const DLTensor *t, uintptr_t *address);

bool device_equal(DLDevice a, DLDevice b);

/* For messages: "fp16 [4, 8, 128]", "fp16 [4, 8, 128] strides [2048, 128, 1]"; "NULL" of NULL; "cpu", "cuda:1". */
struct tensor_text {
    char s[256];
};
struct tensor_text tensor_text(const DLTensor *t);
struct tensor_text tensor_text_strides(const DLTensor *t);
struct tensor_text device_text(DLDevice device);

#endif

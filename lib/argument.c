/* argument.c - what any tensor argument must be
 * SPDX-License-Identifier: Apache-2.0 */
#include "argument.h"

#include <stdio.h>

#include "dtype.h"
#include "status.h"
#include "tensor.h"

static quire_status check_device(DLDevice device, const char *name, const DLTensor *t)
{
    if (!device_equal(t->device, device))
        return quire_fail(QUIRE_ERROR_TYPE, "%s: expected the device of the tensor before it, %s, got %s", name,
                          device_text(device).s, device_text(t->device).s);
    return QUIRE_OK;
}

quire_status argument_tensor(DLDevice device, const char *name, const DLTensor *t, int32_t rank, const char *want)
{
    if (t == NULL)
        return quire_fail(QUIRE_ERROR_TYPE, "%s: expected %s, got NULL", name, want);
    if (t->ndim != rank || t->shape == NULL)
        return quire_fail(QUIRE_ERROR_TYPE, "%s: expected %s, got %s", name, want, tensor_text(t).s);
    return check_device(device, name, t);
}

quire_status argument_compact(const char *name, const DLTensor *t)
{
    if (!tensor_is_compact(t, 0))
        return quire_fail(QUIRE_ERROR_VALUE, "%s: expected a compact row-major tensor, got %s", name,
                          tensor_text_strides(t).s);
    return QUIRE_OK;
}

static quire_status refuse_vector(quire_status status, const char *name, const DLTensor *t, int64_t count,
                                  const char *why)
{
    char extent[32];

    snprintf(extent, sizeof extent, count < 0 ? "n" : "%lld", LL(count));
    return quire_fail(status, "%s: expected int32 [%s] (%s), got %s", name, extent, why, tensor_text(t).s);
}

quire_status argument_vector(DLDevice device, const char *name, const DLTensor *t, int64_t count, const char *why)
{
    quire_status status;

    if (t == NULL || t->ndim != 1 || t->shape == NULL || !dtype_is(t->dtype, QUIRE_CODE_INT, 32))
        return refuse_vector(QUIRE_ERROR_TYPE, name, t, count, why);
    status = check_device(device, name, t);
    if (status != QUIRE_OK)
        return status;
    if (t->shape[0] < 0 || (count >= 0 && t->shape[0] != count))
        return refuse_vector(QUIRE_ERROR_VALUE, name, t, count, why);
    return argument_compact(name, t);
}

static uintptr_t shared_bytes(const struct span *a, const struct span *b)
{
    uintptr_t begin = a->begin > b->begin ? a->begin : b->begin;
    uintptr_t end = a->end < b->end ? a->end : b->end;

    return begin < end ? end - begin : 0;
}

quire_status argument_place(struct spans *spans, const char *name, const DLTensor *t, uintptr_t alignment, bool read,
                            bool written, void **where)
{
    struct span span = {.name = name, .written = written};
    int64_t bytes;

    *where = NULL;
    if (!tensor_span(t, &bytes))
        return quire_fail(QUIRE_ERROR_VALUE, "%s: expected less than 2^63 bytes, got %s", name,
                          tensor_text_strides(t).s);
    if (!read || bytes == 0)
        return QUIRE_OK;
    if (t->data == NULL)
        return quire_fail(QUIRE_ERROR_TYPE, "%s: expected data, got NULL", name);
    if (!tensor_address(t, &span.begin) || __builtin_add_overflow(span.begin, (uintptr_t)bytes, &span.end))
        return quire_fail(QUIRE_ERROR_VALUE, "%s: expected %lld bytes of memory, got data %p + byte_offset %llu",
                          name, LL(bytes), t->data, (unsigned long long)t->byte_offset);
    if (span.begin % alignment != 0)
        return quire_fail(QUIRE_ERROR_VALUE, "%s: expected data aligned to %d bytes, got data %p + byte_offset %llu",
                          name, (int)alignment, t->data, (unsigned long long)t->byte_offset);
    for (int i = 0; i < spans->count; i++) {
        uintptr_t shared = written || spans->of[i].written ? shared_bytes(&span, &spans->of[i]) : 0;

        if (shared > 0)
            return quire_fail(QUIRE_ERROR_VALUE, "%s: expected memory of its own, got an overlap of %llu bytes with %s",
                              name, (unsigned long long)shared, spans->of[i].name);
    }
    spans->of[spans->count++] = span;
    *where = (void *)span.begin;
    return QUIRE_OK;
}

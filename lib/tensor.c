/* tensor.c - views over a DLTensor
 * SPDX-License-Identifier: Apache-2.0 */
#include "tensor.h"

#include <stdio.h>

#include "dtype.h"

bool tensor_count(const DLTensor *t, int from, int64_t *count)
{
    int64_t product = 1;
    bool empty = false;

    for (int axis = from; axis < t->ndim; axis++) {
        if (t->shape[axis] < 0)
            return false;
        if (t->shape[axis] == 0)
            empty = true;
        else if (__builtin_mul_overflow(product, t->shape[axis], &product))
            return false;
    }
    *count = empty ? 0 : product;
    return true;
}

bool tensor_is_compact(const DLTensor *t, int from)
{
    int64_t count, stride = 1;

    if (!tensor_count(t, from, &count))
        return false;
    if (t->strides == NULL || count == 0)
        return true;
    for (int axis = t->ndim - 1; axis >= from; axis--) {
        if (t->shape[axis] != 1 && t->strides[axis] != stride)
            return false;
        stride *= t->shape[axis]; /* at most count */
    }
    return true;
}

int64_t tensor_outer_stride(const DLTensor *t)
{
    int64_t inner = 0;

    if (t->strides != NULL && t->shape[0] > 1)
        return t->strides[0];
    tensor_count(t, 1, &inner);
    return inner;
}

bool tensor_span(const DLTensor *t, int64_t *bytes)
{
    int64_t count, last = 0, step, element = ((int64_t)t->dtype.bits * t->dtype.lanes + 7) / 8;

    if (!tensor_count(t, 0, &count))
        return false;
    if (count == 0) {
        *bytes = 0;
        return true;
    }
    if (t->strides == NULL)
        last = count - 1;
    else
        for (int axis = 0; axis < t->ndim; axis++)
            if (t->shape[axis] > 1 &&
                (__builtin_mul_overflow(t->shape[axis] - 1, t->strides[axis], &step) ||
                 __builtin_add_overflow(last, step, &last)))
                return false;
    if (last < 0 || __builtin_add_overflow(last, 1, &count) || __builtin_mul_overflow(count, element, &count))
        return false;
    *bytes = count;
    return true;
}

bool tensor_address(const DLTensor *t, uintptr_t *address)
{
    return !__builtin_add_overflow((uintptr_t)t->data, t->byte_offset, address);
}

bool device_equal(DLDevice a, DLDevice b)
{
    return a.device_type == b.device_type && a.device_id == b.device_id;
}

/* A rank above it is more likely garbage than a tensor: its extents are not read. */
enum { RANK_SHOWN = 8 };

/* Appends "[a, b, c]"; a text that does not fit is cut. */
static size_t put_extents(char *to, size_t size, size_t used, int32_t n, const int64_t *extents)
{
    for (int32_t i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(to + used, size - used, "%s%lld", i ? ", " : "[", (long long)extents[i]);
    if (used < size)
        used += (size_t)snprintf(to + used, size - used, n > 0 ? "]" : "[]");
    return used;
}

static struct tensor_text describe(const DLTensor *t, bool with_strides)
{
    struct tensor_text text;
    size_t used;

    if (t == NULL) {
        snprintf(text.s, sizeof text.s, "NULL");
        return text;
    }
    used = (size_t)snprintf(text.s, sizeof text.s, "%s ", dtype_text(t->dtype).s);
    if (t->ndim < 0 || t->ndim > RANK_SHOWN || (t->ndim > 0 && t->shape == NULL)) {
        snprintf(text.s + used, sizeof text.s - used, "of rank %d%s", (int)t->ndim,
                 t->shape == NULL ? " with a NULL shape" : "");
        return text;
    }
    used = put_extents(text.s, sizeof text.s, used, t->ndim, t->shape);
    if (with_strides && t->strides != NULL && used < sizeof text.s) {
        used += (size_t)snprintf(text.s + used, sizeof text.s - used, " strides ");
        put_extents(text.s, sizeof text.s, used, t->ndim, t->strides);
    }
    return text;
}

struct tensor_text tensor_text(const DLTensor *t)
{
    return describe(t, false);
}

struct tensor_text tensor_text_strides(const DLTensor *t)
{
    return describe(t, true);
}

struct tensor_text device_text(DLDevice device)
{
    struct tensor_text text;

    if (device.device_type == QUIRE_DEVICE_CPU && device.device_id == 0)
        snprintf(text.s, sizeof text.s, "cpu");
    else if (device.device_type == QUIRE_DEVICE_CPU || device.device_type == QUIRE_DEVICE_CUDA)
        snprintf(text.s, sizeof text.s, "%s:%d", device.device_type == QUIRE_DEVICE_CPU ? "cpu" : "cuda",
                 (int)device.device_id);
    else
        snprintf(text.s, sizeof text.s, "device type %d", (int)device.device_type);
    return text;
}

/* measure.c - reads memory as a decode does, and does nothing with it: the yardstick for its speed
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include "argument.h"
#include "backend.h"
#include "status.h"
#include "tensor.h"

enum { PIECE = 16 }; /* bytes of one load: what alignment and sizes are multiples of */

static quire_status check_blocks(const DLTensor *blocks, struct blocks *b)
{
    uintptr_t address;
    int64_t elements;

    if (blocks == NULL || blocks->ndim < 1 || blocks->shape == NULL)
        return quire_fail(QUIRE_ERROR_TYPE, "blocks: expected a tensor [n, ...], got %s", tensor_text(blocks).s);
    b->device = blocks->device;
    if (b->device.device_type != QUIRE_DEVICE_CPU && b->device.device_type != QUIRE_DEVICE_CUDA)
        return quire_fail(QUIRE_ERROR_TYPE, "blocks: expected a tensor on cpu or cuda, got %s",
                          device_text(b->device).s);
    if (blocks->shape[0] < 0 || !tensor_count(blocks, 1, &elements) || !tensor_is_compact(blocks, 1) ||
        elements > INT64_MAX / 64)
        return quire_fail(QUIRE_ERROR_VALUE, "blocks: expected blocks that are compact within, got %s",
                          tensor_text_strides(blocks).s);
    b->count = blocks->shape[0];
    b->bytes = elements * blocks->dtype.bits / 8;
    if (__builtin_mul_overflow(tensor_outer_stride(blocks), (int64_t)blocks->dtype.bits / 8, &b->stride) ||
        b->bytes % PIECE != 0 || b->stride % PIECE != 0 || b->stride < (b->count > 1 ? b->bytes : 0) ||
        !tensor_address(blocks, &address) || address % PIECE != 0)
        return quire_fail(QUIRE_ERROR_VALUE,
                          "blocks: expected a base, blocks and strides of multiples of %d bytes, got %s",
                          PIECE, tensor_text_strides(blocks).s);
    if (blocks->data == NULL && b->bytes > 0 && b->count > 0)
        return quire_fail(QUIRE_ERROR_TYPE, "blocks: expected data, got NULL");
    b->data = (const char *)address;
    return QUIRE_OK;
}

quire_status quire_measure_read(const DLTensor *blocks, const DLTensor *order, void *stream)
{
    struct spans spans = {0};
    struct blocks b;
    void *numbers;
    quire_status status = check_blocks(blocks, &b);

    if (status == QUIRE_OK)
        status = argument_vector(b.device, "order", order, -1, "block numbers");
    if (status == QUIRE_OK)
        status = argument_place(&spans, "order", order, sizeof(int32_t), true, false, &numbers);
    if (status != QUIRE_OK || order->shape[0] == 0)
        return status;
    b.order = numbers;
    b.order_len = order->shape[0];
    if (b.device.device_type == QUIRE_DEVICE_CUDA)
#ifdef HAVE_CUDA
        return cuda_read_blocks(&b, stream);
#else
        return quire_fail(QUIRE_ERROR_UNSUPPORTED, "blocks: tensors on cpu are supported, got %s",
                          device_text(b.device).s);
#endif
    if (stream != NULL)
        return quire_fail(QUIRE_ERROR_UNSUPPORTED, "stream: NULL is supported with tensors on cpu, got %p", stream);
    for (int64_t i = 0; i < b.order_len; i++)
        if (b.order[i] < 0 || b.order[i] >= b.count)
            return quire_fail(QUIRE_ERROR_VALUE, "order: expected block numbers from 0 to %lld, got %d at %lld",
                              LL(b.count - 1), b.order[i], LL(i));
    return cpu_read_blocks(&b);
}

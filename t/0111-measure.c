/* quire_measure_read: what it accepts, and what it refuses with which words.
 * SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"
#include "tap.h"

enum { N = 5, BLOCK = 32 };

static _Alignas(64) uint16_t memory[2 * N * BLOCK];
static int32_t order_data[] = {4, 0, 2, 2, 3};
static struct tensor blocks, order;

static void sound(void)
{
    tensor_set(&blocks, BF16, memory, SHAPE(N, BLOCK));
    tensor_use_strides(&blocks);
    tensor_set(&order, INT32, order_data, SHAPE(5));
    order_data[1] = 0;
}

#define ACCEPTED(...)                                                                                                  \
    do {                                                                                                               \
        sound();                                                                                                       \
        __VA_ARGS__;                                                                                                   \
        if (!is_int(QUIRE_OK, quire_measure_read(&blocks.t, &order.t, NULL), "accepted: %s", #__VA_ARGS__))            \
            diag("%s", quire_last_error());                                                                            \
    } while (0)

#define REFUSED(status, words, ...)                                                                                    \
    do {                                                                                                               \
        sound();                                                                                                       \
        __VA_ARGS__;                                                                                                   \
        is_int(QUIRE_ERROR_##status, quire_measure_read(&blocks.t, &order.t, NULL), #status ": %s", #__VA_ARGS__);     \
        if (!ok(strstr(quire_last_error(), words) != NULL, "its words"))                                               \
            diag("got %s", quire_last_error());                                                                        \
    } while (0)

int main(void)
{
    int stream;

    plan(0);
    ACCEPTED((void)0);
    ACCEPTED(blocks.strides[0] = 2 * BLOCK);
    ACCEPTED(blocks.t.strides = NULL);
    ACCEPTED(order.shape[0] = 0);
    ACCEPTED(blocks.t.dtype = FP8E4M3);
    ACCEPTED(blocks.shape[0] = 0, order.shape[0] = 0, blocks.t.data = NULL, order.t.data = NULL);

    REFUSED(TYPE, "blocks: expected a tensor", blocks.t.ndim = 0);
    REFUSED(TYPE, "blocks: expected a tensor", blocks.t.shape = NULL);
    REFUSED(TYPE, "blocks: expected", blocks.t.device.device_type = 7);
    REFUSED(TYPE, "blocks: expected data, got NULL", blocks.t.data = NULL);
    REFUSED(VALUE, "blocks: expected", blocks.shape[0] = -1);
    REFUSED(VALUE, "blocks: expected", blocks.strides[1] = 2);
    REFUSED(VALUE, "blocks: expected", blocks.shape[1] = BLOCK - 1, blocks.strides[0] = BLOCK);
    REFUSED(VALUE, "blocks: expected", blocks.strides[0] = BLOCK + 4);
    REFUSED(VALUE, "blocks: expected", blocks.strides[0] = BLOCK / 2);
    REFUSED(VALUE, "blocks: expected", blocks.t.byte_offset = 8);
    REFUSED(TYPE, "order: expected int32 [n] (block numbers), got int64 [5]", order.t.dtype = INT64);
    REFUSED(TYPE, "order: expected", order.t.device.device_type = QUIRE_DEVICE_CUDA);
    REFUSED(TYPE, "order: expected", order.t.data = NULL);
    REFUSED(VALUE, "order: expected data aligned to 4 bytes", order.t.byte_offset = 2);
    REFUSED(VALUE, "order: expected block numbers from 0 to 4, got 5 at 1", order_data[1] = 5);
    REFUSED(VALUE, "order: expected block numbers from 0 to 4, got -1 at 1", order_data[1] = -1);
    sound();
    is_int(QUIRE_ERROR_TYPE, quire_measure_read(NULL, &order.t, NULL), "TYPE: no blocks");
    is_int(QUIRE_ERROR_TYPE, quire_measure_read(&blocks.t, NULL, NULL), "TYPE: no order");
    is_int(QUIRE_ERROR_UNSUPPORTED, quire_measure_read(&blocks.t, &order.t, &stream),
           "UNSUPPORTED: a stream on the CPU");
    return done();
}

/* backend.h - what each backend does for decode.c; a device type picks the row, there is no fallback
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_BACKEND_H
#define QUIRE_BACKEND_H

#include "problem.h"

/* Bytes of workspace; reads no pointer of the problem. */
quire_status cpu_workspace_size(const struct problem *p, size_t *bytes);
quire_status cuda_workspace_size(const struct problem *p, size_t *bytes);

quire_status cpu_prepare(const struct problem *p);
quire_status cuda_prepare(const struct problem *p);

/* The metadata of a CPU problem has been checked. */
quire_status cpu_decode(const struct problem *p);
quire_status cuda_decode(const struct problem *p, void *stream);

/* Copies int32 arrays to the host in stream order and waits: metadata for check. */
quire_status cuda_read_int32(DLDevice device, void *stream, int32_t *host, const int32_t *from, int64_t count);

quire_status cpu_describe(quire_device_info *info);
quire_status cuda_describe(int32_t device_id, quire_device_info *info);
quire_status cuda_count(int32_t *count);

/* quire_measure_read's blocks: block i of `order` is `bytes` at data + order[i] * stride. */
struct blocks {
    DLDevice device;
    const char *data;       /* aligned to 16 bytes, as are bytes and stride multiples of 16 */
    int64_t count, bytes, stride;
    const int32_t *order;   /* [order_len], on the device; on the CPU checked to be below count */
    int64_t order_len;
};
quire_status cpu_read_blocks(const struct blocks *b);
quire_status cuda_read_blocks(const struct blocks *b, void *stream);

/* lib/cpu/reference.c, verdict.c; CPU problems only, metadata checked. */
quire_status reference_decode(const struct problem *p, const struct reference_out *to);
quire_status reference_verify(const struct problem *p, quire_verdict *verdict);

#endif

/* layout.h - sizes and offsets of DLPack's structs, as one translation unit sees them
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LAYOUT_H
#define LAYOUT_H

#include <stddef.h>

struct layout {
    const char *what;
    size_t value;
};

#define LAYOUT_ROWS                                                                                                    \
    {"sizeof(DLDeviceType)", sizeof(DLDeviceType)},                                                                    \
    {"sizeof(DLDevice)", sizeof(DLDevice)},                                                                            \
    {"DLDevice.device_type", offsetof(DLDevice, device_type)},                                                         \
    {"DLDevice.device_id", offsetof(DLDevice, device_id)},                                                             \
    {"sizeof(DLDataType)", sizeof(DLDataType)},                                                                        \
    {"DLDataType.code", offsetof(DLDataType, code)},                                                                   \
    {"DLDataType.bits", offsetof(DLDataType, bits)},                                                                   \
    {"DLDataType.lanes", offsetof(DLDataType, lanes)},                                                                 \
    {"sizeof(DLTensor)", sizeof(DLTensor)},                                                                            \
    {"DLTensor.data", offsetof(DLTensor, data)},                                                                       \
    {"DLTensor.device", offsetof(DLTensor, device)},                                                                   \
    {"DLTensor.ndim", offsetof(DLTensor, ndim)},                                                                       \
    {"DLTensor.dtype", offsetof(DLTensor, dtype)},                                                                     \
    {"DLTensor.shape", offsetof(DLTensor, shape)},                                                                     \
    {"DLTensor.strides", offsetof(DLTensor, strides)},                                                                 \
    {"DLTensor.byte_offset", offsetof(DLTensor, byte_offset)},                                                         \
    {"sizeof(quire_decode_args)", sizeof(quire_decode_args)},                                                          \
    {NULL, 0}

extern const struct layout layout_dlpack[]; /* layout-dlpack.c; a lone {NULL, 0} without the header */

#endif

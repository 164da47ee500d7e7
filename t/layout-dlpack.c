/* The real dlpack.h first, then quire.h, which must take what is there.
 * SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#ifdef HAVE_DLPACK_DLPACK_H
#include <dlpack/dlpack.h>
#endif
#include <quire.h>

#include "layout.h"

#ifdef HAVE_DLPACK_DLPACK_H
_Static_assert((int)kDLCPU == (int)QUIRE_DEVICE_CPU, "device types are DLPack's");
_Static_assert((int)kDLCUDA == (int)QUIRE_DEVICE_CUDA, "device types are DLPack's");
_Static_assert((int)kDLInt == (int)QUIRE_CODE_INT, "type codes are DLPack's");
_Static_assert((int)kDLUInt == (int)QUIRE_CODE_UINT, "type codes are DLPack's");
_Static_assert((int)kDLFloat == (int)QUIRE_CODE_FLOAT, "type codes are DLPack's");
_Static_assert((int)kDLBfloat == (int)QUIRE_CODE_BFLOAT, "type codes are DLPack's");

const struct layout layout_dlpack[] = {LAYOUT_ROWS};
#else
const struct layout layout_dlpack[] = {{NULL, 0}};
#endif

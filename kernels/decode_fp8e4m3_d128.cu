// fp8e4m3, head_dim 128
// SPDX-License-Identifier: Apache-2.0
#include "decode.cuh"

QUIRE_VARIANTS_D128_8(QUIRE_INSTANTIATE, fp8e4m3)

// fp8e4m3, head_dim 64
// SPDX-License-Identifier: Apache-2.0
#include "decode.cuh"

QUIRE_VARIANTS_D64_8(QUIRE_INSTANTIATE, fp8e4m3)

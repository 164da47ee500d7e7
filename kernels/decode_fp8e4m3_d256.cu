// fp8e4m3, head_dim 256
// SPDX-License-Identifier: Apache-2.0
#include "decode.cuh"

QUIRE_VARIANTS_D256_8(QUIRE_INSTANTIATE, fp8e4m3)

// bf16, head_dim 256
// SPDX-License-Identifier: Apache-2.0
#include "decode.cuh"

QUIRE_VARIANTS_D256_16(QUIRE_INSTANTIATE, bf16)

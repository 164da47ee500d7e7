// bf16, head_dim 128
// SPDX-License-Identifier: Apache-2.0
#include "decode.cuh"

QUIRE_VARIANTS_D128_16(QUIRE_INSTANTIATE, bf16)

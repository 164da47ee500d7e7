// probe.cu - the smallest kernel: does this GPU run what this library embeds?
// SPDX-License-Identifier: Apache-2.0
#include <stdint.h>

// *sum = a + b, by one thread.
extern "C" __global__ void quire_probe(int32_t a, int32_t b, int32_t *sum)
{
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *sum = a + b;
}

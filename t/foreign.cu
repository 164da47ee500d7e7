// foreign.cu - other people's kernels, for tests: work that keeps a GPU busy, and work that a decode waits for
// SPDX-License-Identifier: Apache-2.0
#include <stdint.h>

static __device__ uint64_t now()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

static __device__ void wait(uint64_t nanoseconds)
{
    const uint64_t start = now();
    while (now() - start < nanoseconds)
        ;
}

// Holds its threads and registers for a while.
extern "C" __global__ void spin(uint64_t nanoseconds)
{
    wait(nanoseconds);
}

// Writes as late as a producer can: what may follow is let go at once, the words come after the delay. A kernel
// that reads them without waiting for this one's end reads the old ones. One block.
extern "C" __global__ void produce(int32_t *to, const int32_t *from, int32_t count, uint64_t nanoseconds)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    wait(nanoseconds);
    for (int32_t i = threadIdx.x; i < count; i += blockDim.x)
        to[i] = from[i];
}

/* policy.h - which kernel runs a problem on a GPU, and with how much of it
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUIRE_POLICY_H
#define QUIRE_POLICY_H

#include "kernels/params.h"
#include "problem.h"

/* Each has the kernels of those before it too. */
enum kernel_generation { KERNELS_ASYNC, KERNELS_TMA, KERNELS_WGMMA };

/* What the choice depends on besides the problem; no device is asked. */
struct device_limits {
    int capability;    /* 90 for compute capability 9.0 */
    int sm_count;
    int shared_bytes;  /* dynamic shared memory that a CTA can opt in to */
    int max_grid;      /* fewer CTAs than the GPU would get, for tests of splitting; 0: no limit */
    enum kernel_generation kernels; /* the best that the code which runs there holds */
};

struct launch_plan {
    const char *image;   /* the fatbin: "decode_bf16_d128" */
    const char *kernel;  /* "decode_tma_bf16_d128_r8" */
    int variant;         /* index below policy_variants(), one for each kernel */
    int rows;            /* query rows of a work item */
    int grid, threads;
    size_t shared_bytes;
    size_t workspace_bytes;
    bool uses_tensor_maps;
    struct {
        int slots;       /* 0: the kernel has no use for such boxes */
        int panels;      /* of 128 bytes */
        int heads;
    } boxes[BOX_KINDS];
    int solo_heads;      /* heads of a solo item */
    bool heads_together; /* long launches have solo items only */
    bool read_once;      /* one work item covers all the rows of a KV head */
};

int policy_variants(void);

/* The plan of a CUDA problem, from its shapes and dtypes.  UNSUPPORTED if no kernel suits the GPU. */
quire_status policy_plan(const struct problem *p, const struct device_limits *d, struct launch_plan *plan);

/* The plan of quire_measure_read's kernel; it has a variant of its own and needs no workspace. */
void policy_read_plan(const struct device_limits *d, struct launch_plan *plan);

/* The kernel's parameters, except for the tensor maps. */
void policy_params(const struct problem *p, const struct launch_plan *plan, struct decode_params *params);

#endif

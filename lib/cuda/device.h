/* device.h - what the library knows and keeps of each GPU
 * SPDX-License-Identifier: Apache-2.0
 *
 * All devices are looked at once, in the process's first call; what is loaded later (contexts,
 * libraries, kernels) is loaded once and kept until the process ends. Any thread may call anything. */
#ifndef QUIRE_CUDA_DEVICE_H
#define QUIRE_CUDA_DEVICE_H

#include "arch.h"
#include "driver.h"
#include "policy.h"

struct ready_kernel;

struct device {
    const struct driver *driver;
    CUdevice handle;
    int ordinal;            /* N of cuda:N; CUDA_VISIBLE_DEVICES counts */
    int capability;         /* 90 for 9.0 */
    int sm_count;
    int shared_per_block;   /* bytes of shared memory that one block may ask for */
    int l2_bytes;
    size_t memory_bytes;
    char name[128];
    struct arch code;       /* what of the library's code runs here */
    char problem[256];      /* why no kernel can run here; "" if one can */
    CUcontext primary;      /* device_enter's; read and written atomically, NULL until it is needed */
    struct ready_kernel *ready; /* device_kernel's, one for each of policy_variants() */
};

/* Devices of this machine. 0 where there is no driver or no GPU. DEVICE: a driver that does not work. */
quire_status device_count(int *count);

/* DEVICE: no driver, or no such device. */
quire_status device_get(int ordinal, struct device **device);

/* UNSUPPORTED, with what the GPU is and what the library holds, if no kernel was built for it. */
quire_status device_check(const struct device *device);

/* Makes the context current that work on `stream` belongs to: the stream's; of a default stream the thread's own if it
 * has one of this device, else the primary one. device_leave restores what was current; it follows every device_enter
 * that succeeded. TYPE: a stream of another device, on which the driver would launch. DEVICE. */
struct device_scope {
    CUcontext context;      /* current between enter and leave */
    bool pushed;
};
quire_status device_enter(struct device *device, CUstream stream, struct device_scope *scope);
void device_leave(struct device *device, const struct device_scope *scope);

/* The kernel of a plan, loaded in the current context and allowed all the dynamic shared memory that the
 * device gives one block, so that a launch of it need load nothing. The first call for a context takes a lock
 * and may take long, but does not disturb a capture under way; later ones only look it up. Call between
 * enter and leave. UNSUPPORTED: the library has no code for this GPU. DEVICE. */
quire_status device_kernel(struct device *device, const struct device_scope *scope, const struct launch_plan *plan,
                           CUkernel *kernel);

#endif

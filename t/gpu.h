/* gpu.h - a fixture's decode on a GPU, for tests in C
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GPU_H
#define GPU_H

#include <cuda.h>

#include "fixture.h"

/* Makes device 0 ready for tests, with the primary context current: true, or false and why there is none.
 * `driver` is a file to load where the machine has no driver, or NULL. */
bool gpu_open(const char *driver, const char **why);

/* The primary context current in the calling thread, for as long as that lives. */
void gpu_enter(void);

/* What goes wrong in these ends the test program with "Bail out!". */
struct gpu_fixture {
    struct fixture *host;
    struct fixture *there; /* the same, with its tensors on the device */
    CUstream stream;
    size_t out_bytes;
};
void gpu_fixture_new(struct gpu_fixture *g, const struct fixture_shape *shape);

/* Sets out's bytes on the stream: all bits, a NaN of every type. */
void gpu_fill_out(struct gpu_fixture *g);

/* Waits for the stream, and copies out to `to`. */
void gpu_read_out(struct gpu_fixture *g, void *to);

/* Waits for the stream. */
void gpu_sync(struct gpu_fixture *g);

/* What `out` holds, from gpu_read_out, compared with the reference: the number of elements outside their bound, -1
 * if that fails. */
int64_t gpu_failures(struct gpu_fixture *g, const void *out);

#endif

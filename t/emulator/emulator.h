/* emulator.h - the GPU's side of a launch on the CPU: threads, shared memory, barriers, the copy engine
 *
 * kernels/ compiled as host code (cuda.h, ptx.h, wgmma.h) calls these.  A thread is a fiber, which runs until it
 * waits; so nothing here knows of memory ordering, of the proxies that fences order, or of registers.  But what is
 * asynchronous on a GPU comes late here too: copies when every thread has had its turn, products of matrices when
 * they are waited for.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EMULATOR_H
#define EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/params.h"

#ifdef __cplusplus
extern "C" {
#endif

struct emulator_dim {
    unsigned x, y, z;
};

/* A product of matrices that a warpgroup has asked for, as one of its threads did. */
struct emulator_product {
    void (*multiply)(struct emulator_product *const *all); /* of the warpgroup's 128 threads */
    float *d;
    const uint32_t *a_registers;     /* NULL: A is in shared memory */
    uint64_t a, b;                   /* descriptors */
    bool accumulate;
};

enum { EMULATOR_PRODUCTS = 128 };

struct emulator_thread {
    struct emulator_dim thread, block, threads, grid; /* threadIdx, blockIdx, blockDim, gridDim */
    int lane;
    struct emulator_cta *cta;
    struct emulator_product products[EMULATOR_PRODUCTS];
    int n_products, batch_end[EMULATOR_PRODUCTS], n_batches; /* committed ones: products up to batch_end[i] */

    /* emulator.c's own */
    void *stack_pointer, *stack;
    bool done, waited;               /* waited: for the work before the launch */
    const uint32_t *watched;         /* while it holds `seen` the thread has nothing to do */
    uint32_t seen;
    const char *waits_for;           /* printf format for two unsigned */
    unsigned detail[2];
};

extern struct emulator_thread *emulator_self;

/* Ends the process with a diagnostic that names the CTA and thread. */
#ifdef __cplusplus
[[noreturn]]
#else
_Noreturn
#endif
void emulator_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Lets others run; back when *watched is not `seen`, or at the next turn if that is NULL.  The rest is told where
 * nothing moves any more. */
void emulator_wait(const uint32_t *watched, uint32_t seen, const char *waits_for, unsigned a, unsigned b);

/* Something happened that another thread may wait for. */
void emulator_progress(void);

/* All threads of the warp, warpgroup or CTA meet at `what`, each with something of its own; the last one calls
 * `together` with all of these in the order of threads. */
enum emulator_scope { EMULATOR_WARP, EMULATOR_WARPGROUP, EMULATOR_CTA };
void emulator_meet(enum emulator_scope scope, const char *what, void *mine,
                   void (*together)(void *const *all, int count));

/* A barrier by its hardware number; `wait`: does not only count for it.  Whether any thread there says `yes`. */
bool emulator_named_barrier(int id, int threads, bool wait, bool yes);

/* ---- shared memory, by 32-bit addresses ---- */

unsigned char *emulator_shared(void);
uint32_t emulator_shared_address(const void *p);
void *emulator_shared_at(uint32_t address, uint32_t bytes, uint32_t alignment, const char *what);

void emulator_barrier_init(uint32_t bar, uint32_t count);
void emulator_barrier_arrive(uint32_t bar, uint32_t expected_bytes);
bool emulator_barrier_test(uint32_t bar, uint32_t parity);
void emulator_barrier_wait(uint32_t bar, uint32_t parity);

/* ---- copies, in the order they were asked for ---- */

/* What stands in a struct tensor_map: as the driver is told, but the innermost extent in bytes. */
struct emulator_map {
    const char *base;
    int64_t extent[5], stride[4];
    int32_t box[5];
};

void emulator_copy_box(uint32_t to, const void *map, uint32_t bar, const int at[5]);
void emulator_copy_16(uint32_t to, const void *from, uint32_t valid_bytes);
void emulator_arrive_after_copies(uint32_t bar);

/* ---- the launch ---- */

struct emulator_launch {
    void (*kernel)(const struct decode_params);
    const struct decode_params *params;
    int grid, threads;
    size_t shared_bytes;
    int resident;            /* CTAs that run at a time, in the order of dispatch; 0: all */
    bool backwards;          /* CTAs, and threads of each, take their turns from the last to the first */
    void (*previous)(void *context); /* work that the launch follows, done when the first thread waits for it */
    void *context;
    bool late;               /* it is done when no thread has anything else to do */
    void (*meanwhile)(void *context); /* it goes on: before the turn of a thread that `turn` tells, */
    int64_t turn;            /* from 1 on; 0: when the threads of a CTA have met for the first time */
    int64_t turns;           /* result: turns of threads until the work before was complete */
    int64_t words_passed;    /* result: stores meant for other CTAs */
    int64_t all_bytes, most_bytes, least_bytes; /* result: copied by all CTAs, by the busiest, by the idlest; */
    int64_t box_bytes;                          /* and those of all that the copy engine brings */
};

/* Runs the launch; ends the process with a diagnostic where it goes wrong, also where no thread can go on. */
void emulator_run(struct emulator_launch *launch);

void emulator_wait_for_previous_grid(void);
void emulator_let_next_grid_start(void);
void emulator_passed_word(void);

/* ---- conversions, after emulator_start ---- */

void emulator_start(void);

extern float emulator_fp16_value[65536];
extern uint16_t emulator_e4m3_as_fp16[256];

#ifdef __cplusplus
}
#endif

#endif

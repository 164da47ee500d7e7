/* emulator.c - see emulator.h
 * SPDX-License-Identifier: Apache-2.0 */
#include "emulator.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cpu/reference.h"
#include "cpu/round.h"
#include "fiber.h"

enum {
    PAGE = 65536,            /* a multiple of any system's */
    UNDER_STACK = 1024,      /* bytes of the gap there that are looked at */
    NAMED_BARRIERS = 16,
    SHARED_BASE = 1024 + 16, /* no better aligned than a kernel may count on */
    FILL = 0xff,             /* NaN in every type */
    PATIENCE = 20000         /* turns of everyone in which nothing happens */
};

struct meeting {
    const char *what;
    void **all;
    int arrived;
    uint32_t generation;
};

struct named_barrier {
    int arrived, threads;
    bool any, result;
    uint32_t generation;
};

struct copy {
    enum { COPY_BOX, COPY_16, COPY_ARRIVE } kind;
    uint32_t to, bar, bytes;
    const void *from;        /* memory, or a map */
    int at[5];
};

struct emulator_cta {
    bool live;
    int threads_left;
    struct emulator_thread *threads;
    struct meeting warps[32], groups[8], all;
    void *met[3][1024];
    struct named_barrier named[NAMED_BARRIERS];
    unsigned char *region, *shared; /* the region's end is the shared memory's, and before a page without access */
    struct copy *copies;
    int n_copies, copies_room;
    int64_t copied, in_boxes; /* bytes; those that the copy engine brings */
};

struct emulator_thread *emulator_self;
float emulator_fp16_value[65536];
uint16_t emulator_e4m3_as_fp16[256];

static struct emulator_launch *launch;
static int64_t progress;
static uint32_t previous_done;
static int64_t turns;  /* of threads, so far */
static bool disturbed; /* by launch->meanwhile */

/* ---- telling what is wrong ------------------------------------------------------------------------ */

void emulator_fail(const char *format, ...)
{
    va_list list;

    if (emulator_self != NULL)
        printf("# CTA %u, thread %u: ", emulator_self->block.x, emulator_self->thread.x);
    else
        printf("# ");
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    putchar('\n');
    fflush(stdout);
    _exit(1);
}

static void *memory(size_t bytes)
{
    void *block = calloc(1, bytes);

    if (block == NULL)
        emulator_fail("no memory");
    return block;
}

/* ---- threads ------------------------------------------------------------------------------------- */

static void thread_main(void)
{
    entered_thread();
    launch->kernel(*launch->params);
    if (emulator_self->n_products > 0)
        emulator_fail("ends with %d products of matrices not waited for", emulator_self->n_products);
    emulator_self->done = true;
    emulator_progress();
    emulator_wait(NULL, 0, "", 0, 0);
}

void emulator_wait(const uint32_t *watched, uint32_t seen, const char *waits_for, unsigned a, unsigned b)
{
    struct emulator_thread *t = emulator_self;

    t->watched = watched;
    t->seen = seen;
    t->waits_for = waits_for;
    t->detail[0] = a;
    t->detail[1] = b;
    back_to_scheduler();
    t->waits_for = NULL;
}

void emulator_progress(void)
{
    progress++;
}

static void disturb(void)
{
    if (launch->meanwhile == NULL || disturbed || previous_done)
        return; /* nobody writes metadata once the work before is complete */
    disturbed = true;
    launch->meanwhile(launch->context);
}

/* ---- meetings ------------------------------------------------------------------------------------- */

void emulator_meet(enum emulator_scope scope, const char *what, void *mine,
                   void (*together)(void *const *all, int count))
{
    static const char *const names[] = {"warp", "warpgroup", "CTA"};
    struct emulator_thread *t = emulator_self;
    struct emulator_cta *cta = t->cta;
    const int thread = (int)t->thread.x;
    const int size = scope == EMULATOR_WARP ? 32 : scope == EMULATOR_WARPGROUP ? 128 : launch->threads;
    struct meeting *m = scope == EMULATOR_WARP ? &cta->warps[thread / 32]
                        : scope == EMULATOR_WARPGROUP ? &cta->groups[thread / 128] : &cta->all;
    const uint32_t generation = m->generation;

    if (m->arrived > 0 && m->what != what && strcmp(m->what, what) != 0)
        emulator_fail("is at %s, others of its %s at %s", what, names[scope], m->what);
    m->what = what;
    m->all[thread % size] = mine;
    if (++m->arrived < size) {
        while (m->generation == generation)
            emulator_wait(&m->generation, generation, what, 0, 0);
        return;
    }
    m->arrived = 0;
    m->generation++;
    if (scope == EMULATOR_CTA && launch->turn == 0)
        disturb();
    if (together != NULL)
        together(m->all, size);
    emulator_progress();
}

bool emulator_named_barrier(int id, int threads, bool wait, bool yes)
{
    struct named_barrier *n = &emulator_self->cta->named[id < NAMED_BARRIERS ? id : 0];
    const uint32_t generation = n->generation;

    if (id < 1 || id >= NAMED_BARRIERS || threads < 32 || threads > launch->threads || threads % 32 != 0)
        emulator_fail("named barrier %d of %d threads", id, threads);
    if (n->arrived > 0 && n->threads != threads)
        emulator_fail("named barrier %d: %d threads, but %d for those before", id, threads, n->threads);
    n->threads = threads;
    n->any |= yes;
    if (++n->arrived == threads) {
        n->arrived = 0;
        n->result = n->any; /* stays until all have left: without them the next round is not complete */
        n->any = false;
        n->generation++;
        emulator_progress();
    } else {
        while (wait && n->generation == generation)
            emulator_wait(&n->generation, generation, "named barrier %u of %u threads", (unsigned)id,
                          (unsigned)threads);
    }
    return n->result;
}

/* ---- shared memory and its barriers --------------------------------------------------------------- */

unsigned char *emulator_shared(void)
{
    return emulator_self->cta->shared;
}

uint32_t emulator_shared_address(const void *p)
{
    const unsigned char *at = p, *shared = emulator_self->cta->shared;

    if (at < shared || at >= shared + launch->shared_bytes)
        emulator_fail("a pointer %td bytes into %zu of shared memory", at - shared, launch->shared_bytes);
    return SHARED_BASE + (uint32_t)(at - shared);
}

static void *shared_at(struct emulator_cta *cta, uint32_t address, uint32_t bytes, uint32_t alignment, const char *what)
{
    const int64_t at = (int64_t)address - SHARED_BASE;

    if (at < 0 || at + bytes > (int64_t)launch->shared_bytes)
        emulator_fail("%s: %u bytes at %lld of %zu of shared memory", what, bytes, (long long)at, launch->shared_bytes);
    if (address % alignment != 0)
        emulator_fail("%s: address %u is no multiple of %u", what, address, alignment);
    return cta->shared + at;
}

void *emulator_shared_at(uint32_t address, uint32_t bytes, uint32_t alignment, const char *what)
{
    return shared_at(emulator_self->cta, address, bytes, alignment, what);
}

/* An mbarrier: 8 bytes of shared memory.  Bytes go below 0 where they arrive before they are expected. */
struct mbarrier {
    uint32_t phase : 1, pending : 15, count : 15, fill : 1;
    int32_t bytes;
};

static struct mbarrier *barrier_at(struct emulator_cta *cta, uint32_t bar)
{
    struct mbarrier *b = shared_at(cta, bar, sizeof *b, 8, "mbarrier");

    if (b->fill)
        emulator_fail("mbarrier at %u: not initialised", bar);
    return b;
}

void emulator_barrier_init(uint32_t bar, uint32_t count)
{
    struct mbarrier *b = emulator_shared_at(bar, sizeof *b, 8, "mbarrier");

    if (count < 1 || count > 0x7fff)
        emulator_fail("mbarrier at %u: for %u arrivals", bar, count);
    *b = (struct mbarrier){.pending = count & 0x7fff, .count = count & 0x7fff};
}

static void settle(struct mbarrier *b)
{
    if (b->pending == 0 && b->bytes == 0) {
        b->phase ^= 1;
        b->pending = b->count;
        emulator_progress();
    }
}

static void arrive(struct emulator_cta *cta, uint32_t bar, uint32_t expected_bytes)
{
    struct mbarrier *b = barrier_at(cta, bar);

    if (b->pending == 0)
        emulator_fail("mbarrier at %u: more than %u arrivals", bar, b->count);
    b->bytes += (int32_t)expected_bytes;
    b->pending--;
    settle(b);
}

void emulator_barrier_arrive(uint32_t bar, uint32_t expected_bytes)
{
    arrive(emulator_self->cta, bar, expected_bytes);
}

bool emulator_barrier_test(uint32_t bar, uint32_t parity)
{
    if (parity > 1)
        emulator_fail("mbarrier at %u: parity %u", bar, parity);
    return barrier_at(emulator_self->cta, bar)->phase != parity;
}

void emulator_barrier_wait(uint32_t bar, uint32_t parity)
{
    while (!emulator_barrier_test(bar, parity)) {
        const void *b = barrier_at(emulator_self->cta, bar);
        uint32_t seen;

        memcpy(&seen, b, sizeof seen);
        emulator_wait(b, seen, "mbarrier at %u, parity %u", bar, parity);
    }
}

/* ---- copies --------------------------------------------------------------------------------------- */

static struct copy *new_copy(void)
{
    struct emulator_cta *cta = emulator_self->cta;

    if (cta->n_copies == cta->copies_room) {
        cta->copies_room = cta->copies_room * 2 + 256;
        cta->copies = realloc(cta->copies, (size_t)cta->copies_room * sizeof *cta->copies);
        if (cta->copies == NULL)
            emulator_fail("no memory");
    }
    return &cta->copies[cta->n_copies++];
}

static uint32_t box_bytes(const struct emulator_map *m)
{
    return (uint32_t)(m->box[0] * m->box[1] * m->box[2] * m->box[3] * m->box[4]);
}

/* Of what the work before the launch may write, or read, by this thread. */
static void need_previous_grid(const char *what)
{
    if (!emulator_self->waited)
        emulator_fail("%s before the work before the launch is complete", what);
}

void emulator_copy_box(uint32_t to, const void *map, uint32_t bar, const int at[5])
{
    struct copy *c;

    need_previous_grid("a box");
    emulator_shared_at(to, box_bytes(map), 128, "box");
    c = new_copy();
    *c = (struct copy){.kind = COPY_BOX, .to = to, .bar = bar, .from = map};
    memcpy(c->at, at, sizeof c->at);
    emulator_self->cta->copied += box_bytes(map);
    emulator_self->cta->in_boxes += box_bytes(map);
}

void emulator_copy_16(uint32_t to, const void *from, uint32_t valid_bytes)
{
    need_previous_grid("cp.async");
    emulator_shared_at(to, 16, 16, "cp.async");
    if ((uintptr_t)from % 16 != 0 || valid_bytes > 16)
        emulator_fail("cp.async of %u bytes from %p", valid_bytes, from);
    *new_copy() = (struct copy){.kind = COPY_16, .to = to, .from = from, .bytes = valid_bytes};
    emulator_self->cta->copied += valid_bytes;
}

void emulator_arrive_after_copies(uint32_t bar)
{
    *new_copy() = (struct copy){.kind = COPY_ARRIVE, .bar = bar};
}

/* Rows of 128 bytes, of which chunk c of 16 lands at c ^ row % 8: so by bits 7 to 9 of the address.  What is beyond an
 * extent is zeros. */
static void carry_out_box(struct emulator_cta *cta, const struct copy *c)
{
    const struct emulator_map *m = c->from;
    struct mbarrier *b = barrier_at(cta, c->bar);
    uint32_t to = c->to;
    int i[5];

    for (i[4] = c->at[4]; i[4] < c->at[4] + m->box[4]; i[4]++)
        for (i[3] = c->at[3]; i[3] < c->at[3] + m->box[3]; i[3]++)
            for (i[2] = c->at[2]; i[2] < c->at[2] + m->box[2]; i[2]++)
                for (i[1] = c->at[1]; i[1] < c->at[1] + m->box[1]; i[1]++, to += 128) {
                    const char *from = m->base;
                    bool inside = true;

                    for (int dim = 1; dim < 5; dim++) {
                        inside = inside && i[dim] >= 0 && i[dim] < m->extent[dim];
                        from += inside ? i[dim] * m->stride[dim - 1] : 0;
                    }
                    for (uint32_t chunk = 0; chunk < 8; chunk++) {
                        void *place = shared_at(cta, to + ((chunk ^ (to >> 7 & 7)) * 16), 16, 16, "box");

                        if (inside)
                            memcpy(place, from + chunk * 16, 16);
                        else
                            memset(place, 0, 16);
                    }
                }
    b->bytes -= (int32_t)box_bytes(m);
    settle(b);
}

static void carry_out_copies(struct emulator_cta *cta)
{
    for (int i = 0; i < cta->n_copies; i++) {
        const struct copy *c = &cta->copies[i];

        if (c->kind == COPY_BOX) {
            carry_out_box(cta, c);
        } else if (c->kind == COPY_ARRIVE) {
            arrive(cta, c->bar, 0);
        } else {
            unsigned char *to = shared_at(cta, c->to, 16, 16, "cp.async");

            memset(to, 0, 16);
            memcpy(to, c->from, c->bytes);
        }
        emulator_progress();
    }
    cta->n_copies = 0;
}

/* ---- the launch ----------------------------------------------------------------------------------- */

static void complete_previous(void)
{
    if (previous_done)
        return;
    if (launch->previous != NULL)
        launch->previous(launch->context);
    launch->turns = turns;
    previous_done = 1;
}

void emulator_wait_for_previous_grid(void)
{
    if (!launch->late)
        complete_previous();
    while (!previous_done)
        emulator_wait(&previous_done, 0, "the work before the launch", 0, 0);
    emulator_self->waited = true;
}

void emulator_let_next_grid_start(void)
{
    need_previous_grid("the next grid");
}

void emulator_passed_word(void)
{
    need_previous_grid("a word for another CTA");
    launch->words_passed++;
    emulator_progress();
}

static void *pages(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        emulator_fail("no memory");
    return p;
}

static void no_access(void *p)
{
    if (mprotect(p, PAGE, PROT_NONE) != 0)
        emulator_fail("no guard page");
}

static size_t region_bytes(void)
{
    return (launch->shared_bytes + SHARED_BASE + PAGE - 1) / PAGE * PAGE;
}

static void make_cta(struct emulator_cta *cta)
{
    /* Under each stack is a gap, which end_cta looks at.  With pages without access there 132 CTAs would take more maps
     * than Linux gives a process, 65530.  As there are none, huge pages would fit, of ten stacks each. */
    const size_t stride = PAGE + STACK_BYTES, bytes = stride * (size_t)launch->threads;
    char *stacks = pages(bytes);

    madvise(stacks, bytes, MADV_NOHUGEPAGE);
    cta->region = pages(region_bytes() + PAGE);
    no_access(cta->region + region_bytes());
    cta->shared = cta->region + region_bytes() - launch->shared_bytes;
    cta->threads = memory((size_t)launch->threads * sizeof *cta->threads);
    for (int i = 0; i < launch->threads; i++)
        cta->threads[i].stack = stacks + stride * (size_t)i + PAGE;
    for (int i = 0; i < 32; i++)
        cta->warps[i].all = cta->met[0] + i * 32;
    for (int i = 0; i < 8; i++)
        cta->groups[i].all = cta->met[1] + i * 128;
    cta->all.all = cta->met[2];
}

static void start_cta(struct emulator_cta *cta, int block)
{
    memset(cta->region, FILL, region_bytes());
    cta->live = true;
    cta->threads_left = launch->threads;
    cta->copied = cta->in_boxes = 0;
    memset(cta->named, 0, sizeof cta->named);
    for (int i = 0; i < launch->threads; i++) {
        struct emulator_thread *t = &cta->threads[i];

        t->thread = (struct emulator_dim){.x = (unsigned)i};
        t->block = (struct emulator_dim){.x = (unsigned)block};
        t->threads = (struct emulator_dim){.x = (unsigned)launch->threads, .y = 1, .z = 1};
        t->grid = (struct emulator_dim){.x = (unsigned)launch->grid, .y = 1, .z = 1};
        t->lane = i % 32;
        t->cta = cta;
        t->done = t->waited = false;
        t->watched = NULL;
        clean_stack(t->stack);
        make_fiber(t);
    }
}

static void end_cta(struct emulator_cta *cta)
{
    const unsigned char *aligned = cta->shared + (-SHARED_BASE & 1023);

    if (cta->n_copies > 0)
        emulator_fail("CTA %u ends with %d copies under way", cta->threads[0].block.x, cta->n_copies);
    for (const unsigned char *p = cta->region; p < aligned; p++)
        if (*p != FILL)
            emulator_fail("CTA %u wrote %td bytes before its shared memory", cta->threads[0].block.x, aligned - p);
    for (int i = 0; i < launch->threads; i++) {
        const char *stack = cta->threads[i].stack;

        for (const char *p = stack - UNDER_STACK; p < stack; p++)
            if (*p != 0)
                emulator_fail("CTA %u, thread %d: uses more stack than %d bytes", cta->threads[0].block.x, i,
                              STACK_BYTES);
    }
    cta->live = false;
    launch->all_bytes += cta->copied;
    launch->box_bytes += cta->in_boxes;
    launch->most_bytes = cta->copied > launch->most_bytes ? cta->copied : launch->most_bytes;
    launch->least_bytes = cta->copied < launch->least_bytes ? cta->copied : launch->least_bytes;
}

static void take_turns(struct emulator_cta *cta)
{
    for (int i = 0; i < launch->threads; i++) {
        struct emulator_thread *t = &cta->threads[launch->backwards ? launch->threads - 1 - i : i];

        if (t->done || (t->watched != NULL && *t->watched == t->seen))
            continue;
        if (++turns == launch->turn)
            disturb();
        run_thread(t);
        cta->threads_left -= t->done;
    }
}

static void report_deadlock(const struct emulator_cta *ctas, int slots)
{
    int told = 0;

    for (const struct emulator_cta *cta = ctas; cta < ctas + slots; cta++)
        for (int i = 0; cta->live && i < launch->threads && told < 24; i += 32) {
            const struct emulator_thread *t = &cta->threads[i];

            while (t->done && t < &cta->threads[i + 31])
                t++;
            if (t->done)
                continue;
            printf("# CTA %u, warp %d waits for ", t->block.x, i / 32);
            printf(t->waits_for, t->detail[0], t->detail[1]);
            putchar('\n');
            told++;
        }
    emulator_fail("no thread can go on");
}

void emulator_start(void)
{
    static uint16_t all[65536];
    static uint8_t bytes[256];

    for (int i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (int i = 0; i < 256; i++)
        bytes[i] = (uint8_t)i;
    for (int i = 0; i < 65536; i++)
        emulator_fp16_value[i] = (float)reference_element(QUIRE_DTYPE_FP16, all, i);
    for (int i = 0; i < 256; i++)
        emulator_e4m3_as_fp16[i] = round_to_fp16((float)reference_element(QUIRE_DTYPE_FP8E4M3, bytes, i));
}

void emulator_run(struct emulator_launch *l)
{
    const int slots = l->resident > 0 && l->resident < l->grid ? l->resident : l->grid;
    struct emulator_cta *ctas = memory((size_t)slots * sizeof *ctas);
    int dispatched = 0, ended = 0, idle = 0;

    launch = l;
    l->words_passed = l->all_bytes = l->box_bytes = l->most_bytes = 0;
    l->least_bytes = INT64_MAX;
    previous_done = 0;
    turns = 0;
    disturbed = false;
    if (l->shared_bytes % 16 != 0 || l->threads % 32 != 0 || l->threads < 32 || l->threads > 1024)
        emulator_fail("a launch of %d threads with %zu bytes of shared memory", l->threads, l->shared_bytes);
    for (int i = 0; i < slots; i++)
        make_cta(&ctas[i]);
    while (ended < l->grid) {
        const int64_t before = progress;

        for (int i = 0; i < slots; i++) {
            struct emulator_cta *cta = &ctas[l->backwards ? slots - 1 - i : i];

            if (!cta->live && dispatched < l->grid)
                start_cta(cta, dispatched++);
            if (!cta->live)
                continue;
            take_turns(cta);
            if (cta->threads_left == 0) {
                end_cta(cta);
                ended++;
            } else {
                carry_out_copies(cta);
            }
        }
        idle = progress == before ? idle + 1 : 0;
        if (idle > 0)
            complete_previous();
        if (idle > PATIENCE)
            report_deadlock(ctas, slots);
    }
    launch = NULL;
}

/* Host threads that decode on one GPU at once, each with its stream and workspace: the bits of one thread alone.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "gpu.h"
#include "tap.h"

enum { THREADS = 4, ROUNDS = 200 };

/* Long enough that every item is cut over many CTAs. */
static const int32_t lens[THREADS][3] = { { 3000, 1, 40 }, { 0, 2500, 700 }, { 17, 18, 4000 }, { 1, 1, 1 } };

/* One thread's decode. */
struct side {
    struct gpu_fixture gpu;
    unsigned char *wanted, *got;
    quire_status status;
    int differ;
};

static void make(struct side *side, int i)
{
    struct fixture_shape shape = SMALL;

    shape.seq_lens = lens[i];
    shape.seq_len_q = i % 2 ? 3 : 1;
    shape.head_dim = i < 2 ? 128 : 64;
    gpu_fixture_new(&side->gpu, &shape);
    side->wanted = malloc(side->gpu.out_bytes);
    side->got = malloc(side->gpu.out_bytes);
}

static void decode_once(struct side *side, unsigned char *to)
{
    gpu_fill_out(&side->gpu);
    if (side->status == QUIRE_OK)
        side->status = quire_decode(&side->gpu.there->args, side->gpu.stream);
    gpu_read_out(&side->gpu, to);
}

static void *decode_often(void *argument)
{
    struct side *side = argument;

    gpu_enter();
    for (int i = 0; i < ROUNDS; i++) {
        decode_once(side, side->got);
        side->differ += memcmp(side->wanted, side->got, side->gpu.out_bytes) != 0;
    }
    return NULL;
}

int main(void)
{
    static struct side sides[THREADS];
    pthread_t thread[THREADS];
    const char *why;

    if (!gpu_open(NULL, &why)) {
        printf("1..0 # SKIP %s\n", why);
        return 0;
    }
    plan(0);
    for (int i = 0; i < THREADS; i++) {
        make(&sides[i], i);
        decode_once(&sides[i], sides[i].wanted);
        is_int(0, gpu_failures(&sides[i].gpu, sides[i].wanted), "problem %d alone is right", i);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, decode_often, &sides[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        is_int(QUIRE_OK, sides[i].status, "thread %d: every decode succeeds", i);
        is_int(0, sides[i].differ, "thread %d: %d decodes beside others, the bits of one alone", i, ROUNDS);
    }
    return done();
}

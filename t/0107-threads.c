/* Eight threads decode at once, each with tensors and a workspace of its own: every time the bits of a thread
 * that decodes alone.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "fixture.h"
#include "tap.h"

enum { THREADS = 8, ROUNDS = 20 };

/* Shapes of every kind, so that threads meet in all of the code. */
static const int32_t lens[] = {700, 1, 0, 64, 1025}, q_lens[] = {1, 4, 2, 0, 3};

struct worker {
    struct fixture *f;
    unsigned char *out, *lse; /* as decoded alone */
    int wrong;                /* rounds that failed or gave other bits */
    bool words;               /* whether the refusal's words were the thread's own */
};

static void *work(void *at)
{
    struct worker *w = at;
    char wanted[64];
    int32_t count;

    for (int i = 0; i < ROUNDS; i++) {
        memset(w->f->out.t.data, FIXTURE_FILL, tensor_bytes(&w->f->out));
        memset(w->f->lse.t.data, FIXTURE_FILL, tensor_bytes(&w->f->lse));
        if (quire_decode(&w->f->args, NULL) != QUIRE_OK ||
            memcmp(w->out, w->f->out.t.data, tensor_bytes(&w->f->out)) != 0 ||
            memcmp(w->lse, w->f->lse.t.data, tensor_bytes(&w->f->lse)) != 0)
            w->wrong++;
        quire_device_count(1000 + (int)w->f->args.max_seq_len_q, &count);
    }
    snprintf(wanted, sizeof wanted, "got %d", 1000 + (int)w->f->args.max_seq_len_q);
    w->words = strstr(quire_last_error(), wanted) != NULL;
    return NULL;
}

int main(void)
{
    struct worker workers[THREADS];
    pthread_t threads[THREADS];

    plan(2 * THREADS);
    for (int i = 0; i < THREADS; i++) {
        struct fixture_shape shape = {.batch = 5, .seq_len_q = 1 + i % 3, .q_heads = 8, .kv_heads = 2,
                                      .head_dim = i % 2 ? 128 : 64, .page_size = 16 << i % 4, .seq_lens = lens,
                                      .q_lens = i % 4 == 3 ? q_lens : NULL, .dtype = FP16, .out_dtype = FP16,
                                      .pair = i % 2};
        struct worker *w = &workers[i];

        if (i % 3 == 1)
            shape.dtype = shape.out_dtype = BF16;
        if (i % 3 == 2)
            shape.dtype = FP8E4M3;
        *w = (struct worker){.f = fixture_new(&shape)};
        if (quire_decode(&w->f->args, NULL) != QUIRE_OK) {
            printf("Bail out! %s\n", quire_last_error());
            return 1;
        }
        w->out = fixture_memory(w->f, tensor_bytes(&w->f->out));
        w->lse = fixture_memory(w->f, tensor_bytes(&w->f->lse));
        memcpy(w->out, w->f->out.t.data, tensor_bytes(&w->f->out));
        memcpy(w->lse, w->f->lse.t.data, tensor_bytes(&w->f->lse));
    }
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0) {
            printf("Bail out! no thread\n");
            return 1;
        }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        is_int(0, workers[i].wrong, "thread %d: rounds that gave other bits", i);
        ok(workers[i].words, "thread %d: its own message", i);
        fixture_free(workers[i].f);
    }
    return done();
}

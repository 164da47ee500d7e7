/* The bits of a CPU decode depend on the request alone: not on the number of threads, the neighbours in the
 * batch, max_seq_len, what the workspace and unused slots hold, or parallel regions around the call.
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef _OPENMP
#include <omp.h>
#endif

#include "fixture.h"
#include "tap.h"

static const int32_t lens[] = {2100, 1, 0, 300, 4097, 16, 33, 2100}, q_lens[] = {3, 1, 2, 0, 5, 1, 1, 3};
enum { BATCH = 8, TWIN = BATCH - 1 };

struct bits {
    unsigned char *out, *lse;
};

static struct bits decode(struct fixture *f)
{
    struct bits bits = {malloc(tensor_bytes(&f->out)), malloc(tensor_bytes(&f->lse))};

    memset(f->out.t.data, FIXTURE_FILL, tensor_bytes(&f->out));
    memset(f->lse.t.data, FIXTURE_FILL, tensor_bytes(&f->lse));
    if (bits.out == NULL || bits.lse == NULL || quire_decode(&f->args, NULL) != QUIRE_OK) {
        printf("Bail out! %s\n", quire_last_error());
        exit(1);
    }
    memcpy(bits.out, f->out.t.data, tensor_bytes(&f->out));
    memcpy(bits.lse, f->lse.t.data, tensor_bytes(&f->lse));
    return bits;
}

/* Compares and frees `got`. */
static bool same(const struct fixture *f, struct bits wanted, struct bits got)
{
    bool equal = memcmp(wanted.out, got.out, tensor_bytes(&f->out)) == 0 &&
                 memcmp(wanted.lse, got.lse, tensor_bytes(&f->lse)) == 0;

    free(got.out);
    free(got.lse);
    return equal;
}

static void set_threads(int threads)
{
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
}

/* The last request becomes the first one's twin: same pages, same query. */
static size_t make_twin(struct fixture *f, const struct fixture_shape *s)
{
    const int32_t *indptr = f->indptr.t.data;
    int32_t *indices = f->indices.t.data;
    size_t token = (size_t)s->q_heads * (size_t)s->head_dim * (s->dtype.bits / 8), at = 0;

    for (int b = 0; b < TWIN; b++)
        at += (size_t)(s->q_lens ? s->q_lens[b] : s->seq_len_q);
    memcpy(indices + indptr[TWIN], indices + indptr[0], (size_t)(indptr[1] - indptr[0]) * sizeof *indices);
    memcpy((char *)f->query.t.data + at * token, f->query.t.data,
           (size_t)(s->q_lens ? s->q_lens[0] : s->seq_len_q) * token);
    return at; /* its first query token */
}

/* NaN behind the last key of each request, in its last page. */
static void spoil_unused_slots(struct fixture *f, const struct fixture_shape *s)
{
    size_t row = (size_t)s->head_dim * (s->dtype.bits / 8), head = (size_t)s->page_size * row;

    for (int b = 0; b < BATCH; b++) {
        int32_t used = lens[b] % s->page_size, page;

        if (used == 0)
            continue;
        page = ((int32_t *)f->indices.t.data)[((int32_t *)f->indptr.t.data)[b] + lens[b] / s->page_size];
        for (int32_t h = 0; h < 2 * s->kv_heads; h++) /* of K, of V */
            memset((char *)f->kv.t.data + ((size_t)page * 2 * (size_t)s->kv_heads + (size_t)h) * head +
                       (size_t)used * row, 0xff, (size_t)(s->page_size - used) * row);
    }
}

static void test_shape(const struct fixture_shape *s, quire_mask mask, const char *name)
{
    struct fixture *f = fixture_new(s);
    size_t rows, out_row, twin = make_twin(f, s);
    struct bits one, alone;
    int64_t max_seq_len = f->args.max_seq_len;

    f->args.mask_type = mask;
    set_threads(1);
    one = decode(f);
    for (int threads = 2; threads <= 7; threads++) {
        set_threads(threads);
        ok(same(f, one, decode(f)), "%s: %d threads", name, threads);
    }
    memset(f->workspace.t.data, 0xff, tensor_bytes(&f->workspace));
    ok(same(f, one, decode(f)), "%s: a workspace of NaN", name);
    spoil_unused_slots(f, s);
    ok(same(f, one, decode(f)), "%s: NaN in unused slots", name);

    rows = (size_t)(s->q_lens ? s->q_lens[0] : s->seq_len_q) * (size_t)s->q_heads;
    out_row = (size_t)s->head_dim * (s->out_dtype.bits / 8);
    ok(memcmp(one.out, one.out + twin * (size_t)s->q_heads * out_row, rows * out_row) == 0 &&
           memcmp(one.lse, one.lse + twin * (size_t)s->q_heads * sizeof(float), rows * sizeof(float)) == 0,
       "%s: twins in one batch", name);

    /* the first request alone */
    f->query.shape[0] = f->out.shape[0] = f->lse.shape[0] = s->q_lens ? s->q_lens[0] : 1;
    f->seq_lens.shape[0] = 1;
    f->indptr.shape[0] = f->qo_indptr.shape[0] = 2;
    alone = decode(f);
    ok(memcmp(one.out, alone.out, rows * out_row) == 0 && memcmp(one.lse, alone.lse, rows * sizeof(float)) == 0,
       "%s: without neighbours", name);
    f->args.max_seq_len = max_seq_len * 100;
    {
        size_t bytes = 0;

        quire_decode_workspace_size(&f->args, &bytes);
        f->workspace.t.data = fixture_memory(f, bytes);
        f->workspace.shape[0] = (int64_t)bytes;
    }
    ok(same(f, alone, decode(f)), "%s: a larger max_seq_len", name);
    free(one.out);
    free(one.lse);
    free(alone.out);
    free(alone.lse);
    fixture_free(f);
}

/* Threads of a parallel region decode, each its own problem, with and without nested parallelism. */
static void test_nested(void)
{
#ifdef _OPENMP
    enum { THREADS = 3 };
    struct fixture_shape shape = {.batch = 4, .seq_len_q = 2, .q_heads = 8, .kv_heads = 2, .head_dim = 64,
                                  .page_size = 16, .seq_lens = lens, .dtype = FP16, .out_dtype = FP16};
    struct fixture *f[THREADS];
    struct bits wanted[THREADS];

    set_threads(4);
    for (int i = 0; i < THREADS; i++) {
        f[i] = fixture_new(&shape);
        wanted[i] = decode(f[i]);
    }
    for (int levels = 1; levels <= 2; levels++) {
        int wrong = 0;

        omp_set_max_active_levels(levels);
#pragma omp parallel for num_threads(THREADS) reduction(+ : wrong)
        for (int i = 0; i < THREADS; i++)
            for (int round = 0; round < 10; round++)
                wrong += !same(f[i], wanted[i], decode(f[i]));
        is_int(0, wrong, "within a parallel region, %d active levels", levels);
    }
    for (int i = 0; i < THREADS; i++) {
        free(wanted[i].out);
        free(wanted[i].lse);
        fixture_free(f[i]);
    }
#else
    skip("built without OpenMP");
    skip("built without OpenMP");
#endif
}

int main(void)
{
    struct fixture_shape shape = {.batch = BATCH, .seq_len_q = 1, .q_heads = 8, .kv_heads = 2, .head_dim = 128,
                                  .page_size = 16, .seq_lens = lens, .dtype = BF16, .out_dtype = BF16};

    set_threads(7); /* before the library counts them */
    plan(4 * 11 + 2);
    test_shape(&shape, QUIRE_MASK_DENSE, "bf16");
    shape.seq_len_q = 5;
    shape.q_heads = 24; /* 60 rows: two tiles */
    test_shape(&shape, QUIRE_MASK_CAUSAL, "bf16, 5 tokens, group 12, causal");
    shape.q_lens = q_lens;
    shape.q_heads = 14;
    shape.dtype = FP8E4M3;
    shape.out_dtype = FP16;
    test_shape(&shape, QUIRE_MASK_CAUSAL, "fp8, packed, group 7, causal");
    shape.q_heads = 2;
    shape.head_dim = 64;
    shape.dtype = FP16;
    test_shape(&shape, QUIRE_MASK_DENSE, "fp16, packed, group 1");
    test_nested();
    return done();
}

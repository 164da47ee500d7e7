/* The CUDA kernels themselves, compiled for the CPU (emulator/): every kernel of variants.h, with whole items and with
 * items that are split over CTAs, against the float64 reference.
 *
 * Each case is a process of its own, so that one that crashes or hangs is a failed test.  It launches twice: a CTA
 * after the other, in the order of dispatch; and all at once, taking turns from the last thread to the first, where
 * the metadata, or page ids alone, are garbage until the launch waits for the work before it, or for a moment before
 * that.  Both must leave the same bits, and a workspace that is zero.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include "tap.h"

#if !defined HAVE_CXX17
int main(void)
{
    puts("1..0 # SKIP configure found no C++ compiler that takes the kernels");
    return 0;
}
#else

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "contract.h"
#include "emulator/emulator.h"
#include "fixture.h"
#include "kernels/variants.h"
#include "policy.h"

/* ---- the kernels ---------------------------------------------------------------------------------- */

#define ALL_VARIANTS(V)                                                                                 \
    QUIRE_VARIANTS_D64_16(V, fp16) QUIRE_VARIANTS_D128_16(V, fp16) QUIRE_VARIANTS_D256_16(V, fp16)      \
    QUIRE_VARIANTS_D64_16(V, bf16) QUIRE_VARIANTS_D128_16(V, bf16) QUIRE_VARIANTS_D256_16(V, bf16)      \
    QUIRE_VARIANTS_D64_8(V, fp8e4m3) QUIRE_VARIANTS_D128_8(V, fp8e4m3) QUIRE_VARIANTS_D256_8(V, fp8e4m3)
#define NAME(family, dtype, d, rows) decode_##family##_##dtype##_d##d##_r##rows
#define TEXT(name) #name
#define TEXT_OF(name) TEXT(name)
#define DECLARE(family, dtype, elem, d, rows, ...) void NAME(family, dtype, d, rows)(const struct decode_params);
#define ROW(family, dtype, elem, d, rows, ...) \
    { .name = TEXT_OF(NAME(family, dtype, d, rows)), .function = NAME(family, dtype, d, rows) },

ALL_VARIANTS(DECLARE)

static struct kernel {
    const char *name;
    void (*function)(const struct decode_params);
    bool whole, split; /* what ran */
} kernels[] = { ALL_VARIANTS(ROW) };

enum { KERNELS = sizeof kernels / sizeof *kernels, PATIENCE = 200 /* seconds of a processor, for a case */, TURNS = 40 };

static struct kernel *find_kernel(const char *name)
{
    for (int i = 0; i < KERNELS; i++)
        if (strcmp(kernels[i].name, name) == 0)
            return &kernels[i];
    return NULL;
}

/* ---- one case ------------------------------------------------------------------------------------- */

struct test_case {
    const char *what;
    struct fixture_shape shape;
    quire_mask mask;
    int64_t window;
    double scale;            /* 0: the default. A large one makes maxima rise within an item */
    enum kernel_generation kernels;
    int sm_count;
    bool stable, without_lse;
    bool late_pages;         /* of the metadata page ids alone are written after the launch begins, as late as can be */
    bool passing;            /* all are right as a launch begins, garbage when its CTAs have looked, and right again; then
                                once more for each of TURNS moments, garbage or all zeros */
    bool whole;              /* no item is to be split, though shares of equal length would split some */
    int low_keys;            /* so many weigh little beside later ones: bf16 with the largest V, fp16 with large scores */
    bool exact;              /* stable, of K and V nothing is brought but blocks of 16 keys with one that somebody sees */
    int busiest, idlest;     /* at most so many percent of the mean the busiest CTA may bring, and the idlest one of what
                                the busiest does; 0: any */
};

/* What the process of a case tells. */
struct outcome {
    char kernel[64];
    bool right, split;
    int busiest, idlest;
    int64_t box_bytes, wanted_bytes;
};

/* As lib/cuda/tensor_map.c. */
static void encode_maps(const struct problem *p, const struct launch_plan *plan, struct decode_params *params)
{
    const int row_bytes = p->head_dim * (p->dtype == QUIRE_DTYPE_FP8E4M3 ? 1 : 2);
    const int fold = row_bytes < 128 ? 128 / row_bytes : 1, row = row_bytes * fold;

    for (int kind = 0; kind < BOX_KINDS; kind++)
        for (int is_v = 0; is_v < 2; is_v++) {
            const struct emulator_map m = {
                .base = is_v ? p->v : p->k,
                .extent = { 128, p->page_size / fold, row / 128, p->kv_heads, p->pages },
                .stride = { row, 128, (int64_t)p->page_size * row_bytes, is_v ? p->v_page_stride : p->k_page_stride },
                .box = { 128, plan->boxes[kind].slots / fold, plan->boxes[kind].panels, plan->boxes[kind].heads, 1 },
            };

            _Static_assert(sizeof m <= sizeof params->maps[kind][is_v], "a map has room for ours");
            memcpy(&params->maps[kind][is_v], &m, sizeof m);
        }
}

/* NaN into every slot that no row sees. */
static void poison(const struct problem *p)
{
    const size_t key = (size_t)p->head_dim * (p->dtype == QUIRE_DTYPE_FP8E4M3 ? 1 : 2);
    bool *seen = calloc((size_t)p->pages * (size_t)p->page_size, 1);

    for (int b = 0; b < p->batch; b++) {
        const int tokens = p->packed ? p->qo_indptr[b + 1] - p->qo_indptr[b] : p->seq_len_q;
        const int first = p->window_left >= 0 ? p->seq_lens[b] - tokens - p->window_left : 0;

        for (int i = first > 0 ? first : 0; tokens > 0 && i < p->seq_lens[b]; i++)
            seen[p->indices[p->indptr[b] + i / p->page_size] * p->page_size + i % p->page_size] = true;
    }
    for (int64_t slot = 0; slot < p->pages * p->page_size; slot++)
        for (int h = 0; !seen[slot] && h < p->kv_heads; h++) {
            const int64_t page = slot / p->page_size, at = h * p->page_size + slot % p->page_size;

            memset((char *)p->k + page * p->k_page_stride + at * (int64_t)key, 0xff, key);
            memset((char *)p->v + page * p->v_page_stride + at * (int64_t)key, 0xff, key);
        }
    free(seen);
}

/* What has to be read of K and V, in blocks of 16 keys, where one item has all the rows of a KV head. */
static int64_t least_bytes(const struct problem *p)
{
    const int64_t key = p->head_dim * (p->dtype == QUIRE_DTYPE_FP8E4M3 ? 1 : 2);
    int64_t blocks = 0;

    for (int b = 0; b < p->batch; b++) {
        const int tokens = p->packed ? p->qo_indptr[b + 1] - p->qo_indptr[b] : p->seq_len_q, keys = p->seq_lens[b];
        const int first = p->window_left >= 0 ? keys - tokens - p->window_left : 0;

        if (tokens > 0)
            blocks += (keys + 15) / 16 - (first > 0 ? first / 16 : 0);
    }
    return 2 * blocks * 16 * key * p->kv_heads;
}

/* bf16: scores of 0, of a request's first `low_keys` -9.625, by nearly 14 in log2 units less; every V is the largest.
 * fp16: scores of 16752640, later ones 4 more, where 32 bits hold the scores but not their log2 units. */
static void enlarge(const struct problem *p, int low_keys)
{
    const bool bf16 = p->dtype == QUIRE_DTYPE_BF16;
    const uint16_t query[2] = { bf16 ? 0x3F80 : 0x5C00, bf16 ? 0 : 0x3C00 }, largest_v = 0x7F7F;
    const uint16_t low[2] = { bf16 ? 0xC11A : 0x7BFD, 0 }, high[2] = { bf16 ? 0 : 0x7BFD, bf16 ? 0 : 0x4400 };
    const size_t row = (size_t)p->head_dim;

    for (size_t i = 0; i < (size_t)p->total_q * (size_t)p->q_heads * row; i++)
        ((uint16_t *)p->query)[i] = i % row < 2 ? query[i % row] : 0;
    for (int b = 0; b < p->batch; b++)
        for (int i = 0; i < p->seq_lens[b]; i++)
            for (int h = 0; h < p->kv_heads; h++) {
                const int64_t page = p->indices[p->indptr[b] + i / p->page_size];
                const size_t at = (size_t)(h * p->page_size + i % p->page_size) * row;

                memcpy((uint16_t *)((char *)p->k + page * p->k_page_stride) + at, i < low_keys ? low : high, sizeof low);
                for (size_t d = 0; bf16 && d < row; d++)
                    ((uint16_t *)((char *)p->v + page * p->v_page_stride))[at + d] = largest_v;
            }
}

/* Metadata that the work before a launch has yet to write. */
struct late {
    struct tensor *t;
    void *right;
};

static void write_late(void *context)
{
    for (struct late *l = context; l->t != NULL; l++)
        memcpy(l->t->t.data, l->right, tensor_bytes(l->t));
}

static void keep_right(struct fixture *f, struct late *l)
{
    for (; l->t != NULL; l++) {
        l->right = fixture_memory(f, tensor_bytes(l->t));
        memcpy(l->right, l->t->t.data, tensor_bytes(l->t));
    }
}

static void spoil(void *context)
{
    for (struct late *l = context; l->t != NULL; l++)
        for (size_t i = 0; i < tensor_bytes(l->t) / 4; i++)
            ((uint32_t *)l->t->t.data)[i] = (uint32_t)(i + 1) * 2654435761u >> (i % 3 * 10);
}

/* No request has pages, keys or query tokens. */
static void blank(void *context)
{
    for (struct late *l = context; l->t != NULL; l++)
        memset(l->t->t.data, 0, tensor_bytes(l->t));
}

static size_t count_words(const void *memory, size_t bytes)
{
    size_t count = 0;

    for (size_t i = 0; i < bytes / 4; i++)
        count += ((const uint32_t *)memory)[i] != 0;
    return count;
}

static bool run_case(const struct test_case *c, struct outcome *outcome)
{
    const struct device_limits h200 = { .capability = 90, .sm_count = c->sm_count, .shared_bytes = 232448,
                                        .kernels = c->kernels };
    struct fixture *f = fixture_new(&c->shape);
    struct late late[] = { { .t = &f->indptr }, { .t = &f->seq_lens }, { .t = &f->indices },
                           { .t = c->shape.q_lens ? &f->qo_indptr : NULL }, { .t = NULL } },
                pages[] = { { .t = &f->indices }, { .t = NULL } };
    quire_verdict v = { .struct_size = sizeof v };
    struct problem p;
    struct launch_plan plan;
    struct decode_params params;

    f->args.mask_type = c->mask;
    f->args.window_left = c->window;
    f->args.metadata_stable = c->stable;
    if (c->scale > 0)
        f->args.bmm1_scale = c->scale;
    f->args.bmm2_scale = 0.75;
    if (c->without_lse)
        f->args.lse = NULL;
    if (contract_problem(&f->args, CONTRACT_DECODE, NULL, &p, NULL) != QUIRE_OK ||
        policy_plan(&p, &h200, &plan) != QUIRE_OK) {
        diag("%s", quire_last_error());
        return false;
    }
    snprintf(outcome->kernel, sizeof outcome->kernel, "%s", plan.kernel);
    if (c->low_keys > 0)
        enlarge(&p, c->low_keys);
    poison(&p);
    p.workspace = fixture_memory(f, plan.workspace_bytes);
    policy_params(&p, &plan, &params);
    if (plan.uses_tensor_maps)
        encode_maps(&p, &plan, &params);

    struct emulator_launch launch = { .kernel = find_kernel(plan.kernel)->function, .params = &params,
                                      .grid = plan.grid, .threads = plan.threads, .shared_bytes = plan.shared_bytes,
                                      .resident = 1 };
    const size_t out_bytes = tensor_bytes(&f->out), lse_bytes = tensor_bytes(&f->lse);
    void *out = fixture_memory(f, out_bytes), *lse = fixture_memory(f, lse_bytes);
    bool right = true;

    emulator_run(&launch);
    outcome->split = launch.words_passed > 0;
    if (launch.all_bytes > 0) {
        outcome->busiest = (int)(launch.most_bytes * plan.grid * 100 / launch.all_bytes);
        outcome->idlest = (int)(launch.least_bytes * 100 / launch.most_bytes);
    }
    outcome->box_bytes = launch.box_bytes;
    outcome->wanted_bytes = least_bytes(&p);
    if (quire_decode_verify(&f->args, &v) != QUIRE_OK) {
        diag("%s", quire_last_error());
        return false;
    }
    if (v.failures > 0 || v.rows != (int64_t)p.total_q * p.q_heads) {
        diag("%lld elements of %lld rows are wrong: out[%lld] is %g, not %g, LSE by %g of its bound",
             (long long)v.failures, (long long)v.rows, (long long)v.worst_index, v.worst_got, v.worst_expected,
             v.lse_error);
        right = false;
    }
    memcpy(out, f->out.t.data, out_bytes);
    memcpy(lse, f->lse.t.data, lse_bytes);
    for (int again = 1; right; again++) {
        const size_t words = count_words(p.workspace, plan.workspace_bytes);

        if (words > 0) {
            diag("%zu words of the workspace are not zero", words);
            right = false;
        }
        if (again > (c->passing ? 1 + TURNS : 1))
            break;
        memset(f->out.t.data, FIXTURE_FILL, out_bytes);
        memset(f->lse.t.data, FIXTURE_FILL, lse_bytes);
        if (again == 1) {
            launch.resident = 0;
            launch.backwards = true;
            if (!c->stable) {
                launch.late = c->late_pages || c->passing;
                launch.context = c->late_pages ? pages : late;
                launch.previous = write_late;
                keep_right(f, launch.context);
                if (c->passing)
                    launch.meanwhile = spoil;
                else
                    spoil(launch.context);
            }
        } else { /* anywhere in the guess */
            launch.meanwhile = again % 2 ? spoil : blank;
            launch.turn = 1 + again * INT64_C(2654435761) % launch.turns;
        }
        emulator_run(&launch);
        if (memcmp(out, f->out.t.data, out_bytes) != 0 || memcmp(lse, f->lse.t.data, lse_bytes) != 0) {
            diag("launch %d leaves other bits, metadata written at turn %lld of %lld", again + 1, (long long)launch.turn,
                 (long long)launch.turns);
            right = false;
        }
    }
    fixture_free(f);
    return right;
}

/* Whether an item was split, or the case has failed. */
static bool check_case(const struct test_case *c)
{
    static struct outcome *outcome;
    const struct fixture_shape *s = &c->shape;
    bool right;
    int status = 0;
    pid_t child;

    if (outcome == NULL)
        outcome = mmap(NULL, sizeof *outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(outcome, 0, sizeof *outcome);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        /* a loop that waits for nothing is no deadlock to the emulator; the slowest case takes a tenth of this */
        setrlimit(RLIMIT_CPU, &(struct rlimit){ PATIENCE, PATIENCE });
        outcome->right = run_case(c, outcome);
        fflush(stdout);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0)
        diag("no process");
    else if (WIFSIGNALED(status))
        diag("killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    right = outcome->right && status == 0;
    ok(right, "%s: %s, %d requests, %d/%d heads, page %d, %s %d%s, %d SMs%s", c->what,
       outcome->kernel, s->batch, s->q_heads, s->kv_heads, s->page_size, s->q_lens ? "packed" : "q",
       s->q_lens ? s->spare_rows : s->seq_len_q, c->mask == QUIRE_MASK_DENSE ? "" : c->window < 0 ? ", causal" : ", window",
       c->sm_count, outcome->split ? ", split" : "");
    if (c->whole)
        ok(right && !outcome->split, "... and no item is split");
    if (c->exact)
        ok(right && outcome->box_bytes == outcome->wanted_bytes, "... and brings %lld bytes of K and V, of %lld",
           (long long)outcome->box_bytes, (long long)outcome->wanted_bytes);
    if (c->busiest)
        ok(right && outcome->busiest <= c->busiest, "... and the busiest CTA brings %d%% of the mean, of %d%% at most",
           outcome->busiest, c->busiest);
    if (c->idlest)
        ok(right && outcome->idlest <= c->idlest, "... and the idlest %d%% of that, of %d%% at most", outcome->idlest,
           c->idlest);
    if (right)
        *(outcome->split ? &find_kernel(outcome->kernel)->split : &find_kernel(outcome->kernel)->whole) = true;
    return !right || outcome->split;
}

/* ---- the cases ------------------------------------------------------------------------------------ */

static const int32_t alike[] = { 300, 300, 300 }, ragged[] = { 177, 5, 0, 550, 230 }, one_tile[] = { 41 }, one_long[] = { 900 };

/* Page size, mask, scale, padding and the like, in turn. */
static void vary(struct test_case *c)
{
    static int turn;
    const int i = turn++;

    c->shape.page_size = 16 << i % 4;
    c->mask = i % 3 ? QUIRE_MASK_CAUSAL : QUIRE_MASK_DENSE;
    c->window = i % 3 == 2 ? 70 : -1;
    c->scale = i % 5 < 2 ? 2 : 0;
    c->shape.pair = i % 2;
    c->shape.page_padding = i % 7 < 3 ? 0 : 48;
    c->shape.spare_entries = i % 4 == 1 ? 2 : 0;
    c->stable = i % 6 == 5;
    c->late_pages = i % 4 == 2;
}

/* Every kernel of one type and head size. */
static void check_image(DLDataType dtype, int head_dim)
{
    static const struct { enum kernel_generation kernels; int group, tokens; } rows[] = {
        { KERNELS_TMA, 3, 1 },    { KERNELS_TMA, 5, 3 },    { KERNELS_TMA, 9, 3 },   { KERNELS_TMA, 7, 9 },
        { KERNELS_WGMMA, 5, 3 },  { KERNELS_WGMMA, 9, 3 },  { KERNELS_WGMMA, 20, 3 }, { KERNELS_WGMMA, 5, 21 },
        { KERNELS_ASYNC, 8, 1 },  { KERNELS_ASYNC, 4, 3 },
    };
    static int turn;
    struct test_case c = { .window = -1 };

    c.shape = (struct fixture_shape){ .head_dim = head_dim, .dtype = dtype };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int split = 0; split < 2; split++, turn++) {
            int32_t q_lens[] = { rows[i].tokens, 0, rows[i].tokens > 2 ? 2 : 1, 1, rows[i].tokens };

            c.what = split ? "ragged" : "alike";
            c.kernels = rows[i].kernels;
            c.shape.out_dtype = dtype.bits > 8 ? dtype : turn % 3 ? FP16 : FP8E4M3;
            c.shape.batch = split ? 5 : 3;
            c.shape.seq_lens = split ? ragged : alike;
            c.shape.kv_heads = 2;
            c.shape.q_heads = 2 * rows[i].group;
            c.shape.seq_len_q = rows[i].tokens;
            c.shape.q_lens = split && turn % 8 < 4 ? q_lens : NULL;
            c.shape.spare_rows = c.shape.q_lens ? 3 : 0;
            vary(&c);
            for (c.sm_count = 3; !check_case(&c) && split && c.sm_count < 8; c.sm_count++)
                continue; /* until the end of a share falls into an item */
        }
    c.shape.q_lens = NULL;
    for (int i = 0; i < 8; i++) { /* one KV head of one request: few items; from 32 SMs on, very few */
        const bool split = i % 2;

        c.what = split ? "one long head" : "one short head";
        c.kernels = i < 4 || i >= 6 ? KERNELS_TMA : KERNELS_WGMMA;
        c.sm_count = i < 6 ? 7 : 32;
        c.shape.batch = c.shape.kv_heads = 1;
        c.shape.seq_len_q = i < 2 || i >= 6 ? 1 : 2; /* 6 and 12 rows */
        c.shape.q_heads = 6;
        c.shape.seq_lens = split ? one_long : one_tile;
        vary(&c);
        c.window = -1;
        check_case(&c);
    }
}

/* One long request among short ones: it does not set the time of the batch, and CTAs with short ones get fewer bytes,
 * as items take time besides. */
static void check_balance(void)
{
    static int32_t keys[40], fp8_keys[40], tokens[40], few[12], few_tokens[12];

    for (int i = 0; i < 40; i++) { /* short ones are a whole tile */
        keys[i] = i == 13 ? 5000 : 128;
        fp8_keys[i] = i == 13 ? 9000 : 256;
        tokens[i] = i % 2;
    }
    for (int i = 0; i < 12; i++) {
        few[i] = i == 7 ? 4000 : 128;
        few_tokens[i] = i == 7 ? 20 : 1 + i % 3;
    }
    const struct test_case cases[] = {
        { .kernels = KERNELS_TMA, .sm_count = 5, .window = -1, .busiest = 150, .idlest = 70,
          .shape = { .batch = 40, .seq_lens = keys, .seq_len_q = 1, .q_heads = 8, .kv_heads = 2, .head_dim = 64,
                     .page_size = 16, .dtype = BF16, .out_dtype = BF16 } },
        { .kernels = KERNELS_TMA, .sm_count = 5, .window = -1, .busiest = 150, .idlest = 70,
          .shape = { .batch = 40, .seq_lens = fp8_keys, .q_lens = tokens, .q_heads = 8, .kv_heads = 8, .head_dim = 64,
                     .page_size = 16, .dtype = FP8E4M3, .out_dtype = FP16 } },
        { .kernels = KERNELS_TMA, .sm_count = 5, .mask = QUIRE_MASK_CAUSAL, .window = 3000, .busiest = 150, .idlest = 62,
          .shape = { .batch = 12, .seq_lens = few, .seq_len_q = 2, .q_heads = 16, .kv_heads = 2, .head_dim = 64,
                     .page_size = 16, .dtype = FP16, .out_dtype = FP16 } },
        { .kernels = KERNELS_WGMMA, .sm_count = 5, .mask = QUIRE_MASK_CAUSAL, .window = -1, .busiest = 150, .idlest = 62,
          .shape = { .batch = 12, .seq_lens = few, .q_lens = few_tokens, .q_heads = 16, .kv_heads = 2, .head_dim = 64,
                     .page_size = 64, .dtype = BF16, .out_dtype = BF16 } },
        { .kernels = KERNELS_ASYNC, .sm_count = 5, .window = -1, .busiest = 150, .idlest = 70,
          .shape = { .batch = 12, .seq_lens = few, .seq_len_q = 1, .q_heads = 8, .kv_heads = 2, .head_dim = 64,
                     .page_size = 32, .dtype = BF16, .out_dtype = BF16 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct test_case c = cases[i];

        c.what = "one long request among short ones";
        check_case(&c);
    }
}

/* Unlike requests and more CTAs than tiles: shares of about a tile that do not begin with one, of which none may be
 * left without a tile amid an item. */
static void check_small_shares(void)
{
    for (int n = 0; n < 8; n++) {
        const int heads = n < 4 ? 1 : 5, head_dim = n / 2 % 2 ? 64 : 128;
        const int tile = (n < 4 ? 16384 : 8192) / head_dim; /* of `wide`, to which few items go, and of `tma` */
        const int32_t keys[] = { 2 * tile - (1 + n % 2) * tile / 4, 2 * tile, 3 * tile };

        check_case(&(struct test_case){
            .what = "small shares", .kernels = KERNELS_TMA, .sm_count = 24, .window = -1, .stable = head_dim == 64,
            .shape = { .batch = 3, .seq_lens = keys, .seq_len_q = 1, .q_heads = 2 * heads, .kv_heads = heads,
                       .head_dim = head_dim, .page_size = 16, .dtype = BF16, .out_dtype = BF16 } });
    }
}

/* Of pages at the ends of what requests see only parts are read; of solo tiles, of boxes of one panel, of two slots in a
 * row of 128 bytes, too. */
static void check_parts(void)
{
    static const int32_t keys[] = { 177, 5, 0, 550, 64 };
    const struct {
        enum kernel_generation kernels;
        DLDataType dtype;
        int head_dim, group, tokens, window;
    } cases[] = {
        { KERNELS_TMA, BF16, 128, 3, 1, -1 },        { KERNELS_TMA, FP16, 64, 8, 1, 100 },
        { KERNELS_TMA, FP8E4M3, 64, 4, 1, -1 },      { KERNELS_TMA, FP8E4M3, 128, 4, 1, 40 },
        { KERNELS_TMA, BF16, 256, 5, 3, 70 },        { KERNELS_TMA, FP8E4M3, 256, 9, 3, -1 },
        { KERNELS_WGMMA, BF16, 128, 20, 3, 70 },     { KERNELS_WGMMA, FP16, 256, 15, 4, 200 },
        { KERNELS_WGMMA, FP8E4M3, 128, 12, 3, 90 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int n = 0; n < 4; n++) { /* the page sizes with the promise, and one with a guess that is wrong */
            const bool stable = n < 3;
            const int page = 32 << (stable ? n : (int)i % 3);
            const int heads = page == 64 ? 3 : 4; /* of three a solo tile has zeros for the fourth */

            check_case(&(struct test_case){
                .what = stable ? "parts of pages" : "parts of pages, guessed", .kernels = cases[i].kernels, .sm_count = 4,
                .exact = stable && heads == 4, .stable = stable, .passing = !stable,
                .mask = cases[i].window < 0 ? QUIRE_MASK_DENSE : QUIRE_MASK_CAUSAL, .window = cases[i].window,
                .shape = { .batch = 5, .seq_lens = keys, .seq_len_q = cases[i].tokens, .kv_heads = heads,
                           .q_heads = heads * cases[i].group, .head_dim = cases[i].head_dim, .page_size = page,
                           .dtype = cases[i].dtype, .out_dtype = cases[i].dtype.bits > 8 ? cases[i].dtype : FP16 } });
        }
}

static void check_special(void)
{
    static const int32_t empty[3], none[40], long_head[] = { 3000 }, longer_head[] = { 4500 },
                         two_long[] = { 4400, 4400 }, far_head[] = { 9300 }, ten_tiles[] = { 1270, 1270 }, rising[] = { 192 },
                         short_keys[] = { 30, 200, 77, 129, 5, 12 }, long_queries[] = { 1, 100, 4, 17, 5, 112 },
                         level[] = { 600, 600, 600 },
                         unlike_keys[] = { 900, 40, 1300, 0, 300 }, unlike_queries[] = { 100, 1, 64, 0, 33 };
    static int32_t many[400], one_each[400], same[40], mixed[40], ones[400];

    for (int i = 0; i < 400; i++) {
        many[i] = i * 29 % 41;
        one_each[i] = 40; /* a tile */
        ones[i] = i % 40 < 30; /* the rest of a batch is often empty */
    }
    for (int i = 0; i < 40; i++) {
        same[i] = 384;
        mixed[i] = i % 3 ? 20 + i : 500 + 10 * i;
    }
    const struct test_case cases[] = {
        { .what = "no keys at all", .kernels = KERNELS_TMA, .sm_count = 3, .window = -1,
          .shape = { .batch = 3, .seq_lens = empty, .seq_len_q = 2, .q_heads = 8, .kv_heads = 2, .head_dim = 64,
                     .page_size = 32, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "more ranks than are added at once", .kernels = KERNELS_TMA, .sm_count = 24, .window = -1,
          .shape = { .batch = 1, .seq_lens = long_head, .seq_len_q = 1, .q_heads = 16, .kv_heads = 1, .head_dim = 128,
                     .page_size = 16, .dtype = FP16, .out_dtype = FP16 } },
        { .what = "more ranks than are added at once", .kernels = KERNELS_ASYNC, .sm_count = 40, .window = -1,
          .shape = { .batch = 1, .seq_lens = long_head, .seq_len_q = 1, .q_heads = 7, .kv_heads = 1, .head_dim = 64,
                     .page_size = 128, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "spare CTAs add", .kernels = KERNELS_TMA, .sm_count = 36, .window = -1, .stable = true,
          .shape = { .batch = 1, .seq_lens = ten_tiles, .seq_len_q = 1, .q_heads = 8, .kv_heads = 1, .head_dim = 128,
                     .page_size = 16, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "spare CTAs add several items", .kernels = KERNELS_TMA, .sm_count = 64, .window = -1,
          .shape = { .batch = 2, .seq_lens = ten_tiles, .seq_len_q = 2, .q_heads = 4, .kv_heads = 1, .head_dim = 128,
                     .page_size = 16, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "spare CTAs add, more ranks than at once", .kernels = KERNELS_TMA, .sm_count = 32, .window = -1,
          .stable = true,
          .shape = { .batch = 1, .seq_lens = long_head, .seq_len_q = 1, .q_heads = 6, .kv_heads = 1, .head_dim = 128,
                     .page_size = 64, .dtype = FP16, .out_dtype = FP16 } },
        { .what = "spare CTAs add what others have added a row of", .kernels = KERNELS_TMA, .sm_count = 39, .window = -1,
          .shape = { .batch = 1, .seq_lens = longer_head, .seq_len_q = 1, .q_heads = 8, .kv_heads = 1, .head_dim = 128,
                     .page_size = 32, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "spare CTAs add what others have added a row of", .kernels = KERNELS_TMA, .sm_count = 40,
          .mask = QUIRE_MASK_CAUSAL, .window = -1, .stable = true,
          .shape = { .batch = 1, .seq_lens = far_head, .seq_len_q = 1, .q_heads = 7, .kv_heads = 1, .head_dim = 64,
                     .page_size = 32, .dtype = FP8E4M3, .out_dtype = FP8E4M3 } },
        { .what = "no CTA is spare", .kernels = KERNELS_TMA, .sm_count = 64, .window = -1,
          .shape = { .batch = 2, .seq_lens = two_long, .seq_len_q = 1, .q_heads = 8, .kv_heads = 1, .head_dim = 128,
                     .page_size = 32, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "a tree of ranks", .kernels = KERNELS_WGMMA, .sm_count = 5, .window = -1,
          .shape = { .batch = 1, .seq_lens = long_head, .seq_len_q = 3, .q_heads = 16, .kv_heads = 1, .head_dim = 128,
                     .page_size = 16, .dtype = FP16, .out_dtype = FP16 } },
        { .what = "the largest V", .kernels = KERNELS_TMA, .sm_count = 1, .window = -1, .scale = 1, .low_keys = 64,
          .shape = { .batch = 1, .seq_lens = rising, .seq_len_q = 1, .q_heads = 4, .kv_heads = 1, .head_dim = 128,
                     .page_size = 16, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "the largest V", .kernels = KERNELS_WGMMA, .sm_count = 1, .window = -1, .scale = 1, .low_keys = 64,
          .shape = { .batch = 1, .seq_lens = rising, .seq_len_q = 5, .q_heads = 8, .kv_heads = 1, .head_dim = 128,
                     .page_size = 16, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "large scores", .kernels = KERNELS_TMA, .sm_count = 1, .window = -1, .scale = 1, .low_keys = 64,
          .shape = { .batch = 1, .seq_lens = rising, .seq_len_q = 1, .q_heads = 4, .kv_heads = 1, .head_dim = 128,
                     .page_size = 16, .dtype = FP16, .out_dtype = FP16 } },
        { .what = "large scores", .kernels = KERNELS_WGMMA, .sm_count = 1, .window = -1, .scale = 1, .low_keys = 64,
          .shape = { .batch = 1, .seq_lens = rising, .seq_len_q = 5, .q_heads = 8, .kv_heads = 1, .head_dim = 128,
                     .page_size = 16, .dtype = FP16, .out_dtype = FP16 } },
        { .what = "row tiles of one head in step", .kernels = KERNELS_WGMMA, .sm_count = 3, .mask = QUIRE_MASK_CAUSAL,
          .window = -1,
          .shape = { .batch = 5, .seq_lens = unlike_keys, .q_lens = unlike_queries, .q_heads = 8, .kv_heads = 2,
                     .head_dim = 128, .page_size = 16, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "row tiles of one head in step", .kernels = KERNELS_WGMMA, .sm_count = 4, .mask = QUIRE_MASK_CAUSAL,
          .window = 500,
          .shape = { .batch = 5, .seq_lens = unlike_keys, .q_lens = unlike_queries, .q_heads = 8, .kv_heads = 2,
                     .head_dim = 64, .page_size = 64, .dtype = FP8E4M3, .out_dtype = FP16 } },
        { .what = "dealt out", .kernels = KERNELS_WGMMA, .sm_count = 4, .mask = QUIRE_MASK_CAUSAL, .window = -1,
          .whole = true,
          .shape = { .batch = 3, .seq_lens = level, .seq_len_q = 64, .q_heads = 8, .kv_heads = 2, .head_dim = 256,
                     .page_size = 16, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "dealt out", .kernels = KERNELS_WGMMA, .sm_count = 2, .mask = QUIRE_MASK_CAUSAL, .window = 70,
          .whole = true, .stable = true,
          .shape = { .batch = 3, .seq_lens = level, .seq_len_q = 72, .q_heads = 2, .kv_heads = 1, .head_dim = 256,
                     .page_size = 64, .dtype = FP16, .out_dtype = FP16 } },
        { .what = "dealt out, more requests than lanes", .kernels = KERNELS_WGMMA, .sm_count = 5,
          .mask = QUIRE_MASK_CAUSAL, .window = -1, .whole = true,
          .shape = { .batch = 40, .seq_lens = same, .seq_len_q = 33, .q_heads = 4, .kv_heads = 1, .head_dim = 128,
                     .page_size = 32, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "dealt out, more requests than threads", .kernels = KERNELS_WGMMA, .sm_count = 10, .window = -1,
          .mask = QUIRE_MASK_CAUSAL, .whole = true,
          .shape = { .batch = 400, .seq_lens = one_each, .seq_len_q = 13, .q_heads = 10, .kv_heads = 1, .head_dim = 64,
                     .page_size = 128, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "too few items to be dealt out", .kernels = KERNELS_WGMMA, .sm_count = 5, .mask = QUIRE_MASK_CAUSAL,
          .window = -1,
          .shape = { .batch = 3, .seq_lens = level, .seq_len_q = 64, .q_heads = 8, .kv_heads = 2, .head_dim = 128,
                     .page_size = 16, .dtype = FP16, .out_dtype = FP16 } },
        { .what = "solo, 1 KV head", .kernels = KERNELS_TMA, .sm_count = 3, .window = -1,
          .shape = { .batch = 20, .seq_lens = many, .seq_len_q = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 64,
                     .page_size = 64, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "solo, 3 KV heads", .kernels = KERNELS_TMA, .sm_count = 3, .mask = QUIRE_MASK_CAUSAL, .window = 9,
          .shape = { .batch = 20, .seq_lens = many, .seq_len_q = 2, .q_heads = 9, .kv_heads = 3, .head_dim = 128,
                     .page_size = 16, .dtype = FP8E4M3, .out_dtype = FP8E4M3, .spare_entries = 3 } },
        { .what = "solo, 8 KV heads, more requests than lanes", .kernels = KERNELS_TMA, .sm_count = 3, .window = -1,
          .shape = { .batch = 70, .seq_lens = many, .seq_len_q = 1, .q_heads = 8, .kv_heads = 8, .head_dim = 256,
                     .page_size = 16, .dtype = FP16, .out_dtype = FP16, .page_padding = 64 } },
        { .what = "heads together", .kernels = KERNELS_TMA, .sm_count = 3, .mask = QUIRE_MASK_CAUSAL, .window = -1,
          .shape = { .batch = 13, .seq_lens = mixed, .seq_len_q = 1, .q_heads = 8, .kv_heads = 4, .head_dim = 128,
                     .page_size = 16, .dtype = FP16, .out_dtype = FP16 } },
        { .what = "heads together, more requests than lanes", .kernels = KERNELS_TMA, .sm_count = 3, .window = -1,
          .shape = { .batch = 40, .seq_lens = mixed, .seq_len_q = 2, .q_heads = 4, .kv_heads = 4, .head_dim = 64,
                     .page_size = 16, .dtype = FP8E4M3, .out_dtype = FP16 } },
        { .what = "heads together, more requests than lanes, alike", .kernels = KERNELS_TMA, .sm_count = 3, .window = -1,
          .shape = { .batch = 40, .seq_lens = same, .seq_len_q = 1, .q_heads = 8, .kv_heads = 4, .head_dim = 128,
                     .page_size = 16, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "more requests than lanes", .kernels = KERNELS_ASYNC, .sm_count = 7, .window = -1,
          .shape = { .batch = 70, .seq_lens = many, .seq_len_q = 1, .q_heads = 4, .kv_heads = 2, .head_dim = 128,
                     .page_size = 32, .dtype = FP16, .out_dtype = FP16 } },
        { .what = "more requests than threads", .kernels = KERNELS_TMA, .sm_count = 3, .window = -1,
          .shape = { .batch = 400, .seq_lens = many, .seq_len_q = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 64,
                     .page_size = 16, .dtype = FP8E4M3, .out_dtype = FP16 } },
        { .what = "more requests than threads, metadata that pass", .kernels = KERNELS_TMA, .sm_count = 3, .window = -1,
          .passing = true,
          .shape = { .batch = 400, .seq_lens = many, .q_lens = ones, .q_heads = 1, .kv_heads = 1, .head_dim = 64,
                     .page_size = 16, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "metadata that pass", .kernels = KERNELS_TMA, .sm_count = 7, .window = -1, .passing = true,
          .shape = { .batch = 20, .seq_lens = many, .seq_len_q = 1, .q_heads = 4, .kv_heads = 2, .head_dim = 64,
                     .page_size = 16, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "metadata that pass", .kernels = KERNELS_TMA, .sm_count = 6, .window = -1, .passing = true,
          /* shares of 12 begin behind an item's last tile */
          .shape = { .batch = 40, .seq_lens = mixed, .q_lens = ones, .q_heads = 2, .kv_heads = 1, .head_dim = 64,
                     .page_size = 16, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "metadata that pass", .kernels = KERNELS_ASYNC, .sm_count = 7, .window = -1, .passing = true,
          .shape = { .batch = 20, .seq_lens = many, .q_lens = ones, .q_heads = 4, .kv_heads = 2, .head_dim = 64,
                     .page_size = 16, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "queries longer than their keys", .kernels = KERNELS_WGMMA, .sm_count = 3, .mask = QUIRE_MASK_CAUSAL,
          .window = -1, .without_lse = true,
          .shape = { .batch = 6, .seq_lens = short_keys, .q_lens = long_queries, .spare_rows = 5, .q_heads = 8,
                     .kv_heads = 2, .head_dim = 128, .page_size = 16, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "no query tokens, but rows", .kernels = KERNELS_WGMMA, .sm_count = 3, .window = -1,
          .shape = { .batch = 3, .seq_lens = short_keys, .q_lens = empty, .spare_rows = 9, .seq_len_q = 1, .q_heads = 40,
                     .kv_heads = 2, .head_dim = 64, .page_size = 16, .dtype = BF16, .out_dtype = BF16 } },
        { .what = "no query tokens, but rows", .kernels = KERNELS_TMA, .sm_count = 3, .window = -1,
          .shape = { .batch = 40, .seq_lens = many, .q_lens = none, .spare_rows = 9, .seq_len_q = 1, .q_heads = 2,
                     .kv_heads = 2, .head_dim = 128, .page_size = 16, .dtype = FP16, .out_dtype = FP16 } },
        { .what = "queries longer than their keys", .kernels = KERNELS_TMA, .sm_count = 3, .mask = QUIRE_MASK_CAUSAL,
          .window = 20,
          .shape = { .batch = 6, .seq_lens = short_keys, .q_lens = long_queries, .spare_rows = 5, .q_heads = 4,
                     .kv_heads = 2, .head_dim = 64, .page_size = 128, .dtype = FP8E4M3, .out_dtype = FP8E4M3 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i]);
}

int main(void)
{
    int missing = 0;

    plan(0);
    emulator_start();
    for (int head_dim = 64; head_dim <= 256; head_dim *= 2) {
        check_image(FP16, head_dim);
        check_image(BF16, head_dim);
        check_image(FP8E4M3, head_dim);
    }
    check_balance();
    check_small_shares();
    check_parts();
    check_special();
    for (int i = 0; i < KERNELS; i++)
        if (!kernels[i].whole || !kernels[i].split) {
            diag("%s: no case with %s items was right", kernels[i].name, kernels[i].whole ? "split" : "whole");
            missing++;
        }
    is_int(0, missing, "each of the %d kernels ran, with whole items and with split ones", KERNELS);
    return done();
}

#endif

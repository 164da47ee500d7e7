/* Every kernel that QUIRE_CPU can name, in a process of its own: against the float64 reference over dtypes,
 * head sizes, pages, groups, query lengths and masks, and all 256 codes of e4m3 as K and as V.
 * SPDX-License-Identifier: Apache-2.0 */
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"
#include "tap.h"

static int wrong; /* of the child; told by its exit status */

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            diag(__VA_ARGS__);                                                                     \
            wrong++;                                                                               \
        }                                                                                          \
    } while (0)

/* ---- against the reference ------------------------------------------------------------------------ */

static void check_shape(const struct fixture_shape *shape, quire_mask mask, int64_t window)
{
    struct fixture *f = fixture_new(shape);
    quire_verdict v = {.struct_size = sizeof v};
    quire_status status;

    f->args.mask_type = mask;
    f->args.window_left = window;
    status = quire_decode(&f->args, NULL);
    CHECK(status == QUIRE_OK, "decode: %s", quire_last_error());
    status = quire_decode_verify(&f->args, &v);
    CHECK(status == QUIRE_OK, "verify: %s", quire_last_error());
    CHECK(v.rows > 0 && v.failures == 0 && v.relative_error <= v.relative_bound,
          "%d/%d D %d page %d q %d dtype %d to %d mask %d window %d: %lld of %lld rows wrong, error %g, relative %g",
          shape->q_heads, shape->kv_heads, shape->head_dim, shape->page_size, shape->seq_len_q, shape->dtype.code,
          shape->out_dtype.code, mask, (int)window, (long long)v.failures, (long long)v.rows, v.worst_error,
          v.relative_error);
    fixture_free(f);
}

static void check_against_reference(void)
{
    static const int32_t lens[] = {1, 300, 0, 17, 531};
    static const struct { int32_t q_heads, kv_heads, seq_len_q; } rows[] = {
        {1, 1, 1}, {6, 3, 1}, {9, 3, 1}, {8, 2, 1}, {5, 1, 1}, {14, 2, 1}, {32, 1, 1}, {8, 4, 3}, {6, 1, 7},
        {13, 1, 1}, {22, 1, 1}, {3, 1, 9},
    };
    int cases = 0;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int dtype = 0; dtype < 4; dtype++, cases++) {
            struct fixture_shape shape = {.batch = 5, .seq_len_q = rows[i].seq_len_q, .q_heads = rows[i].q_heads,
                                          .kv_heads = rows[i].kv_heads, .head_dim = 64 << cases % 3,
                                          .page_size = 16 << cases % 4, .seq_lens = lens, .pair = cases % 2};

            shape.dtype = dtype == 0 ? FP16 : dtype == 1 ? BF16 : FP8E4M3;
            shape.out_dtype = dtype == 1 ? BF16 : dtype == 3 ? FP8E4M3 : FP16;
            check_shape(&shape, QUIRE_MASK_DENSE, -1);
            check_shape(&shape, QUIRE_MASK_CAUSAL, cases % 2 ? -1 : 37);
        }
    }
}

/* ---- e4m3 ----------------------------------------------------------------------------------------- */

static double e4m3_value(int code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double size = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);

    return (code & 0x7f) == 0x7f ? (double)NAN : code & 0x80 ? -size : size;
}

static double fp16_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
    double size = exponent == 0 ? ldexp(mantissa, -24) : ldexp(0x400 + mantissa, exponent - 25);

    size = exponent < 31 ? size : mantissa ? (double)NAN : (double)INFINITY;
    return bits & 0x8000 ? -size : size;
}

/* Kernels may take short requests otherwise. */
static const int32_t few_keys[] = {2}, many_keys[] = {150};

/* Key `key` of the only request and KV head: pages of 16. */
static void *key_of(const struct fixture *f, const struct tensor *cache, int key)
{
    size_t row = cache->shape[3] * (cache->t.dtype.bits / 8);

    return (char *)cache->t.data + ((size_t)((int32_t *)f->indices.t.data)[key / 16] * 16 + (size_t)(key % 16)) * row;
}

/* All keys are alike: the output is their V, and the LSE of a row of which one query element is 1 is that element of K
 * and the logarithm of their number. */
static void check_codes(int head_dim, int group, const int32_t *keys)
{
    struct fixture_shape shape = {.batch = 1, .seq_len_q = 256 / group, .q_heads = group, .kv_heads = 1,
                                  .head_dim = head_dim, .page_size = 16, .seq_lens = keys, .dtype = FP8E4M3,
                                  .out_dtype = FP16, .pair = true};
    struct fixture *f = fixture_new(&shape);
    uint8_t *k = key_of(f, &f->k, 0), *v = key_of(f, &f->v, 0), *q = f->query.t.data;
    int rows = 256, bad_k = 0, bad_v = 0;

    f->args.bmm1_scale = 1;
    for (int first = 0; first < 256; first += head_dim) {
        memset(q, 0, (size_t)(rows * head_dim));
        for (int d = 0; d < head_dim; d++) {
            v[d] = (uint8_t)(first + d);
            k[d] = (v[d] & 0x7f) == 0x7f ? 0 : v[d];
        }
        for (int key = 1; key < *keys; key++) {
            memcpy(key_of(f, &f->k, key), k, (size_t)head_dim);
            memcpy(key_of(f, &f->v, key), v, (size_t)head_dim);
        }
        for (int r = 0; r < rows; r++)
            q[r * head_dim + r % head_dim] = 0x38; /* 1 */
        CHECK(quire_decode(&f->args, NULL) == QUIRE_OK, "codes: %s", quire_last_error());
        for (int r = 0; r < rows; r++) {
            double score = e4m3_value(k[r % head_dim]), lse = ((float *)f->lse.t.data)[r];

            bad_k += !(fabs(lse - log(*keys) - score) <= 2e-5 + 1e-6 * fabs(score));
            for (int d = 0; d < head_dim; d++) {
                double got = fp16_value(((uint16_t *)f->out.t.data)[r * head_dim + d]), right = e4m3_value(v[d]);

                bad_v += isnan(right) ? !isnan(got) : got != right;
            }
        }
    }
    CHECK(bad_k == 0 && bad_v == 0, "e4m3, D %d, group %d, %d keys: %d wrong as K, %d as V", head_dim, group, *keys,
          bad_k, bad_v);

    for (int place = head_dim - 4; place < head_dim; place++) { /* kernels may move even and odd places apart */
        uint8_t nan = place & 2 ? 0x7f : 0xff;

        memset(k, 0, (size_t)head_dim);
        k[place] = nan;
        CHECK(quire_decode(&f->args, NULL) == QUIRE_OK, "NaN: %s", quire_last_error());
        CHECK(isnan(((float *)f->lse.t.data)[0]) && isnan(fp16_value(*(uint16_t *)f->out.t.data)),
              "e4m3: NaN as K was lost at %d of %d", place, head_dim);
        memset(k, 0, (size_t)head_dim);
        for (int key = 0; key < *keys; key++)
            memset(key_of(f, &f->v, key), 0, (size_t)head_dim);
        v[place] = nan;
        CHECK(quire_decode(&f->args, NULL) == QUIRE_OK, "NaN: %s", quire_last_error());
        for (int d = 0; d < head_dim; d++)
            CHECK(isnan(fp16_value(((uint16_t *)f->out.t.data)[d])) == (d == place),
                  "e4m3: NaN as V at %d of %d, and element %d", place, head_dim, d);
    }
    fixture_free(f);
}

/* bf16 numbers of which a product counts although one factor is subnormal: no kernel may take it for 0. */
static void check_subnormal(int rows, const int32_t *keys)
{
    struct fixture_shape shape = {.batch = 1, .seq_len_q = 1, .q_heads = rows, .kv_heads = 1, .head_dim = 128,
                                  .page_size = 16, .seq_lens = keys, .dtype = BF16, .out_dtype = BF16,
                                  .pair = true};
    struct fixture *f = fixture_new(&shape);
    uint16_t *k = key_of(f, &f->k, 0), *q = f->query.t.data;
    double product = ldexp(1, 126) * ldexp(1, -127);

    for (int key = 0; key < *keys; key++)
        memset(key_of(f, &f->k, key), 0, 128 * sizeof *k);
    memset(q, 0, (size_t)rows * 128 * sizeof *q);
    k[5] = 0x0040; /* 2^-127: subnormal */
    k[7] = 0x7e80; /* 2^126 */
    for (int r = 0; r < rows; r += 2) {
        q[r * 128 + 5] = 0x7e80;
        q[(r + 1) * 128 + 7] = 0x0040; /* in the second row with the parts changed */
    }
    f->args.bmm1_scale = 1;
    CHECK(quire_decode(&f->args, NULL) == QUIRE_OK, "subnormal: %s", quire_last_error());
    for (int r = 0; r < rows; r++) {
        double right = log(exp(product) + *keys - 1), got = ((float *)f->lse.t.data)[r];

        CHECK(fabs(got - right) < 1e-5, "row %d of %d with subnormal numbers: wanted LSE %g, got %g", r, rows, right,
              got);
    }
    fixture_free(f);
}

/* Uniform weights, and V that is the same for every key in each dimension: it comes out as it is, however small or
 * large, subnormal or not.  An Inf of one key is the sum. */
static void check_values(int rows, bool infinite)
{
    static const int32_t lens[] = {300};
    static const uint16_t values[] = {0x0001, 0x8040, 0x0080, 0x2000, 0xbf80, 0x5e00, 0xfa00, 0x0000, 0x7f7f, 0xff7f};
    enum { VALUES = sizeof values / sizeof values[0], D = 64 };
    struct fixture_shape shape = {.batch = 1, .seq_len_q = 1, .q_heads = rows, .kv_heads = 1, .head_dim = D,
                                  .page_size = 16, .seq_lens = lens, .dtype = BF16, .out_dtype = BF16, .pair = true};
    struct fixture *f = fixture_new(&shape);
    uint16_t *v = f->v.t.data, *out = f->out.t.data;
    size_t count = tensor_bytes(&f->v) / sizeof *v;
    int first = infinite ? 3 : 0, last = infinite ? 5 : VALUES, bad = 0; /* beside Inf, none that is special itself */

    for (int i = first; i < last; i++) {
        for (size_t x = 0; x < count; x++)
            v[x] = x % D % 3 == 0 ? values[i] : 0;
        if (infinite)
            v[((size_t)((int32_t *)f->indices.t.data)[5] * 16 + 3) * D + 9] = 0x7f80;
        memset(f->query.t.data, 0, tensor_bytes(&f->query));
        CHECK(quire_decode(&f->args, NULL) == QUIRE_OK, "values: %s", quire_last_error());
        for (int x = 0; x < rows * D; x++)
            bad += out[x] != (infinite && x % D == 9 ? 0x7f80 : x % D % 3 == 0 ? values[i] : 0);
        CHECK(bad == 0, "%d rows, V of %#x%s: %d elements wrong", rows, values[i], infinite ? " and Inf" : "", bad);
        bad = 0;
    }
    fixture_free(f);
}

/* A small weight of a small V, e^-64 of 2^-40, is a subnormal bf16. */
static void check_small_product(int rows, const int32_t *keys)
{
    enum { D = 64 };
    struct fixture_shape shape = {.batch = 1, .seq_len_q = 1, .q_heads = rows, .kv_heads = 1, .head_dim = D,
                                  .page_size = 16, .seq_lens = keys, .dtype = BF16, .out_dtype = BF16,
                                  .pair = true};
    struct fixture *f = fixture_new(&shape);
    uint16_t *out = f->out.t.data;
    int bad = 0;

    for (int key = 0; key < *keys; key++) {
        uint16_t *k = key_of(f, &f->k, key), *v = key_of(f, &f->v, key);

        memset(k, 0, D * sizeof *k);
        k[0] = key > 0 ? 0xc280 : 0; /* -64 */
        for (int x = 0; x < D; x++)
            v[x] = key == 1 ? 0x2b80 : 0;
    }
    for (int x = 0; x < rows * D; x++)
        ((uint16_t *)f->query.t.data)[x] = x % D == 0 ? 0x3f80 : 0;
    f->args.bmm1_scale = 1;
    CHECK(quire_decode(&f->args, NULL) == QUIRE_OK, "small product: %s", quire_last_error());
    for (int x = 0; x < rows * D; x++)
        bad += out[x] != 0x0002; /* 1.6 of the smallest */
    CHECK(bad == 0, "%d rows: %d small products are not 2^-132, but %#x", rows, bad, out[0]);
    fixture_free(f);
}

/* NaN of e4m3 among other keys: as V in its dimension, as K everywhere, and in a row that does not see it nowhere. */
static void check_fp8_nan(int group, int key, bool of_k)
{
    enum { D = 64, TOKENS = 2 };
    struct fixture_shape shape = {.batch = 1, .seq_len_q = TOKENS, .q_heads = 2 * group, .kv_heads = 2, .head_dim = D,
                                  .page_size = 16, .seq_lens = many_keys, .dtype = FP8E4M3, .out_dtype = FP16,
                                  .pair = true};
    struct fixture *f = fixture_new(&shape);
    int32_t page = ((int32_t *)f->indices.t.data)[key / 16];
    uint8_t *cache = of_k ? f->k.t.data : f->v.t.data;
    uint16_t *out = f->out.t.data;
    int bad = 0;

    cache[(((size_t)page * 2 + 1) * 16 + (size_t)(key % 16)) * D + 21] = (uint8_t)(key % 2 ? 0xff : 0x7f);
    f->args.mask_type = QUIRE_MASK_CAUSAL;
    CHECK(quire_decode(&f->args, NULL) == QUIRE_OK, "NaN: %s", quire_last_error());
    for (int i = 0; i < TOKENS * 2 * group * D; i++) {
        int head = i / D % (2 * group), token = i / D / (2 * group);
        bool seen = head >= group && key <= *many_keys - TOKENS + token, wanted = seen && (of_k || i % D == 21);
        bool may = head >= group && !of_k && i % D == 21; /* another token of the same request saw it */

        bad += isnan(fp16_value(out[i])) != wanted && !may;
        bad += wanted && !isnan(fp16_value(out[i]));
    }
    CHECK(bad == 0, "NaN as %s of key %d, group %d: %d elements wrong", of_k ? "K" : "V", key, group, bad);
    fixture_free(f);
}

/* Scratch is only for kernels that use it: without tiles a small decode needs little more than K of a part, 16 KB a
 * thread, and where no K is converted not that either. */
static void check_workspace(const quire_device_info *info)
{
    static const int32_t lens[] = {5};
    struct fixture_shape shape = {.batch = 1, .seq_len_q = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 64,
                                  .page_size = 16, .seq_lens = lens, .dtype = BF16, .out_dtype = BF16};
    struct fixture *f = fixture_new(&shape);
    long processors = sysconf(_SC_NPROCESSORS_CONF);
    long threads = processors > info->compute_units ? processors : info->compute_units;
    bool stages = strcmp(info->kernels, "portable") != 0 && strcmp(info->kernels, "neon") != 0;
    size_t bytes = tensor_bytes(&f->workspace), most = (size_t)threads * (stages ? 24576 : 8192);

    CHECK(strcmp(info->kernels, "amx") == 0 || bytes <= most, "workspace: %zu bytes for up to %ld threads", bytes,
          threads);
    CHECK(quire_decode(&f->args, NULL) == QUIRE_OK, "workspace: %s", quire_last_error());
    fixture_free(f);
}

/* ---- processes ------------------------------------------------------------------------------------ */

enum { NOT_OFFERED = 100 };

static int run_kernel(const char *name)
{
    quire_device_info info = {.struct_size = sizeof info};

    setenv("QUIRE_CPU", name, 1);
    if (quire_device_describe(QUIRE_DEVICE_CPU, 0, &info) != QUIRE_OK)
        return 1;
    if (*info.problem) {
        struct fixture *f = fixture_without_workspace(&SMALL);
        size_t bytes;
        bool refused = quire_decode_workspace_size(&f->args, &bytes) == QUIRE_ERROR_UNSUPPORTED &&
                       quire_decode(&f->args, NULL) == QUIRE_ERROR_UNSUPPORTED &&
                       strstr(quire_last_error(), "QUIRE_CPU") != NULL && strstr(quire_last_error(), name) != NULL;

        if (!refused)
            diag("decode: %s", quire_last_error());
        fixture_free(f);
        return refused ? NOT_OFFERED : 1;
    }
    CHECK(strcmp(info.kernels, name) == 0, "asked for %s, got %s", name, info.kernels);
    check_against_reference();
    check_workspace(&info);
    for (int d = 64; d <= 256; d *= 2)
        for (int group = 1; group <= 16; group *= 2) {
            check_codes(d, group, few_keys);
            check_codes(d, group, many_keys);
        }
    for (int rows = 2; rows <= 32; rows *= 2) {
        check_subnormal(rows, few_keys);
        check_subnormal(rows, many_keys);
    }
    for (int rows = 1; rows <= 32; rows *= 2) {
        check_values(rows, false);
        check_values(rows, true);
        check_small_product(rows, few_keys);
        check_small_product(rows, many_keys);
        for (int key = 0; key < *many_keys; key += key == 132 ? 17 : 33)
            for (int of_k = 0; of_k < 2; of_k++)
                check_fp8_nan(rows, key, of_k != 0);
    }
    return wrong < NOT_OFFERED ? wrong : NOT_OFFERED - 1;
}

static int run_unforced(const char *empty)
{
    quire_device_info info = {.struct_size = sizeof info};

    setenv("QUIRE_CPU", empty, 1);
    return quire_device_describe(QUIRE_DEVICE_CPU, 0, &info) != QUIRE_OK || *info.problem || !*info.kernels;
}

static int status_of(int (*run)(const char *name), const char *name)
{
    pid_t child = fork(); /* before this process has threads */
    int status;

    if (child == 0)
        _exit(run(name));
    if (child < 0 || waitpid(child, &status, 0) < 0 || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status);
}

int main(void)
{
#ifdef QUIRE_AMX_EMULATED
    static const char *const names[] = {"amx"};
#else
    static const char *const names[] = {"portable", "avx2", "avx512", "avx512bf16", "amx", "neon"};
#endif
    enum { NAMES = sizeof names / sizeof names[0] };

    plan(NAMES + 2);
    for (int i = 0; i < NAMES; i++) {
        int status;

        fflush(stdout);
        status = status_of(run_kernel, names[i]);
        if (status == NOT_OFFERED && strcmp(names[i], "portable") != 0)
            skip("%s: this CPU does not have it", names[i]);
        else
            is_int(0, status, "%s: what was wrong", names[i]);
    }
    is_int(NOT_OFFERED, status_of(run_kernel, "mmx"), "an unknown QUIRE_CPU is refused by name");
    is_int(0, status_of(run_unforced, ""), "an empty QUIRE_CPU forces no kernel");
    return done();
}

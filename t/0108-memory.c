/* Memory that a decode must not touch, and memory that it must find: page tables that end at the edge of what
 * is mapped, entries that are garbage, pages gigabytes apart.
 * SPDX-License-Identifier: Apache-2.0 */
#include <sys/mman.h>
#include <unistd.h>

#include "fixture.h"
#include "tap.h"

static void decode(struct fixture *f, const char *what)
{
    if (!is_int(QUIRE_OK, quire_decode(&f->args, NULL), "%s", what))
        diag("%s", quire_last_error());
}

/* The tensor's bytes, moved to the end of a page that is followed by one without access. */
static bool move_to_edge(struct tensor *t)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = tensor_bytes(t), room = (bytes + page - 1) / page * page;
    char *at = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED || mprotect(at + room, page, PROT_NONE) != 0)
        return false;
    memcpy(at + room - bytes, t->t.data, bytes);
    t->t.data = at + room - bytes; /* stays mapped: the process is short */
    return true;
}

/* 257 keys on pages of 64 take 5 entries; a tile of 128 keys would like to see 6. */
static void test_page_table_edge(void)
{
    static const int32_t lens[] = {64, 257};

    for (int dtype = 0; dtype < 3; dtype++) {
        struct fixture_shape shape = {.batch = 2, .seq_len_q = 1, .q_heads = 4, .kv_heads = 2, .head_dim = 64,
                                      .page_size = 64, .seq_lens = lens, .dtype = FP16, .out_dtype = FP16};
        struct fixture *f;
        unsigned char *usual;

        if (dtype == 1)
            shape.dtype = shape.out_dtype = BF16;
        if (dtype == 2)
            shape.dtype = shape.out_dtype = FP8E4M3;
        f = fixture_new(&shape);
        decode(f, "a page table with room behind it");
        usual = fixture_memory(f, tensor_bytes(&f->out));
        memcpy(usual, f->out.t.data, tensor_bytes(&f->out));
        if (!move_to_edge(&f->indices) || !move_to_edge(&f->indptr) || !move_to_edge(&f->seq_lens) ||
            !move_to_edge(&f->kv) || !move_to_edge(&f->query)) {
            skip("no memory with an edge");
            fixture_free(f);
            continue;
        }
        decode(f, "tables, cache and query that end where memory ends");
        ok(memcmp(usual, f->out.t.data, tensor_bytes(&f->out)) == 0, "give the same bits");
        is_int(QUIRE_OK, quire_decode_check(&f->args, NULL), "and are checked without a step too far");
        fixture_free(f);
    }
}

/* Rows own more entries than their lengths need; those hold what no page is called. */
static void test_garbage_entries(void)
{
    static const int32_t lens[] = {257, 16, 0, 100}, extra[] = {1, 3, 2, 0};
    struct fixture_shape shape = {.batch = 4, .seq_len_q = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64,
                                  .page_size = 16, .seq_lens = lens, .dtype = BF16, .out_dtype = BF16, .pair = true};
    struct fixture *f = fixture_new(&shape);
    const int32_t *tight = f->indices.t.data;
    int32_t *indptr = f->indptr.t.data, *loose, used = 0;
    unsigned char *usual = fixture_memory(f, tensor_bytes(&f->out));

    decode(f, "rows that own what they need");
    memcpy(usual, f->out.t.data, tensor_bytes(&f->out));
    loose = fixture_memory(f, tensor_bytes(&f->indices) + 8 * sizeof *loose);
    for (int b = 0; b < 4; b++) {
        int32_t begin = indptr[b];

        indptr[b] = used;
        for (int32_t i = 0; i < (lens[b] + 15) / 16; i++)
            loose[used++] = tight[begin + i];
        for (int i = 0; i < extra[b]; i++)
            loose[used++] = i % 2 ? INT32_MAX : -1;
    }
    indptr[4] = used;
    loose[used] = INT32_MIN;
    tensor_set(&f->indices, INT32, loose, SHAPE(used + 1));
    memset(f->out.t.data, FIXTURE_FILL, tensor_bytes(&f->out));
    decode(f, "rows that own more, with garbage in it");
    ok(memcmp(usual, f->out.t.data, tensor_bytes(&f->out)) == 0, "give the same bits");
    is_int(QUIRE_OK, quire_decode_check(&f->args, NULL), "and keep the rules");
    fixture_free(f);
}

/* Three pages 2^31 elements apart: in 32 bits page 2 would be page 0. */
static void test_far_pages(void)
{
    enum { D = 64, PAGE = 16 };
    const int64_t stride = 1LL << 31;
    const size_t bytes = 3 * (size_t)stride * 2;
    static const uint16_t values[] = {0x3C00, 0x4200, 0x4500}; /* 1, 3, 5 */
    static const int32_t lens[] = {PAGE, PAGE};
    struct fixture_shape shape = {.batch = 2, .seq_len_q = 1, .q_heads = 1, .kv_heads = 1, .head_dim = D,
                                  .page_size = PAGE, .seq_lens = lens, .dtype = FP16, .out_dtype = FP16};
    struct fixture *f;
    uint16_t *far = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const uint16_t *out;

    if (far == MAP_FAILED) {
        skip("no 12 GiB of address space");
        return;
    }
    f = fixture_new(&shape);
    for (int64_t p = 0; p < 3; p++) /* K is 0, so V's mean is V */
        for (int64_t i = 0; i < PAGE * D; i++)
            far[p * stride + PAGE * D + i] = values[p];
    tensor_set(&f->kv, FP16, far, SHAPE(3, 2, 1, PAGE, D));
    tensor_use_strides(&f->kv);
    f->kv.strides[0] = stride;
    ((int32_t *)f->indices.t.data)[0] = 2;
    ((int32_t *)f->indices.t.data)[1] = 1;
    out = f->out.t.data;
    decode(f, "pages 2^31 elements apart, combined");
    is_int(values[2], out[0], "page 2 is page 2");
    is_int(values[1], out[D], "page 1 is page 1");

    tensor_set(&f->k, FP16, far, SHAPE(3, 1, PAGE, D));
    tensor_use_strides(&f->k);
    f->k.strides[0] = PAGE * D * 2;
    tensor_set(&f->v, FP16, far + PAGE * D, SHAPE(3, 1, PAGE, D));
    tensor_use_strides(&f->v);
    f->v.strides[0] = stride;
    f->args.kv_cache = NULL;
    f->args.k_cache = &f->k.t;
    f->args.v_cache = &f->v.t;
    memset(f->query.t.data, 0, tensor_bytes(&f->query)); /* any K will do */
    decode(f, "V's pages 2^31 elements apart, K's close together");
    is_int(values[2], out[0], "page 2 is page 2");
    is_int(values[1], out[D], "page 1 is page 1");
    is_int(QUIRE_OK, quire_decode_reference(&f->args), "the reference too");
    is_int(values[2], out[0], "page 2 is page 2");
    munmap(far, bytes);
    fixture_free(f);
}

/* The workspace's size is exact: guards on both sides stay as they are. */
static void test_workspace_guards(void)
{
    enum { GUARD = 64, FILL = 0x5A };
    static const int32_t lens[] = {3000, 17, 640, 0, 1};
    struct fixture_shape shape = {.batch = 5, .seq_len_q = 3, .q_heads = 8, .kv_heads = 2, .head_dim = 128,
                                  .page_size = 32, .seq_lens = lens, .dtype = BF16, .out_dtype = BF16};
    struct fixture *f = fixture_new(&shape);
    size_t bytes = tensor_bytes(&f->workspace), touched = 0;
    unsigned char *guarded = fixture_memory(f, bytes + 2 * GUARD);

    memset(guarded, FILL, bytes + 2 * GUARD);
    memset(guarded + GUARD, 0, bytes);
    f->workspace.t.data = guarded + GUARD;
    decode(f, "a workspace of the size asked for");
    for (size_t i = 0; i < GUARD; i++)
        touched += (guarded[i] != FILL) + (guarded[GUARD + bytes + i] != FILL);
    is_int(0, (long long)touched, "bytes touched around it");
    fixture_free(f);
}

/* Copies a cache of [pages, 2, Hkv, page_size, D] to one with NaN between its pages. */
static uint16_t *spread(struct fixture *f, const uint16_t *from, int64_t pages, int64_t page, int64_t from_stride,
                        int64_t stride)
{
    uint16_t *to = fixture_memory(f, (size_t)(pages * stride) * sizeof *to);

    for (int64_t i = 0; i < pages * stride; i++)
        to[i] = 0x7FFF;
    for (int64_t p = 0; p < pages; p++)
        memcpy(to + p * stride, from + p * from_stride, (size_t)page * sizeof *to);
    return to;
}

/* The same cache combined, as K and V of one stride each, and padded. */
static void test_forms(void)
{
    static const int32_t lens[] = {300, 33};
    struct fixture_shape shape = {.batch = 2, .seq_len_q = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 64,
                                  .page_size = 16, .seq_lens = lens, .dtype = FP16, .out_dtype = FP16};
    struct fixture *f = fixture_new(&shape);
    int64_t pages = f->kv.shape[0], half = 2 * 16 * 64, whole = 2 * half;
    const uint16_t *kv = f->kv.t.data;
    unsigned char *usual = fixture_memory(f, tensor_bytes(&f->out));
    const struct {
        const char *what;
        int64_t k_stride, v_stride; /* elements; 0: views of the combined cache */
    } rows[] = {
        {"K and V as views of the combined cache", 0, 0},
        {"K and V, each compact", half, half},
        {"K and V with other gaps", half + 8, whole},
        {"K and V with a page of NaN between pages", 2 * half, 2 * half},
    };

    decode(f, "the combined cache");
    memcpy(usual, f->out.t.data, tensor_bytes(&f->out));

    f->kv.t.data = spread(f, kv, pages, whole, whole, 2 * whole);
    tensor_use_strides(&f->kv);
    f->kv.strides[0] = 2 * whole;
    memset(f->out.t.data, FIXTURE_FILL, tensor_bytes(&f->out));
    decode(f, "combined, with a page of NaN between pages");
    ok(memcmp(usual, f->out.t.data, tensor_bytes(&f->out)) == 0, "gives the same bits");

    f->args.kv_cache = NULL;
    f->args.k_cache = &f->k.t;
    f->args.v_cache = &f->v.t;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t k_stride = rows[i].k_stride, v_stride = rows[i].v_stride;

        tensor_set(&f->k, FP16, k_stride ? spread(f, kv, pages, half, whole, k_stride) : (void *)kv,
                   SHAPE(pages, 2, 16, 64));
        tensor_set(&f->v, FP16, v_stride ? spread(f, kv + half, pages, half, whole, v_stride) : (void *)(kv + half),
                   SHAPE(pages, 2, 16, 64));
        tensor_use_strides(&f->k);
        tensor_use_strides(&f->v);
        f->k.strides[0] = k_stride ? k_stride : whole;
        f->v.strides[0] = v_stride ? v_stride : whole;
        memset(f->out.t.data, FIXTURE_FILL, tensor_bytes(&f->out));
        decode(f, rows[i].what);
        ok(memcmp(usual, f->out.t.data, tensor_bytes(&f->out)) == 0, "give the same bits");
    }
    fixture_free(f);
}

int main(void)
{
    plan(0);
    test_page_table_edge();
    test_garbage_entries();
    test_far_pages();
    test_workspace_guards();
    test_forms();
    return done();
}

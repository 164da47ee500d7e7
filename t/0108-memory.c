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

int main(void)
{
    plan(0);
    test_page_table_edge();
    test_garbage_entries();
    test_far_pages();
    return done();
}

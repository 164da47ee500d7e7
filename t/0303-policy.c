/* Which kernel runs what on which GPU; no GPU is needed to tell.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "policy.h"
#include "tap.h"

static const struct device_limits h200 = { .capability = 90, .sm_count = 132, .shared_bytes = 232448,
                                           .kernels = KERNELS_WGMMA };
static const struct device_limits ada = { .capability = 89, .sm_count = 128, .shared_bytes = 101376 };

static struct problem problem(quire_dtype dtype, int head_dim, int group, int tokens, int batch)
{
    return (struct problem){ .device = { QUIRE_DEVICE_CUDA, 0 }, .dtype = dtype,
                             .out_dtype = dtype, .batch = batch, .q_heads = 8 * group, .kv_heads = 8, .group = group,
                             .head_dim = head_dim, .page_size = 16, .max_seq_len = 4096, .seq_len_q = tokens,
                             .total_q = batch * tokens, .window_left = -1, .bmm1_scale = 0.125f, .bmm2_scale = 1,
                             .pages = 1024, .indices_len = 1000 };
}

static void kernel_of(const struct device_limits *d, struct problem p, const char *wanted)
{
    struct launch_plan chosen = { 0 };

    is_int(QUIRE_OK, policy_plan(&p, d, &chosen), "D = %d, %d rows, batch %d: a plan", p.head_dim,
           p.group * p.seq_len_q, p.batch);
    is_str(wanted, chosen.kernel ? chosen.kernel : "none", "... with %s", wanted);
}

static void choices(void)
{
    const quire_dtype bf16 = QUIRE_DTYPE_BF16, fp8 = QUIRE_DTYPE_FP8E4M3;
    struct device_limits async = h200, tma = h200;
    struct problem window = problem(bf16, 128, 4, 8, 1), one_head = problem(bf16, 128, 8, 1, 1);

    one_head.q_heads = 8;
    one_head.kv_heads = 1;
    kernel_of(&h200, problem(bf16, 128, 4, 1, 32), "decode_tma_bf16_d128_r8");
    kernel_of(&h200, problem(bf16, 128, 4, 1, 1), "decode_wide_bf16_d128_r8");
    kernel_of(&h200, one_head, "decode_lone_bf16_d128_r8");
    one_head.batch = 4;
    kernel_of(&h200, one_head, "decode_lone_bf16_d128_r8");
    one_head.batch = 5;
    kernel_of(&h200, one_head, "decode_wide_bf16_d128_r8");
    one_head.batch = 32;
    kernel_of(&h200, one_head, "decode_wide_bf16_d128_r8");
    one_head.batch = 33; /* a warp has no lane for one of these */
    kernel_of(&h200, one_head, "decode_tma_bf16_d128_r8");
    kernel_of(&h200, problem(bf16, 128, 8, 1, 32), "decode_tma_bf16_d128_r8");
    kernel_of(&h200, problem(bf16, 128, 9, 1, 32), "decode_tma_bf16_d128_r16");
    kernel_of(&h200, problem(bf16, 128, 9, 1, 1), "decode_wide_bf16_d128_r16");
    kernel_of(&h200, problem(bf16, 128, 17, 1, 1), "decode_wgmma_bf16_d128_r64");
    kernel_of(&h200, problem(bf16, 128, 4, 9, 1), "decode_wgmma_bf16_d128_r64");
    kernel_of(&h200, problem(bf16, 256, 9, 1, 1), "decode_tma_bf16_d256_r16");
    kernel_of(&h200, problem(bf16, 256, 4, 9, 1), "decode_wgmma_bf16_d256_r64");
    kernel_of(&h200, problem(bf16, 128, 4, 4, 32), "decode_tma_bf16_d128_r16");
    kernel_of(&h200, problem(bf16, 128, 4, 4, 4), "decode_wide_bf16_d128_r16");
    kernel_of(&h200, problem(bf16, 64, 4, 8, 4), "decode_tma_bf16_d64_r32");
    kernel_of(&h200, problem(bf16, 128, 17, 1, 32), "decode_wgmma_bf16_d128_r64");
    kernel_of(&h200, problem(bf16, 128, 4, 16, 32), "decode_wgmma_bf16_d128_r64");
    kernel_of(&h200, problem(bf16, 128, 4, 17, 32), "decode_wgmma_bf16_d128_r128");
    kernel_of(&h200, problem(bf16, 128, 4, 512, 4), "decode_wgmma_bf16_d128_r128");
    kernel_of(&h200, problem(fp8, 128, 4, 512, 4), "decode_wgmma_fp8e4m3_d128_r128");
    kernel_of(&h200, problem(fp8, 128, 4, 17, 32), "decode_wgmma_fp8e4m3_d128_r128");
    kernel_of(&h200, problem(fp8, 128, 4, 16, 32), "decode_swapab_fp8e4m3_d128_r64");
    kernel_of(&h200, problem(fp8, 128, 4, 8, 32), "decode_swapab_fp8e4m3_d128_r32");
    kernel_of(&h200, problem(fp8, 128, 4, 4, 32), "decode_tma_fp8e4m3_d128_r16");
    kernel_of(&h200, problem(fp8, 128, 4, 4, 4), "decode_swapab_fp8e4m3_d128_r16");
    kernel_of(&h200, problem(fp8, 128, 4, 2, 4), "decode_wide_fp8e4m3_d128_r8");
    kernel_of(&h200, problem(fp8, 256, 4, 4, 32), "decode_swapab_fp8e4m3_d256_r16");
    kernel_of(&h200, problem(fp8, 256, 4, 8, 32), "decode_swapab_fp8e4m3_d256_r32");
    kernel_of(&h200, problem(fp8, 256, 4, 9, 32), "decode_tma_fp8e4m3_d256_r64");
    kernel_of(&h200, problem(fp8, 256, 4, 512, 4), "decode_tma_fp8e4m3_d256_r64");
    tma.kernels = KERNELS_TMA;
    kernel_of(&tma, problem(bf16, 128, 4, 8, 32), "decode_tma_bf16_d128_r32");
    kernel_of(&tma, problem(bf16, 128, 4, 9, 32), "decode_tma_bf16_d128_r64");
    kernel_of(&tma, problem(bf16, 128, 4, 512, 4), "decode_tma_bf16_d128_r64");
    kernel_of(&tma, problem(fp8, 128, 4, 8, 32), "decode_tma_fp8e4m3_d128_r32");
    kernel_of(&h200, problem(fp8, 64, 1, 1, 64), "decode_tma_fp8e4m3_d64_r8");
    window.window_left = 511;
    kernel_of(&h200, window, "decode_tma_bf16_d128_r32");
    window.window_left = 4000;
    kernel_of(&h200, window, "decode_wgmma_bf16_d128_r64");
    kernel_of(&h200, problem(QUIRE_DTYPE_FP16, 256, 32, 1, 2), "decode_tma_fp16_d256_r32");
    kernel_of(&h200, problem(QUIRE_DTYPE_FP16, 256, 32, 1, 20), "decode_wgmma_fp16_d256_r64");
    kernel_of(&ada, problem(bf16, 128, 4, 1, 1), "decode_async_bf16_d128_r8");
    kernel_of(&ada, problem(fp8, 256, 32, 4, 7), "decode_async_fp8e4m3_d256_r16");
    async.kernels = KERNELS_ASYNC;
    kernel_of(&async, problem(bf16, 64, 4, 1, 1), "decode_async_bf16_d64_r8");
}

/* Every kernel fits the GPUs that it is for, and a workspace depends on no length or batch. */
static void sizes(void)
{
    static const quire_dtype dtypes[] = { QUIRE_DTYPE_FP16, QUIRE_DTYPE_BF16, QUIRE_DTYPE_FP8E4M3 };
    static const int dims[] = { 64, 128, 256 }, tokens[] = { 1, 2, 4, 8, 16, 100 };
    enum { SM_SHARED = 233472, CTA_RESERVED = 1024 }; /* of compute capability 9.0 */

    for (int t = 0; t < 3; t++)
        for (int d = 0; d < 3; d++)
            for (int q = 0; q < 6; q++)
                for (int batch = 1; batch <= 1024; batch *= 32) {
                    struct problem p = problem(dtypes[t], dims[d], 8, tokens[q], batch);
                    struct launch_plan first, other;
                    size_t ctas;

                    if (policy_plan(&p, &ada, &first) != QUIRE_OK || first.shared_bytes > 101376 ||
                        first.uses_tensor_maps)
                        ok(0, "dtype %d, D = %d, %d tokens: fits 99 KB", dtypes[t], dims[d], tokens[q]);
                    if (policy_plan(&p, &h200, &first) != QUIRE_OK) {
                        ok(0, "dtype %d, D = %d, %d tokens: a kernel for 9.0", dtypes[t], dims[d], tokens[q]);
                        continue;
                    }
                    ctas = (size_t)first.grid / 132;
                    if (ctas < 1 || ctas * (first.shared_bytes + CTA_RESERVED) > SM_SHARED || first.threads % 32 ||
                        first.variant < 0 || first.variant >= policy_variants())
                        ok(0, "%s: %zu CTAs of %zu bytes on an SM", first.kernel, ctas, first.shared_bytes);
                    p.max_seq_len = 2147483520;
                    p.indices_len = INT32_MAX;
                    if (policy_plan(&p, &h200, &other) != QUIRE_OK || other.variant != first.variant ||
                        other.grid != first.grid || other.workspace_bytes != first.workspace_bytes)
                        ok(0, "%s: the same plan for any bound", first.kernel);
                }
    ok(1, "every plan fits its GPU and is the same for any bound on lengths");
}

static void refusals(void)
{
    struct problem p = problem(QUIRE_DTYPE_BF16, 128, 4, 1, 1);
    struct device_limits old = h200, tiny = h200;
    struct launch_plan first;

    old.capability = 75;
    is_int(QUIRE_ERROR_UNSUPPORTED, policy_plan(&p, &old, &first), "compute capability 7.5 is refused");
    ok(strstr(quire_last_error(), "7.5") != NULL, "... and named");
    tiny.shared_bytes = 49152;
    is_int(QUIRE_ERROR_UNSUPPORTED, policy_plan(&p, &tiny, &first), "48 KB of shared memory are refused");
}

/* CTAs that share items of one length: as many as cut or deal them out evenly, if few are left idle. */
static void even(void)
{
    static const struct { int batch, shares; } cases[] = {
        { 1, 128 },   /* 8 items over 132 CTAs, 16 each */
        { 64, 256 },  /* 512 items over 264, two to a CTA */
        { 32, 256 },  /* one each */
        { 20, 264 },  /* 160 items would leave 104 CTAs idle */
        { 2048, 264 } /* 16384 items, 63 to a CTA, do not come out even */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct problem p = problem(QUIRE_DTYPE_BF16, 128, 4, 1, cases[i].batch);
        struct launch_plan first;
        struct decode_params params;

        is_int(QUIRE_OK, policy_plan(&p, &h200, &first), "batch %d: a plan", cases[i].batch);
        policy_params(&p, &first, &params);
        is_int(cases[i].shares, params.even_shares, "... and %d shares", cases[i].shares);
    }
}

/* Heads are read together where each of a solo tile's warps takes whole pages of its head, and none lacks a head. */
static void together(void)
{
    const quire_dtype bf16 = QUIRE_DTYPE_BF16, fp8 = QUIRE_DTYPE_FP8E4M3;
    const struct {
        const char *what;
        quire_dtype dtype;
        int head_dim, group, batch, page_size, kv_heads;
        bool together;
        int box_heads;
    } cases[] = {
        { "16-bit, D = 128, pages of 16", bf16, 128, 4, 64, 16, 8, true, 2 },
        { "pages of two warps' slices", bf16, 128, 4, 64, 32, 8, false, 2 },
        { "D = 64, pages of a slice", bf16, 64, 4, 64, 32, 8, true, 2 },
        { "fp8, pages of 32", fp8, 128, 4, 64, 32, 8, true, 2 },
        { "D = 256, one warp copies K", bf16, 256, 4, 64, 16, 8, true, 4 },
        { "6 heads for 4 warps", bf16, 128, 4, 64, 16, 6, false, 2 },
        { "few items, wide tiles", bf16, 128, 4, 1, 16, 8, false, 0 },
        { "16 rows", bf16, 128, 16, 64, 16, 8, false, 0 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct problem p = problem(cases[i].dtype, cases[i].head_dim, cases[i].group, 1, cases[i].batch);
        struct launch_plan chosen;
        struct decode_params params;

        p.page_size = cases[i].page_size;
        p.kv_heads = cases[i].kv_heads;
        p.q_heads = p.kv_heads * p.group;
        is_int(QUIRE_OK, policy_plan(&p, &h200, &chosen), "%s: a plan", cases[i].what);
        policy_params(&p, &chosen, &params);
        is_int(cases[i].together, (params.flags & DECODE_HEADS_TOGETHER) != 0, "... %s",
               cases[i].together ? "may join heads" : "joins no heads");
        is_int(cases[i].box_heads, chosen.boxes[BOX_SOLO].slots ? chosen.boxes[BOX_SOLO].heads : 0, "... %d heads to a box",
               cases[i].box_heads);
    }
}

/* Parts of pages are copied where a page has more than one, but not by two warpgroups. */
static void parts(void)
{
    const struct { int head_dim, tokens, page_size, slots; } cases[] = {
        { 128, 1, 16, 0 }, { 128, 1, 32, 16 }, { 64, 1, 128, 16 }, { 128, 16, 64, 16 }, { 128, 17, 64, 0 }
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct problem p = problem(QUIRE_DTYPE_BF16, cases[i].head_dim, 4, cases[i].tokens, 32);
        struct launch_plan chosen;

        p.page_size = cases[i].page_size;
        is_int(QUIRE_OK, policy_plan(&p, &h200, &chosen), "%d tokens, pages of %d: a plan", cases[i].tokens,
               cases[i].page_size);
        is_int(cases[i].slots, chosen.boxes[BOX_PART].slots, "... and parts of %d slots", cases[i].slots);
    }
}

int main(void)
{
    plan(0);
    choices();
    sizes();
    refusals();
    even();
    together();
    parts();
    return done();
}

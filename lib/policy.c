/* policy.c - the list of kernels, and the choice among them
 * SPDX-License-Identifier: Apache-2.0 */
#include "policy.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/layout.h"
#include "kernels/variants.h"
#include "status.h"

enum family { family_tma, family_wide, family_lone, family_wgmma, family_swapab, family_async };

struct variant {
    enum family family;
    quire_dtype dtype;
    int elem_bytes, head_dim, rows;
    int tile, key_warps, solo_keys, solo_box_heads, box_keys, box_panels;
    bool parts; /* of boxes are brought */
    int ctas_per_sm, threads;
    size_t shared_bytes, slot_bytes;
    const char *image, *kernel;
};

#define DTYPE_fp16 QUIRE_DTYPE_FP16
#define DTYPE_bf16 QUIRE_DTYPE_BF16
#define DTYPE_fp8e4m3 QUIRE_DTYPE_FP8E4M3

#define ROW(family, dtype, elem, d, rows, tile, keyw, roww, stages, ctas, solo)                          \
    { family_##family, DTYPE_##dtype, elem, d, rows, tile, keyw, (solo) * (tile) / (keyw),               \
      LAYOUT_SOLO_BOX_HEADS(keyw, LAYOUT_COPIERS(LAYOUT_SHARES_##family, d, rows)),                      \
      (tile) / (LAYOUT_CONVERTS(LAYOUT_KIND_##family, elem) ? LAYOUT_CONVERTERS : 1),                    \
      LAYOUT_BOX_PANELS(LAYOUT_KIND_##family, elem, d, rows),                                            \
      LAYOUT_READS_PARTS(LAYOUT_KIND_##family, roww), ctas,                                              \
      LAYOUT_THREADS(LAYOUT_KIND_##family, keyw, roww, LAYOUT_COPIERS(LAYOUT_SHARES_##family, d, rows)), \
      LAYOUT_TOTAL_BYTES(LAYOUT_KIND_##family, elem, d, rows, tile, keyw, stages, solo),                 \
      LAYOUT_CTA_FLOATS(LAYOUT_KIND_##family, d, rows, keyw, solo) * 4,                                  \
      "decode_" #dtype "_d" #d, "decode_" #family "_" #dtype "_d" #d "_r" #rows },

/* The images, and which of the variants each holds: a launch looks at no others, for the host's time. */
#define IMAGES(I) \
    I(fp16, 64, 16) I(fp16, 128, 16) I(fp16, 256, 16) I(bf16, 64, 16) I(bf16, 128, 16) I(bf16, 256, 16) \
    I(fp8e4m3, 64, 8) I(fp8e4m3, 128, 8) I(fp8e4m3, 256, 8)
#define ROWS(dtype, d, bits) QUIRE_VARIANTS_D##d##_##bits(ROW, dtype)
#define ONE(...) +1
#define SPAN(dtype, d, bits) \
    FIRST_##dtype##_d##d, LAST_##dtype##_d##d = FIRST_##dtype##_d##d - 1 QUIRE_VARIANTS_D##d##_##bits(ONE, dtype),
#define IMAGE(dtype, d, bits) { DTYPE_##dtype, d, FIRST_##dtype##_d##d, LAST_##dtype##_d##d },

enum { IMAGES(SPAN) VARIANTS };
static const struct variant variants[VARIANTS] = { IMAGES(ROWS) };
static const struct {
    quire_dtype dtype;
    int head_dim, first, last;
} images[] = { IMAGES(IMAGE) };

/* More rows of a KV head than this go to warpgroups, as measured; more where items are few, of which warpgroups take
 * longer, and D is not 128 or a window keeps them short.  fp8 goes to keys as M first, if one row tile holds all rows:
 * from fewer rows on where items are few, and where D is 256. */
enum { WGMMA_ABOVE = 16, WGMMA_ABOVE_FEW = 32, SWAPAB_ABOVE = 16, SWAPAB_ABOVE_FEW = 8, SHORT_WINDOW = 512 };

int policy_variants(void)
{
    return VARIANTS + 1; /* and read_blocks */
}

void policy_read_plan(const struct device_limits *d, struct launch_plan *plan)
{
    *plan = (struct launch_plan){ .image = "read", .kernel = "read_blocks", .variant = VARIANTS,
                                  .grid = 2 * d->sm_count, .threads = 512 };
}

/* Of the family's kernels the one with the smallest row tile that holds all rows of a KV head, else the
 * one with the largest: a KV head's keys are read once for each row tile. */
static const struct variant *choose(const struct problem *p, enum family family, int shared_bytes)
{
    const int64_t rows = (int64_t)p->group * p->seq_len_q;
    const struct variant *best = NULL;
    size_t image = 0;
    while (image < sizeof images / sizeof *images &&
           (images[image].dtype != p->dtype || images[image].head_dim != p->head_dim))
        image++;
    if (image == sizeof images / sizeof *images)
        return NULL;
    for (int i = images[image].first; i <= images[image].last; i++) {
        const struct variant *v = &variants[i];
        if (v->family != family || v->shared_bytes > (size_t)shared_bytes)
            continue;
        if (!best || (v->rows < best->rows ? v->rows >= rows : best->rows < rows))
            best = v;
    }
    return best;
}

quire_status policy_plan(const struct problem *p, const struct device_limits *d, struct launch_plan *plan)
{
    if (d->capability < 80)
        return quire_fail(QUIRE_ERROR_UNSUPPORTED,
                          "device cuda:%d: expected compute capability 8.0 or higher, got %d.%d",
                          (int)p->device.device_id, d->capability / 10, d->capability % 10);
    const int64_t rows = (int64_t)p->group * p->seq_len_q;
    const struct variant *v = NULL;
    /* Few items: each is cut over four SMs or more, and merging the pieces is what takes time. Where they are very few,
     * CTAs may be left to do that. */
    const int64_t items = (int64_t)p->batch * p->kv_heads;
    const bool few = items <= d->sm_count / 4;
    if (d->kernels >= KERNELS_TMA) {
        const struct variant *wide = NULL;
        v = choose(p, family_tma, d->shared_bytes);
        if (few && p->batch <= 32) /* which these count on */
            wide = choose(p, items <= d->sm_count / 32 && rows <= 8 ? family_lone : family_wide, d->shared_bytes);
        if (v && wide && wide->rows == v->rows)
            v = wide;
    }
    const bool brief = p->window_left >= 0 && p->window_left <= SHORT_WINDOW;
    const int above = few && (p->head_dim != 128 || brief) ? WGMMA_ABOVE_FEW : WGMMA_ABOVE;
    const struct variant *swapab = d->kernels >= KERNELS_WGMMA ? choose(p, family_swapab, d->shared_bytes) : NULL;
    if (swapab && rows > (few || p->head_dim == 256 ? SWAPAB_ABOVE_FEW : SWAPAB_ABOVE) && rows <= swapab->rows) {
        v = swapab;
    } else if (d->kernels >= KERNELS_WGMMA && rows > above) {
        const struct variant *many = choose(p, family_wgmma, d->shared_bytes);
        v = many ? many : v;
    }
    if (!v)
        v = choose(p, family_async, d->shared_bytes);
    if (!v)
        return quire_fail(QUIRE_ERROR_UNSUPPORTED,
                          "device cuda:%d: no kernel for this head_dim and dtype fits its %d bytes of shared memory",
                          (int)p->device.device_id, d->shared_bytes);
    int grid = d->sm_count * v->ctas_per_sm;
    if (d->max_grid > 0 && grid > d->max_grid)
        grid = d->max_grid;
    *plan = (struct launch_plan){
        .image = v->image, .kernel = v->kernel, .variant = (int)(v - variants),
        .rows = v->rows, .grid = grid, .threads = v->threads, .shared_bytes = v->shared_bytes,
        .workspace_bytes = (size_t)grid * v->slot_bytes,
        .uses_tensor_maps = v->family != family_async,
        .boxes[BOX_TILE] = { p->page_size < v->box_keys ? p->page_size : v->box_keys, v->box_panels, 1 },
        .boxes[BOX_SOLO] = { p->page_size < v->solo_keys ? p->page_size : v->solo_keys, v->box_panels,
                             v->solo_box_heads },
        .boxes[BOX_PART] = { p->page_size > LAYOUT_PART_SLOTS && v->parts ? LAYOUT_PART_SLOTS : 0, 1, 1 },
        .solo_heads = v->key_warps,
        /* where a solo tile is cut into whole pages, its heads' blocks adjoin */
        .heads_together = v->solo_keys >= p->page_size && p->kv_heads % v->key_warps == 0,
        .read_once = (int64_t)p->group * p->seq_len_q <= v->rows,
    };
    return QUIRE_OK;
}

/* CTAs for `items` items of one length. Where they can be cut, or dealt out, evenly over nearly as many CTAs as
 * the grid has, pieces are fewer and alike, which gains more than the idle CTAs lose while the launch is short. */
static int even_shares(int grid, int64_t items)
{
    const int64_t per_share = (items + grid - 1) / grid;
    const int64_t even = items <= grid ? grid / items * items : items % per_share == 0 ? items / per_share : grid;
    return even * 25 >= (int64_t)grid * 24 ? (int)even : grid;
}

void policy_params(const struct problem *p, const struct launch_plan *plan, struct decode_params *k)
{
    memset(k, 0, sizeof *k);
    k->query = p->query;
    k->k = p->k;
    k->v = p->v;
    k->indptr = p->indptr;
    k->indices = p->indices;
    k->seq_lens = p->seq_lens;
    k->qo_indptr = p->qo_indptr;
    k->out = p->out;
    k->lse = p->lse;
    k->partials = p->workspace;
    k->k_page_stride = p->k_page_stride;
    k->v_page_stride = p->v_page_stride;
    k->batch = p->batch;
    k->q_heads = p->q_heads;
    k->kv_heads = p->kv_heads;
    k->group = p->group;
    k->page_shift = __builtin_ctz((unsigned)p->page_size);
    k->pages = p->pages > INT32_MAX ? INT32_MAX : (int)p->pages; /* ids are int32 */
    k->indices_len = p->indices_len > INT32_MAX ? INT32_MAX : (int)p->indices_len;
    k->max_seq_len = p->max_seq_len;
    k->seq_len_q = p->seq_len_q;
    k->total_q = p->total_q;
    k->window_left = p->window_left < 0 ? INT32_MAX : p->window_left;
    k->flags = (p->causal ? DECODE_CAUSAL : 0) | (p->packed ? DECODE_PACKED : 0) |
               (p->metadata_stable ? DECODE_METADATA_STABLE : 0) |
               (p->out_dtype == QUIRE_DTYPE_FP8E4M3 ? DECODE_OUT_FP8 : 0) | (plan->read_once ? DECODE_READ_ONCE : 0) |
               (plan->heads_together ? DECODE_HEADS_TOGETHER : 0);
    const int64_t row_tiles = ((int64_t)p->group * p->seq_len_q + plan->rows - 1) / plan->rows;
    k->even_shares = even_shares(plan->grid, (int64_t)p->batch * p->kv_heads * row_tiles);
    const int64_t solo_groups = (p->kv_heads + plan->solo_heads - 1) / plan->solo_heads;
    k->even_solo_shares = even_shares(plan->grid, p->batch * solo_groups);
    const double log2e = 1.44269504088896340736;
    k->scale_log2 = (float)fmin(fmax(p->bmm1_scale * log2e, FLT_TRUE_MIN), FLT_MAX);
    k->out_scale = p->bmm2_scale;
}

/* verdict.c - how far a result is from the float64 reference
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <math.h>
#include <string.h>

#include "cpu/reference.h"
#include "dtype.h"

struct tally {
    quire_verdict v;
    double error_squares, squares;
};

/* Live values that are not finite: each may have made NaN of every row of its request and KV head. */
struct specials {
    bool known;
    bool any;            /* in Q or K: reaches every element */
    bool dim[MAX_DIM];   /* in V: reaches these */
};

/* Looks for them once a band, and only if a NaN came: there may be one in every element. */
static void find_specials(const struct problem *p, const struct band *b, struct specials *s)
{
    struct band token = *b;
    int32_t begin = b->length, end = 0;

    s->known = true;
    for (int32_t i = 0; i < b->tokens; i++) { /* what they see has no gap */
        int64_t head = (b->first_token + i) * p->q_heads + (int64_t)b->kv_head * p->group;

        for (int64_t x = head * p->head_dim; x < (head + p->group) * p->head_dim; x++)
            s->any = s->any || !isfinite(reference_element(p->dtype, p->query, x));
        token.first_row = i * p->group;
        token.rows = 1;
        band_find_visible(p, &token);
        begin = token.key_begin < begin ? token.key_begin : begin;
        end = token.key_end > end ? token.key_end : end;
    }
    for (int32_t key = begin; key < end; key++) {
        const void *k = band_key(p, b, p->k, p->k_page_stride, key), *v = band_key(p, b, p->v, p->v_page_stride, key);

        for (int x = 0; x < p->head_dim; x++) {
            s->any = s->any || !isfinite(reference_element(p->dtype, k, x));
            s->dim[x] = s->dim[x] || !isfinite(reference_element(p->dtype, v, x));
        }
    }
}

static bool special_may_reach(const struct problem *p, const struct band *b, struct specials *s, int dim)
{
    if (!s->known)
        find_specials(p, b, s);
    return s->any || s->dim[dim];
}

/* |got - r| as a share of its bound: right if at most 1. */
static double element_error(const struct problem *p, double got, double r, double spread)
{
    const struct format *f = &reference_formats[p->out_dtype];
    double u_out = ldexp(1, -f->mantissa_bits - 1), u_p = p->dtype == QUIRE_DTYPE_BF16 ? 0x1p-7 : 0x1p-10;
    double bound;

    if (isnan(r))
        return isnan(got) || isinf(got) ? 0 : (double)INFINITY;
    if (isinf(r)) /* from an Inf in V; NaN where its weight is below float32 */
        return isnan(got) || got == r || (f->saturates && got == copysign(f->max, r)) ? 0 : (double)INFINITY;
    if (f->saturates)
        r = r > f->max ? f->max : r < -f->max ? -f->max : r;
    bound = u_out * fabs(r) + u_p * spread + f->tiny * u_out;
    if (isinf(got)) { /* stands for all values that round to it */
        double distance = f->overflow - copysign(1, got) * r;

        return distance <= 0 ? 0 : distance / bound;
    }
    return isnan(got) ? (double)INFINITY : fabs(got - r) / bound;
}

static double lse_error(double got, double r)
{
    if (isnan(r))
        return isnan(got) ? 0 : (double)INFINITY;
    if (isinf(r))
        return got == r || (r > 0 && isnan(got)) ? 0 : (double)INFINITY;
    return isnan(got) ? (double)INFINITY : fabs(got - r) / (2e-5 + 1e-6 * fabs(r));
}

/* Adds a row that sees no key: exactly +0 and -Inf. */
static void judge_hidden_row(const struct problem *p, int64_t place, struct tally *t)
{
    int bytes = dtype_bytes(p->out_dtype);

    t->v.rows++;
    t->v.empty_rows++;
    for (int64_t i = place * p->head_dim; i < (place + 1) * p->head_dim; i++) {
        static const uint8_t zeros[2];

        if (memcmp((const char *)p->out + i * bytes, zeros, (size_t)bytes) != 0) {
            t->v.failures++;
            if (t->v.worst_error < INFINITY) {
                t->v.worst_error = INFINITY;
                t->v.worst_index = i;
                t->v.worst_expected = 0;
                t->v.worst_got = reference_element(p->out_dtype, p->out, i);
            }
        }
    }
    if (p->lse != NULL && !(p->lse[place] == -INFINITY)) {
        t->v.failures++;
        t->v.lse_error = INFINITY;
    }
}

static void judge_row(const struct problem *p, const struct band *b, int row, struct specials *specials,
                      struct tally *t)
{
    int64_t place = band_row_place(p, b, row);

    t->v.rows++;
    for (int x = 0; x < p->head_dim; x++) {
        int64_t i = place * p->head_dim + x;
        double got = reference_element(p->out_dtype, p->out, i), r = b->out[x][row];
        double error = element_error(p, got, r, b->spread[x][row]);

        if (error > 1 && isnan(got) && special_may_reach(p, b, specials, x))
            error = 0;
        t->v.failures += !(error <= 1);
        if (error > t->v.worst_error) {
            t->v.worst_error = error;
            t->v.worst_index = i;
            t->v.worst_expected = r;
            t->v.worst_got = got;
        }
        if (reference_formats[p->out_dtype].saturates)
            r = fmax(fmin(r, reference_formats[p->out_dtype].max), -reference_formats[p->out_dtype].max);
        if (isfinite(got) && isfinite(r)) {
            t->error_squares += (got - r) * (got - r);
            t->squares += r * r;
        }
    }
    if (p->lse != NULL) {
        double error = lse_error(p->lse[place], b->lse[row]);

        if (error > 1 && isnan(p->lse[place]) && special_may_reach(p, b, specials, 0))
            error = 0;
        t->v.failures += !(error <= 1);
        t->v.lse_error = error > t->v.lse_error ? error : t->v.lse_error;
    }
}

static void judge_band(const struct problem *p, const struct band *b, void *context)
{
    struct tally own = {.error_squares = 0}, *all = context;
    struct specials specials = {.known = false};

    own.v.worst_index = -1;
    for (int r = 0; r < b->rows; r++) {
        if (b->begin[r] == b->end[r])
            judge_hidden_row(p, band_row_place(p, b, r), &own);
        else
            judge_row(p, b, r, &specials, &own);
    }
#ifdef _OPENMP
#pragma omp critical(quire_verdict_tally)
#endif
    {
        all->v.rows += own.v.rows;
        all->v.empty_rows += own.v.empty_rows;
        all->v.failures += own.v.failures;
        all->error_squares += own.error_squares;
        all->squares += own.squares;
        all->v.lse_error = fmax(all->v.lse_error, own.v.lse_error);
        if (own.v.worst_index >= 0 &&
            (own.v.worst_error > all->v.worst_error ||
             (own.v.worst_error == all->v.worst_error && own.v.worst_index < all->v.worst_index))) {
            all->v.worst_error = own.v.worst_error;
            all->v.worst_index = own.v.worst_index;
            all->v.worst_expected = own.v.worst_expected;
            all->v.worst_got = own.v.worst_got;
        }
    }
}

static double relative_bound(const struct problem *p)
{
    if (p->out_dtype == QUIRE_DTYPE_FP8E4M3)
        return 3.5e-2;
    if (p->dtype == QUIRE_DTYPE_FP8E4M3)
        return 2e-3;
    return p->out_dtype == QUIRE_DTYPE_BF16 ? 2.5e-3 : 4e-4;
}

quire_status reference_verify(const struct problem *p, quire_verdict *verdict)
{
    struct tally tally = {.error_squares = 0};
    quire_status status = reference_compute(p, judge_band, &tally);
    size_t size = verdict->struct_size;

    if (status != QUIRE_OK)
        return status;
    for (int64_t row = reference_first_unused_row(p); row < (int64_t)p->total_q * p->q_heads; row++)
        judge_hidden_row(p, row, &tally);
    tally.v.relative_error = tally.squares > 0 ? sqrt(tally.error_squares / tally.squares) : 0;
    tally.v.relative_bound = relative_bound(p);
    *verdict = tally.v;
    verdict->struct_size = size;
    return QUIRE_OK;
}

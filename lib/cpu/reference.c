/* reference.c - the same function in plain float64
 *
 * Shares no arithmetic with the decode: own conversions, the softmax over all scores at once, no chunks.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/reference.h"
#include "cpu/select.h"
#include "dtype.h"
#include "status.h"

/* ---- element types -------------------------------------------------------------------------------- */

const struct format reference_formats[] = {
    [QUIRE_DTYPE_FP16] = {10, 5, 15, 65504.0, 65520.0, 0x1p-14, false},
    [QUIRE_DTYPE_BF16] = {7, 8, 127, 0x1.fep127, 0x1.ffp127, 0x1p-126, false},
    [QUIRE_DTYPE_FP8E4M3] = {3, 4, 7, 448.0, 464.0, 0x1p-6, true},
};

double reference_element(quire_dtype dtype, const void *from, int64_t i)
{
    const struct format *f = &reference_formats[dtype];
    uint32_t u = dtype == QUIRE_DTYPE_FP8E4M3 ? ((const uint8_t *)from)[i] : ((const uint16_t *)from)[i];
    int top = (1 << f->exponent_bits) - 1, exponent = (int)(u >> f->mantissa_bits) & top;
    uint32_t ones = (1u << f->mantissa_bits) - 1, mantissa = u & ones;
    bool negative = u >> (f->mantissa_bits + f->exponent_bits) & 1;
    double value;

    if (exponent == top && (!f->saturates || mantissa == ones)) {
        value = mantissa == 0 ? (double)INFINITY : (double)NAN;
    } else if (exponent == 0) {
        value = mantissa * f->tiny / (1 << f->mantissa_bits);
    } else { /* assembled as a float64, which is faster than ldexp */
        uint64_t bits = (uint64_t)(exponent - f->bias + 1023) << 52 | (uint64_t)mantissa << (52 - f->mantissa_bits);

        memcpy(&value, &bits, sizeof value);
    }
    return negative ? -value : value;
}

/* To nearest even, once. */
static uint32_t element_code(quire_dtype dtype, double x)
{
    const struct format *f = &reference_formats[dtype];
    uint32_t ones = (1u << f->mantissa_bits) - 1, top = (1u << f->exponent_bits) - 1;
    uint32_t sign = signbit(x) ? 1u << (f->mantissa_bits + f->exponent_bits) : 0;
    double magnitude = fabs(x), steps;
    int exponent;

    if (isnan(x))
        return sign | top << f->mantissa_bits | (f->saturates ? ones : 1u << (f->mantissa_bits - 1));
    if (f->saturates && magnitude > f->max)
        magnitude = f->max;
    if (magnitude >= f->overflow)
        return sign | top << f->mantissa_bits;
    frexp(magnitude, &exponent); /* magnitude in [2^(exponent-1), 2^exponent) */
    if (magnitude < f->tiny)
        exponent = 2 - f->bias;
    steps = rint(ldexp(magnitude, f->mantissa_bits - (exponent - 1)));
    /* the implicit one of a normal number adds to the exponent field, as does a carry out of the mantissa */
    return sign | (((uint32_t)(exponent - 2 + f->bias) << f->mantissa_bits) + (uint32_t)steps);
}

static void store_element(quire_dtype dtype, void *to, int64_t i, double x)
{
    uint32_t code = element_code(dtype, x);

    if (dtype == QUIRE_DTYPE_FP8E4M3)
        ((uint8_t *)to)[i] = (uint8_t)code;
    else
        ((uint16_t *)to)[i] = (uint16_t)code;
}

/* ---- one band of rows ----------------------------------------------------------------------------- */

int64_t band_row_place(const struct problem *p, const struct band *b, int r)
{
    int32_t row = b->first_row + r;

    return (b->first_token + row / p->group) * p->q_heads + (int64_t)b->kv_head * p->group + row % p->group;
}

const void *band_key(const struct problem *p, const struct band *b, const void *cache, int64_t page_stride,
                           int32_t key)
{
    int64_t page = p->indices[p->indptr[b->request] + key / p->page_size];
    int64_t row = (int64_t)b->kv_head * p->page_size + key % p->page_size;

    return (const char *)cache + page * page_stride + row * p->head_dim * dtype_bytes(p->dtype);
}

void band_find_visible(const struct problem *p, struct band *b)
{
    b->key_begin = b->length;
    b->key_end = 0;
    for (int r = 0; r < b->rows; r++) {
        int64_t own = (int64_t)b->length - b->tokens + (b->first_row + r) / p->group;
        int64_t begin = 0, end = p->causal ? own + 1 : b->length;

        if (p->window_left >= 0 && own - p->window_left > 0)
            begin = own - p->window_left;
        if (end <= begin)
            begin = end = 0;
        b->begin[r] = (int32_t)begin;
        b->end[r] = (int32_t)end;
        if (begin < end && b->begin[r] < b->key_begin)
            b->key_begin = b->begin[r];
        if (begin < end && b->end[r] > b->key_end)
            b->key_end = b->end[r];
    }
}

static void compute_scores(const struct problem *p, struct band *b)
{
    for (int32_t key = b->key_begin; key < b->key_end; key++) {
        const void *k = band_key(p, b, p->k, p->k_page_stride, key);
        double *score = b->scores + (int64_t)(key - b->key_begin) * BAND;

        for (int r = 0; r < BAND; r++)
            score[r] = 0;
        for (int x = 0; x < p->head_dim; x++) {
            double value = reference_element(p->dtype, k, x);

            for (int r = 0; r < BAND; r++)
                score[r] += b->query[x][r] * value;
        }
        for (int r = 0; r < BAND; r++)
            score[r] *= p->bmm1_scale;
    }
}

/* Scores become probabilities, 0 where a row does not see the key. */
static void softmax(struct band *b)
{
    int32_t keys = b->key_end - b->key_begin;

    for (int r = 0; r < BAND; r++) {
        double max = -INFINITY, sum = 0;

        for (int32_t j = 0; j < keys; j++) {
            double *score = &b->scores[(int64_t)j * BAND + r];

            if (r < b->rows && band_sees(b, r, b->key_begin + j)) {
                if (*score > max)
                    max = *score;
            } else {
                *score = 0;
            }
        }
        if (r >= b->rows)
            continue;
        for (int32_t j = b->begin[r] - b->key_begin; j < b->end[r] - b->key_begin; j++) {
            double *score = &b->scores[(int64_t)j * BAND + r];

            *score = exp(max == -INFINITY ? *score : *score - max); /* nothing but -Inf: exp(-Inf) = 0, 0/0 = NaN */
            sum += *score;
        }
        b->lse[r] = max + log(sum);
        for (int32_t j = b->begin[r] - b->key_begin; j < b->end[r] - b->key_begin; j++)
            b->scores[(int64_t)j * BAND + r] /= sum;
    }
}

static void weigh_values(const struct problem *p, struct band *b)
{
    memset(b->out, 0, sizeof b->out);
    memset(b->spread, 0, sizeof b->spread);
    for (int32_t key = b->key_begin; key < b->key_end; key++) {
        const void *v = band_key(p, b, p->v, p->v_page_stride, key);
        const double *weight = b->scores + (int64_t)(key - b->key_begin) * BAND;

        for (int x = 0; x < p->head_dim; x++) {
            double value = reference_element(p->dtype, v, x), size = fabs(value);

            if (isfinite(value)) {
                for (int r = 0; r < BAND; r++) {
                    b->out[x][r] += weight[r] * value;
                    b->spread[x][r] += weight[r] * size;
                }
                continue;
            }
            for (int r = 0; r < b->rows; r++) {
                if (band_sees(b, r, key)) {
                    b->out[x][r] += weight[r] * value;
                    b->spread[x][r] += weight[r] * size;
                }
            }
        }
    }
    for (int x = 0; x < p->head_dim; x++) {
        for (int r = 0; r < BAND; r++) {
            b->out[x][r] *= p->bmm2_scale;
            b->spread[x][r] *= p->bmm2_scale;
        }
    }
    for (int r = 0; r < b->rows; r++) { /* rows that see no key */
        if (b->begin[r] == b->end[r]) {
            b->lse[r] = -INFINITY;
            for (int x = 0; x < p->head_dim; x++)
                b->out[x][r] = 0;
        }
    }
}

static void compute_band(const struct problem *p, struct band *b)
{
    band_find_visible(p, b);
    memset(b->query, 0, sizeof b->query);
    for (int r = 0; r < b->rows; r++)
        for (int x = 0; x < p->head_dim; x++)
            b->query[x][r] = reference_element(p->dtype, p->query, band_row_place(p, b, r) * p->head_dim + x);
    compute_scores(p, b);
    softmax(b);
    weigh_values(p, b);
}

/* ---- every band ----------------------------------------------------------------------------------- */

static void compute_head(const struct problem *p, struct band *b, band_taker *take, void *context)
{
    int32_t rows = b->tokens * p->group;

    for (b->first_row = 0; b->first_row < rows; b->first_row += BAND) {
        b->rows = rows - b->first_row < BAND ? rows - b->first_row : BAND;
        compute_band(p, b);
        take(p, b, context);
    }
}

quire_status reference_compute(const struct problem *p, band_taker *take, void *context)
{
    int64_t heads = (int64_t)p->batch * p->kv_heads;
    int32_t longest = 0;
    bool starved = false;

    for (int32_t request = 0; request < p->batch; request++)
        longest = p->seq_lens[request] > longest ? p->seq_lens[request] : longest;
#ifdef _OPENMP
#pragma omp parallel num_threads(select_threads())
#endif
    {
        struct band *b = malloc(sizeof *b);
        double *scores = malloc(((size_t)longest + 1) * BAND * sizeof *scores);

        if (b == NULL || scores == NULL) {
#ifdef _OPENMP
#pragma omp atomic write
#endif
            starved = true;
        }
#ifdef _OPENMP
#pragma omp barrier
#pragma omp for schedule(dynamic)
#endif
        for (int64_t head = 0; head < heads; head++) {
            if (starved)
                continue;
            b->scores = scores;
            b->request = (int32_t)(head / p->kv_heads);
            b->kv_head = (int32_t)(head % p->kv_heads);
            b->length = p->seq_lens[b->request];
            b->first_token = p->packed ? p->qo_indptr[b->request] : (int64_t)b->request * p->seq_len_q;
            b->tokens = p->packed ? p->qo_indptr[b->request + 1] - p->qo_indptr[b->request] : p->seq_len_q;
            compute_head(p, b, take, context);
        }
        free(scores);
        free(b);
    }
    if (starved)
        return quire_fail(QUIRE_ERROR_MEMORY, "reference: no host memory for the scores of %d keys", longest);
    return QUIRE_OK;
}

int64_t reference_first_unused_row(const struct problem *p)
{
    return (p->packed ? p->qo_indptr[p->batch] : p->total_q) * (int64_t)p->q_heads;
}

/* ---- the reference as a result -------------------------------------------------------------------- */

static void store_row(const struct problem *p, const struct reference_out *to, int64_t place, const double *out,
                      int64_t step, double lse)
{
    for (int x = 0; x < p->head_dim; x++) {
        int64_t i = place * p->head_dim + x;

        if (to->out_is_float64)
            ((double *)to->out)[i] = out[x * step];
        else
            store_element(p->out_dtype, to->out, i, out[x * step]);
    }
    if (to->lse != NULL && to->lse_is_float64)
        ((double *)to->lse)[place] = lse;
    else if (to->lse != NULL)
        ((float *)to->lse)[place] = (float)lse;
}

static void store_band(const struct problem *p, const struct band *b, void *context)
{
    for (int r = 0; r < b->rows; r++)
        store_row(p, context, band_row_place(p, b, r), &b->out[0][r], BAND, b->lse[r]);
}

quire_status reference_decode(const struct problem *p, const struct reference_out *to)
{
    static const double zero;
    struct reference_out copy = *to;
    quire_status status = reference_compute(p, store_band, &copy);

    for (int64_t row = reference_first_unused_row(p), end = (int64_t)p->total_q * p->q_heads;
         status == QUIRE_OK && row < end; row++)
        store_row(p, to, row, &zero, 0, -INFINITY);
    return status;
}

/* example.c - one decode step of three chats over a paged KV cache, on the CPU
 *
 *     cc example.c -o example $(pkg-config --cflags --libs quire) -lm && ./example
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <quire.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHATS = 3, HQ = 8, HKV = 2, D = 128, PAGE = 16, PAGES = 160 };

/* Where slot `slot` of page `page` has its K (kv = 0) or V (kv = 1) row of KV head `head`. */
#define ROW(page, kv, head, slot) ((((size_t)(page) * 2 + (kv)) * HKV + (head)) * PAGE + (slot)) * D

/* bf16 is the upper half of a float; rounding to nearest even. */
static uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float result;

    memcpy(&result, &bits, sizeof result);
    return result;
}

/* What a model would compute, here a few waves. */
static float wave(int chat, int token, int head, int dim)
{
    return 0.5f * sinf(0.37f * (float)token * (float)(1 + head) + 0.11f * (float)dim + (float)chat);
}

/* A compact tensor on the CPU; the shape lives with the caller. */
static DLTensor tensor(void *data, int code, int bits, int rank, int64_t *shape)
{
    DLTensor t;

    memset(&t, 0, sizeof t);
    t.data = data;
    t.device.device_type = QUIRE_DEVICE_CPU;
    t.ndim = rank;
    t.dtype.code = (uint8_t)code;
    t.dtype.bits = (uint8_t)bits;
    t.dtype.lanes = 1;
    t.shape = shape;
    return t;
}

static void *memory(size_t bytes)
{
    void *at = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (at == NULL) {
        fprintf(stderr, "example: out of memory\n");
        exit(1);
    }
    return memset(at, 0, (bytes + 63) / 64 * 64);
}

static void need(quire_status status)
{
    if (status != QUIRE_OK) {
        fprintf(stderr, "example: %s: %s\n", quire_status_name(status), quire_last_error());
        exit(1);
    }
}

int main(void)
{
    static const int32_t lengths[CHATS] = {37, 512, 1300};
    int32_t table[CHATS][PAGES]; /* the pages of each chat, in the order in which it got them */
    int32_t owned[CHATS] = {0}, indptr[CHATS + 1] = {0}, indices[PAGES], seq_lens[CHATS], free_pages = PAGES;
    uint16_t *kv = memory((size_t)PAGES * 2 * HKV * PAGE * D * sizeof *kv);
    uint16_t *query = memory(CHATS * HQ * D * sizeof *query), *out = memory(CHATS * HQ * D * sizeof *out);
    float *lse = memory(CHATS * HQ * sizeof *lse);

    /* The chats grow together, so each finds its pages scattered: a page is taken whenever one is full. */
    for (int token = 0; token < lengths[CHATS - 1]; token++)
        for (int chat = 0; chat < CHATS; chat++) {
            int32_t page;

            if (token >= lengths[chat])
                continue;
            if (token % PAGE == 0)
                table[chat][owned[chat]++] = --free_pages;
            page = table[chat][token / PAGE];
            for (int head = 0; head < HKV; head++)
                for (int dim = 0; dim < D; dim++) {
                    kv[ROW(page, 0, head, token % PAGE) + dim] = to_bf16(wave(chat, token, head, dim));
                    kv[ROW(page, 1, head, token % PAGE) + dim] = to_bf16(wave(chat, token, head, dim + 7));
                }
        }

    /* One new token a chat asks: Q[chat, head, dim]. */
    for (int chat = 0; chat < CHATS; chat++)
        for (int head = 0; head < HQ; head++)
            for (int dim = 0; dim < D; dim++)
                query[(chat * HQ + head) * D + dim] = to_bf16(2 * wave(chat, lengths[chat] - 1, head, dim));

    /* The page table as CSR: row `chat` of indices is indptr[chat] to indptr[chat + 1]. */
    for (int chat = 0; chat < CHATS; chat++) {
        memcpy(indices + indptr[chat], table[chat], (size_t)owned[chat] * sizeof *indices);
        indptr[chat + 1] = indptr[chat] + owned[chat];
        seq_lens[chat] = lengths[chat];
    }

    int64_t q_shape[] = {CHATS, HQ, D}, kv_shape[] = {PAGES, 2, HKV, PAGE, D}, lse_shape[] = {CHATS, HQ};
    int64_t indptr_shape[] = {CHATS + 1}, indices_shape[] = {indptr[CHATS]}, batch_shape[] = {CHATS}, workspace_shape[1];
    DLTensor q_tensor = tensor(query, QUIRE_CODE_BFLOAT, 16, 3, q_shape);
    DLTensor out_tensor = tensor(out, QUIRE_CODE_BFLOAT, 16, 3, q_shape);
    DLTensor kv_tensor = tensor(kv, QUIRE_CODE_BFLOAT, 16, 5, kv_shape);
    DLTensor lse_tensor = tensor(lse, QUIRE_CODE_FLOAT, 32, 2, lse_shape);
    DLTensor indptr_tensor = tensor(indptr, QUIRE_CODE_INT, 32, 1, indptr_shape);
    DLTensor indices_tensor = tensor(indices, QUIRE_CODE_INT, 32, 1, indices_shape);
    DLTensor seq_lens_tensor = tensor(seq_lens, QUIRE_CODE_INT, 32, 1, batch_shape);
    DLTensor workspace_tensor = tensor(NULL, QUIRE_CODE_UINT, 8, 1, workspace_shape);

    quire_decode_args args = QUIRE_DECODE_ARGS_INIT;
    args.query = &q_tensor;
    args.kv_cache = &kv_tensor;
    args.paged_kv_indptr = &indptr_tensor;
    args.paged_kv_indices = &indices_tensor;
    args.seq_lens = &seq_lens_tensor;
    args.out = &out_tensor;
    args.lse = &lse_tensor;
    args.max_seq_len = 2048;            /* no chat will be longer */
    args.mask_type = QUIRE_MASK_CAUSAL; /* the same as dense for one token */

    size_t bytes;
    need(quire_decode_workspace_size(&args, &bytes));
    workspace_shape[0] = (int64_t)bytes;
    workspace_tensor.data = memory(bytes); /* zeroed once, good for every later call that it is large enough for */
    args.workspace_buffer = &workspace_tensor;

    need(quire_decode(&args, NULL));
    for (int chat = 0; chat < CHATS; chat++)
        printf("chat %d: %4d tokens on %2d pages from page %3d, lse %.4f, out %+.4f %+.4f %+.4f ...\n", chat,
               (int)seq_lens[chat], (int)owned[chat], (int)table[chat][0], lse[chat * HQ],
               from_bf16(out[chat * HQ * D]), from_bf16(out[chat * HQ * D + 1]), from_bf16(out[chat * HQ * D + 2]));

    quire_verdict verdict = {0};
    verdict.struct_size = sizeof verdict;
    need(quire_decode_verify(&args, &verdict));
    printf("%d rows against float64: %d elements out of bounds, relative error %s\n", (int)verdict.rows,
           (int)verdict.failures, verdict.relative_error <= verdict.relative_bound ? "within its bound" : "too large");

    /* A mistake, told in words: chat 1 claims a token more than its pages hold. */
    seq_lens[1]++;
    if (quire_decode(&args, NULL) == QUIRE_ERROR_VALUE)
        printf("refused: %s\n", quire_last_error());

    free(workspace_tensor.data);
    free(lse);
    free(out);
    free(query);
    free(kv);
    return verdict.failures > 0;
}

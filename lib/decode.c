/* decode.c - the public entries: arguments through the contract, then to the backend of their device
 * SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "backend.h"
#include "contract.h"
#include "metadata.h"
#include "status.h"

/* ---- the two backends ---------------------------------------------------------------------------- */

struct backend {
    quire_status (*workspace_size)(const struct problem *p, size_t *bytes);
    quire_status (*prepare)(const struct problem *p);
    quire_status (*decode)(const struct problem *p, void *stream);
    quire_status (*check)(const struct problem *p, void *stream);
};

static quire_status check_on_cpu(const struct problem *p, void *stream)
{
    quire_status status = metadata_check_rows(p, p->indptr, p->seq_lens, p->qo_indptr);

    (void)stream;
    return status == QUIRE_OK ? metadata_check_pages(p, p->indptr, p->seq_lens, p->indices) : status;
}

static quire_status decode_on_cpu(const struct problem *p, void *stream)
{
    quire_status status = check_on_cpu(p, stream);

    return status == QUIRE_OK ? cpu_decode(p) : status;
}

#ifdef HAVE_CUDA
/* Copies the metadata to the host: first the rows, then as many page ids as sound rows own. */
static quire_status check_on_cuda(const struct problem *p, void *stream)
{
    int64_t rows = (int64_t)p->batch + 1;
    int32_t *host = malloc((size_t)rows * 3 * sizeof *host), *indptr = host, *indices = NULL;
    int32_t *qo_indptr = host + rows, *seq_lens = host + 2 * rows;
    quire_status status;

    if (host == NULL)
        return quire_fail(QUIRE_ERROR_MEMORY, "check: no host memory for the metadata of %d requests", p->batch);
    status = cuda_read_int32(p->device, stream, indptr, p->indptr, rows);
    if (status == QUIRE_OK && p->batch > 0)
        status = cuda_read_int32(p->device, stream, seq_lens, p->seq_lens, p->batch);
    if (status == QUIRE_OK && p->packed)
        status = cuda_read_int32(p->device, stream, qo_indptr, p->qo_indptr, rows);
    if (status == QUIRE_OK)
        status = metadata_check_rows(p, indptr, seq_lens, qo_indptr);
    if (status == QUIRE_OK && indptr[p->batch] > 0) {
        indices = malloc((size_t)indptr[p->batch] * sizeof *indices);
        if (indices == NULL)
            status = quire_fail(QUIRE_ERROR_MEMORY, "check: no host memory for %d page ids", indptr[p->batch]);
        if (status == QUIRE_OK)
            status = cuda_read_int32(p->device, stream, indices, p->indices, indptr[p->batch]);
        if (status == QUIRE_OK)
            status = metadata_check_pages(p, indptr, seq_lens, indices);
    }
    free(indices);
    free(host);
    return status;
}
#endif

/* contract_problem has refused every other device, and CUDA in a build without it. */
static const struct backend *backend_of(const struct problem *p)
{
    static const struct backend cpu = {cpu_workspace_size, cpu_prepare, decode_on_cpu, check_on_cpu};
#ifdef HAVE_CUDA
    static const struct backend cuda = {cuda_workspace_size, cuda_prepare, cuda_decode, check_on_cuda};

    if (p->device.device_type == QUIRE_DEVICE_CUDA)
        return &cuda;
#endif
    (void)p;
    return &cpu;
}

/* ---- entries -------------------------------------------------------------------------------------- */

quire_status quire_decode_workspace_size(const quire_decode_args *args, size_t *bytes)
{
    struct problem p;
    size_t need = 0;
    quire_status status = contract_problem(args, CONTRACT_WORKSPACE_SIZE, NULL, &p, NULL);

    if (status == QUIRE_OK && bytes == NULL)
        status = quire_fail(QUIRE_ERROR_TYPE, "bytes: expected where to store the size, got NULL");
    if (status == QUIRE_OK && p.batch > 0)
        status = backend_of(&p)->workspace_size(&p, &need);
    if (status == QUIRE_OK)
        *bytes = need;
    return status;
}

quire_status quire_decode_prepare(const quire_decode_args *args)
{
    struct problem p;
    quire_status status = contract_problem(args, CONTRACT_PREPARE, NULL, &p, NULL);

    return status == QUIRE_OK && p.batch > 0 ? backend_of(&p)->prepare(&p) : status;
}

quire_status quire_decode(const quire_decode_args *args, void *stream)
{
    struct problem p;
    size_t need;
    quire_status status = contract_problem(args, CONTRACT_DECODE, stream, &p, NULL);

    if (status != QUIRE_OK || contract_empty(&p))
        return status;
    status = backend_of(&p)->workspace_size(&p, &need);
    if (status == QUIRE_OK)
        status = contract_workspace(&p, need);
    return status == QUIRE_OK ? backend_of(&p)->decode(&p, stream) : status;
}

quire_status quire_decode_check(const quire_decode_args *args, void *stream)
{
    struct problem p;
    quire_status status = contract_problem(args, CONTRACT_CHECK, stream, &p, NULL);

    return status == QUIRE_OK ? backend_of(&p)->check(&p, stream) : status;
}

quire_status quire_decode_reference(const quire_decode_args *args)
{
    struct problem p;
    struct reference_out to;
    quire_status status = contract_problem(args, CONTRACT_REFERENCE, NULL, &p, &to);

    if (status != QUIRE_OK || contract_empty(&p))
        return status;
    status = check_on_cpu(&p, NULL);
    return status == QUIRE_OK ? reference_decode(&p, &to) : status;
}

quire_status quire_decode_verify(const quire_decode_args *args, quire_verdict *verdict)
{
    enum { VERSION_1 = offsetof(quire_verdict, relative_bound) + sizeof(double) };
    struct problem p;
    quire_verdict result;
    quire_status status = contract_problem(args, CONTRACT_VERIFY, NULL, &p, NULL);

    if (status == QUIRE_OK && verdict == NULL)
        status = quire_fail(QUIRE_ERROR_TYPE, "verdict: expected a quire_verdict, got NULL");
    if (status == QUIRE_OK)
        status = args_struct_size("quire_verdict", verdict->struct_size, VERSION_1, sizeof *verdict);
    if (status == QUIRE_OK && !contract_empty(&p))
        status = check_on_cpu(&p, NULL);
    if (status != QUIRE_OK)
        return status;
    memset(&result, 0, sizeof result);
    status = reference_verify(&p, &result);
    if (status == QUIRE_OK)
        args_fill(verdict, &result, sizeof result);
    return status;
}

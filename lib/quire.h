/* quire.h - batch decode attention over a paged KV cache
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The only header a program needs.  For request b, query token i of its q tokens, query head h
 * (KV head h / (Hq/Hkv)) and n = seq_lens[b]:
 *
 *     S[j]       = bmm1_scale * dot(Q[b,i,h], K[b,j])              j over the visible keys
 *     O[b,i,h]   = bmm2_scale * sum_j softmax(S)[j] * V[b,j]
 *     LSE[b,i,h] = ln sum_j exp(S[j])
 *
 * K/V row j of request b is slot j % page_size of page
 * paged_kv_indices[paged_kv_indptr[b] + j / page_size].  Visible: dense 0 <= j < n; causal
 * 0 <= j <= n - q + i; with window_left = w >= 0 also j >= n - q + i - w.
 *
 * Memory belongs to the caller: no function keeps a pointer to an argument after it returns, except
 * that work launched on a stream reads and writes the tensors' memory until that work is done.
 * Every function may be called from any thread at any time; two decodes in flight at once need two
 * workspaces.  quire(3) tells the same with examples.
 *
 * Under QUIRE_CDEF this file is what LuaJIT's ffi.cdef reads: no directive is left after cpp -P.
 */
#ifndef QUIRE_H
#define QUIRE_H

#ifndef QUIRE_CDEF
#include <float.h>
#include <stddef.h>
#include <stdint.h>

#if defined __GNUC__
#define QUIRE_API __attribute__((visibility("default")))
#else
#define QUIRE_API
#endif

#define QUIRE_VERSION_MAJOR 0
#define QUIRE_VERSION_MINOR 1
#define QUIRE_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif
#else
#define QUIRE_API
#endif /* QUIRE_CDEF */

/* ---- DLPack -------------------------------------------------------------------------------------
 *
 * Tensors are DLPack's DLTensor, so that any framework's tensor can be handed over as it is.  The
 * three structs are declared here under dlpack.h's own guard; a program that needs more of DLPack
 * includes dlpack.h first.  Strides and shape count elements; strides may be NULL for a compact
 * row-major tensor; the first element is at data + byte_offset.
 */
#ifndef DLPACK_DLPACK_H_
#ifndef QUIRE_CDEF
#define DLPACK_DLPACK_H_
#endif

typedef int32_t DLDeviceType;

typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;

typedef struct {
    uint8_t code;   /* enum quire_type_code */
    uint8_t bits;   /* of one element */
    uint16_t lanes; /* 1 */
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} DLTensor;
#endif

/* DLDevice.device_type, equal in value to DLPack's */
enum quire_device_type {
    QUIRE_DEVICE_CPU = 1,
    QUIRE_DEVICE_CUDA = 2
};

/* DLDataType.code, equal in value to DLPack 1.1's */
enum quire_type_code {
    QUIRE_CODE_INT = 0,      /* int32 metadata; int8 workspace */
    QUIRE_CODE_UINT = 1,     /* uint8 workspace */
    QUIRE_CODE_FLOAT = 2,    /* 16 bits: fp16; 32: lse; 64: the reference's out and lse */
    QUIRE_CODE_BFLOAT = 4,   /* 16 bits: bf16 */
    QUIRE_CODE_FP8E4M3 = 10  /* 8 bits: e4m3fn, no Inf, NaN is 0x7F and 0xFF */
};

/* ---- status ----------------------------------------------------------------------------------- */

typedef enum quire_status {
    QUIRE_OK = 0,
    /* An argument is of the wrong kind: NULL where a tensor is required, rank, dtype, device. */
    QUIRE_ERROR_TYPE = -1,
    /* A value, shape, stride, alignment or size that can never be right. */
    QUIRE_ERROR_VALUE = -2,
    /* Right in itself, but not offered by this version, build or GPU. */
    QUIRE_ERROR_UNSUPPORTED = -3,
    /* No driver, no such device, or a driver error; the message has the driver's own words. */
    QUIRE_ERROR_DEVICE = -4,
    /* Host memory is exhausted. */
    QUIRE_ERROR_MEMORY = -5
} quire_status;

/* "QUIRE_OK", "QUIRE_ERROR_TYPE", ...; "unknown status" for any other number.  Never NULL. */
QUIRE_API const char *quire_status_name(quire_status status);

/* What the last failed call of this thread had to say: the argument, what was expected and what
 * came.  Valid until the thread's next failed call; "" before the first.  A call that succeeds
 * leaves it as it is. */
QUIRE_API const char *quire_last_error(void);

/* ---- decode ----------------------------------------------------------------------------------- */

typedef enum quire_dtype {
    QUIRE_DTYPE_DEFAULT = 0, /* out's dtype if out is given, else query's */
    QUIRE_DTYPE_FP16 = 1,
    QUIRE_DTYPE_BF16 = 2,
    QUIRE_DTYPE_FP8E4M3 = 3
} quire_dtype;

typedef enum quire_mask {
    QUIRE_MASK_DENSE = 0,
    QUIRE_MASK_CAUSAL = 1 /* aligned to the bottom right: the last query token sees every key */
} quire_mask;

typedef enum quire_layout {
    QUIRE_LAYOUT_HND = 0, /* [page, head, slot, dim] */
    QUIRE_LAYOUT_NHD = 1  /* [page, slot, head, dim]: QUIRE_ERROR_UNSUPPORTED */
} quire_layout;

/* The arguments of one decode.  Start from QUIRE_DECODE_ARGS_INIT and set what you care about.
 * B: requests.  Hq, Hkv: query and KV heads, 1 <= Hq/Hkv <= 32.  D: head_dim, 64, 128 or 256.
 * page_size: 16, 32, 64 or 128.  All tensors live on one device, which decides where the call runs. */
typedef struct quire_decode_args {
    size_t struct_size;                /* sizeof(quire_decode_args) of the caller's header */
    const DLTensor *query;             /* [B,Hq,D] if seq_len_q = 1, [B,seq_len_q,Hq,D] if more;
                                          packed: [total_q,Hq,D].  fp16, bf16 or fp8; compact,
                                          16-byte aligned */
    const DLTensor *kv_cache;          /* [pages,2,Hkv,page_size,D], query's dtype, 16-byte aligned;
                                          the page stride may be padded (multiple of 16 bytes).
                                          Or NULL, and both of the next two */
    const DLTensor *k_cache;           /* [pages,Hkv,page_size,D], strides as above */
    const DLTensor *v_cache;           /* likewise; its page stride may differ from K's */
    const DLTensor *workspace_buffer;  /* int8 or uint8, 32-byte aligned, zeroed once before its
                                          first use; one launch in flight or one captured graph */
    const DLTensor *paged_kv_indptr;   /* int32 [B+1]: [0] = 0, non-decreasing */
    const DLTensor *paged_kv_indices;  /* int32 [n]: page ids in [0, pages) */
    const DLTensor *seq_lens;          /* int32 [B]: 0 to max_seq_len, within the row's pages */
    const DLTensor *qo_indptr;         /* int32 [B+1], or NULL; packs Q: request b owns rows
                                          qo_indptr[b] to qo_indptr[b+1] of query and out */
    const DLTensor *out;               /* query's shape.  fp16 from fp16, bf16 from bf16, fp16 or
                                          fp8 from fp8; compact, 16-byte aligned */
    const DLTensor *lse;               /* float32, query's shape without D, or NULL */
    int64_t max_seq_len;               /* bound on seq_lens, 1 to 2147483520; required */
    int64_t seq_len_q;                 /* query tokens per request; default 1.  With qo_indptr 1, or
                                          equal to max_seq_len_q */
    int64_t max_seq_len_q;             /* with qo_indptr: bound on a request's query tokens,
                                          required.  Else 0 (unset), or equal to seq_len_q */
    int64_t window_left;               /* -1: off.  w >= 0: a token sees itself and w keys before
                                          it; causal only */
    double bmm1_scale;                 /* QUIRE_SCALE_DEFAULT: 1/sqrt(D) */
    double bmm2_scale;                 /* QUIRE_SCALE_DEFAULT: 1 */
    quire_dtype out_dtype;             /* if given beside out, it agrees with out's */
    quire_mask mask_type;              /* default dense */
    quire_layout kv_layout;            /* default HND */
    uint32_t metadata_stable;          /* 1 is a promise: no work still unfinished on the stream when
                                          the launch is issued writes seq_lens, the indptrs or the
                                          indices (it may write Q, K, V).  Lets the launch overlap
                                          the end of the work before it; same results */
} quire_decode_args;

#ifndef QUIRE_CDEF
#define QUIRE_SCALE_DEFAULT DBL_MAX
#ifdef __cplusplus
#define QUIRE_DECODE_ARGS_INIT                                                                     \
    { sizeof(quire_decode_args), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, -1,                     \
      QUIRE_SCALE_DEFAULT, QUIRE_SCALE_DEFAULT, QUIRE_DTYPE_DEFAULT, QUIRE_MASK_DENSE,             \
      QUIRE_LAYOUT_HND, 0 }
#else
#define QUIRE_DECODE_ARGS_INIT                                                                     \
    { .struct_size = sizeof(quire_decode_args), .seq_len_q = 1, .window_left = -1,                 \
      .bmm1_scale = QUIRE_SCALE_DEFAULT, .bmm2_scale = QUIRE_SCALE_DEFAULT }
#endif
#endif

/* Writes QUIRE_DECODE_ARGS_INIT's values, for languages without the macro.  Does nothing with NULL. */
QUIRE_API void quire_decode_args_init(quire_decode_args *args);

/* Stores in *bytes what workspace_buffer must hold for these arguments.  Reads shapes, dtypes and
 * devices only: data pointers may be NULL; workspace_buffer, out and lse may be absent.  A workspace
 * zeroed once serves every later call it is large enough for.  0 permits a NULL workspace.
 * TYPE, VALUE, UNSUPPORTED, DEVICE, MEMORY; *bytes is untouched on failure. */
QUIRE_API quire_status quire_decode_workspace_size(const quire_decode_args *args, size_t *bytes);

/* Loads all that a decode with these shapes, dtypes and device needs, so that the decode itself
 * allocates nothing and can be captured in a CUDA graph.  Reads what workspace_size reads.
 * TYPE, VALUE, UNSUPPORTED, DEVICE, MEMORY. */
QUIRE_API quire_status quire_decode_prepare(const quire_decode_args *args);

/* Decodes.  On CUDA it launches on `stream` (a CUstream or cudaStream_t of the tensors' device, NULL for
 * its default stream) and returns: nothing is synchronised, allocated, copied or set.  Live metadata is
 * trusted there but never followed out of bounds: lengths are clamped to the row's pages and to max_seq_len,
 * a page id outside the cache reads as zeros.  On the CPU `stream` is NULL, the metadata is checked first (VALUE)
 * and the result is complete on return; OpenMP decides the number of threads, which changes no bit.
 * Query rows that see no key get O = +0 and LSE = -inf.
 * TYPE, VALUE, UNSUPPORTED, DEVICE, MEMORY; on failure nothing was launched or written. */
QUIRE_API quire_status quire_decode(const quire_decode_args *args, void *stream);

/* Checks the live metadata, and names the first rule that it breaks with its request and values.
 * On CUDA it copies the metadata to the host in stream order and waits for it.
 * TYPE, VALUE, UNSUPPORTED, DEVICE, MEMORY. */
QUIRE_API quire_status quire_decode_check(const quire_decode_args *args, void *stream);

/* The same function in plain float64, for comparison; CPU tensors only, workspace_buffer is not
 * needed.  Besides the dtypes that decode takes, out and lse may be float64: nothing is rounded then.
 * TYPE, VALUE, UNSUPPORTED, MEMORY. */
QUIRE_API quire_status quire_decode_reference(const quire_decode_args *args);

/* How a result compares with the float64 reference. */
typedef struct quire_verdict {
    size_t struct_size;        /* sizeof(quire_verdict), set by the caller */
    int64_t rows;              /* query rows (token and head) compared */
    int64_t empty_rows;        /* of these, rows that see no key */
    int64_t failures;          /* elements of out and lse outside their bound */
    int64_t worst_index;       /* flat index in out of the element with the largest error/bound */
    double worst_error;        /* largest |out - r| / bound of one element: right if <= 1 */
    double worst_expected;     /* r at worst_index */
    double worst_got;          /* out at worst_index */
    double lse_error;          /* largest |lse - r| / bound; 0 without lse */
    double relative_error;     /* ||out - r|| / ||r|| over all elements; 0 if r is zero */
    double relative_bound;     /* what relative_error should keep to on random data */
} quire_verdict;

/* Compares args->out, and lse if given, as a decode left them, with the reference:
 * |out - r| <= u_out*|r| + u_P * bmm2_scale * sum_j p_j |v_j| + tiny for each element (u_out: 2^-8
 * bf16, 2^-11 fp16, 2^-4 fp8; u_P: 2^-7 bf16, else 2^-10; tiny: the output type's smallest normal
 * times u_out), and |lse - r| <= 2e-5 + 1e-6*|r|.  Rows that see no key must be exactly +0 and -inf.
 * CPU tensors only; workspace_buffer is not needed.  QUIRE_OK means that the comparison was made;
 * verdict->failures says how it went.  TYPE, VALUE, UNSUPPORTED, MEMORY. */
QUIRE_API quire_status quire_decode_verify(const quire_decode_args *args, quire_verdict *verdict);

/* ---- what this build and this machine offer ----------------------------------------------------- */

/* "0.1.0", the version of the library that runs; compare with the QUIRE_VERSION_ macros. */
QUIRE_API const char *quire_version(void);

/* How the library was built: "key=value" lines (compiler, openmp, cuda, cuda_arch). */
QUIRE_API const char *quire_build_config(void);

typedef struct quire_device_info {
    size_t struct_size;        /* sizeof(quire_device_info), set by the caller */
    int64_t memory_bytes;      /* of the device */
    int64_t cache_bytes;       /* last-level cache; 0 if unknown */
    int32_t compute_units;     /* SMs, or the threads a CPU decode would use */
    int32_t capability;        /* CUDA compute capability: 90 for 9.0; 0 on the CPU */
    char name[128];
    char kernels[64];          /* what a decode would run there: "avx512bf16", "sm_90a"; "" if none */
    char problem[256];         /* why no decode can run there, "" if it can */
} quire_device_info;

/* Stores the number of devices of a type (enum quire_device_type).  A machine without CUDA driver,
 * and a build without CUDA, have 0 CUDA devices: that is no error.  TYPE, DEVICE. */
QUIRE_API quire_status quire_device_count(int32_t device_type, int32_t *count);

/* Describes one device.  TYPE, VALUE (no such struct_size), DEVICE (no such device). */
QUIRE_API quire_status quire_device_describe(int32_t device_type, int32_t device_id,
                                             quire_device_info *info);

/* Reads blocks[order[0]], blocks[order[1]], ... once each with all that the device has, and does
 * nothing with them: what a decode's speed is to be compared with, as a decode reads a cache's pages in
 * the same way.  blocks: [n, ...] of any dtype, compact within a block; base, blocks and the stride from
 * one to the next are multiples of 16 bytes.  order: int32 [m], each in [0, n).  On CUDA it launches on
 * `stream` and returns; on the CPU `stream` is NULL.  TYPE, VALUE, UNSUPPORTED, DEVICE. */
QUIRE_API quire_status quire_measure_read(const DLTensor *blocks, const DLTensor *order, void *stream);

#ifndef QUIRE_CDEF
#ifdef __cplusplus
}
#endif
#endif

#endif /* QUIRE_H */

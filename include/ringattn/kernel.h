/*
 * Computing attention over tile maps: one const table of operations per backend and instruction
 * set, chosen once.
 *
 * A forward pass is a sequence of steps, one per block of keys, that carry an online softmax in
 * float32; the last one writes the output in its dtype. A pass of one step has no state. A backward
 * pass is a sequence of steps that add into float32 gradients; ra_kernel_ops.store rounds them
 * once, at the end. A step that alone adds to gradients may store them in their dtype
 * (ra_stored_grads). Only the map decides what attends to what; kernels read rows where they lie,
 * at any stride (the table that materialises on GPUs: of dim to 2^31 - 1 elements, else it returns
 * RA_ERR_UNSUPPORTED).
 *
 * Numbers: scores s = scale * q.k; lse natural log; a row without a key gives out = 0,
 * lse = -INFINITY and no gradient. Sums run within a tile first, then across tiles. Each kernel
 * scales where that costs least, and some compute in base 2: within float32's normal range must be
 * q.k, f q.k, f q and f itself, where f = 1.45 * scale, and gradients before the scale (sums of
 * ds k and of ds q). Beyond it results are NaN or infinite, below it they lose digits.
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_KERNEL_H
#define RINGATTN_KERNEL_H

#include "ringattn/tilemap.h"
#include "ringattn/timeline.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ra_dtype { RA_F32, RA_F16, RA_BF16 } ra_dtype;

/** 4, 2, 2. */
size_t ra_dtype_bytes(ra_dtype dtype);
/** Whether batch * rows * heads * dim (each at least 1) is below 2^57: bytes of tensors of more are
    not counted. */
static inline bool ra_elements_fit(int64_t batch, int64_t rows, int32_t heads, int32_t dim)
{
    return dim <= INT64_MAX / 64 / batch / rows / heads;
}
/** "f32", "f16", "bf16". */
const char *ra_dtype_name(ra_dtype dtype);
/** Exact value of element `index`, and nearest-even rounding (overflow gives infinity). */
float ra_dtype_load(ra_dtype dtype, const void *data, int64_t index);
void ra_dtype_store(ra_dtype dtype, void *data, int64_t index, float value);

/* A [batch][row][head][dim] view; strides in elements, dim contiguous. Memory of the backend. */
typedef struct ra_view {
    void *data;
    ra_dtype dtype;
    int64_t batch_stride, row_stride, head_stride;
} ra_view;

/** A view of heads [head_begin, …) of a dense [batch][rows][heads][dim] tensor. */
ra_view ra_view_dense(void *data, ra_dtype dtype, int64_t rows, int64_t heads, int64_t dim,
                      int64_t head_begin);

enum { RA_HEAD_DIM_MAX = 256 };

/* Heads of one step: query heads [q_head_begin, q_head_begin + q_heads) of the job, in views and
   buffers numbered from 0. Query head h reads kv head h / (q_heads / kv_heads). */
typedef struct ra_kernel_shape {
    int64_t batch;
    int32_t q_heads, kv_heads, q_head_begin;
    int32_t dim; /* 1 to RA_HEAD_DIM_MAX */
    float scale;
} ra_kernel_shape;

/*
 * Online softmax carried over steps, per row: sum of exp(s - top) v, the running max `top`, and the
 * sum of exp(s - top). A kernel may let `top` lag behind the true max by a bound of its own, and
 * rescale less often. All float32, [batch][q_heads][rows]([dim]). The base of the exponentials
 * is the kernel's own affair; only the same kernel reads it back.
 *
 * With `chunks`, only chunks of queries that several steps compute have rows in the state. A
 * chunk's first step starts them, and its last writes the output, whatever the steps of other
 * chunks.
 */
typedef struct ra_softmax_state {
    float *acc;
    float *top;
    float *sum;
    int64_t rows;                 /* per head: q_rows of the map, or, with chunks, those carried */
    const ra_chunk_steps *chunks; /* [chunk_count], memory of the backend, if the table's
                                     takes_chunk_steps; NULL: all rows are carried */
} ra_softmax_state;

/* A pass over all head groups, for tables that keep something from forward to backward. */
typedef struct ra_kernel_pass {
    bool backward;                /* a backward pass */
    bool keeps;                   /* forward: a backward pass over the same steps follows */
    int32_t groups, steps, parts; /* counts: bounds of the numbers in ra_kernel_pair */
    uint64_t owner; /* whose pass it is: a number that ra_kernel.owners has counted; 0: the caller
                       of the kernel sees to it that passes belong together */
} ra_kernel_pass;

/* Which block of the score matrix a call computes: the rank's queries of a head group against the
   keys held in a ring step. It has the same numbers in the forward and in the backward pass. */
typedef struct ra_kernel_pair {
    int32_t group, step; /* head group and ring step, from 0 */
    int32_t part;        /* backward: the step's keys may come in parts; from 0 */
    int64_t first_key;   /* of this part, within the keys of the forward step */
} ra_kernel_pair;

typedef struct ra_forward_step {
    const ra_tilemap *map;
    ra_kernel_shape shape;
    ra_kernel_pair pair;      /* its group and step */
    ra_view q, k, v;          /* q: the map's query rows; k, v: its key rows */
    ra_view out;              /* a row's last step writes it */
    float *lse;               /* [batch][.][q_rows] from this group's first head, or NULL; as out */
    int64_t lse_batch_stride; /* elements from batch to batch; a head is q_rows elements */
    ra_view dout;             /* read where out is written if delta is wanted */
    float *delta; /* laid out as lse, or NULL; written as out: sum over dim of out * dout, with out
                     before it is rounded (else 16-bit gradients suffer) */
    ra_softmax_state state; /* all zero if first && last */
    bool first;     /* without state.chunks: the state is not read but started, for all rows */
    bool last;      /* likewise: every row's output is written, and the state is dead afterwards */
    bool ends_only; /* compute only the first and last chunk of each head, to try out memory; other
                       rows of results and state are not written */
    bool yields;    /* an exchange is in flight, whose kernels need room on a GPU: a thread block
                       exits after one task instead of when all are done, unless it has scratch.
                       Results do not depend on it; CPU tables poll, and ignore it */
} ra_forward_step;

typedef struct ra_backward_step {
    const ra_tilemap *map;
    ra_kernel_shape shape;
    ra_kernel_pair pair;
    ra_view q, k, v, dout;
    const float *lse; /* as in ra_forward_step: of all keys, not this step's */
    int64_t lse_batch_stride;
    const float *delta; /* laid out as lse; from the forward pass, or ra_kernel_ops.delta */
    ra_view dq;         /* query rows: float32, added to; or stored in 16 bits (ra_kernel.stores),
                           but for rows without a live pair: these must be zero before */
    ra_view dk, dv;     /* key rows, likewise */
    bool ends_only;     /* as in ra_forward_step: queries of the first and last chunk only */
    bool yields;        /* as in ra_forward_step */
} ra_backward_step;

typedef enum ra_linear_kind {
    RA_LINEAR_NONE, /* softmax attention */
    RA_LINEAR_BIDIRECTIONAL,
    RA_LINEAR_CAUSAL
} ra_linear_kind;

/* How the causal kind is computed; the same results within rounding. */
typedef enum ra_linear_method {
    RA_LINEAR_CHUNKED,   /* a state per chunk, products of matrices within it */
    RA_LINEAR_RECURRENT, /* row by row, one state at hand; forward only */
    RA_LINEAR_CUMSUM     /* the state of every row is stored, then read: what a plain cumsum over
                            outer products does; forward only */
} ra_linear_method;

/* What a job will use of a kernel. */
typedef struct ra_kernel_use {
    ra_dtype dtype;
    int32_t dim; /* 1 to RA_HEAD_DIM_MAX */
    bool backward;
    bool deterministic;      /* as in ra_kernel */
    bool shares_rows;        /* maps may have shared_rows: see ra_pattern_shares_rows */
    bool shares_keys;        /* as ra_pattern_shares_keys says */
    bool long_rows;          /* as ra_pattern_has_long_rows says */
    bool dilated;            /* rows of a tile may lie apart; only ra_kernel_check looks at it */
    int threads;             /* at least 1; as in ra_kernel */
    ra_linear_kind linear;   /* see linear.h; RA_LINEAR_NONE: softmax attention */
    ra_linear_method method; /* of the causal kind */
    int64_t timeout_ms;      /* as in ra_kernel; 0: RA_KERNEL_TIMEOUT_MS */
} ra_kernel_use;

/* Which 16-bit gradients a backward step may store in their dtype, if no other step adds to the
   same rows. The caller chooses by the views' dtype: that one, or float32. */
typedef struct ra_stored_grads {
    bool dq;
    bool dkv; /* dk and dv */
} ra_stored_grads;

typedef struct ra_kernel ra_kernel;
typedef struct ra_linear_ops ra_linear_ops; /* see linear.h */

typedef struct ra_kernel_ops {
    const char *name;          /* "cpu-avx2" */
    ra_memory (*memory)(void); /* where views must lie */
    /** Whether the device in use can serve the job; if not, why_not says why. NULL: it can. */
    bool (*serves)(const ra_kernel_use *use, char *why_not, size_t bytes);
    /** Whether GPUs of this compute capability run the table's code; pure. NULL: any that runs that
        of ra_kernel_cuda, or the table is the CPU's. */
    bool (*runs_on)(int32_t major, int32_t minor);
    /** Whether the table computes such a job in a way of its own, and not as ra_kernel_cuda does;
        pure. NULL: it does. */
    bool (*differs)(const ra_kernel_use *use);
    /** Queries per tile that suit this kernel; pure. */
    int32_t (*tile_rows)(ra_dtype dtype, int32_t dim);
    /** Backward steps go by keys: their maps must have an index (ra_map_request.by_keys). */
    bool maps_by_keys;
    /** Forward steps may have state.chunks. */
    bool takes_chunk_steps;
    /** What ra_kernel.stores will be; shares_rows and shares_keys must hold for all maps. Pure.
        NULL: nothing. */
    ra_stored_grads (*stores_grads)(const ra_kernel_use *use);
    /** Scratch for both passes, all threads together; does not depend on rows; pure. */
    size_t (*workspace_bytes)(const ra_kernel_use *use);
    /** What a forward step of so many query and key rows takes of the kernel's pool, and gives back
        if no backward pass follows; at most 2^60. NULL: nothing. */
    size_t (*step_bytes)(const ra_kernel *kernel, const ra_kernel_shape *shape, int64_t queries,
                         int64_t keys);
    /**
     * One step of the forward pass: done when it returns on a CPU, enqueued on a GPU.
     * @return RA_ERR_INVALID      views or workspace do not fit the step
     *         RA_ERR_UNSUPPORTED  a head_dim, scale, stride or size that this table does not take
     *         RA_ERR_NO_MEMORY    for a map that was not taken; scores of `standard`
     *         RA_ERR_CUDA; in any case one line was logged
     */
    ra_status (*forward)(ra_kernel *kernel, const ra_forward_step *step);
    /** delta[b][h][i] = sum over dim of out * dout, both [.][q_rows], from a rounded out. */
    ra_status (*delta)(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t q_rows,
                       const ra_view *out, const ra_view *dout, float *delta_out);
    /** One step of the backward pass. Errors as of forward. */
    ra_status (*backward)(ra_kernel *kernel, const ra_backward_step *step);
    /** Copy the rows that `rows` lists (local numbers of `from`), packed in its order, to `to`. */
    ra_status (*gather)(ra_kernel *kernel, const ra_kernel_shape *shape, const ra_rowset *rows,
                        const ra_view *from, const ra_view *to);
    /** Add packed float32 rows to the rows that `rows` lists (local numbers of `to`). */
    ra_status (*add)(ra_kernel *kernel, const ra_kernel_shape *shape, const ra_rowset *rows,
                     const ra_view *from, const ra_view *to);
    /** Round `count` rows of float32 `from` into `to` of any dtype. */
    ra_status (*store)(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t count,
                       const ra_view *from, const ra_view *to);
    ra_status (*zero)(ra_kernel *kernel, void *data, size_t bytes);
    const ra_linear_ops *linear; /* linear attention; NULL: this backend has none */
    /** Called around a pass; NULL: nothing is to be done. See ra_kernel_begin, ra_kernel_end. */
    ra_status (*begin)(ra_kernel *kernel, const ra_kernel_pass *pass);
    void (*end)(ra_kernel *kernel, const ra_kernel_pass *pass, bool failed);
    /*
     * What only devices need; each is NULL if nothing is to be done, as on a CPU. `init` is called
     * before the workspace is taken, may set stream, threads and self, and logs failures; `fini` is
     * called when all else is given back.
     */
    ra_status (*init)(ra_kernel *kernel);
    void (*fini)(ra_kernel *kernel);
    ra_status (*take_map)(ra_kernel *kernel, const ra_tilemap *map); /* See ra_kernel_take_map, */
    void (*drop_map)(ra_kernel *kernel, const ra_tilemap *map);
    ra_status (*finish)(ra_kernel *kernel); /* and ra_kernel_finish, */
    ra_status (*watch)(ra_kernel *kernel);  /* and ra_kernel_watch. */
    /* A timeline of `capacity` GPU intervals on the kernel's stream and others of its device; NULL
       if there can be none, which one warning says. The entry is NULL on a CPU, whose calls return
       when they are done: the host's clock suffices. */
    ra_timeline *(*timeline)(ra_kernel *kernel, int32_t capacity);
} ra_kernel_ops;
/* gather, add and store move shape->kv_heads heads; shape->q_heads plays no part. They, delta and
   zero fail on a GPU only, with RA_ERR_CUDA, which was logged. */

enum { RA_KERNEL_TIMEOUT_MS = 60000 };

/** Called by one thread every few tiles, so that transfers progress while kernels run. */
typedef void ra_kernel_poll(void *context);

/* Data caches of a thread's core, as ra_topology_read finds them; 0: not known, then taken for less
   than 48 KiB, and for 1 MiB. */
typedef struct ra_caches {
    int64_t first_bytes, second_bytes;
} ra_caches;

/* What a kernel runs with: made once, used by one thread at a time. */
struct ra_kernel {
    const ra_kernel_ops *ops;
    int threads;       /* OpenMP threads (without OpenMP: 1); of a GPU: multiprocessors */
    ra_stream *stream; /* NULL on the CPU: work is done when a call returns */
    ra_pool *pool;     /* borrowed */
    ra_block workspace;
    ra_block kept;        /* a table's own, from one pass to the next; most have none */
    void *self;           /* a table's own, from init to fini; most have none */
    ra_caches caches;     /* which work is cut to fit, and where rows are asked for in advance.
                             The owner sets them; results do not depend on them */
    uint64_t owners;      /* rings made for this kernel so far, each of which has its number */
    int64_t timeout_ms;   /* a device without progress for so long counts as hung; at least 1; from
                             ra_kernel_use */
    bool deterministic;   /* backward passes of a GPU repeat bit for bit. In bfloat16 up to dim
                             128 that takes 7 products per pair of tiles instead of 5, else
                             nothing. A CPU's always repeat, for a given number of threads; from
                             ra_kernel_use */
    ra_kernel_poll *poll; /* NULL: none */
    void *poll_context;
    ra_stored_grads stores; /* as ops->stores_grads says of the use */
};

/* RA_ISA_AUTO is the fastest one that this machine can run: on a GPU SM90A where that can run and
   differs, else SM80. */
typedef enum ra_isa {
    RA_ISA_AUTO,
    RA_ISA_PORTABLE,
    RA_ISA_AVX2,
    RA_ISA_AVX512,
    RA_ISA_AVX512BF16,    /* bf16 by dot products of pairs; else as AVX512 */
    RA_ISA_AMX,           /* bf16 by products of tiles; else as AVX512 */
    RA_ISA_NEON,          /* 64-bit ARM, every one of which has it */
    RA_ISA_SM80,          /* GPUs: ra_kernel_cuda, */
    RA_ISA_SM90A,         /* ra_kernel_cuda_sm90a, */
    RA_ISA_SM90A_BACKWARD /* and ra_kernel_cuda_sm90a_backward */
} ra_isa;

static inline bool ra_isa_is_gpus(ra_isa isa)
{
    return isa == RA_ISA_SM80 || isa == RA_ISA_SM90A || isa == RA_ISA_SM90A_BACKWARD;
}

/** The CPU table for an instruction set; NULL if the build or the machine lacks it, or if it is one
    of GPUs. Where the processor has AMX, Linux is asked to keep its tiles for this process: the
    frames of signals become 8 KiB larger, which alternate stacks must have room for. */
const ra_kernel_ops *ra_kernel_cpu(ra_isa isa);

/**
 * The table for the GPU of ra_device_use; NULL if the build has no CUDA. Calls enqueue work on the
 * kernel's stream and return: ra_kernel_finish reports what fails on the device. `memory` gives {0}
 * if there is no GPU, and says why.
 */
const ra_kernel_ops *ra_kernel_cuda(void);

/**
 * The same for GPUs of compute capability 9.0 alone (`serves` says so of others): forward steps of
 * 16 bits with a head_dim of 33 to 64, or 97 to 128, are computed by warpgroups, whose tensor cores
 * read both operands of scores from shared memory (wgmma). With ra_kernel_use.long_rows such a step
 * may divide the keys of a few query rows among thread blocks, for which the workspace has room.
 * All else, and where rows of results lie, is as of ra_kernel_cuda. NULL if the build has no code
 * for sm_90a.
 */
const ra_kernel_ops *ra_kernel_cuda_sm90a(void);

/**
 * As ra_kernel_cuda_sm90a, and by warpgroups also backward steps that do all in one pass: in bf16
 * with these head_dims, unless they are to repeat bit for bit. It has never run on a GPU, so
 * RA_ISA_AUTO does not take it.
 */
const ra_kernel_ops *ra_kernel_cuda_sm90a_backward(void);

/**
 * @param use   a GPU's table puts its multiprocessors in place of the threads; the dtype decides
 *              nothing but kernel->stores. Calls that need more workspace than this use does return
 *              RA_ERR_INVALID
 * @param pool  of ops->memory(); workspace (category workspace) is taken here
 * @return RA_ERR_NO_MEMORY, RA_ERR_CUDA, RA_ERR_UNSUPPORTED; one line was logged
 */
RA_CHECKED ra_status ra_kernel_init(const ra_kernel_ops *ops, const ra_kernel_use *use,
                                    ra_pool *pool, ra_kernel *kernel_out);
void ra_kernel_fini(ra_kernel *kernel); /* a zeroed one is fine */

/**
 * Attention by the textbook formula: scores and weights materialised as float32 [batch][query
 * head][query row][key row] for each pair of shards (category scores), products by OpenBLAS. Masks
 * and multiplicities come from the tile map. NULL if OpenBLAS is not installed.
 *
 * If a backward pass follows, scores S and weights P of every pair, and later their gradients dP
 * and dS, stay until it is over, as autograd keeps them; otherwise a step gives its S and P back
 * when it is done. Steps take this memory when they run: any may return RA_ERR_NO_MEMORY. Elements
 * of 16 bits are converted to float32 block by block, in the workspace; so are rows copied that
 * OpenBLAS does not take where they lie.
 *
 * A kernel keeps the matrices of one forward pass, the last: if several rings use it, each makes
 * its backward pass before another one's forward pass, or that backward pass is refused.
 */
const ra_kernel_ops *ra_kernel_standard(void);

/**
 * The same on a GPU: products by cuBLAS, which is loaded when it is first asked for, and kernels as
 * ra_kernel_cuda has them for masks and softmax. Matrices are as large and stay as long; their list
 * is in host memory, in no ledger. Products of two tensors are exact except for float32 sums; in
 * 16-bit jobs, products of a matrix with a tensor read 10 bits of the matrix's fraction (TF32).
 * cuBLAS works in 32 MiB of the workspace; what it takes of the device when it begins is measured
 * and charged as `context`. A NaN or Inf in k or v reaches every query, and one in q or dout every
 * key, of its head and step, whatever the mask.
 *
 * Workspace and tile sizes are known without cuBLAS; ra_kernel_init returns RA_ERR_UNSUPPORTED if
 * there is none (ra_cublas_describe). NULL if the build has no kernels for GPUs, or was made
 * without cuBLAS's header.
 */
const ra_kernel_ops *ra_kernel_cuda_standard(void);

/**
 * Describe this machine's cuBLAS: its version, or why ra_kernel_cuda_standard cannot compute here.
 * It is loaded, not started. @return whether there is one
 */
bool ra_cublas_describe(char *text, size_t bytes);

/**
 * Call `begin` before the first step of a pass, and `end` after the last, even if a step or `begin`
 * has failed. Steps without them are a forward pass that keeps nothing.
 * @return RA_ERR_NO_MEMORY
 *         RA_ERR_INVALID    a backward pass, but what is kept is another owner's; it stays
 */
RA_CHECKED static inline ra_status ra_kernel_begin(ra_kernel *kernel, const ra_kernel_pass *pass)
{
    return kernel->ops->begin != NULL ? kernel->ops->begin(kernel, pass) : RA_OK;
}

static inline void ra_kernel_end(ra_kernel *kernel, const ra_kernel_pass *pass, bool failed)
{
    if (kernel->ops->end != NULL)
        kernel->ops->end(kernel, pass, failed);
}

/**
 * Bring a map to where kernels read it (category tilemap of the kernel's pool), until it is
 * dropped; it must not change meanwhile. A step whose map was not taken brings it for that step
 * only, which takes memory and waits for enqueued work. Dropping a map that was not taken is fine.
 * @return RA_ERR_NO_MEMORY, RA_ERR_CUDA
 */
RA_CHECKED static inline ra_status ra_kernel_take_map(ra_kernel *kernel, const ra_tilemap *map)
{
    return kernel->ops->take_map != NULL ? kernel->ops->take_map(kernel, map) : RA_OK;
}

static inline void ra_kernel_drop_map(ra_kernel *kernel, const ra_tilemap *map)
{
    if (kernel->ops->drop_map != NULL)
        kernel->ops->drop_map(kernel, map);
}

/**
 * What ra_softmax_state.chunks and .rows take, for the maps of all steps of a forward pass, in the
 * order of their numbers. If the table does not take steps of chunks, or the maps' chunks differ,
 * that is an empty block and all rows.
 * @param maps        [steps], steps >= 1
 * @param host_pool   of host memory, for scratch
 * @param chunks_out  ra_chunk_steps of every chunk, category tilemap; given back to kernel->pool;
 *                    empty on failure
 * @return RA_ERR_NO_MEMORY, RA_ERR_CUDA, RA_ERR_TIMEOUT
 */
RA_CHECKED ra_status ra_kernel_take_chunk_steps(ra_kernel *kernel, const ra_tilemap *const *maps,
                                                int32_t steps, ra_pool *host_pool,
                                                ra_block *chunks_out, int64_t *rows_out);

/**
 * Wait until all enqueued work is done, however long it takes while the device makes progress. What
 * fails on a device after a call has returned is reported here. kernel->poll is called meanwhile.
 * @return RA_ERR_CUDA     one line was logged; results are undefined
 *         RA_ERR_TIMEOUT  likewise; the device hangs, and is lost (ra_device_is_lost)
 */
RA_CHECKED static inline ra_status ra_kernel_finish(ra_kernel *kernel)
{
    return kernel->ops->finish != NULL ? kernel->ops->finish(kernel) : RA_OK;
}

/**
 * Watchdog, to be called now and then by whoever waits for the kernel's stream: RA_OK as long as
 * the device makes progress with its tasks, checked a few times per timeout_ms. Errors as of
 * ra_kernel_finish.
 */
RA_CHECKED static inline ra_status ra_kernel_watch(ra_kernel *kernel)
{
    return kernel->ops->watch != NULL ? kernel->ops->watch(kernel) : RA_OK;
}

#ifdef __cplusplus
}
#endif
#endif

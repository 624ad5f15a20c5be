/* The table `standard` for GPUs: a step in progress, and what both passes share. Private to
   src/sparse/cuda. */
#ifndef RINGATTN_STANDARD_CUDA_H
#define RINGATTN_STANDARD_CUDA_H

#include "sparse/cuda/products_cuda.h"
#include "sparse/cuda/softmax_launch.h"
#include "sparse/standard_kept.h"

/*
 * Most rows that a product sums over, because one long chain of float32 additions is not exact
 * enough; heads whose operands are widened at a time; and unfinished output rows, of all heads
 * together, that the workspace holds.
 */
enum { RA_CUDA_STANDARD_DEPTH = 512, RA_CUDA_STANDARD_HEADS = 16, RA_CUDA_STANDARD_SUMS = 16384 };

/* Products enqueued without waiting for any; to each belong up to five launches. */
enum { RA_CUDA_STANDARD_AHEAD = RA_CUDA_QUEUE / 8 };

/* ra_cuda_kernel.standard */
struct ra_cuda_standard {
    int ahead; /* products since it last waited for as many */
    ra_cuda_products products;
    ra_standard_pass *kept; /* host memory; NULL: nothing is kept */
    const void *lent;       /* the workspace that cuBLAS works in; NULL: none yet */
};

typedef struct ra_cuda_standard_step {
    ra_kernel *kernel;
    const ra_kernel_shape *shape;
    ra_dtype dtype; /* of q, k, v and dout */
    ra_kernel_pair pair;
    ra_cuda_span span;
    int64_t keys;              /* of a row of the step; 0: nothing is live */
    float *scores, *weights;   /* the step's first key of query 0 */
    int64_t stride;            /* between their rows, of which backward may use a part */
    float *dscores, *dweights; /* [lane][query][keys] */
} ra_cuda_standard_step;

/*
 * Some kv heads of one batch, each with query head number `turn` of those that share it. Their
 * matrices are evenly spaced, so that one call multiplies all.
 */
typedef struct ra_cuda_some_heads {
    int32_t batch, kv_begin, count, turn, ratio;
} ra_cuda_some_heads;

typedef ra_status ra_cuda_standard_work(const ra_cuda_standard_step *step,
                                        const ra_cuda_some_heads *heads, const void *context);

/* Multiply a matrix [lane][query][key] of a step with rows of a tensor; add to rows of another. */
typedef struct ra_cuda_fold {
    const float *matrix;
    int64_t stride;             /* of its rows */
    int64_t row_begin, row_end; /* its queries */
    bool transposed;            /* sums over queries: `to` has rows of keys; else over keys */
    float factor;
    const ra_view *rows;        /* of keys; if transposed, of queries */
    float *to;                  /* of the first row of the first of the heads */
    int64_t to_stride, to_step; /* from row to row, from head to head */
} ra_cuda_fold;

static inline ra_cuda_standard *ra_cuda_standard_of(ra_kernel *kernel)
{
    return ra_cuda_self(kernel)->standard;
}

/** See ra_kernel_ops. */
RA_CHECKED ra_status ra_cuda_standard_forward(ra_kernel *kernel, const ra_forward_step *f);
RA_CHECKED ra_status ra_cuda_standard_backward(ra_kernel *kernel, const ra_backward_step *g);

/** Check the shape, make this kernel's GPU current, and give cuBLAS its workspace. */
RA_CHECKED ra_status ra_cuda_standard_enter(ra_kernel *kernel, const ra_kernel_shape *shape);
/** Where sums of unfinished rows lie: RA_CUDA_STANDARD_SUMS rows. */
float *ra_cuda_standard_sums(const ra_kernel *kernel, int32_t dim);
/** Call `work` for all heads, some at a time, in a fixed order, until the first error. */
RA_CHECKED ra_status ra_cuda_standard_each(const ra_cuda_standard_step *step,
                                           ra_cuda_standard_work *work, const void *context);
/** matrix = factor * queries keys^T for the step's queries of some heads; rows are `stride` apart.
 */
RA_CHECKED ra_status ra_cuda_standard_multiply(const ra_cuda_standard_step *step,
                                               const ra_cuda_some_heads *heads, float factor,
                                               const ra_view *queries, const ra_view *keys,
                                               float *matrix, int64_t stride);
RA_CHECKED ra_status ra_cuda_standard_fold(const ra_cuda_standard_step *step,
                                           const ra_cuda_some_heads *heads,
                                           const ra_cuda_fold *fold);
/** Rows of the step's queries: of two ranges, the second may be empty. */
static inline void ra_cuda_standard_range(const ra_cuda_standard_step *step, int i,
                                          int64_t *begin_out, int64_t *end_out)
{
    *begin_out = i == 0 ? 0 : step->span.tail_begin;
    *end_out = i == 0 ? step->span.head_end : step->span.rows;
}

/** The first query head of `heads`, in the job's group. */
static inline int32_t ra_cuda_standard_query_head(const ra_cuda_some_heads *heads)
{
    return heads->kv_begin * heads->ratio + heads->turn;
}

#endif

/* Private to src/sparse/cpu: a step of the kernel table `standard`, shared by both passes. */
#ifndef RINGATTN_STANDARD_STEP_H
#define RINGATTN_STANDARD_STEP_H

#include "internal.h"
#include "sparse/cpu/cpu_internal.h"
#include "sparse/cpu/standard_rows.h"
#include "sparse/kernel_request.h"
#include "sparse/standard_kept.h"

/* A step in progress: either forward or backward. */
typedef struct ra_standard_step {
    ra_kernel *kernel;
    const ra_forward_step *forward;
    const ra_backward_step *backward;
    const ra_kernel_shape *shape;
    const ra_tilemap *map;
    int64_t keys;              /* of a row of the step; 0: nothing is live */
    float *scores, *weights;   /* the step's first key of query 0 */
    int64_t stride;            /* between their rows, of which backward may use a part */
    float *dscores, *dweights; /* [lane][query][keys] */
    bool ends_only;            /* queries of the first and last chunk */
    bool makes_weights;        /* backward: from scores, with the log-sum-exp */
} ra_standard_step;

/* Some rows of a head; scratch is the thread's own. */
typedef struct ra_standard_block {
    int64_t lane, batch; /* lane: of query heads, or of key heads */
    int32_t head, count;
    int64_t row;
    float *queries, *keys, *sums; /* float32 rows: RA_STANDARD_QUERIES, _KEYS, _QUERIES of them */
} ra_standard_block;

typedef void ra_standard_work(const ra_standard_step *step, const ra_standard_block *block);

/* Go through the queries of all heads in blocks dealt to the threads, but for those left out. */
void ra_standard_each_queries(const ra_standard_step *step, ra_standard_work *work);
/* Likewise all keys of all key heads. */
void ra_standard_each_keys(const ra_standard_step *step, ra_standard_work *work);
/* Take the memory of a matrix of the step, to which *matrix then points, let `work` fill it block
   of queries by block, and mark what memory holds by then. */
RA_CHECKED ra_status ra_standard_make(ra_standard_step *step, ra_block *block, float **matrix,
                                      ra_standard_work *work, const char *mark);
RA_CHECKED ra_status ra_standard_forward(ra_kernel *kernel, const ra_forward_step *f);
RA_CHECKED ra_status ra_standard_backward(ra_kernel *kernel, const ra_backward_step *g);

/* Whether a block of queries is skipped. */
static inline bool ra_standard_is_left_out(const ra_standard_step *step, int64_t row, int64_t rows)
{
    int64_t const chunk = step->map->chunk_rows;
    return step->ends_only && row >= chunk && row + rows <= (step->map->chunk_count - 1) * chunk;
}

/* Where a block of queries begins in lse and delta. */
static inline int64_t ra_standard_line(const ra_standard_step *step, const ra_standard_block *b,
                                       int64_t batch_stride)
{
    return b->batch * batch_stride + b->head * step->map->q_rows + b->row;
}

static inline int32_t ra_standard_kv_head(const ra_kernel_shape *shape, int32_t head)
{
    return head / (shape->q_heads / shape->kv_heads);
}

/* Part of a matrix of scores or of gradients, whose rows lie `stride` apart: rows of a lane of
   query heads, from a key on. */
static inline ra_score_block ra_standard_part(const ra_standard_step *step, float *matrix,
                                              int64_t stride, int64_t lane, int64_t row,
                                              int32_t queries, int64_t key, int32_t keys)
{
    return (ra_score_block){matrix + (lane * step->map->q_rows + row) * stride + key, stride,
                            queries, keys};
}

static inline int32_t ra_standard_keys_from(const ra_standard_step *step, int64_t key)
{
    return (int32_t)ra_min_i64(RA_STANDARD_KEYS, step->keys - key);
}

#endif

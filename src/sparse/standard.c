/*
 * The kernel table `standard`: S = scale Q K^T, P = softmax(S), O = P V, each materialised for all
 * heads of a step before the next begins, and backward dP = dO V^T, dS = P (dP - delta),
 * dQ = scale dS K, dK = scale dS^T Q, dV = P^T dO.
 *
 * Threads take blocks of rows, each written by one of them, and products run on the calling
 * thread, so that results do not depend on timing. Of several forward steps each weighs by the top
 * score so far; backward then makes P of S again, by the log-sum-exp of all.
 */
#include "internal.h"
#include "ringattn/blas.h"
#include "sparse/cpu/cpu_internal.h"
#include "sparse/standard_internal.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

/* What is kept of a pair of shards. S and P are with its first part; their gradients, which may be
   made part by part, each with its own. */
typedef struct kept_pair {
    ra_block scores, weights, dscores, dweights;
    int64_t keys;
    bool is_normal; /* weights are those of the whole softmax */
} kept_pair;

typedef struct kept_pass {
    int32_t groups, steps, parts;
    kept_pair pairs[]; /* [groups][steps][parts] */
} kept_pass;

/* ---- memory -----------------------------------------------------------------------------------
 */

static kept_pair *pair_of(const ra_kernel *kernel, ra_kernel_pair pair, int32_t part)
{
    kept_pass *pass = kernel->kept.data;
    if (pass == NULL)
        return NULL;
    RA_ASSERT(pair.group >= 0 && pair.group < pass->groups && pair.step >= 0 &&
              pair.step < pass->steps && part >= 0 && part < pass->parts);
    return &pass->pairs[((int64_t)pair.group * pass->steps + pair.step) * pass->parts + part];
}

/* One float per query and key, in every lane. */
static ra_status take_matrix(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t queries,
                             int64_t keys, ra_block *block)
{
    int64_t bytes = sizeof(float);
    if (__builtin_mul_overflow(bytes, shape->batch * shape->q_heads, &bytes) ||
        __builtin_mul_overflow(bytes, queries, &bytes) ||
        __builtin_mul_overflow(bytes, keys, &bytes))
        bytes = INT64_MAX; /* the pool refuses that, and says so */
    return ra_pool_alloc(kernel->pool, RA_MEM_SCORES, (size_t)bytes, kernel->stream, block);
}

static void free_pair(ra_kernel *kernel, kept_pair *pair)
{
    ra_pool_free(kernel->pool, kernel->stream, &pair->scores);
    ra_pool_free(kernel->pool, kernel->stream, &pair->weights);
    ra_pool_free(kernel->pool, kernel->stream, &pair->dscores);
    ra_pool_free(kernel->pool, kernel->stream, &pair->dweights);
}

static void forget_pass(ra_kernel *kernel)
{
    kept_pass *pass = kernel->kept.data;
    if (pass == NULL)
        return;
    for (int64_t i = 0; i < (int64_t)pass->groups * pass->steps * pass->parts; ++i)
        free_pair(kernel, &pass->pairs[i]);
    ra_pool_free(kernel->pool, kernel->stream, &kernel->kept);
}

static ra_status standard_begin(ra_kernel *kernel, const ra_kernel_pass *pass)
{
    if (pass->backward)
        return RA_OK;
    forget_pass(kernel); /* of a forward pass that no backward pass followed */
    if (!pass->keeps)
        return RA_OK;
    size_t const bytes = sizeof(kept_pass) + sizeof(kept_pair) * (size_t)pass->groups *
                                                 (size_t)pass->steps * (size_t)pass->parts;
    ra_status const status =
        ra_pool_alloc(kernel->pool, RA_MEM_WORKSPACE, bytes, kernel->stream, &kernel->kept);
    if (status != RA_OK)
        return status;
    memset(kernel->kept.data, 0, bytes);
    *(kept_pass *)kernel->kept.data = (kept_pass){pass->groups, pass->steps, pass->parts};
    return RA_OK;
}

static void standard_end(ra_kernel *kernel, const ra_kernel_pass *pass, bool failed)
{
    if (pass->backward || failed)
        forget_pass(kernel);
}

/* ---- threads ----------------------------------------------------------------------------------
 */

/* A step on its way: either forward or backward. */
typedef struct standard_step {
    ra_kernel *kernel;
    const ra_forward_step *forward;
    const ra_backward_step *backward;
    const ra_kernel_shape *shape;
    const ra_tilemap *map;
    int64_t keys;              /* of a row of the step; 0 where nothing is live */
    float *scores, *weights;   /* the step's first key of query 0 */
    int64_t stride;            /* of their rows, which backward may use part of */
    float *dscores, *dweights; /* [lane][query][keys] */
    bool ends_only;            /* queries of the first and last chunk */
    bool makes_weights;        /* backward: of scores, by the log-sum-exp */
} standard_step;

/* What memory holds in the middle of a step. */
static void mark_phase(const standard_step *step, const char *name)
{
    ra_kernel_pair const pair = step->forward != NULL ? step->forward->pair : step->backward->pair;
    ra_pool_mark(step->kernel->pool, name, pair.group, pair.step);
}

/* Some rows of a head; scratch is the thread's own. */
typedef struct standard_block {
    int64_t lane, batch; /* lane: of query heads, or of key heads */
    int32_t head, count;
    int64_t row;
    float *queries, *keys, *sums; /* float32 rows: RA_STANDARD_QUERIES, _KEYS, _QUERIES of them */
} standard_block;

typedef void standard_work(const standard_step *step, const standard_block *block);

static size_t thread_floats(int32_t dim)
{
    return (size_t)(2 * RA_STANDARD_QUERIES + RA_STANDARD_KEYS) * (size_t)dim;
}

/* Whether a block of queries is left out. */
static bool is_between_ends(const standard_step *step, int64_t row, int64_t rows)
{
    int64_t const chunk = step->map->chunk_rows;
    return step->ends_only && row >= chunk && row + rows <= (step->map->chunk_count - 1) * chunk;
}

/* All rows of all heads, in blocks of at most `most`. */
static void for_each_block(const standard_step *step, int32_t heads, int64_t rows, int32_t most,
                           standard_work *work)
{
    int64_t const blocks = ra_div_ceil(rows, most);
    int64_t const count = step->shape->batch * heads * blocks;
    int32_t const dim = step->shape->dim;
    RA_OMP(omp parallel for schedule(dynamic) num_threads(step->kernel->threads))
    for (int64_t i = 0; i < count; ++i) {
        int64_t const lane = i / blocks, row = i % blocks * most;
        float *scratch =
            (float *)step->kernel->workspace.data + thread_floats(dim) * (size_t)thread_index();
        standard_block const block = {
            .lane = lane,
            .batch = lane / heads,
            .head = (int32_t)(lane % heads),
            .count = (int32_t)ra_min_i64(most, rows - row),
            .row = row,
            .queries = scratch,
            .keys = scratch + (size_t)RA_STANDARD_QUERIES * (size_t)dim,
            .sums = scratch + (size_t)(RA_STANDARD_QUERIES + RA_STANDARD_KEYS) * (size_t)dim};
        work(step, &block);
    }
}

/* Transfers progress between blocks; MPI may be for the calling thread only. */
static void poll_once(const ra_kernel *kernel)
{
    if (kernel->poll != NULL && thread_index() == 0)
        kernel->poll(kernel->poll_context);
}

static int32_t kv_head_of(const ra_kernel_shape *shape, int32_t head)
{
    return head / (shape->q_heads / shape->kv_heads);
}

/* Part of S or P: rows of a lane of query heads, from a key on. */
static ra_score_block part_of(const standard_step *step, float *matrix, int64_t lane, int64_t row,
                              int32_t queries, int64_t key, int32_t keys)
{
    return (ra_score_block){matrix + (lane * step->map->q_rows + row) * step->stride + key,
                            step->stride, queries, keys};
}

/* Part of dP or dS. */
static ra_score_block grad_part_of(const standard_step *step, float *matrix, int64_t lane,
                                   int64_t row, int32_t queries, int64_t key, int32_t keys)
{
    return (ra_score_block){matrix + (lane * step->map->q_rows + row) * step->keys + key,
                            step->keys, queries, keys};
}

static int32_t keys_from(const standard_step *step, int64_t key)
{
    return (int32_t)ra_min_i64(RA_STANDARD_KEYS, step->keys - key);
}

/* ---- forward ----------------------------------------------------------------------------------
 */

static void score_block(const standard_step *step, const standard_block *b)
{
    const ra_forward_step *f = step->forward;
    int32_t const dim = step->shape->dim, kv_head = kv_head_of(step->shape, b->head);
    if (is_between_ends(step, b->row, b->count))
        return;
    ra_operand const queries =
        ra_standard_operand(&f->q, b->batch, b->head, b->row, b->count, dim, b->queries);
    for (int64_t key = 0; key < step->keys; key += RA_STANDARD_KEYS) {
        int32_t const count = keys_from(step, key);
        ra_operand const keys =
            ra_standard_operand(&f->k, b->batch, kv_head, key, count, dim, b->keys);
        ra_score_block const part =
            part_of(step, step->scores, b->lane, b->row, b->count, key, count);
        ra_standard_multiply(&part, step->shape->scale, &queries, &keys);
        poll_once(step->kernel);
    }
}

static float *lse_of(const ra_forward_step *f, const standard_block *b)
{
    return f->lse == NULL
               ? NULL
               : f->lse + b->batch * f->lse_batch_stride + b->head * f->map->q_rows + b->row;
}

static float row_lse(float top, float sum)
{
    return sum == 0 ? -INFINITY : (float)((double)top + log((double)sum));
}

/* One step sees all keys: weights are those of the softmax. */
static void weigh_whole_row(float *lse, float *scores, float *weights, int64_t keys)
{
    float const top = ra_standard_mask_row(scores, weights, keys);
    float const sum = ra_standard_weigh_row(scores, weights, keys, top);
    if (sum != 0)
        ra_standard_scale_row(weights, keys, 1 / sum);
    if (lse != NULL)
        *lse = row_lse(top, sum);
}

/* One of several steps: weights are relative to the top so far, and so is what has been summed. */
static void weigh_row_of_step(const standard_step *step, const standard_block *b, int32_t i,
                              float *scores, float *weights)
{
    const ra_forward_step *f = step->forward;
    int64_t const row = b->lane * step->map->q_rows + b->row + i, dim = step->shape->dim;
    float *acc = f->state.acc + row * dim;
    float const before = f->first ? -INFINITY : f->state.top[row];
    float const own = ra_standard_mask_row(scores, weights, step->keys);
    float const top = own > before ? own : before;
    float const factor = top == before ? 1 : expf(before - top);
    float const sum = ra_standard_weigh_row(scores, weights, step->keys, top);
    f->state.top[row] = top;
    f->state.sum[row] = f->first ? sum : f->state.sum[row] * factor + sum;
    for (int64_t d = 0; d < dim; ++d)
        acc[d] = f->first ? 0 : acc[d] * factor;
}

static void weigh_block(const standard_step *step, const standard_block *b)
{
    const ra_forward_step *f = step->forward;
    float *lse = lse_of(f, b);
    if (is_between_ends(step, b->row, b->count))
        return;
    ra_score_block const scores =
        part_of(step, step->scores, b->lane, b->row, b->count, 0, (int32_t)step->keys);
    ra_score_block const weights =
        part_of(step, step->weights, b->lane, b->row, b->count, 0, (int32_t)step->keys);
    if (step->keys > 0) {
        memset(weights.data, 0, sizeof(float) * (size_t)(b->count * step->stride));
        ra_standard_count_pairs(step->map, step->shape->q_head_begin + b->head, b->row, &weights);
    }
    for (int32_t i = 0; i < b->count; ++i) {
        float *s = scores.data + i * step->stride, *p = weights.data + i * step->stride;
        if (f->first && f->last)
            weigh_whole_row(lse != NULL ? lse + i : NULL, s, p, step->keys);
        else
            weigh_row_of_step(step, b, i, s, p);
        if (i % 32 == 0)
            poll_once(step->kernel);
    }
}

/* Round finished rows: out, delta while they are unrounded, and the log-sum-exp of several steps.
 */
static void store_block(const standard_step *step, const standard_block *b, float *rows)
{
    const ra_forward_step *f = step->forward;
    int32_t const dim = step->shape->dim;
    int64_t const line = b->lane * step->map->q_rows + b->row;
    float *lse = lse_of(f, b);
    bool const whole = f->first;
    for (int32_t i = 0; i < b->count; ++i) {
        float *row = rows + (int64_t)i * dim;
        float const sum = whole ? 1 : f->state.sum[line + i];
        int64_t const at = b->batch * f->out.batch_stride + (b->row + i) * f->out.row_stride +
                           b->head * f->out.head_stride;
        double delta = 0;
        for (int32_t d = 0; d < dim; ++d) {
            row[d] = sum == 0 ? 0 : row[d] / sum;
            ra_dtype_store(f->out.dtype, f->out.data, at + d, row[d]);
        }
        if (lse != NULL && !whole)
            lse[i] = row_lse(f->state.top[line + i], sum);
        if (f->delta == NULL)
            continue;
        int64_t const from = b->batch * f->dout.batch_stride + (b->row + i) * f->dout.row_stride +
                             b->head * f->dout.head_stride;
        for (int32_t d = 0; d < dim; ++d)
            delta += (double)row[d] * (double)ra_dtype_load(f->dout.dtype, f->dout.data, from + d);
        f->delta[b->batch * f->lse_batch_stride + b->head * step->map->q_rows + b->row + i] =
            (float)delta;
    }
}

static void sum_block(const standard_step *step, const standard_block *b)
{
    const ra_forward_step *f = step->forward;
    int32_t const dim = step->shape->dim, kv_head = kv_head_of(step->shape, b->head);
    bool const whole = f->first && f->last;
    float *sums =
        whole ? b->sums : f->state.acc + (b->lane * step->map->q_rows + b->row) * (int64_t)dim;
    if (is_between_ends(step, b->row, b->count))
        return;
    if (whole)
        memset(sums, 0, sizeof(float) * (size_t)b->count * (size_t)dim);
    for (int64_t key = 0; key < step->keys; key += RA_STANDARD_KEYS) {
        int32_t const count = keys_from(step, key);
        ra_operand const values =
            ra_standard_operand(&f->v, b->batch, kv_head, key, count, dim, b->keys);
        ra_score_block const part =
            part_of(step, step->weights, b->lane, b->row, b->count, key, count);
        ra_standard_fold(&part, false, 1, &values, sums, dim);
        poll_once(step->kernel);
    }
    if (f->last)
        store_block(step, b, sums);
}

static ra_status refuse(const char *what)
{
    ra_log(RA_LOG_ERROR, "kernel standard: %s", what);
    return RA_ERR_INVALID;
}

static ra_status check_step(const ra_kernel *kernel, const ra_kernel_shape *shape)
{
    if (shape->dim < 1 || shape->dim > 256)
        return refuse("head_dim must be 1 to 256");
    if (shape->batch < 0 || shape->kv_heads < 1 || shape->q_heads < 1 ||
        shape->q_heads % shape->kv_heads != 0)
        return refuse("query heads must be a multiple of kv heads, at least 1 each");
    if (kernel->workspace.bytes < kernel->ops->workspace_bytes(kernel->threads, shape->dim))
        return refuse("its workspace was made for a smaller head_dim");
    return RA_OK;
}

static ra_status compute_forward(standard_step *step, kept_pair *pair)
{
    const ra_kernel_shape *shape = step->shape;
    int64_t const queries = step->map->q_rows;
    ra_status status = take_matrix(step->kernel, shape, queries, step->keys, &pair->scores);
    if (status != RA_OK)
        return status;
    step->scores = pair->scores.data;
    for_each_block(step, shape->q_heads, queries, RA_STANDARD_QUERIES, score_block);
    mark_phase(step, "after scores");
    status = take_matrix(step->kernel, shape, queries, step->keys, &pair->weights);
    if (status != RA_OK)
        return status;
    step->weights = pair->weights.data;
    for_each_block(step, shape->q_heads, queries, RA_STANDARD_QUERIES, weigh_block);
    mark_phase(step, "after softmax");
    for_each_block(step, shape->q_heads, queries, RA_STANDARD_QUERIES, sum_block);
    return RA_OK;
}

static ra_status standard_forward(ra_kernel *kernel, const ra_forward_step *f)
{
    ra_status status = check_step(kernel, &f->shape);
    if (status != RA_OK)
        return status;
    RA_ASSERT((f->first && f->last) || f->state.acc != NULL || f->map->q_rows == 0);
    kept_pair own = {0}, *kept = pair_of(kernel, f->pair, 0);
    kept_pair *pair = kept != NULL ? kept : &own;
    RA_ASSERT(pair->scores.data == NULL);
    standard_step step = {.kernel = kernel,
                          .forward = f,
                          .shape = &f->shape,
                          .map = f->map,
                          .ends_only = f->ends_only,
                          .keys = f->map->run_count > 0 ? f->map->k_rows : 0};
    step.stride = pair->keys = step.keys;
    pair->is_normal = f->first && f->last;
    status = compute_forward(&step, pair);
    if (kept == NULL || status != RA_OK)
        free_pair(kernel, pair);
    return status;
}

/* ---- backward ---------------------------------------------------------------------------------
 */

static int64_t lse_at(const ra_backward_step *step, const standard_block *b)
{
    return b->batch * step->lse_batch_stride + b->head * step->map->q_rows + b->row;
}

static void dweigh_block(const standard_step *step, const standard_block *b)
{
    const ra_backward_step *g = step->backward;
    int32_t const dim = step->shape->dim, kv_head = kv_head_of(step->shape, b->head);
    if (is_between_ends(step, b->row, b->count))
        return;
    for (int32_t i = 0; i < b->count && step->makes_weights; ++i) {
        int64_t const at = (b->lane * step->map->q_rows + b->row + i) * step->stride;
        ra_standard_weigh_row(step->scores + at, step->weights + at, step->keys,
                              g->lse[lse_at(g, b) + i]);
    }
    ra_operand const douts =
        ra_standard_operand(&g->dout, b->batch, b->head, b->row, b->count, dim, b->queries);
    for (int64_t key = 0; key < step->keys; key += RA_STANDARD_KEYS) {
        int32_t const count = keys_from(step, key);
        ra_operand const values =
            ra_standard_operand(&g->v, b->batch, kv_head, key, count, dim, b->keys);
        ra_score_block const part =
            grad_part_of(step, step->dweights, b->lane, b->row, b->count, key, count);
        ra_standard_multiply(&part, 1, &douts, &values);
        poll_once(step->kernel);
    }
}

static void dscore_block(const standard_step *step, const standard_block *b)
{
    const ra_backward_step *g = step->backward;
    if (is_between_ends(step, b->row, b->count))
        return;
    for (int32_t i = 0; i < b->count; ++i) {
        int64_t const row = b->lane * step->map->q_rows + b->row + i;
        ra_standard_grad_row(step->weights + row * step->stride, step->dweights + row * step->keys,
                             g->delta[lse_at(g, b) + i], step->dscores + row * step->keys,
                             step->keys);
    }
    poll_once(step->kernel);
}

static float *grads_of(const ra_view *view, int64_t batch, int64_t head, int64_t row)
{
    return (float *)view->data + batch * view->batch_stride + row * view->row_stride +
           head * view->head_stride;
}

static void dquery_block(const standard_step *step, const standard_block *b)
{
    const ra_backward_step *g = step->backward;
    int32_t const dim = step->shape->dim, kv_head = kv_head_of(step->shape, b->head);
    float *dq = grads_of(&g->dq, b->batch, b->head, b->row);
    if (is_between_ends(step, b->row, b->count))
        return;
    for (int64_t key = 0; key < step->keys; key += RA_STANDARD_KEYS) {
        int32_t const count = keys_from(step, key);
        ra_operand const keys =
            ra_standard_operand(&g->k, b->batch, kv_head, key, count, dim, b->keys);
        ra_score_block const part =
            grad_part_of(step, step->dscores, b->lane, b->row, b->count, key, count);
        ra_standard_fold(&part, false, step->shape->scale, &keys, dq, g->dq.row_stride);
        poll_once(step->kernel);
    }
}

/* A block of keys and all queries of one query head. */
static void dkey_head(const standard_step *step, const standard_block *b, int32_t head)
{
    const ra_backward_step *g = step->backward;
    int32_t const dim = step->shape->dim;
    int64_t const lane = b->batch * step->shape->q_heads + head;
    float *dk = grads_of(&g->dk, b->batch, b->head, b->row);
    float *dv = grads_of(&g->dv, b->batch, b->head, b->row);
    for (int64_t row = 0; row < step->map->q_rows; row += RA_STANDARD_QUERIES) {
        int32_t const count = (int32_t)ra_min_i64(RA_STANDARD_QUERIES, step->map->q_rows - row);
        if (is_between_ends(step, row, count))
            continue;
        ra_operand const douts =
            ra_standard_operand(&g->dout, b->batch, head, row, count, dim, b->queries);
        ra_score_block const weights =
            part_of(step, step->weights, lane, row, count, b->row, b->count);
        ra_standard_fold(&weights, true, 1, &douts, dv, g->dv.row_stride);
        ra_operand const queries =
            ra_standard_operand(&g->q, b->batch, head, row, count, dim, b->queries);
        ra_score_block const dscores =
            grad_part_of(step, step->dscores, lane, row, count, b->row, b->count);
        ra_standard_fold(&dscores, true, step->shape->scale, &queries, dk, g->dk.row_stride);
        poll_once(step->kernel);
    }
}

static void dkey_block(const standard_step *step, const standard_block *b)
{
    int32_t const ratio = step->shape->q_heads / step->shape->kv_heads;
    for (int32_t head = b->head * ratio; head < (b->head + 1) * ratio; ++head)
        dkey_head(step, b, head);
}

static ra_status compute_backward(standard_step *step, kept_pair *grads)
{
    const ra_kernel_shape *shape = step->shape;
    int64_t const queries = step->map->q_rows;
    ra_status status = take_matrix(step->kernel, shape, queries, step->keys, &grads->dweights);
    if (status != RA_OK)
        return status;
    step->dweights = grads->dweights.data;
    for_each_block(step, shape->q_heads, queries, RA_STANDARD_QUERIES, dweigh_block);
    mark_phase(step, "after dP");
    status = take_matrix(step->kernel, shape, queries, step->keys, &grads->dscores);
    if (status != RA_OK)
        return status;
    step->dscores = grads->dscores.data;
    for_each_block(step, shape->q_heads, queries, RA_STANDARD_QUERIES, dscore_block);
    mark_phase(step, "after dS");
    for_each_block(step, shape->q_heads, queries, RA_STANDARD_QUERIES, dquery_block);
    for_each_block(step, shape->kv_heads, step->keys, RA_STANDARD_KEYS, dkey_block);
    return RA_OK;
}

static ra_status standard_backward(ra_kernel *kernel, const ra_backward_step *g)
{
    ra_status const status = check_step(kernel, &g->shape);
    if (status != RA_OK)
        return status;
    RA_ASSERT(g->dq.dtype == RA_F32 && g->dk.dtype == RA_F32 && g->dv.dtype == RA_F32);
    if (g->map->run_count == 0)
        return RA_OK;
    const kept_pair *pair = pair_of(kernel, g->pair, 0);
    if (pair == NULL || pair->weights.data == NULL)
        return refuse("a backward step without the forward step it belongs to");
    RA_ASSERT(g->pair.first_key + g->map->k_rows <= pair->keys);
    standard_step step = {.kernel = kernel,
                          .backward = g,
                          .shape = &g->shape,
                          .map = g->map,
                          .ends_only = g->ends_only,
                          .keys = g->map->k_rows,
                          .scores = (float *)pair->scores.data + g->pair.first_key,
                          .weights = (float *)pair->weights.data + g->pair.first_key,
                          .stride = pair->keys,
                          .makes_weights = !pair->is_normal};
    return compute_backward(&step, pair_of(kernel, g->pair, g->pair.part));
}

/* ---- table ------------------------------------------------------------------------------------
 */

static int32_t standard_tile_rows(ra_dtype dtype, int32_t dim)
{
    (void)dtype;
    (void)dim;
    return RA_STANDARD_QUERIES;
}

/* Moving rows, and delta where it is asked for by itself, are the CPU's. */
static size_t standard_workspace_bytes(int threads, int32_t dim)
{
    size_t const own = sizeof(float) * thread_floats(dim) * (size_t)threads;
    size_t const rows = ra_kernel_cpu(RA_ISA_AUTO)->workspace_bytes(threads, dim);
    return own > rows ? own : rows;
}

static ra_kernel_ops the_table;
static pthread_once_t table_made = PTHREAD_ONCE_INIT;

static void make_table(void)
{
    the_table = *ra_kernel_cpu(RA_ISA_AUTO);
    the_table.name = "standard";
    the_table.tile_rows = standard_tile_rows;
    the_table.workspace_bytes = standard_workspace_bytes;
    the_table.forward = standard_forward;
    the_table.backward = standard_backward;
    the_table.begin = standard_begin;
    the_table.end = standard_end;
}

const ra_kernel_ops *ra_kernel_standard(void)
{
    if (ra_blas_name() == NULL)
        return NULL;
    RA_ASSERT(pthread_once(&table_made, make_table) == 0);
    return &the_table;
}

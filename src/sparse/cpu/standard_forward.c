/* The kernel table `standard`, forward: S = scale Q K^T, P = softmax(S), O = P V. */
#include "sparse/cpu/standard_step.h"

#include <math.h>
#include <string.h>

static void score_block(const ra_standard_step *step, const ra_standard_block *b)
{
    const ra_forward_step *f = step->forward;
    int32_t const dim = step->shape->dim, kv_head = ra_standard_kv_head(step->shape, b->head);
    ra_operand const queries =
        ra_standard_operand(&f->q, b->batch, b->head, b->row, b->count, dim, b->queries);
    for (int64_t key = 0; key < step->keys; key += RA_STANDARD_KEYS) {
        int32_t const count = ra_standard_keys_from(step, key);
        ra_operand const keys =
            ra_standard_operand(&f->k, b->batch, kv_head, key, count, dim, b->keys);
        ra_score_block const part = ra_standard_part(step, step->scores, step->stride, b->lane,
                                                     b->row, b->count, key, count);
        ra_standard_multiply(&part, step->shape->scale, &queries, &keys);
        poll_now(step->kernel);
    }
}

static float *lse_of(const ra_standard_step *step, const ra_standard_block *b)
{
    const ra_forward_step *f = step->forward;
    return f->lse == NULL ? NULL : f->lse + ra_standard_line(step, b, f->lse_batch_stride);
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

/* One of several steps: weights and sums are relative to the top so far. */
static void weigh_row_of_step(const ra_standard_step *step, const ra_standard_block *b, int32_t i,
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

static void weigh_block(const ra_standard_step *step, const ra_standard_block *b)
{
    const ra_forward_step *f = step->forward;
    float *lse = lse_of(step, b);
    ra_score_block const scores = ra_standard_part(step, step->scores, step->stride, b->lane,
                                                   b->row, b->count, 0, (int32_t)step->keys);
    ra_score_block const weights = ra_standard_part(step, step->weights, step->stride, b->lane,
                                                    b->row, b->count, 0, (int32_t)step->keys);
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
            poll_now(step->kernel);
    }
}

/* Round finished rows: out, delta while they are unrounded, and the log-sum-exp of several steps.
 */
static void store_block(const ra_standard_step *step, const ra_standard_block *b, float *rows)
{
    const ra_forward_step *f = step->forward;
    int32_t const dim = step->shape->dim;
    int64_t const line = b->lane * step->map->q_rows + b->row;
    float *lse = lse_of(step, b);
    bool const whole = f->first;
    for (int32_t i = 0; i < b->count; ++i) {
        float *row = rows + (int64_t)i * dim;
        float const sum = whole ? 1 : f->state.sum[line + i];
        int64_t const at = ra_view_at(&f->out, b->batch, b->row + i, b->head);
        double delta = 0;
        for (int32_t d = 0; d < dim; ++d) {
            row[d] = sum == 0 ? 0 : row[d] / sum;
            ra_dtype_store(f->out.dtype, f->out.data, at + d, row[d]);
        }
        if (lse != NULL && !whole)
            lse[i] = row_lse(f->state.top[line + i], sum);
        if (f->delta == NULL)
            continue;
        int64_t const from = ra_view_at(&f->dout, b->batch, b->row + i, b->head);
        for (int32_t d = 0; d < dim; ++d)
            delta += (double)row[d] * (double)ra_dtype_load(f->dout.dtype, f->dout.data, from + d);
        f->delta[ra_standard_line(step, b, f->lse_batch_stride) + i] = (float)delta;
    }
}

static void sum_block(const ra_standard_step *step, const ra_standard_block *b)
{
    const ra_forward_step *f = step->forward;
    int32_t const dim = step->shape->dim, kv_head = ra_standard_kv_head(step->shape, b->head);
    bool const whole = f->first && f->last;
    float *sums =
        whole ? b->sums : f->state.acc + (b->lane * step->map->q_rows + b->row) * (int64_t)dim;
    if (whole)
        memset(sums, 0, sizeof(float) * (size_t)b->count * (size_t)dim);
    for (int64_t key = 0; key < step->keys; key += RA_STANDARD_KEYS) {
        int32_t const count = ra_standard_keys_from(step, key);
        ra_operand const values =
            ra_standard_operand(&f->v, b->batch, kv_head, key, count, dim, b->keys);
        ra_score_block const part = ra_standard_part(step, step->weights, step->stride, b->lane,
                                                     b->row, b->count, key, count);
        ra_standard_fold(&part, false, 1, &values, sums, dim, NULL);
        poll_now(step->kernel);
    }
    if (f->last)
        store_block(step, b, sums);
}

ra_status ra_standard_forward(ra_kernel *kernel, const ra_forward_step *f)
{
    ra_status status = ra_kernel_validate_shape(kernel, &f->shape);
    if (status == RA_OK)
        status = ra_kernel_validate_state(kernel, f);
    if (status != RA_OK)
        return status;
    ra_standard_kept own = {0}, *kept = ra_standard_pass_pair(kernel->kept.data, f->pair, 0);
    ra_standard_kept *pair = kept != NULL ? kept : &own;
    RA_ASSERT(pair->scores.data == NULL);
    ra_standard_step step = {.kernel = kernel,
                             .forward = f,
                             .shape = &f->shape,
                             .map = f->map,
                             .ends_only = f->ends_only,
                             .keys = f->map->run_count > 0 ? f->map->k_rows : 0};
    step.stride = pair->keys = step.keys;
    pair->is_normal = f->first && f->last;
    status = ra_standard_make(&step, &pair->scores, &step.scores, score_block, "after scores");
    if (status == RA_OK)
        status =
            ra_standard_make(&step, &pair->weights, &step.weights, weigh_block, "after softmax");
    if (status == RA_OK)
        ra_standard_each_queries(&step, sum_block);
    if (kept == NULL || status != RA_OK)
        ra_standard_free_pair(kernel, pair);
    return status;
}

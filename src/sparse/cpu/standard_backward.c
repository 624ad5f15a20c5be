/*
 * The kernel table `standard`, backward: dP = dO V^T, dS = P (dP - delta), dQ = scale dS K,
 * dK = scale dS^T Q, dV = P^T dO.
 */
#include "sparse/cpu/standard_step.h"

static void dweigh_block(const ra_standard_step *step, const ra_standard_block *b)
{
    const ra_backward_step *g = step->backward;
    int32_t const dim = step->shape->dim, kv_head = ra_standard_kv_head(step->shape, b->head);
    const float *lse = g->lse + ra_standard_line(step, b, g->lse_batch_stride);
    for (int32_t i = 0; i < b->count && step->makes_weights; ++i) {
        int64_t const at = (b->lane * step->map->q_rows + b->row + i) * step->stride;
        ra_standard_weigh_row(step->scores + at, step->weights + at, step->keys, lse[i]);
    }
    ra_operand const douts =
        ra_standard_operand(&g->dout, b->batch, b->head, b->row, b->count, dim, b->queries);
    for (int64_t key = 0; key < step->keys; key += RA_STANDARD_KEYS) {
        int32_t const count = ra_standard_keys_from(step, key);
        ra_operand const values =
            ra_standard_operand(&g->v, b->batch, kv_head, key, count, dim, b->keys);
        ra_score_block const part = ra_standard_part(step, step->dweights, step->keys, b->lane,
                                                     b->row, b->count, key, count);
        ra_standard_multiply(&part, 1, &douts, &values);
        poll_now(step->kernel);
    }
}

static void dscore_block(const ra_standard_step *step, const ra_standard_block *b)
{
    const ra_backward_step *g = step->backward;
    const float *delta = g->delta + ra_standard_line(step, b, g->lse_batch_stride);
    for (int32_t i = 0; i < b->count; ++i) {
        int64_t const row = b->lane * step->map->q_rows + b->row + i;
        ra_standard_grad_row(step->weights + row * step->stride, step->dweights + row * step->keys,
                             delta[i], step->dscores + row * step->keys, step->keys);
    }
    poll_now(step->kernel);
}

static float *grads_of(const ra_view *view, const ra_standard_block *b)
{
    return (float *)view->data + ra_view_at(view, b->batch, b->row, b->head);
}

static void dquery_block(const ra_standard_step *step, const ra_standard_block *b)
{
    const ra_backward_step *g = step->backward;
    int32_t const dim = step->shape->dim, kv_head = ra_standard_kv_head(step->shape, b->head);
    float *dq = grads_of(&g->dq, b);
    for (int64_t key = 0; key < step->keys; key += RA_STANDARD_KEYS) {
        int32_t const count = ra_standard_keys_from(step, key);
        ra_operand const keys =
            ra_standard_operand(&g->k, b->batch, kv_head, key, count, dim, b->keys);
        ra_score_block const part = ra_standard_part(step, step->dscores, step->keys, b->lane,
                                                     b->row, b->count, key, count);
        ra_standard_fold(&part, false, step->shape->scale, &keys, dq, g->dq.row_stride, b->sums);
        poll_now(step->kernel);
    }
}

/* A block of keys and all queries of one query head. */
static void dkey_head(const ra_standard_step *step, const ra_standard_block *b, int32_t head)
{
    const ra_backward_step *g = step->backward;
    int32_t const dim = step->shape->dim;
    int64_t const lane = b->batch * step->shape->q_heads + head;
    float *dk = grads_of(&g->dk, b);
    float *dv = grads_of(&g->dv, b);
    for (int64_t row = 0; row < step->map->q_rows; row += RA_STANDARD_QUERIES) {
        int32_t const count = (int32_t)ra_min_i64(RA_STANDARD_QUERIES, step->map->q_rows - row);
        if (ra_standard_is_left_out(step, row, count))
            continue;
        ra_operand const douts =
            ra_standard_operand(&g->dout, b->batch, head, row, count, dim, b->queries);
        ra_score_block const weights =
            ra_standard_part(step, step->weights, step->stride, lane, row, count, b->row, b->count);
        ra_standard_fold(&weights, true, 1, &douts, dv, g->dv.row_stride, b->keys);
        ra_operand const queries =
            ra_standard_operand(&g->q, b->batch, head, row, count, dim, b->queries);
        ra_score_block const dscores =
            ra_standard_part(step, step->dscores, step->keys, lane, row, count, b->row, b->count);
        ra_standard_fold(&dscores, true, step->shape->scale, &queries, dk, g->dk.row_stride,
                         b->keys);
        poll_now(step->kernel);
    }
}

static void dkey_block(const ra_standard_step *step, const ra_standard_block *b)
{
    int32_t const ratio = step->shape->q_heads / step->shape->kv_heads;
    for (int32_t head = b->head * ratio; head < (b->head + 1) * ratio; ++head)
        dkey_head(step, b, head);
}

ra_status ra_standard_backward(ra_kernel *kernel, const ra_backward_step *g)
{
    ra_status status = ra_kernel_validate_shape(kernel, &g->shape);
    if (status != RA_OK)
        return status;
    RA_ASSERT(g->dq.dtype == RA_F32 && g->dk.dtype == RA_F32 && g->dv.dtype == RA_F32);
    if (g->map->run_count == 0 || g->shape.batch == 0)
        return RA_OK;
    const ra_standard_kept *pair = ra_standard_pass_pair(kernel->kept.data, g->pair, 0);
    if (pair == NULL || pair->weights.data == NULL)
        return ra_kernel_refuse(kernel->ops->name, RA_ERR_INVALID,
                                "a backward step without the forward step it belongs to");
    RA_ASSERT(g->pair.first_key + g->map->k_rows <= pair->keys);
    ra_standard_step step = {.kernel = kernel,
                             .backward = g,
                             .shape = &g->shape,
                             .map = g->map,
                             .ends_only = g->ends_only,
                             .keys = g->map->k_rows,
                             .scores = (float *)pair->scores.data + g->pair.first_key,
                             .weights = (float *)pair->weights.data + g->pair.first_key,
                             .stride = pair->keys,
                             .makes_weights = !pair->is_normal};
    ra_standard_kept *const grads = ra_standard_pass_pair(kernel->kept.data, g->pair, g->pair.part);
    status = ra_standard_make(&step, &grads->dweights, &step.dweights, dweigh_block, "after dP");
    if (status == RA_OK)
        status = ra_standard_make(&step, &grads->dscores, &step.dscores, dscore_block, "after dS");
    if (status != RA_OK)
        return status;
    ra_standard_each_queries(&step, dquery_block);
    ra_standard_each_keys(&step, dkey_block);
    return RA_OK;
}

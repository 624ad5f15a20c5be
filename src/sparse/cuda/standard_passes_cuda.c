/* The passes of the table `standard` for GPUs: what they enqueue, in which order. */
#include "internal.h"
#include "sparse/cuda/launch_args.h"
#include "sparse/cuda/standard_cuda.h"
#include "sparse/kernel_request.h"

/* What memory holds in the middle of a step. */
static void mark(const ra_cuda_standard_step *step, const char *name)
{
    ra_pool_mark(step->kernel->pool, name, step->pair.group, step->pair.step);
}

static int64_t step_lines(const ra_cuda_standard_step *step)
{
    return step->shape->batch * step->shape->q_heads * ra_cuda_span_count(&step->span);
}

/* The driver may wait for all work before it gives memory, without a deadline: so wait with one. */
static ra_status take(const ra_cuda_standard_step *step, ra_block *block)
{
    ra_status const status = ra_cuda_finish(step->kernel);
    return status != RA_OK
               ? status
               : ra_standard_take(step->kernel, step->shape, step->span.rows, step->keys, block);
}

/* ---- forward --------------------------------------------------------------------------------- */

static ra_status score_heads(const ra_cuda_standard_step *step, const ra_cuda_some_heads *heads,
                             const void *context)
{
    const ra_forward_step *const f = context;
    return ra_cuda_standard_multiply(step, heads, step->shape->scale, &f->q, &f->k, step->scores,
                                     step->stride);
}

static ra_status soften(const ra_cuda_standard_step *step, const ra_forward_step *f,
                        const void *map)
{
    bool const whole = f->first && f->last;
    ra_cuda_softmax const s = {.map = ra_cuda_map_at(f->map, map),
                               .span = step->span,
                               .scores = step->scores,
                               .weights = step->weights,
                               .keys = step->keys,
                               .lines = step_lines(step),
                               .lse = whole ? f->lse : NULL,
                               .lse_batch_stride = f->lse_batch_stride,
                               .acc = whole ? NULL : f->state.acc,
                               .top = whole ? NULL : f->state.top,
                               .sum = whole ? NULL : f->state.sum,
                               .q_heads = step->shape->q_heads,
                               .q_head_begin = step->shape->q_head_begin,
                               .dim = step->shape->dim,
                               .first = f->first};
    if (s.lines == 0)
        return RA_OK;
    return ra_cuda_kernel_status(
        step->kernel,
        ra_cuda_softmax_launch(
            &s, ra_cuda_block_count(step->kernel, 32 * s.lines, RA_CUDA_SOFTMAX_THREADS),
            ra_cuda_self(step->kernel)->stream),
        "kernel cuda-standard: softmax");
}

/* Round rows of some heads, which lie at `sums`, head_floats apart from head to head. */
static ra_status output_rows(const ra_cuda_standard_step *step, const ra_cuda_some_heads *heads,
                             const ra_forward_step *f, const ra_cuda_fold *fold)
{
    int64_t const row = heads->batch * f->lse_batch_stride;
    int64_t const state = (int64_t)heads->batch * step->shape->q_heads * step->span.rows;
    bool const whole = f->first;
    ra_cuda_outputs const o = {.sums = fold->to,
                               .head_floats = fold->to_step,
                               .top = whole ? NULL : f->state.top + state,
                               .sum = whole ? NULL : f->state.sum + state,
                               .out = f->out,
                               .dout = f->dout,
                               .lse = f->lse != NULL ? f->lse + row : NULL,
                               .delta = f->delta != NULL ? f->delta + row : NULL,
                               .row_begin = fold->row_begin,
                               .rows = fold->row_end - fold->row_begin,
                               .q_rows = step->span.rows,
                               .lines = heads->count * (fold->row_end - fold->row_begin),
                               .batch = heads->batch,
                               .head_begin = ra_cuda_standard_query_head(heads),
                               .head_step = heads->ratio,
                               .dim = step->shape->dim};
    return ra_cuda_kernel_status(
        step->kernel,
        ra_cuda_outputs_launch(
            &o, ra_cuda_block_count(step->kernel, 32 * o.lines, RA_CUDA_SOFTMAX_THREADS),
            ra_cuda_self(step->kernel)->stream),
        "kernel cuda-standard: outputs");
}

/* Sum rows that one step finishes in the workspace, as many at a time as it holds. */
static ra_status sum_rows(const ra_cuda_standard_step *step, const ra_cuda_some_heads *heads,
                          const ra_forward_step *f, int64_t begin, int64_t end)
{
    int32_t const dim = step->shape->dim;
    ra_cuda_fold fold = {.matrix = step->weights,
                         .stride = step->stride,
                         .row_begin = begin,
                         .row_end = end,
                         .factor = 1,
                         .rows = &f->v,
                         .to_stride = dim};
    ra_status status = RA_OK;
    if (f->first && f->last) {
        fold.to = ra_cuda_standard_sums(step->kernel, dim);
        fold.to_step = (end - begin) * dim;
        status = ra_cuda_zero(step->kernel, fold.to,
                              (size_t)(heads->count * fold.to_step) * sizeof(float));
    } else {
        int64_t const lane =
            (int64_t)heads->batch * step->shape->q_heads + ra_cuda_standard_query_head(heads);
        fold.to = f->state.acc + (lane * step->span.rows + begin) * dim;
        fold.to_step = heads->ratio * step->span.rows * dim;
    }
    if (status == RA_OK)
        status = ra_cuda_standard_fold(step, heads, &fold);
    return status == RA_OK && f->last ? output_rows(step, heads, f, &fold) : status;
}

static ra_status sum_heads(const ra_cuda_standard_step *step, const ra_cuda_some_heads *heads,
                           const void *context)
{
    const ra_forward_step *const f = context;
    int64_t const most = f->first && f->last ? RA_CUDA_STANDARD_SUMS / heads->count : INT64_MAX;
    ra_status status = RA_OK;
    for (int i = 0; i < 2; ++i) {
        int64_t begin, end;
        ra_cuda_standard_range(step, i, &begin, &end);
        while (begin < end && status == RA_OK) {
            int64_t const count = ra_min_i64(most, end - begin);
            status = sum_rows(step, heads, f, begin, begin + count);
            begin += count;
        }
    }
    return status;
}

static ra_status compute_forward(ra_cuda_standard_step *step, const ra_forward_step *f,
                                 const void *map, ra_standard_kept *pair)
{
    ra_status status = take(step, &pair->scores);
    if (status != RA_OK)
        return status;
    step->scores = pair->scores.data;
    status = ra_cuda_standard_each(step, score_heads, f);
    if (status != RA_OK)
        return status;
    mark(step, "after scores");
    status = take(step, &pair->weights);
    if (status != RA_OK)
        return status;
    step->weights = pair->weights.data;
    status = soften(step, f, map);
    mark(step, "after softmax");
    return status == RA_OK ? ra_cuda_standard_each(step, sum_heads, f) : status;
}

static ra_cuda_standard_step step_of(ra_kernel *kernel, const ra_kernel_shape *shape,
                                     const ra_tilemap *map, bool ends_only)
{
    return (ra_cuda_standard_step){
        .kernel = kernel,
        .shape = shape,
        .span = ra_cuda_span_of(map->q_rows, map->chunk_rows, map->chunk_count, ends_only)};
}

/* A pass that keeps nothing gives a step's matrices back when the step is over. */
static ra_status forward_on_map(ra_kernel *kernel, const ra_forward_step *f, const void *map)
{
    ra_standard_kept own = {0};
    ra_standard_kept *const kept =
        ra_standard_pass_pair(ra_cuda_standard_of(kernel)->kept, f->pair, 0);
    ra_standard_kept *const pair = kept != NULL ? kept : &own;
    ra_cuda_standard_step step = step_of(kernel, &f->shape, f->map, f->ends_only);
    RA_ASSERT(pair->scores.data == NULL);
    step.dtype = f->q.dtype;
    step.pair = f->pair;
    step.stride = step.keys = pair->keys = f->map->run_count > 0 ? f->map->k_rows : 0;
    pair->is_normal = f->first && f->last;
    ra_status status = compute_forward(&step, f, map, pair);
    if (kept != NULL && status == RA_OK)
        return RA_OK;
    ra_status const over = ra_cuda_finish(kernel); /* returned blocks wait without a deadline */
    ra_standard_free_pair(kernel, pair);
    return over != RA_OK ? over : status; /* a lost GPU is the graver failure */
}

ra_status ra_cuda_standard_forward(ra_kernel *kernel, const ra_forward_step *f)
{
    const void *map = NULL;
    ra_block own_map = {0};
    ra_status status = ra_cuda_step_check(&f->shape, f->map, f->q.dtype);
    if (status == RA_OK)
        status = ra_kernel_validate_state(kernel, f);
    if (status == RA_OK)
        status = ra_cuda_standard_enter(kernel, &f->shape);
    if (status == RA_OK)
        status = ra_cuda_map_data(kernel, f->map, &own_map, &map);
    if (status != RA_OK)
        return status;
    ra_cuda_watch_launch(kernel, "forward products", &f->pair, NULL);
    status = forward_on_map(kernel, f, map);
    return ra_cuda_give_map(kernel, status, &own_map);
}

/* ---- backward -------------------------------------------------------------------------------- */

static ra_status dweigh_heads(const ra_cuda_standard_step *step, const ra_cuda_some_heads *heads,
                              const void *context)
{
    const ra_backward_step *const g = context;
    return ra_cuda_standard_multiply(step, heads, 1, &g->dout, &g->v, step->dweights, step->keys);
}

static ra_status soften_grads(const ra_cuda_standard_step *step, const ra_backward_step *g,
                              bool makes_weights)
{
    ra_cuda_softgrad const s = {.span = step->span,
                                .scores = step->scores,
                                .weights = step->weights,
                                .dweights = step->dweights,
                                .dscores = step->dscores,
                                .lse = g->lse,
                                .delta = g->delta,
                                .lse_batch_stride = g->lse_batch_stride,
                                .keys = step->keys,
                                .stride = step->stride,
                                .lines = step_lines(step),
                                .q_heads = step->shape->q_heads,
                                .makes_weights = makes_weights};
    if (s.lines == 0)
        return RA_OK;
    return ra_cuda_kernel_status(
        step->kernel,
        ra_cuda_softgrad_launch(
            &s, ra_cuda_block_count(step->kernel, 32 * s.lines, RA_CUDA_SOFTMAX_THREADS),
            ra_cuda_self(step->kernel)->stream),
        "kernel cuda-standard: gradients of scores");
}

/* Gradients of queries sum over keys; those of keys and values over queries, for one after the
   other of the query heads that share them. */
static ra_cuda_fold grad_fold(const ra_cuda_some_heads *heads, const ra_view *to, bool transposed,
                              int64_t row)
{
    int32_t const head = transposed ? heads->kv_begin : ra_cuda_standard_query_head(heads);
    return (ra_cuda_fold){.transposed = transposed,
                          .to = (float *)to->data + ra_view_at(to, heads->batch, row, head),
                          .to_stride = to->row_stride,
                          .to_step = to->head_stride * (transposed ? 1 : heads->ratio)};
}

static ra_status grad_heads(const ra_cuda_standard_step *step, const ra_cuda_some_heads *heads,
                            const void *context)
{
    const ra_backward_step *const g = context;
    ra_status status = RA_OK;
    for (int i = 0; i < 2 && status == RA_OK; ++i) {
        int64_t begin, end;
        ra_cuda_standard_range(step, i, &begin, &end);
        if (begin == end)
            continue;
        ra_cuda_fold folds[] = {grad_fold(heads, &g->dq, false, begin),
                                grad_fold(heads, &g->dk, true, 0),
                                grad_fold(heads, &g->dv, true, 0)};
        folds[0].rows = &g->k;
        folds[1].rows = &g->q;
        folds[2].rows = &g->dout;
        for (int j = 0; j < 3 && status == RA_OK; ++j) {
            folds[j].matrix = j < 2 ? step->dscores : step->weights;
            folds[j].stride = j < 2 ? step->keys : step->stride;
            folds[j].factor = j < 2 ? step->shape->scale : 1;
            folds[j].row_begin = begin;
            folds[j].row_end = end;
            status = ra_cuda_standard_fold(step, heads, &folds[j]);
        }
    }
    return status;
}

static ra_status compute_backward(ra_cuda_standard_step *step, const ra_backward_step *g,
                                  bool makes_weights, ra_standard_kept *grads)
{
    ra_status status = take(step, &grads->dweights);
    if (status != RA_OK)
        return status;
    step->dweights = grads->dweights.data;
    status = ra_cuda_standard_each(step, dweigh_heads, g);
    if (status != RA_OK)
        return status;
    mark(step, "after dP");
    status = take(step, &grads->dscores);
    if (status != RA_OK)
        return status;
    step->dscores = grads->dscores.data;
    status = soften_grads(step, g, makes_weights);
    mark(step, "after dS");
    return status == RA_OK ? ra_cuda_standard_each(step, grad_heads, g) : status;
}

ra_status ra_cuda_standard_backward(ra_kernel *kernel, const ra_backward_step *g)
{
    ra_status status = ra_cuda_step_check(&g->shape, g->map, g->q.dtype);
    if (status == RA_OK)
        status = ra_cuda_standard_enter(kernel, &g->shape);
    if (status != RA_OK)
        return status;
    RA_ASSERT(g->dq.dtype == RA_F32 && g->dk.dtype == RA_F32 && g->dv.dtype == RA_F32);
    if (g->map->run_count == 0 || g->shape.batch == 0)
        return RA_OK;
    ra_standard_pass *const kept = ra_cuda_standard_of(kernel)->kept;
    const ra_standard_kept *const pair = ra_standard_pass_pair(kept, g->pair, 0);
    if (pair == NULL || pair->weights.data == NULL)
        return ra_kernel_refuse(kernel->ops->name, RA_ERR_INVALID,
                                "a backward step without the forward step it belongs to");
    RA_ASSERT(g->pair.first_key + g->map->k_rows <= pair->keys);
    ra_cuda_standard_step step = step_of(kernel, &g->shape, g->map, g->ends_only);
    step.dtype = g->q.dtype;
    step.pair = g->pair;
    step.keys = g->map->k_rows;
    step.scores = (float *)pair->scores.data + g->pair.first_key;
    step.weights = (float *)pair->weights.data + g->pair.first_key;
    step.stride = pair->keys;
    ra_cuda_watch_launch(kernel, "backward products", &g->pair, NULL);
    return compute_backward(&step, g, !pair->is_normal,
                            ra_standard_pass_pair(kept, g->pair, g->pair.part));
}

/*
 * Linear attention on GPUs: each call enqueues one kernel. Scratch holds the matrices that a thread
 * block carries. The workspace bounds the number of thread blocks by it, even if the GPU could hold
 * more; results do not depend on that number.
 */
#include "internal.h"
#include "sparse/cuda/cuda_internal.h"
#include "sparse/cuda/launch_args.h"
#include "sparse/cuda/linear_launch.h"
#include "sparse/kernel_request.h"

static ra_status check_pass(const ra_kernel *kernel, const ra_linear_pass *pass)
{
    if (pass->segments < 1)
        return ra_kernel_refuse("cuda", RA_ERR_INVALID, "a pass must have a segment");
    return ra_kernel_validate_shape(kernel, &pass->shape);
}

static ra_cuda_linear args_of(ra_kernel *kernel, const ra_linear_pass *pass,
                              ra_cuda_linear_work work)
{
    const ra_kernel_shape *shape = &pass->shape;
    int64_t const segments = shape->batch * shape->kv_heads * pass->segments;
    return (ra_cuda_linear){.q = pass->q,
                            .k = pass->k,
                            .v = pass->v,
                            .out = pass->out,
                            .dout = pass->dout,
                            .dq = pass->dq,
                            .dk = pass->dk,
                            .dv = pass->dv,
                            .states = pass->states,
                            .grads = pass->grads,
                            .prefixes = pass->prefixes,
                            .lines = pass->lines,
                            .scratch = kernel->workspace.data,
                            .scratch_floats = ra_cuda_linear_scratch_floats(shape->dim),
                            .rows = pass->rows,
                            .tasks = work == RA_CUDA_LINEAR_KEYS ? 2 * segments : segments,
                            .segments = pass->segments,
                            .q_heads = shape->q_heads,
                            .kv_heads = shape->kv_heads,
                            .dim = shape->dim,
                            .causal = pass->causal,
                            .stores = pass->method == RA_LINEAR_CUMSUM};
}

static ra_status linear_run(ra_kernel *kernel, const ra_linear_pass *pass, ra_cuda_linear_work work)
{
    ra_status status = check_pass(kernel, pass);
    if (status != RA_OK)
        return status;
    ra_cuda_tile const tile = ra_cuda_linear_tile_of(work, pass->shape.dim);
    ra_cuda_linear const f = args_of(kernel, pass, work);
    int64_t const room = (int64_t)((kernel->workspace.bytes - RA_CUDA_TAIL_BYTES) /
                                   ((size_t)f.scratch_floats * sizeof(float)));
    int64_t const held = ra_min_i64((int64_t)kernel->threads * tile.blocks_per_sm, room);
    int64_t const blocks = ra_min_i64(held, f.tasks);
    if (held < 1)
        return ra_kernel_refuse(
            "cuda", RA_ERR_INVALID,
            "its workspace was made for softmax attention, or for a smaller head_dim");
    status = ra_cuda_check_shared(kernel, &tile);
    if (status == RA_OK)
        status = ra_cuda_enter(kernel);
    if (status != RA_OK || blocks == 0)
        return status;
    ra_cuda_watch_launch(kernel, "linear attention", NULL, NULL);
    return ra_cuda_kernel_status(
        kernel, ra_cuda_linear_launch(work, &f, (int)blocks, ra_cuda_self(kernel)->stream),
        "kernel cuda: linear attention");
}

static ra_status cuda_sum(ra_kernel *kernel, const ra_linear_pass *pass)
{
    return linear_run(kernel, pass, RA_CUDA_LINEAR_SUM);
}

static ra_status cuda_forward(ra_kernel *kernel, const ra_linear_pass *pass)
{
    bool const rowwise = pass->causal && pass->method != RA_LINEAR_CHUNKED;
    RA_ASSERT(pass->prefixes != NULL || !pass->causal || pass->method != RA_LINEAR_CUMSUM);
    return linear_run(kernel, pass, rowwise ? RA_CUDA_LINEAR_ROWWISE : RA_CUDA_LINEAR_FORWARD);
}

static ra_status cuda_backward_queries(ra_kernel *kernel, const ra_linear_pass *pass)
{
    RA_ASSERT(pass->grads != NULL && pass->lines != NULL);
    return linear_run(kernel, pass, RA_CUDA_LINEAR_QUERIES);
}

static ra_status cuda_backward_keys(ra_kernel *kernel, const ra_linear_pass *pass)
{
    RA_ASSERT(pass->grads != NULL && pass->lines != NULL);
    return linear_run(kernel, pass, RA_CUDA_LINEAR_KEYS);
}

/* ---- segments -------------------------------------------------------------------------------- */

static ra_status segments_run(ra_kernel *kernel, const ra_linear_pass *pass, ra_cuda_segments *f)
{
    ra_status status = check_pass(kernel, pass);
    f->lanes = pass->shape.batch * pass->shape.kv_heads;
    f->floats = ra_linear_state_floats(pass->shape.dim);
    f->segments = pass->segments;
    int const blocks =
        ra_cuda_block_count(kernel, f->lanes * f->floats, RA_CUDA_LINEAR_FLAT_THREADS);
    if (status == RA_OK)
        status = ra_cuda_enter(kernel);
    if (status != RA_OK || blocks == 0)
        return status;
    ra_cuda_watch_launch(kernel, "states of segments", NULL, NULL);
    return ra_cuda_kernel_status(kernel,
                                 ra_cuda_segments_launch(f, blocks, ra_cuda_self(kernel)->stream),
                                 "kernel cuda: states of segments");
}

static ra_status cuda_total(ra_kernel *kernel, const ra_linear_pass *pass, const float *states,
                            float *totals_out)
{
    ra_cuda_segments f = {.states = (float *)(uintptr_t)states, .totals = totals_out};
    return segments_run(kernel, pass, &f); /* which reads the states only */
}

static ra_status cuda_spread(ra_kernel *kernel, const ra_linear_pass *pass, ra_linear_reach reach,
                             const float *before, const float *after, float *states)
{
    ra_cuda_segments f = {.states = states, .before = before, .after = after, .reach = reach};
    return segments_run(kernel, pass, &f);
}

const ra_linear_ops ra_cuda_linear_ops = {
    .workers = RA_CUDA_LINEAR_WORKERS,
    .sum = cuda_sum,
    .forward = cuda_forward,
    .backward_queries = cuda_backward_queries,
    .backward_keys = cuda_backward_keys,
    .total = cuda_total,
    .spread = cuda_spread,
};

/*
 * The table of operations for one instruction set. Included by one small file per set, which
 * names it and sizes its vectors and register tiles:
 *
 *     RA_CPU_TABLE      name of the table        RA_CPU_NAME      "cpu-…"
 *     RA_VEC_LANES      floats in a vector       RA_PRODUCT_ROWS  rows of a register tile
 *     RA_PAIRS          defined: the set multiplies bf16 by pairs, see pairs.h
 *     RA_AMX            defined beside it: by AMX, see amx.h
 */
#include "sparse/cpu/backward_cpu.h"
#include "sparse/cpu/forward_tasks.h"
#include "sparse/cpu/linear_backward.h"
#include "sparse/cpu/rows_cpu.h"
#include "sparse/kernel_request.h"

#include "internal.h"

/* Scratch of one thread; the workspace has one such piece per thread. */
static size_t thread_floats(int32_t dim)
{
    forward_scratch forward[RA_TILES_AT_ONCE_MAX];
    backward_scratch backward;
    linear_scratch linear;
    size_t const f = forward_scratch_carve(NULL, dim, forward);
    size_t const b = backward_scratch_carve(NULL, dim, &backward);
    size_t const l = linear_scratch_carve(NULL, dim, &linear);
    size_t const most = f > b ? f : b;
    return most > l ? most : l;
}

static float *thread_workspace(const ra_kernel *kernel, int32_t dim)
{
    return (float *)kernel->workspace.data + thread_floats(dim) * (size_t)thread_index();
}

/* The same for every use: shared rows lie where further tiles would, and backward takes most. */
static size_t cpu_workspace_bytes(const ra_kernel_use *use)
{
    return sizeof(float) * thread_floats(use->dim) * (size_t)use->threads;
}

static int32_t cpu_tile_rows(ra_dtype dtype, int32_t dim)
{
    (void)dtype;
    (void)dim;
    return RA_TILE_ROWS_MAX;
}

static ra_status check_step(const ra_kernel *kernel, const ra_kernel_shape *shape,
                            const ra_tilemap *map)
{
    ra_status const status = ra_kernel_validate_shape(kernel, shape);
    return status == RA_OK ? ra_kernel_validate_map(kernel->ops->name, map, RA_TILE_ROWS_MAX)
                           : status;
}

static ra_status cpu_forward(ra_kernel *kernel, const ra_forward_step *step)
{
    ra_status status = check_step(kernel, &step->shape, step->map);
    if (status == RA_OK)
        status = ra_kernel_validate_state(kernel, step);
    if (status != RA_OK)
        return status;
    RA_OMP(omp parallel num_threads(kernel->threads))
    forward_thread(kernel, step, thread_workspace(kernel, step->shape.dim));
    return RA_OK;
}

static ra_status cpu_backward(ra_kernel *kernel, const ra_backward_step *step)
{
    ra_status const status = check_step(kernel, &step->shape, step->map);
    if (status != RA_OK)
        return status;
    RA_ASSERT(step->dq.dtype == RA_F32 && step->dk.dtype == RA_F32 && step->dv.dtype == RA_F32);
    RA_OMP(omp parallel num_threads(kernel->threads))
    backward_thread(kernel, step, thread_workspace(kernel, step->shape.dim));
    return RA_OK;
}

static ra_status cpu_delta(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t q_rows,
                           const ra_view *out, const ra_view *dout, float *delta_out)
{
    ra_status const status = ra_kernel_validate_shape(kernel, shape);
    if (status != RA_OK)
        return status;
    RA_OMP(omp parallel num_threads(kernel->threads))
    delta_thread(shape, q_rows, out, dout, delta_out, thread_workspace(kernel, shape->dim));
    return RA_OK;
}

static ra_status cpu_gather(ra_kernel *kernel, const ra_kernel_shape *shape, const ra_rowset *rows,
                            const ra_view *from, const ra_view *to)
{
    RA_ASSERT(from->dtype == to->dtype);
    (void)kernel;
    RA_OMP(omp parallel num_threads(kernel->threads))
    move_thread(shape, rows, from, to, gather_heads);
    return RA_OK;
}

static ra_status cpu_add(ra_kernel *kernel, const ra_kernel_shape *shape, const ra_rowset *rows,
                         const ra_view *from, const ra_view *to)
{
    RA_ASSERT(from->dtype == RA_F32 && to->dtype == RA_F32);
    (void)kernel;
    RA_OMP(omp parallel num_threads(kernel->threads))
    move_thread(shape, rows, from, to, add_heads);
    return RA_OK;
}

static ra_status cpu_store(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t count,
                           const ra_view *from, const ra_view *to)
{
    RA_ASSERT(from->dtype == RA_F32);
    (void)kernel;
    RA_OMP(omp parallel num_threads(kernel->threads))
    store_thread(shape, count, from, to);
    return RA_OK;
}

static ra_status cpu_zero(ra_kernel *kernel, void *data, size_t bytes)
{
    (void)kernel;
    if (bytes > 0)
        memset(data, 0, bytes);
    return RA_OK;
}

/* ---- linear attention ------------------------------------------------------------------------ */

static ra_status linear_run(ra_kernel *kernel, const ra_linear_pass *pass,
                            void (*work)(linear_task *task))
{
    const ra_kernel_shape *shape = &pass->shape;
    ra_status const status = ra_kernel_validate_shape(kernel, shape);
    if (status != RA_OK)
        return status;
    int64_t const tasks = shape->batch * shape->kv_heads * pass->segments;
    RA_OMP(omp parallel for schedule(dynamic) num_threads(kernel->threads))
    for (int64_t index = 0; index < tasks; ++index) {
        linear_task task = task_begin(kernel, pass, index);
        linear_scratch_carve(thread_workspace(kernel, shape->dim), shape->dim, &task.s);
        work(&task);
    }
    return RA_OK;
}

static ra_status linear_sum(ra_kernel *kernel, const ra_linear_pass *pass)
{
    return linear_run(kernel, pass, sum_task);
}

static ra_status linear_forward(ra_kernel *kernel, const ra_linear_pass *pass)
{
    RA_ASSERT(pass->prefixes != NULL || !pass->causal || pass->method != RA_LINEAR_CUMSUM);
    return linear_run(kernel, pass, forward_task);
}

static ra_status linear_backward_queries(ra_kernel *kernel, const ra_linear_pass *pass)
{
    RA_ASSERT(pass->grads != NULL && pass->lines != NULL);
    return linear_run(kernel, pass, query_task);
}

static ra_status linear_backward_keys(ra_kernel *kernel, const ra_linear_pass *pass)
{
    RA_ASSERT(pass->grads != NULL && pass->lines != NULL);
    return linear_run(kernel, pass, key_task);
}

static const ra_linear_ops linear_ops = {
    .sum = linear_sum,
    .forward = linear_forward,
    .backward_queries = linear_backward_queries,
    .backward_keys = linear_backward_keys,
    .total = ra_linear_total_cpu,
    .spread = ra_linear_spread_cpu,
};

const ra_kernel_ops RA_CPU_TABLE = {
    .name = RA_CPU_NAME,
    .memory = ra_memory_host,
    .tile_rows = cpu_tile_rows,
    .takes_chunk_steps = true,
    .workspace_bytes = cpu_workspace_bytes,
    .forward = cpu_forward,
    .delta = cpu_delta,
    .backward = cpu_backward,
    .gather = cpu_gather,
    .add = cpu_add,
    .store = cpu_store,
    .zero = cpu_zero,
    .linear = &linear_ops,
};

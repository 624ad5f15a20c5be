/*
 * The kernel table `standard`: S = scale Q K^T, P = softmax(S), O = P V, each materialised for all
 * heads of a step before the next begins, and backward dP = dO V^T, dS = P (dP - delta),
 * dQ = scale dS K, dK = scale dS^T Q, dV = P^T dO.
 *
 * Threads take blocks of rows, each written by one thread, and products run on the thread that
 * calls them, so results do not depend on timing. With several forward steps, weights are relative
 * to the top score so far; backward then recomputes P from S with the log-sum-exp of all steps.
 */
#include "ringattn/blas.h"
#include "sparse/cpu/standard_step.h"

#include <pthread.h>

static void forget_pass(ra_kernel *kernel)
{
    if (kernel->kept.data == NULL)
        return;
    ra_standard_pass_free_pairs(kernel, kernel->kept.data);
    ra_pool_free(kernel->pool, kernel->stream, &kernel->kept);
}

static ra_status standard_begin(ra_kernel *kernel, const ra_kernel_pass *pass)
{
    if (!ra_blas_reserve(kernel->threads, 0)) {
        ra_log(RA_LOG_ERROR,
               "memory: attention.kind: standard computes with OpenBLAS, which the system refuses "
               "128 MiB of address space for each of %d threads, or as much to spare: raise that "
               "limit (ulimit -v), take fewer compute.threads, or flash",
               kernel->threads);
        return RA_ERR_NO_MEMORY;
    }
    if (pass->backward)
        return ra_standard_pass_check(kernel, pass, kernel->kept.data);
    forget_pass(kernel); /* left from a forward pass without a backward one */
    if (!pass->keeps)
        return RA_OK;
    ra_status const status =
        ra_pool_alloc(kernel->pool, RA_MEM_WORKSPACE, ra_standard_pass_bytes(pass), kernel->stream,
                      &kernel->kept);
    if (status == RA_OK)
        ra_standard_pass_init(kernel->kept.data, pass);
    return status;
}

static void standard_end(ra_kernel *kernel, const ra_kernel_pass *pass, bool failed)
{
    if ((pass->backward || failed) && ra_standard_pass_owns(pass, kernel->kept.data))
        forget_pass(kernel);
}

static size_t thread_floats(int32_t dim)
{
    return (size_t)(2 * RA_STANDARD_QUERIES + RA_STANDARD_KEYS) * (size_t)dim;
}

/* Go through all rows of all heads, in blocks of at most `most`, dealt to the threads. */
static void each_block(const ra_standard_step *step, int32_t heads, int64_t rows, int32_t most,
                       bool of_queries, ra_standard_work *work)
{
    int64_t const blocks = ra_div_ceil(rows, most);
    int64_t const count = step->shape->batch * heads * blocks;
    int32_t const dim = step->shape->dim;
    RA_OMP(omp parallel for schedule(dynamic) num_threads(step->kernel->threads))
    for (int64_t i = 0; i < count; ++i) {
        int64_t const lane = i / blocks, row = i % blocks * most;
        float *scratch =
            (float *)step->kernel->workspace.data + thread_floats(dim) * (size_t)thread_index();
        ra_standard_block const block = {
            .lane = lane,
            .batch = lane / heads,
            .head = (int32_t)(lane % heads),
            .count = (int32_t)ra_min_i64(most, rows - row),
            .row = row,
            .queries = scratch,
            .keys = scratch + (size_t)RA_STANDARD_QUERIES * (size_t)dim,
            .sums = scratch + (size_t)(RA_STANDARD_QUERIES + RA_STANDARD_KEYS) * (size_t)dim};
        if (!of_queries || !ra_standard_is_left_out(step, row, block.count))
            work(step, &block);
    }
}

void ra_standard_each_queries(const ra_standard_step *step, ra_standard_work *work)
{
    each_block(step, step->shape->q_heads, step->map->q_rows, RA_STANDARD_QUERIES, true, work);
}

void ra_standard_each_keys(const ra_standard_step *step, ra_standard_work *work)
{
    each_block(step, step->shape->kv_heads, step->keys, RA_STANDARD_KEYS, false, work);
}

ra_status ra_standard_make(ra_standard_step *step, ra_block *block, float **matrix,
                           ra_standard_work *work, const char *mark)
{
    ra_kernel *const kernel = step->kernel;
    ra_kernel_pair const pair = step->forward != NULL ? step->forward->pair : step->backward->pair;
    ra_status const status =
        ra_standard_take(kernel, step->shape, step->map->q_rows, step->keys, block);
    if (status != RA_OK)
        return status;
    *matrix = block->data;
    ra_standard_each_queries(step, work);
    ra_pool_mark(kernel->pool, mark, pair.group, pair.step);
    return RA_OK;
}

/* Tiles, moving rows, and delta if called by itself, are those of the CPU's table. */
static size_t standard_workspace_bytes(const ra_kernel_use *use)
{
    size_t const own = sizeof(float) * thread_floats(use->dim) * (size_t)use->threads;
    size_t const rows = ra_kernel_cpu(RA_ISA_AUTO)->workspace_bytes(use);
    return own > rows ? own : rows;
}

static ra_kernel_ops the_table;
static pthread_once_t table_made = PTHREAD_ONCE_INIT;

static void make_table(void)
{
    the_table = *ra_kernel_cpu(RA_ISA_AUTO);
    the_table.name = "standard";
    the_table.takes_chunk_steps = false;
    the_table.workspace_bytes = standard_workspace_bytes;
    the_table.forward = ra_standard_forward;
    the_table.backward = ra_standard_backward;
    the_table.step_bytes = ra_standard_step_bytes;
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

#include "sparse/cuda_job.h"

#include "ringattn/device.h"
#include "support/standin_cudart.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { TENSORS = 8, CALLS_MAX = 1000 };

captured_log said;

static int64_t lines_of(const cuda_job *j)
{
    return (int64_t)j->rows * j->shape.q_heads;
}

/* 4 bytes per element suffice for every dtype. */
ra_view cuda_job_tensor(const cuda_job *j, int i)
{
    return ra_view_dense((float *)j->tensors.data + i * j->count, i < 5 ? j->dtype : RA_F32,
                         j->rows, i == 1 || i == 2 || i > 5 ? 1 : j->shape.q_heads, DIM, 0);
}

float *cuda_job_lse(const cuda_job *j)
{
    return (float *)j->tensors.data + TENSORS * j->count;
}

void cuda_job_prepare(cuda_job *j, const ra_kernel_ops *ops, ra_dtype dtype, int32_t rows,
                      int32_t heads)
{
    ra_pattern_config pattern = ra_pattern_config_dense();
    pattern.causal = true;
    memset(j, 0, sizeof(*j));
    j->ops = ops;
    j->use = (ra_kernel_use){.dim = DIM, .threads = 1};
    j->shape =
        (ra_kernel_shape){.batch = 1, .q_heads = heads, .kv_heads = 1, .dim = DIM, .scale = 0.25f};
    j->dtype = dtype;
    j->rows = rows;
    j->count = lines_of(j) * DIM;
    cr_assert_leq(j->count, COUNT_MAX);
    j->host = mapped_make(&(mapped_config){.pattern = &pattern,
                                           .rows = rows,
                                           .heads = heads,
                                           .tile_rows = ops->tile_rows(dtype, DIM),
                                           .by_keys = ops->maps_by_keys});
}

static ra_status fill(cuda_job *j)
{
    static float stored[COUNT_MAX];
    ra_status status = RA_OK;
    for (int t = 0; t < TENSORS && status == RA_OK; ++t) {
        memset(stored, 0, sizeof(stored));
        for (int i = 0; i < j->count && t < 5 && t != 3; ++i)
            ra_dtype_store(j->dtype, stored, i, sinf((float)(i + 7 * t)));
        status = ra_memory_write(&j->memory, j->kernel.stream, cuda_job_tensor(j, t).data, stored,
                                 (size_t)j->count * sizeof(float));
    }
    return status;
}

ra_status cuda_job_take(cuda_job *j, int64_t limit_bytes)
{
    size_t const floats = (size_t)(TENSORS * j->count + 2 * lines_of(j));
    ra_status status = ra_memory_device(ra_device_used(), &j->memory);
    if (status != RA_OK)
        return status;
    cr_assert_eq(ra_ledger_create(limit_bytes, &j->ledger), RA_OK);
    ra_pool_config const config = {.mode = j->mode, .memory = j->memory, .ledger = j->ledger};
    cr_assert_eq(ra_pool_create(&config, &j->pool), RA_OK);
    status = ra_kernel_init(j->ops, &j->use, j->pool, &j->kernel);
    if (status == RA_OK)
        status = ra_pool_alloc(j->pool, RA_MEM_QKV, floats * sizeof(float), j->kernel.stream,
                               &j->tensors);
    return status == RA_OK ? fill(j) : status;
}

void cuda_job_give(cuda_job *j)
{
    if (j->kernel.ops != NULL)
        ra_kernel_drop_map(&j->kernel, &j->host.map);
    if (j->pool != NULL)
        ra_pool_free(j->pool, j->kernel.stream, &j->tensors);
    ra_kernel_fini(&j->kernel);
    ra_pool_destroy(j->pool);
    if (j->ledger != NULL) {
        ra_ledger_snapshot last;
        ra_ledger_read(j->ledger, &last);
        cr_expect_eq(last.reserved_bytes, 0, "%lld bytes are left", (long long)last.reserved_bytes);
    }
    ra_ledger_destroy(j->ledger);
    mapped_free(&j->host);
}

ra_status cuda_job_forward(cuda_job *j)
{
    ra_forward_step const step = {.map = &j->host.map,
                                  .shape = j->shape,
                                  .q = cuda_job_tensor(j, 0),
                                  .k = cuda_job_tensor(j, 1),
                                  .v = cuda_job_tensor(j, 2),
                                  .out = cuda_job_tensor(j, 3),
                                  .dout = cuda_job_tensor(j, 4),
                                  .lse = cuda_job_lse(j),
                                  .lse_batch_stride = lines_of(j),
                                  .delta = cuda_job_lse(j) + lines_of(j),
                                  .first = true,
                                  .last = true,
                                  .ends_only = j->ends_only};
    return j->ops->forward(&j->kernel, &step);
}

ra_status cuda_job_backward(cuda_job *j)
{
    ra_backward_step const step = {.map = &j->host.map,
                                   .shape = j->shape,
                                   .q = cuda_job_tensor(j, 0),
                                   .k = cuda_job_tensor(j, 1),
                                   .v = cuda_job_tensor(j, 2),
                                   .dout = cuda_job_tensor(j, 4),
                                   .lse = cuda_job_lse(j),
                                   .lse_batch_stride = lines_of(j),
                                   .delta = cuda_job_lse(j) + lines_of(j),
                                   .dq = cuda_job_tensor(j, 5),
                                   .dk = cuda_job_tensor(j, 6),
                                   .dv = cuda_job_tensor(j, 7),
                                   .ends_only = j->ends_only};
    return j->ops->backward(&j->kernel, &step);
}

ra_status cuda_job_read(cuda_job *j)
{
    ra_status status = RA_OK;
    for (int i = 0; i < 4 && status == RA_OK; ++i)
        status = ra_memory_read(&j->memory, j->kernel.stream, j->results + i * j->count,
                                cuda_job_tensor(j, i == 0 ? 3 : 4 + i).data,
                                (size_t)j->count * sizeof(float));
    return status;
}

/* Giving back cannot fail: what the runtime or a library refuses to take back is left, and one
   warning says so. That a GPU is slower than it could be is another. */
void cuda_job_check_end(const char *of, int64_t call, ra_status status, int64_t handles)
{
    int64_t const left =
        standin.blocks + standin.pinned_blocks + standin.events + standin.streams + handles;
    int const slower = standin.blocks_held > 0 ? 1 : 0;
    cr_expect_eq(left, status == RA_OK ? said.warnings - slower : 0, "%s call %lld: %lld left: %s",
                 of, (long long)call, (long long)left, said.line);
    cr_expect_leq(said.errors + said.warnings, 1, "%s call %lld: %d lines", of, (long long)call,
                  said.errors + said.warnings);
    cr_expect(status == RA_OK || said.errors == 1, "%s call %lld: no line", of, (long long)call);
    if (status == RA_ERR_NO_MEMORY && strncmp(said.line, "kernel cuda", strlen("kernel cuda")) == 0)
        cr_expect_fail("%s call %lld: does not say what is held: %s", of, (long long)call,
                       said.line);
}

int64_t cuda_job_sweep_run(const cuda_job_sweep *s)
{
    static float want[RESULTS_MAX];
    static cuda_job j;
    int64_t call = 0;
    for (bool done = false; !done; ++call) {
        cr_assert_lt(call, CALLS_MAX);
        ra_status const expected = s->begin(&j, call);
        j.mode = s->mode;
        ra_status status = cuda_job_take(&j, INT64_MAX);
        if (status == RA_OK)
            status = s->compute(&j);
        if (call == 0)
            memcpy(want, j.results, sizeof(want));
        if (status == RA_OK)
            cr_expect_eq(memcmp(want, j.results, sizeof(want)), 0, "%s call %lld", s->of,
                         (long long)call);
        else if (expected != RA_OK)
            cr_expect_eq(status, expected, "%s call %lld", s->of, (long long)call);
        cuda_job_give(&j);
        done = call > *s->calls;
        cuda_job_check_end(s->of, call, status, s->handles != NULL ? *s->handles : 0);
    }
    return call;
}

/*
 * The table for GPUs that materialises its scores, on the stand-ins for the runtime and for cuBLAS:
 * what it holds when, that any call which fails is one error and leaves nothing, and that parts of
 * a job are computed where only these are asked for.
 */
#include "ringattn/device.h"
#include "sparse/cuda_job.h"
#include "support/standin_cublas.h"
#include "support/standin_cudart.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 300, HEADS = 2, COUNT = ROWS * HEADS * DIM, LINES = ROWS * HEADS };

static void begin(void)
{
    standin_reset();
    standin_cublas_reset();
    standin.multiprocessors = 1;
    captured_log_begin(&said);
}

TestSuite(standard_cuda, .init = begin, .timeout = 600);

static void prepare(cuda_job *j, ra_dtype dtype)
{
    cuda_job_prepare(j, ra_kernel_cuda_standard(), dtype, ROWS, HEADS);
}

static ra_status pass(cuda_job *j, const ra_kernel_pass *which)
{
    ra_status status = ra_kernel_begin(&j->kernel, which);
    if (status == RA_OK)
        status = which->backward ? cuda_job_backward(j) : cuda_job_forward(j);
    if (status == RA_OK)
        status = ra_kernel_finish(&j->kernel);
    ra_kernel_end(&j->kernel, which, status != RA_OK);
    return status;
}

static const ra_kernel_pass alone = {.groups = 1, .steps = 1, .parts = 1};
static const ra_kernel_pass kept = {.keeps = true, .groups = 1, .steps = 1, .parts = 1};
static const ra_kernel_pass after = {.backward = true, .groups = 1, .steps = 1, .parts = 1};

static ra_status compute(cuda_job *j)
{
    ra_status status = pass(j, &kept);
    if (status == RA_OK)
        status = pass(j, &after);
    return status == RA_OK ? cuda_job_read(j) : status;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void expect_matrices(const cuda_job *j, int now, int most)
{
    ra_ledger_snapshot snapshot;
    int64_t const round = (int64_t)ra_pool_round(j->pool, (size_t)LINES * ROWS * sizeof(float));
    ra_ledger_read(j->ledger, &snapshot);
    cr_expect_eq(snapshot.current_bytes[RA_MEM_SCORES], now * round);
    cr_expect_eq(snapshot.peak_bytes[RA_MEM_SCORES], most * round);
    cr_expect_eq(snapshot.current_bytes[RA_MEM_CONTEXT], standin_cublas.taken_bytes);
}

Test(standard_cuda, matrices_are_held_as_on_the_cpu)
{
    static cuda_job j;
    prepare(&j, RA_BF16);
    cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
    cr_assert_eq(pass(&j, &alone), RA_OK);
    expect_matrices(&j, 0, 2);
    for (int again = 0; again < 2; ++again) {
        cr_assert_eq(pass(&j, &kept), RA_OK);
        expect_matrices(&j, 2, again == 0 ? 2 : 4);
        cr_assert_eq(pass(&j, &after), RA_OK);
        expect_matrices(&j, 0, 4);
    }
    cr_assert_eq(pass(&j, &kept), RA_OK);
    cr_expect_eq(said.errors + said.warnings, 0, "%s", said.line);
    cuda_job_give(&j); /* and what no backward pass followed */
    cr_expect_eq(standin_cublas.handles, 0);
    cr_expect_eq(standin.used_bytes, 0);
}

Test(standard_cuda, a_backward_pass_after_another_rings_forward_pass_is_refused)
{
    static cuda_job j;
    ra_kernel_pass forward_of = kept, backward_of = after;
    prepare(&j, RA_F32);
    cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
    forward_of.owner = 1;
    cr_assert_eq(pass(&j, &forward_of), RA_OK);
    backward_of.owner = 2;
    cr_expect_eq(pass(&j, &backward_of), RA_ERR_INVALID);
    cr_expect_not_null(strstr(said.line, "of another ring"), "%s", said.line);
    expect_matrices(&j, 2, 2);
    backward_of.owner = 1;
    cr_expect_eq(pass(&j, &backward_of), RA_OK);
    expect_matrices(&j, 0, 4);
    cr_expect_eq(said.errors, 1);
    cuda_job_give(&j);
}

Test(standard_cuda, steps_that_are_wrong_are_refused_in_one_line)
{
    static cuda_job j;
    prepare(&j, RA_F32);
    cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
    cr_assert_eq(pass(&j, &alone), RA_OK);
    cr_expect_eq(pass(&j, &after), RA_ERR_INVALID);
    cr_expect_not_null(strstr(said.line, "without the forward step"), "%s", said.line);
    ra_forward_step wide = {.map = &j.host.map, .shape = j.shape, .first = true, .last = true};
    wide.shape.dim = 128; /* the workspace was made for 16 */
    cr_expect_eq(j.kernel.ops->forward(&j.kernel, &wide), RA_ERR_INVALID);
    wide.shape.dim = 257;
    cr_expect_eq(j.kernel.ops->forward(&j.kernel, &wide), RA_ERR_INVALID);
    cr_expect_eq(said.errors, 3);
    cuda_job_give(&j);
}

/* 2^31 elements: as an int, a row before the first one. */
Test(standard_cuda, rows_at_strides_that_cublas_does_not_take_are_refused)
{
    static int64_t const strides[] = {(int64_t)1 << 31, -DIM, DIM - 1, 0};
    enum { STRIDES = sizeof(strides) / sizeof(strides[0]) };
    static cuda_job j;
    prepare(&j, RA_F32);
    cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
    ra_forward_step far = {.map = &j.host.map,
                           .shape = j.shape,
                           .q = cuda_job_tensor(&j, 0),
                           .k = cuda_job_tensor(&j, 1),
                           .v = cuda_job_tensor(&j, 2),
                           .out = cuda_job_tensor(&j, 3),
                           .first = true,
                           .last = true};
    for (int i = 0; i < STRIDES; ++i) {
        far.k.row_stride = strides[i];
        cr_expect_eq(j.kernel.ops->forward(&j.kernel, &far), RA_ERR_UNSUPPORTED, "%d", i);
    }
    cr_expect_eq(said.errors, STRIDES);
    cr_expect_not_null(strstr(said.line, "beyond cuBLAS"), "%s", said.line);
    cuda_job_give(&j);
}

/* A job whose limit has room for so many matrices. */
static void begin_with_room(cuda_job *j, int matrices)
{
    ra_ledger_snapshot before;
    begin();
    prepare(j, RA_F32);
    cr_assert_eq(cuda_job_take(j, INT64_MAX), RA_OK);
    ra_ledger_read(j->ledger, &before);
    int64_t const round = (int64_t)ra_pool_round(j->pool, (size_t)LINES * ROWS * sizeof(float));
    int64_t const map = (int64_t)ra_pool_round(j->pool, (size_t)j->host.map.bytes);
    cuda_job_give(j);
    prepare(j, RA_F32);
    cr_assert_eq(cuda_job_take(j, before.reserved_bytes + map + matrices * round), RA_OK);
}

Test(standard_cuda, a_matrix_that_passes_the_limit_fails_its_pass_and_leaves_nothing)
{
    for (int fitting = 0; fitting <= 4; ++fitting) {
        static cuda_job j;
        begin_with_room(&j, fitting);
        ra_status status = pass(&j, &kept);
        cr_expect_eq(status, fitting >= 2 ? RA_OK : RA_ERR_NO_MEMORY, "%d fit", fitting);
        if (status == RA_OK)
            status = pass(&j, &after);
        cr_expect_eq(status, fitting >= 4 ? RA_OK : RA_ERR_NO_MEMORY, "%d fit", fitting);
        cr_expect_eq(said.errors, fitting < 4);
        expect_matrices(&j, 0, fitting);
        cuda_job_give(&j);
    }
}

Test(standard_cuda, a_gpu_without_room_for_cublas_has_no_memory)
{
    static cuda_job j;
    standin.memory_bytes = standin_cublas.taken_bytes - 1;
    prepare(&j, RA_F32);
    cr_expect_eq(cuda_job_take(&j, INT64_MAX), RA_ERR_NO_MEMORY);
    cr_expect_eq(said.errors, 1);
    cr_expect_not_null(strstr(said.line, "cuBLAS"), "%s", said.line);
    cuda_job_give(&j);
}

/* As where the driver cannot load a kernel. What is free is enough for both matrices. */
Test(standard_cuda, a_product_that_fails_on_a_full_gpu_has_no_memory)
{
    static const cublasStatus_t statuses[] = {
        CUBLAS_STATUS_EXECUTION_FAILED, CUBLAS_STATUS_INTERNAL_ERROR, CUBLAS_STATUS_INVALID_VALUE};
    for (int i = 0; i < 3; ++i) {
        static cuda_job j;
        begin();
        prepare(&j, RA_F32);
        cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
        cr_assert_eq(pass(&j, &alone), RA_OK);
        standin.memory_bytes = standin.used_bytes + (8 << 20);
        standin_cublas.fail_call = standin_cublas.calls + 1;
        standin_cublas.fail_status = statuses[i];
        cr_expect_eq(pass(&j, &alone), i < 2 ? RA_ERR_NO_MEMORY : RA_ERR_CUDA, "%d", i);
        cr_expect_eq(said.errors, 1);
        cuda_job_give(&j);
    }
}

/* The stand-in ends the process where giving back would wait for the GPU. */
Test(standard_cuda, a_matrix_that_passes_the_limit_waits_with_a_deadline_for_a_gpu_that_hangs)
{
    for (int i = 0; i < 2; ++i) {
        static cuda_job j;
        begin_with_room(&j, 1 + 2 * i);
        j.kernel.timeout_ms = 64;
        /* A copy within the pass would wait before. */
        cr_assert_eq(ra_kernel_take_map(&j.kernel, &j.host.map), RA_OK);
        if (i == 1)
            cr_assert_eq(pass(&j, &kept), RA_OK);
        cr_assert_eq(standin_enter(), cudaSuccess);
        cr_assert_eq(standin_leave(standin_enqueue_hang((cudaStream_t)j.kernel.stream)),
                     cudaSuccess);
        cr_expect_eq(pass(&j, i == 0 ? &kept : &after), RA_ERR_TIMEOUT);
        cr_expect(ra_device_is_lost());
        cuda_job_give(&j);
    }
}

/* Its sums are more work than a queue takes: the stand-in ends the process where enqueueing would
   wait for a GPU that hangs. */
Test(standard_cuda, more_products_than_a_queue_takes_wait_with_a_deadline)
{
    enum { MANY = 300 };
    static cuda_job j;
    cuda_job_prepare(&j, ra_kernel_cuda_standard(), RA_F32, 2, MANY);
    cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
    cr_assert_eq(ra_kernel_take_map(&j.kernel, &j.host.map), RA_OK);
    cr_assert_eq(pass(&j, &alone), RA_OK);
    j.kernel.timeout_ms = 64;
    standin.hang_launch = standin.launches + MANY + 1; /* behind the scores' products: softmax */
    cr_expect_eq(pass(&j, &alone), RA_ERR_TIMEOUT);
    cr_expect(ra_device_is_lost());
    cr_expect_eq(said.errors, 1);
    cuda_job_give(&j);
}

/* A line that no call had returned an error for would be dropped, and later ones have none. */
Test(standard_cuda, a_gpu_that_is_lost_after_a_pass_is_said_by_the_next_call_that_fails)
{
    static cuda_job j;
    begin();
    prepare(&j, RA_F32);
    cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
    cr_assert_eq(pass(&j, &kept), RA_OK);
    cr_assert_eq(ra_kernel_begin(&j.kernel, &after), RA_OK);
    cr_assert_eq(cuda_job_backward(&j), RA_OK);
    cr_assert_eq(ra_kernel_finish(&j.kernel), RA_OK);
    standin.fail_call = standin.calls + 1;
    standin.fail_error = cudaErrorIllegalAddress;
    standin.fails_for_good = 1;
    ra_kernel_end(&j.kernel, &after, false);
    cr_expect_eq(said.errors, 0, "%s", said.line);
    cr_expect_not(ra_device_is_lost());
    cr_expect_eq(cuda_job_read(&j), RA_ERR_CUDA);
    cr_expect_eq(said.errors, 1);
    cr_expect_not_null(strstr(said.line, "is lost to this process"), "%s", said.line);
    cuda_job_give(&j);
}

Test(standard_cuda, without_a_library_the_table_tells_its_bytes_and_does_not_begin)
{
    static cuda_job j;
    char text[240] = "", version[32];
    snprintf(version, sizeof(version), "version %d.", CUBLAS_VER_MAJOR);
    ra_kernel_use const use = {.dim = DIM, .threads = 1};
    size_t const bytes = ra_kernel_cuda_standard()->workspace_bytes(&use);
    cr_expect(ra_cublas_describe(text, sizeof(text)));
    cr_expect_eq(strncmp(text, version, strlen(version)), 0, "%s", text);
    standin_cublas.absent = 1;
    cr_expect_eq(ra_kernel_cuda_standard()->workspace_bytes(&use), bytes);
    cr_expect_not(ra_cublas_describe(text, sizeof(text)));
    cr_expect_not_null(strstr(text, "libcublas"), "%s", text);
    cr_expect_eq(said.errors + said.warnings, 0);
    prepare(&j, RA_F32);
    cr_expect_eq(cuda_job_take(&j, INT64_MAX), RA_ERR_UNSUPPORTED);
    cr_expect_eq(said.errors, 1);
    cr_expect_not_null(strstr(said.line, "libcublas"), "%s", said.line);
    cuda_job_give(&j);
    cr_expect_eq(said.warnings, 0);
}

static void *end_table(void *context)
{
    ra_kernel *const kernel = context;
    kernel->ops->fini(kernel);
    return NULL;
}

/* A thread means the first GPU until it says which: the stand-in ends the process where cuBLAS is
   ended by one that means another than the handle's. */
Test(standard_cuda, any_thread_may_end_a_kernel_on_another_gpu_than_the_first)
{
    static cuda_job j;
    pthread_t thread;
    cr_assert_eq(ra_device_use(1), RA_OK);
    prepare(&j, RA_F32);
    cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
    cr_assert_eq(compute(&j), RA_OK);
    ra_pool_free(j.pool, j.kernel.stream, &j.kernel.workspace); /* which would choose its GPU */
    cr_assert_eq(pthread_create(&thread, NULL, end_table, &j.kernel), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    j.kernel = (ra_kernel){0};
    cr_expect_eq(standin_cublas.handles, 0);
    cr_expect_eq(said.errors + said.warnings, 0);
    cuda_job_give(&j);
}

/* ---- parts of a job -------------------------------------------------------------------------- */

/* Chunks between keep what they held, zeros in gradients; ends are as without. */
Test(standard_cuda, ends_only_computes_the_first_and_last_chunk)
{
    static cuda_job whole, ends;
    prepare(&whole, RA_F32);
    cr_assert_gt(whole.host.map.chunk_count, 2);
    cr_assert_eq(cuda_job_take(&whole, INT64_MAX), RA_OK);
    cr_assert_eq(compute(&whole), RA_OK);
    prepare(&ends, RA_F32);
    ends.ends_only = true;
    cr_assert_eq(cuda_job_take(&ends, INT64_MAX), RA_OK);
    cr_assert_eq(compute(&ends), RA_OK);
    int const first = ends.host.map.chunk_rows, last = (ends.host.map.chunk_count - 1) * first;
    for (int i = 0; i < COUNT; ++i) {
        int const row = i / (HEADS * DIM);
        bool const computed = row < first || row >= last;
        cr_assert_eq(ends.results[i], computed ? whole.results[i] : 0.0f, "out, row %d", row);
        cr_assert_eq(ends.results[COUNT + i], computed ? whole.results[COUNT + i] : 0.0f,
                     "dq, row %d", row);
    }
    cr_expect_neq(ends.results[2 * COUNT], whole.results[2 * COUNT]);
    cuda_job_give(&whole);
    cuda_job_give(&ends);
}

/* ---- failures -------------------------------------------------------------------------------- */

static ra_status begin_cublas(cuda_job *j, int64_t call)
{
    bool const is_full = call % 2 == 0;
    begin();
    prepare(j, RA_F32);
    standin_cublas.fail_call = call;
    standin_cublas.fail_status =
        is_full ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_INTERNAL_ERROR;
    return is_full ? RA_ERR_NO_MEMORY : RA_ERR_CUDA;
}

Test(standard_cuda, any_call_of_cublas_that_fails_is_one_error_and_leaks_nothing)
{
    cuda_job_sweep const sweep = {"cuBLAS", RA_POOL_OFF,           begin_cublas,
                                  compute,  &standin_cublas.calls, &standin_cublas.handles};
    cr_assert_gt(cuda_job_sweep_run(&sweep), 10);
}

static ra_status begin_runtime(cuda_job *j, int64_t call)
{
    begin();
    prepare(j, RA_BF16);
    standin.fail_call = call;
    standin.fail_error = cudaErrorLaunchOutOfResources;
    return RA_OK;
}

Test(standard_cuda, any_call_of_the_runtime_that_fails_is_one_error_and_leaks_nothing)
{
    cuda_job_sweep const sweep = {"runtime", RA_POOL_OFF,    begin_runtime,
                                  compute,   &standin.calls, &standin_cublas.handles};
    cr_assert_gt(cuda_job_sweep_run(&sweep), 60);
}

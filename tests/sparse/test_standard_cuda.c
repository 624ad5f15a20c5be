/*
 * The table for GPUs that materialises its scores, on the stand-ins for the runtime and for cuBLAS:
 * what it holds when, that any call which fails is one error and leaves nothing, and that parts of
 * a job are computed where only these are asked for.
 */
#include "ringattn/device.h"
#include "ringattn/kernel.h"
#include "support/captured_log.h"
#include "support/standin_cublas.h"
#include "support/standin_cudart.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    ROWS = 300,
    HEADS = 2,
    DIM = 16,
    COUNT = ROWS * HEADS * DIM,
    TENSORS = 8, /* q, k, v, out, dout, dq, dk, dv; then lse and delta */
    LINES = ROWS * HEADS,
    CALLS_MAX = 1000
};

static captured_log said;

static void begin(void)
{
    standin_reset();
    standin_cublas_reset();
    standin.multiprocessors = 1;
    captured_log_begin(&said);
}

TestSuite(standard_cuda, .init = begin, .timeout = 120);

typedef struct job {
    ra_ledger *host_ledger, *ledger;
    ra_pool *host_pool, *pool;
    ra_pattern *pattern;
    ra_rowset rows;
    ra_tilemap map;
    ra_memory memory;
    ra_kernel kernel;
    ra_block tensors;
    ra_dtype dtype;
    bool ends_only;
    float results[COUNT + 3 * COUNT]; /* out as stored, dq, dk, dv */
} job;

/* 4 bytes per element suffice for every dtype. */
static ra_view tensor(const job *j, int i)
{
    return ra_view_dense((float *)j->tensors.data + (size_t)i * COUNT, i < 5 ? j->dtype : RA_F32,
                         ROWS, i == 1 || i == 2 || i > 5 ? 1 : HEADS, DIM, 0);
}

static float *lse_of(const job *j)
{
    return (float *)j->tensors.data + (size_t)TENSORS * COUNT;
}

static ra_kernel_shape const shape = {
    .batch = 1, .q_heads = HEADS, .kv_heads = 1, .dim = DIM, .scale = 0.25f};

static void prepare(job *j, ra_dtype dtype)
{
    ra_range const all = {0, 1, ROWS};
    ra_pattern_config pattern = ra_pattern_config_dense();
    pattern.causal = true;
    memset(j, 0, sizeof(*j));
    j->dtype = dtype;
    cr_assert_eq(ra_ledger_create(INT64_MAX, &j->host_ledger), RA_OK);
    ra_pool_config const config = {.memory = ra_memory_host(), .ledger = j->host_ledger};
    cr_assert_eq(ra_pool_create(&config, &j->host_pool), RA_OK);
    cr_assert_eq(ra_pattern_create(&pattern, ROWS, HEADS, j->host_pool, &j->pattern), RA_OK);
    cr_assert_eq(ra_rowset_init(j->host_pool, &all, 1, &j->rows), RA_OK);
    cr_assert_eq(
        ra_tilemap_init(&(ra_map_request){j->pattern, (ra_heads){0, 1, HEADS}, &j->rows, &j->rows,
                                          ra_kernel_cuda_standard()->tile_rows(dtype, DIM),
                                          ra_kernel_cuda_standard()->maps_by_keys},
                        j->host_pool, &j->map),
        RA_OK);
}

static ra_status fill(job *j)
{
    static float values[COUNT];
    static char stored[sizeof(values)];
    ra_status status = RA_OK;
    for (int i = 0; i < COUNT; ++i)
        values[i] = sinf((float)i);
    for (int t = 0; t < TENSORS && status == RA_OK; ++t) {
        memset(stored, 0, sizeof(stored));
        for (int i = 0; i < COUNT && t < 5 && t != 3; ++i)
            ra_dtype_store(j->dtype, stored, i, values[(i + 7 * t) % COUNT]);
        status = ra_memory_write(&j->memory, j->kernel.stream, tensor(j, t).data, stored,
                                 sizeof(stored));
    }
    return status;
}

static ra_kernel_use const use = {.dim = DIM, .threads = 1};

static ra_status take(job *j, int64_t limit_bytes)
{
    ra_status status = ra_memory_device(0, &j->memory);
    if (status != RA_OK)
        return status;
    cr_assert_eq(ra_ledger_create(limit_bytes, &j->ledger), RA_OK);
    ra_pool_config const config = {.memory = j->memory, .ledger = j->ledger};
    cr_assert_eq(ra_pool_create(&config, &j->pool), RA_OK);
    status = ra_kernel_init(ra_kernel_cuda_standard(), &use, j->pool, &j->kernel);
    if (status == RA_OK)
        status = ra_pool_alloc(j->pool, RA_MEM_QKV,
                               (size_t)(TENSORS * COUNT + 2 * LINES) * sizeof(float),
                               j->kernel.stream, &j->tensors);
    return status == RA_OK ? fill(j) : status;
}

static ra_status forward(job *j)
{
    ra_forward_step const step = {.map = &j->map,
                                  .shape = shape,
                                  .q = tensor(j, 0),
                                  .k = tensor(j, 1),
                                  .v = tensor(j, 2),
                                  .out = tensor(j, 3),
                                  .dout = tensor(j, 4),
                                  .lse = lse_of(j),
                                  .lse_batch_stride = LINES,
                                  .delta = lse_of(j) + LINES,
                                  .first = true,
                                  .last = true,
                                  .ends_only = j->ends_only};
    return j->kernel.ops->forward(&j->kernel, &step);
}

static ra_status backward(job *j)
{
    ra_backward_step const step = {.map = &j->map,
                                   .shape = shape,
                                   .q = tensor(j, 0),
                                   .k = tensor(j, 1),
                                   .v = tensor(j, 2),
                                   .dout = tensor(j, 4),
                                   .lse = lse_of(j),
                                   .lse_batch_stride = LINES,
                                   .delta = lse_of(j) + LINES,
                                   .dq = tensor(j, 5),
                                   .dk = tensor(j, 6),
                                   .dv = tensor(j, 7),
                                   .ends_only = j->ends_only};
    return j->kernel.ops->backward(&j->kernel, &step);
}

static ra_status pass(job *j, const ra_kernel_pass *which)
{
    ra_status status = ra_kernel_begin(&j->kernel, which);
    if (status == RA_OK)
        status = which->backward ? backward(j) : forward(j);
    if (status == RA_OK)
        status = ra_kernel_finish(&j->kernel);
    ra_kernel_end(&j->kernel, which, status != RA_OK);
    return status;
}

static const ra_kernel_pass alone = {.groups = 1, .steps = 1, .parts = 1};
static const ra_kernel_pass kept = {.keeps = true, .groups = 1, .steps = 1, .parts = 1};
static const ra_kernel_pass after = {.backward = true, .groups = 1, .steps = 1, .parts = 1};

static ra_status compute(job *j)
{
    ra_status status = pass(j, &kept);
    if (status == RA_OK)
        status = pass(j, &after);
    for (int i = 0; i < 4 && status == RA_OK; ++i)
        status = ra_memory_read(&j->memory, j->kernel.stream, j->results + (size_t)i * COUNT,
                                tensor(j, i == 0 ? 3 : 4 + i).data, COUNT * sizeof(float));
    return status;
}

static void give(job *j)
{
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
    ra_tilemap_fini(j->host_pool, &j->map);
    ra_rowset_fini(j->host_pool, &j->rows);
    ra_pattern_destroy(j->pattern);
    ra_pool_destroy(j->host_pool);
    ra_ledger_destroy(j->host_ledger);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void expect_matrices(const job *j, int now, int most)
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
    static job j;
    prepare(&j, RA_BF16);
    cr_assert_eq(take(&j, INT64_MAX), RA_OK);
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
    give(&j); /* and what no backward pass followed */
    cr_expect_eq(standin_cublas.handles, 0);
    cr_expect_eq(standin.used_bytes, 0);
}

Test(standard_cuda, steps_that_are_wrong_are_refused_in_one_line)
{
    static job j;
    prepare(&j, RA_F32);
    cr_assert_eq(take(&j, INT64_MAX), RA_OK);
    cr_assert_eq(pass(&j, &alone), RA_OK);
    cr_expect_eq(pass(&j, &after), RA_ERR_INVALID);
    cr_expect_not_null(strstr(said.line, "without the forward step"), "%s", said.line);
    ra_forward_step wide = {.map = &j.map, .shape = shape, .first = true, .last = true};
    wide.shape.dim = 128; /* the workspace was made for 16 */
    cr_expect_eq(j.kernel.ops->forward(&j.kernel, &wide), RA_ERR_INVALID);
    wide.shape.dim = 257;
    cr_expect_eq(j.kernel.ops->forward(&j.kernel, &wide), RA_ERR_INVALID);
    cr_expect_eq(said.errors, 3);
    give(&j);
}

Test(standard_cuda, rows_too_far_apart_for_cublas_are_refused)
{
    static job j;
    prepare(&j, RA_F32);
    cr_assert_eq(take(&j, INT64_MAX), RA_OK);
    ra_forward_step far = {.map = &j.map,
                           .shape = shape,
                           .q = tensor(&j, 0),
                           .k = tensor(&j, 1),
                           .v = tensor(&j, 2),
                           .out = tensor(&j, 3),
                           .first = true,
                           .last = true};
    far.k.row_stride = (int64_t)1 << 31;
    cr_expect_eq(j.kernel.ops->forward(&j.kernel, &far), RA_ERR_UNSUPPORTED);
    cr_expect_eq(said.errors, 1);
    cr_expect_not_null(strstr(said.line, "beyond cuBLAS"), "%s", said.line);
    give(&j);
}

/* A job whose limit has room for so many matrices. */
static void begin_with_room(job *j, int matrices)
{
    ra_ledger_snapshot before;
    begin();
    prepare(j, RA_F32);
    cr_assert_eq(take(j, INT64_MAX), RA_OK);
    ra_ledger_read(j->ledger, &before);
    int64_t const round = (int64_t)ra_pool_round(j->pool, (size_t)LINES * ROWS * sizeof(float));
    int64_t const map = (int64_t)ra_pool_round(j->pool, (size_t)j->map.bytes);
    give(j);
    prepare(j, RA_F32);
    cr_assert_eq(take(j, before.reserved_bytes + map + matrices * round), RA_OK);
}

Test(standard_cuda, a_matrix_that_passes_the_limit_fails_its_pass_and_leaves_nothing)
{
    for (int fitting = 0; fitting <= 4; ++fitting) {
        static job j;
        begin_with_room(&j, fitting);
        ra_status status = pass(&j, &kept);
        cr_expect_eq(status, fitting >= 2 ? RA_OK : RA_ERR_NO_MEMORY, "%d fit", fitting);
        if (status == RA_OK)
            status = pass(&j, &after);
        cr_expect_eq(status, fitting >= 4 ? RA_OK : RA_ERR_NO_MEMORY, "%d fit", fitting);
        cr_expect_eq(said.errors, fitting < 4);
        expect_matrices(&j, 0, fitting);
        give(&j);
    }
}

/* The stand-in ends the process where giving back would wait for the GPU. */
Test(standard_cuda, a_matrix_that_passes_the_limit_waits_with_a_deadline_for_a_gpu_that_hangs)
{
    for (int i = 0; i < 2; ++i) {
        static job j;
        begin_with_room(&j, 1 + 2 * i);
        j.kernel.timeout_ms = 64;
        cr_assert_eq(ra_kernel_take_map(&j.kernel, &j.map), RA_OK); /* a copy would wait before */
        if (i == 1)
            cr_assert_eq(pass(&j, &kept), RA_OK);
        cr_assert_eq(standin_enter(), cudaSuccess);
        cr_assert_eq(standin_leave(standin_enqueue_hang((cudaStream_t)j.kernel.stream)),
                     cudaSuccess);
        cr_expect_eq(pass(&j, i == 0 ? &kept : &after), i == 0 ? RA_ERR_TIMEOUT : RA_ERR_NO_MEMORY);
        cr_expect(ra_device_is_lost());
        ra_kernel_drop_map(&j.kernel, &j.map);
        give(&j);
    }
}

Test(standard_cuda, without_a_library_the_table_tells_its_bytes_and_does_not_begin)
{
    static job j;
    char text[240] = "", version[32];
    snprintf(version, sizeof(version), "version %d.", CUBLAS_VER_MAJOR);
    size_t const bytes = ra_kernel_cuda_standard()->workspace_bytes(&use);
    cr_expect(ra_cublas_describe(text, sizeof(text)));
    cr_expect_eq(strncmp(text, version, strlen(version)), 0, "%s", text);
    standin_cublas.absent = 1;
    cr_expect_eq(ra_kernel_cuda_standard()->workspace_bytes(&use), bytes);
    cr_expect_not(ra_cublas_describe(text, sizeof(text)));
    cr_expect_not_null(strstr(text, "libcublas"), "%s", text);
    cr_expect_eq(said.errors + said.warnings, 0);
    prepare(&j, RA_F32);
    cr_expect_eq(take(&j, INT64_MAX), RA_ERR_UNSUPPORTED);
    cr_expect_eq(said.errors, 1);
    cr_expect_not_null(strstr(said.line, "libcublas"), "%s", said.line);
    give(&j);
    cr_expect_eq(said.warnings, 0);
}

/* ---- parts of a job -------------------------------------------------------------------------- */

/* Chunks between keep what they held, zeros in gradients; ends are as without. */
Test(standard_cuda, ends_only_computes_the_first_and_last_chunk)
{
    static job whole, ends;
    prepare(&whole, RA_F32);
    cr_assert_gt(whole.map.chunk_count, 2);
    cr_assert_eq(take(&whole, INT64_MAX), RA_OK);
    cr_assert_eq(compute(&whole), RA_OK);
    prepare(&ends, RA_F32);
    ends.ends_only = true;
    cr_assert_eq(take(&ends, INT64_MAX), RA_OK);
    cr_assert_eq(compute(&ends), RA_OK);
    int const first = ends.map.chunk_rows, last = (ends.map.chunk_count - 1) * first;
    for (int i = 0; i < COUNT; ++i) {
        int const row = i / (HEADS * DIM);
        bool const computed = row < first || row >= last;
        cr_assert_eq(ends.results[i], computed ? whole.results[i] : 0.0f, "out, row %d", row);
        cr_assert_eq(ends.results[COUNT + i], computed ? whole.results[COUNT + i] : 0.0f,
                     "dq, row %d", row);
    }
    cr_expect_neq(ends.results[2 * COUNT], whole.results[2 * COUNT]);
    give(&whole);
    give(&ends);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Giving back cannot fail: what the runtime or cuBLAS refuses to take back is left, and said. */
static void check_end(const char *of, int64_t call, ra_status status)
{
    int64_t const left = standin.blocks + standin.pinned_blocks + standin.events + standin.streams +
                         standin_cublas.handles;
    cr_expect_eq(left, status == RA_OK ? said.warnings : 0, "%s call %lld: %lld are left: %s", of,
                 (long long)call, (long long)left, said.line);
    cr_expect_leq(said.errors + said.warnings, 1, "%s call %lld: %d lines", of, (long long)call,
                  said.errors + said.warnings);
    cr_expect(status == RA_OK || said.errors == 1, "%s call %lld: no line", of, (long long)call);
}

static void sweep(ra_dtype dtype, bool of_cublas)
{
    static float want[4 * COUNT];
    static job j;
    int64_t call = 0;
    for (bool done = false; !done; ++call) {
        cr_assert_lt(call, CALLS_MAX);
        begin();
        standin.fail_call = of_cublas ? 0 : call;
        standin.fail_error = cudaErrorLaunchOutOfResources;
        standin_cublas.fail_call = of_cublas ? call : 0;
        standin_cublas.fail_status =
            call % 2 == 0 ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_INTERNAL_ERROR;
        prepare(&j, dtype);
        ra_status status = take(&j, INT64_MAX);
        if (status == RA_OK)
            status = compute(&j);
        if (call == 0)
            memcpy(want, j.results, sizeof(want));
        if (status == RA_OK)
            cr_expect_eq(memcmp(want, j.results, sizeof(want)), 0, "call %lld", (long long)call);
        else if (of_cublas)
            cr_expect_eq(status, call % 2 == 0 ? RA_ERR_NO_MEMORY : RA_ERR_CUDA, "call %lld",
                         (long long)call);
        give(&j);
        done = call > (of_cublas ? standin_cublas.calls : standin.calls);
        check_end(of_cublas ? "cuBLAS" : "runtime", call, status);
    }
    cr_assert_gt(call, of_cublas ? 10 : 60);
}

Test(standard_cuda, any_call_of_cublas_that_fails_is_one_error_and_leaks_nothing)
{
    sweep(RA_F32, true);
}

Test(standard_cuda, any_call_of_the_runtime_that_fails_is_one_error_and_leaks_nothing)
{
    sweep(RA_BF16, false);
}

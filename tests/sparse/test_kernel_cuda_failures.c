/* The table for GPUs over the stand-in runtime: every call of the runtime fails, one after the
   other, and each time there is one error, nothing is left, and nothing is claimed to be done. */
#include "ringattn/device.h"
#include "ringattn/kernel.h"
#include "ringattn/kernel_check.h"
#include "support/captured_log.h"
#include "support/standin_cudart.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { ROWS = 40, DIM = 16, COUNT = ROWS * DIM, CALLS_MAX = 400 };

static captured_log said;

static void begin(void)
{
    standin_reset();
    standin.multiprocessors = 1;
    captured_log_begin(&said);
}

TestSuite(kernel_cuda_failures, .init = begin, .timeout = 120);

/* One head of ROWS rows, all in one block: q, k, v, out, dout, dq, dk, dv, then lse, delta. */
typedef struct job {
    ra_ledger *ledger;
    ra_pool *host_pool, *pool;
    ra_pattern *pattern;
    ra_rowset rows;
    ra_tilemap map;
    ra_memory memory;
    ra_kernel_use use;
    ra_kernel kernel;
    ra_block tensors;
    float host[COUNT];
} job;

static ra_view tensor(const job *j, int i)
{
    return ra_view_dense((float *)j->tensors.data + (size_t)i * COUNT, RA_F32, ROWS, 1, DIM, 0);
}

static ra_kernel_shape const shape = {
    .batch = 1, .q_heads = 1, .kv_heads = 1, .dim = DIM, .scale = 0.25f};

static void prepare(job *j)
{
    ra_range const all = {0, 1, ROWS};
    ra_pattern_config pattern = ra_pattern_config_dense();
    pattern.causal = true;
    memset(j, 0, sizeof(*j));
    j->use = (ra_kernel_use){.dim = DIM, .threads = 1};
    for (int i = 0; i < COUNT; ++i)
        j->host[i] = sinf((float)i);
    cr_assert_eq(ra_ledger_create(INT64_MAX, &j->ledger), RA_OK);
    ra_pool_config const config = {.memory = ra_memory_host(), .ledger = j->ledger};
    cr_assert_eq(ra_pool_create(&config, &j->host_pool), RA_OK);
    cr_assert_eq(ra_pattern_create(&pattern, ROWS, 1, j->host_pool, &j->pattern), RA_OK);
    cr_assert_eq(ra_rowset_init(j->host_pool, &all, 1, &j->rows), RA_OK);
    cr_assert_eq(
        ra_tilemap_init(&(ra_map_request){j->pattern, (ra_heads){0, 1, 1}, &j->rows, &j->rows,
                                          ra_kernel_cuda()->tile_rows(RA_F32, DIM), true},
                        j->host_pool, &j->map),
        RA_OK);
}

/* With pools that keep nothing and that order what they keep. */
static ra_status take(job *j, ra_pool_mode mode)
{
    ra_status status = ra_memory_device(0, &j->memory);
    if (status != RA_OK)
        return status;
    ra_pool_config const config = {.mode = mode, .memory = j->memory, .ledger = j->ledger};
    cr_assert_eq(ra_pool_create(&config, &j->pool), RA_OK);
    status = ra_kernel_init(ra_kernel_cuda(), &j->use, j->pool, &j->kernel);
    if (status == RA_OK)
        status = ra_pool_alloc(j->pool, RA_MEM_QKV, (size_t)10 * COUNT * sizeof(float),
                               j->kernel.stream, &j->tensors);
    for (int i = 0; i < 5 && status == RA_OK; ++i)
        status = ra_memory_write(&j->memory, j->kernel.stream, tensor(j, i).data, j->host,
                                 sizeof(j->host));
    return status;
}

static ra_status forward(job *j)
{
    float *const lines = (float *)tensor(j, 8).data;
    ra_forward_step const step = {.map = &j->map,
                                  .shape = shape,
                                  .q = tensor(j, 0),
                                  .k = tensor(j, 1),
                                  .v = tensor(j, 2),
                                  .out = tensor(j, 3),
                                  .lse = lines,
                                  .lse_batch_stride = ROWS,
                                  .first = true,
                                  .last = true};
    return j->kernel.ops->forward(&j->kernel, &step);
}

static ra_status backward(job *j)
{
    float *const lines = (float *)tensor(j, 8).data;
    ra_view const out = tensor(j, 3), dout = tensor(j, 4);
    const ra_kernel_ops *const ops = j->kernel.ops;
    ra_status status = ops->zero(&j->kernel, tensor(j, 5).data, (size_t)3 * COUNT * sizeof(float));
    if (status == RA_OK)
        status = ops->delta(&j->kernel, &shape, ROWS, &out, &dout, lines + ROWS);
    ra_backward_step const step = {.map = &j->map,
                                   .shape = shape,
                                   .q = tensor(j, 0),
                                   .k = tensor(j, 1),
                                   .v = tensor(j, 2),
                                   .dout = dout,
                                   .lse = lines,
                                   .lse_batch_stride = ROWS,
                                   .delta = lines + ROWS,
                                   .dq = tensor(j, 5),
                                   .dk = tensor(j, 6),
                                   .dv = tensor(j, 7)};
    return status != RA_OK ? status : ops->backward(&j->kernel, &step);
}

/* Steps with a map that was taken and one that was not, and every way of moving rows. */
static ra_status compute(job *j)
{
    const ra_kernel_ops *const ops = j->kernel.ops;
    ra_view const from = tensor(j, 5), to = tensor(j, 6), last = tensor(j, 7);
    ra_status status = forward(j);
    if (status == RA_OK)
        status = ra_kernel_take_map(&j->kernel, &j->map);
    if (status == RA_OK)
        status = forward(j);
    if (status == RA_OK)
        status = backward(j);
    if (status == RA_OK)
        status = ops->add(&j->kernel, &shape, &j->rows, &from, &to);
    if (status == RA_OK)
        status = ops->store(&j->kernel, &shape, ROWS, &to, &last);
    if (status == RA_OK)
        status = ops->gather(&j->kernel, &shape, &j->rows, &last, &from);
    if (status == RA_OK)
        status = ra_kernel_finish(&j->kernel);
    return status != RA_OK ? status
                           : ra_memory_read(&j->memory, j->kernel.stream, j->host,
                                            tensor(j, 3).data, sizeof(j->host));
}

static void give(job *j)
{
    if (j->kernel.ops != NULL)
        ra_kernel_drop_map(&j->kernel, &j->map);
    if (j->pool != NULL)
        ra_pool_free(j->pool, j->kernel.stream, &j->tensors);
    ra_kernel_fini(&j->kernel);
    ra_pool_destroy(j->pool);
    ra_tilemap_fini(j->host_pool, &j->map);
    ra_rowset_fini(j->host_pool, &j->rows);
    ra_pattern_destroy(j->pattern);
    ra_pool_destroy(j->host_pool);
    ra_ledger_destroy(j->ledger);
}

/* What the runtime refuses to take back is left, which one warning says; nothing else is. Giving a
   block back cannot fail: that its stream cannot be asked is an error's line all the same. */
static void check_end(int64_t call, ra_status status)
{
    int64_t const left = standin.blocks + standin.pinned_blocks + standin.events + standin.streams;
    int const slower = standin.blocks_held > 0 ? 1 : 0;
    cr_expect_eq(left, status == RA_OK ? said.warnings - slower : 0, "call %lld: %lld are left",
                 (long long)call, (long long)left);
    cr_expect_leq(said.errors + said.warnings, 1, "call %lld: %d lines", (long long)call,
                  said.errors + said.warnings);
    cr_expect(status == RA_OK || said.errors == 1, "call %lld: no line", (long long)call);
}

static void sweep(ra_pool_mode mode, const cudaError_t fails[2])
{
    float want[COUNT] = {0};
    int64_t call = 0;
    for (bool done = false; !done; ++call) {
        static job j;
        cr_assert_lt(call, CALLS_MAX);
        begin();
        prepare(&j);
        standin.fail_call = call; /* 0: none */
        standin.fail_error = fails[call % 2];
        ra_status status = take(&j, mode);
        if (status == RA_OK)
            status = compute(&j);
        if (call == 0)
            memcpy(want, j.host, sizeof(want));
        if (status == RA_OK)
            cr_expect_eq(memcmp(want, j.host, sizeof(want)), 0, "call %lld", (long long)call);
        give(&j);
        done = call > standin.calls;
        check_end(call, status);
    }
    cr_assert_gt(call, 60);
}

static const cudaError_t odd[2] = {cudaErrorLaunchOutOfResources, cudaErrorUnknown};
static const cudaError_t full[2] = {cudaErrorMemoryAllocation, cudaErrorMemoryAllocation};

Test(kernel_cuda_failures, any_call_that_fails_is_one_error_and_leaks_nothing)
{
    sweep(RA_POOL_OFF, odd);
}

Test(kernel_cuda_failures, so_it_is_over_a_pool_that_keeps_what_is_freed)
{
    sweep(RA_POOL_SIZE_CLASS, odd);
}

/* A launch may be the one: its kernel is loaded when it is first used. */
Test(kernel_cuda_failures, so_it_is_where_any_call_finds_no_memory)
{
    sweep(RA_POOL_OFF, full);
    sweep(RA_POOL_SIZE_CLASS, full);
}

/* What else would be done in the workspace of a kernel that was not made for it, in none. */
Test(kernel_cuda_failures, a_step_that_was_not_foreseen_is_refused_for_want_of_scratch)
{
    static job j;
    float want[COUNT] = {0};
    for (int may = 0; may < 2; ++may) {
        begin();
        prepare(&j);
        j.use.shares_rows = may == 1;
        cr_assert_eq(take(&j, RA_POOL_OFF), RA_OK);
        cr_assert_eq(compute(&j), RA_OK);
        memcpy(want, j.host, sizeof(want));
        ra_kernel_drop_map(&j.kernel, &j.map);
        j.map.shared_rows = true; /* none is, so that results are the same */
        cr_expect_eq(compute(&j), may == 1 ? RA_OK : RA_ERR_INVALID);
        cr_expect_eq(said.errors, 1 - may);
        cr_expect_eq(memcmp(want, j.host, sizeof(want)), 0);
        give(&j);
    }
    begin();
    prepare(&j);
    cr_assert_eq(take(&j, RA_POOL_OFF), RA_OK);
    ra_linear_pass const pass = {.shape = shape, .rows = ROWS, .segments = 1};
    cr_expect_eq(j.kernel.ops->linear->sum(&j.kernel, &pass), RA_ERR_INVALID);
    cr_expect_eq(said.errors, 1);
    give(&j);
}

/* One line, however many steps there are, and the same results. */
Test(kernel_cuda_failures, a_gpu_that_holds_fewer_thread_blocks_is_slower_and_says_so)
{
    static job j;
    float want[COUNT] = {0};
    for (int held = 0; held < 2; ++held) {
        begin();
        prepare(&j);
        standin.blocks_held = held;
        cr_assert_eq(take(&j, RA_POOL_OFF), RA_OK);
        cr_assert_eq(compute(&j), RA_OK);
        cr_assert_eq(said.warnings, held == 1 ? 1 : 0);
        if (held == 0)
            memcpy(want, j.host, sizeof(want));
        cr_assert_eq(memcmp(want, j.host, sizeof(want)), 0);
        give(&j);
        check_end(0, RA_OK);
    }
}

/* What a thread block has not is known beforehand, and is what a step of it would refuse. 99 KiB
   are what the least GPU from 8.0 on has, 48 KiB what a driver may report all the same. */
Test(kernel_cuda_failures, a_gpu_with_less_shared_memory_is_known_before_a_step)
{
    enum { LEAST = 99 << 10, LESS = 48 << 10 };
    static const struct {
        ra_kernel_use use;
        int64_t shared_bytes;
        bool serves;
    } cases[] = {{{.dtype = RA_BF16, .dim = 256, .backward = true}, LEAST, true},
                 {{.dtype = RA_F16, .dim = 128, .backward = true}, LEAST, true},
                 {{.dtype = RA_F32, .dim = 256, .backward = true}, LEAST, true},
                 {{.dim = 128, .backward = true, .linear = RA_LINEAR_CAUSAL}, LEAST, true},
                 {{.dim = 129, .linear = RA_LINEAR_BIDIRECTIONAL}, LEAST, false},
                 {{.dtype = RA_BF16, .dim = 32, .backward = true}, LESS, true},
                 {{.dtype = RA_BF16, .dim = 64}, LESS, true},
                 {{.dtype = RA_BF16, .dim = 64, .backward = true}, LESS, false},
                 {{.dtype = RA_F16, .dim = 128}, LESS, false},
                 {{.dtype = RA_F32, .dim = 96}, LESS, true},
                 {{.dtype = RA_F32, .dim = 97, .backward = true}, LESS, false}};
    const ra_kernel_ops *const ops = ra_kernel_cuda();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        char why[240] = "";
        ra_kernel_verdict verdict;
        ra_kernel_use use = cases[i].use;
        use.threads = 1;
        cr_expect(ops->serves(&use, why, sizeof(why)), "case %zu: %s", i, why);
        standin.shared_bytes = cases[i].shared_bytes;
        cr_expect_eq(ops->serves(&use, why, sizeof(why)), cases[i].serves, "case %zu: %s", i, why);
        cr_expect_eq(strstr(why, "shared memory") == NULL, cases[i].serves, "case %zu", i);
        said.errors = 0;
        if (!cases[i].serves) {
            cr_expect_eq(ra_kernel_check(ops, ra_kernel_cpu(RA_ISA_PORTABLE), &use, &verdict),
                         RA_ERR_UNSUPPORTED);
            cr_expect_eq(said.errors, 1);
        }
        standin.shared_bytes = 232448;
    }
    standin.device_count = 0;
    char why[240] = "";
    cr_expect_not(ops->serves(&cases[0].use, why, sizeof(why)));
    cr_expect_not_null(strstr(why, "GPU 0: "), "%s", why);
}

/* In one pass, unless results are to repeat or the GPU lacks the shared memory: an A100 has it, and
   up to 64 dims the least GPU. */
Test(kernel_cuda_failures, backward_is_one_pass_where_that_may_be)
{
    static const struct {
        ra_kernel_use use;
        int64_t shared_bytes;
        bool single;
    } cases[] = {{{.dtype = RA_BF16, .dim = 128}, 232448, true},
                 {{.dtype = RA_BF16, .dim = 128, .deterministic = true}, 232448, false},
                 {{.dtype = RA_BF16, .dim = 128}, 166912, true},
                 {{.dtype = RA_BF16, .dim = 65}, 101376, false},
                 {{.dtype = RA_BF16, .dim = 64}, 101376, true},
                 {{.dtype = RA_F16, .dim = 8}, 232448, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        ra_kernel_use use = cases[i].use;
        ra_kernel_verdict verdict;
        use.backward = true;
        use.threads = 1;
        begin();
        standin.shared_bytes = cases[i].shared_bytes;
        cr_assert_eq(
            ra_kernel_check(ra_kernel_cuda(), ra_kernel_cpu(RA_ISA_PORTABLE), &use, &verdict),
            RA_OK);
        cr_expect(verdict.agrees, "case %zu: %s is off by %g", i, verdict.tensor, verdict.error);
        cr_expect_eq(standin.single_passes > 0, cases[i].single, "case %zu", i);
    }
}

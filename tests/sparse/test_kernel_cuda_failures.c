/* The table for GPUs over the stand-in runtime: every call of the runtime fails, one after the
   other, and each time there is one error, nothing is left, and nothing is claimed to be done. */
#include "ringattn/kernel_check.h"
#include "sparse/cuda/forward_cuts.h"
#include "sparse/cuda/launch_args.h"
#include "sparse/cuda_job.h"
#include "support/standin_cudart.h"

#include <criterion/criterion.h>
#include <string.h>

enum { ROWS = 40 };

static void begin(void)
{
    standin_reset();
    standin.multiprocessors = 1;
    captured_log_begin(&said);
}

TestSuite(kernel_cuda_failures, .init = begin, .timeout = 600);

/* One head, all in one block. */
static void prepare(cuda_job *j)
{
    cuda_job_prepare(j, ra_kernel_cuda(), RA_F32, ROWS, 1);
}

/* Steps with a map that was taken and one that was not, and every way of moving rows. */
static ra_status compute(cuda_job *j)
{
    ra_view const out = cuda_job_tensor(j, 3), dout = cuda_job_tensor(j, 4);
    ra_view const from = cuda_job_tensor(j, 5), to = cuda_job_tensor(j, 6);
    ra_view const last = cuda_job_tensor(j, 7);
    ra_status status = cuda_job_forward(j);
    if (status == RA_OK)
        status = ra_kernel_take_map(&j->kernel, &j->host.map);
    if (status == RA_OK)
        status = cuda_job_forward(j);
    if (status == RA_OK)
        status = j->ops->zero(&j->kernel, from.data, 3 * (size_t)j->count * sizeof(float));
    if (status == RA_OK)
        status = j->ops->delta(&j->kernel, &j->shape, ROWS, &out, &dout, cuda_job_lse(j) + ROWS);
    if (status == RA_OK)
        status = cuda_job_backward(j);
    if (status == RA_OK)
        status = j->ops->add(&j->kernel, &j->shape, &j->host.keys, &from, &to);
    if (status == RA_OK)
        status = j->ops->store(&j->kernel, &j->shape, ROWS, &to, &last);
    if (status == RA_OK)
        status = j->ops->gather(&j->kernel, &j->shape, &j->host.keys, &last, &from);
    if (status == RA_OK)
        status = ra_kernel_finish(&j->kernel);
    return status == RA_OK ? cuda_job_read(j) : status;
}

static ra_status begin_failing(cuda_job *j, int64_t call, cudaError_t error)
{
    begin();
    prepare(j);
    standin.fail_call = call;
    standin.fail_error = error;
    return RA_OK;
}

static ra_status begin_odd(cuda_job *j, int64_t call)
{
    return begin_failing(
        j, call, call % 2 == 0 ? cudaErrorLaunchOutOfResources : cudaErrorInvalidResourceHandle);
}

static ra_status begin_full(cuda_job *j, int64_t call)
{
    return begin_failing(j, call, cudaErrorMemoryAllocation);
}

/* With pools that keep nothing and that order what they keep. */
static void sweep(ra_pool_mode mode, ra_status (*begin_job)(cuda_job *j, int64_t call))
{
    cuda_job_sweep const runtime = {"runtime", mode, begin_job, compute, &standin.calls, NULL};
    cr_assert_gt(cuda_job_sweep_run(&runtime), 60);
}

Test(kernel_cuda_failures, any_call_that_fails_is_one_error_and_leaks_nothing)
{
    sweep(RA_POOL_OFF, begin_odd);
}

Test(kernel_cuda_failures, so_it_is_over_a_pool_that_keeps_what_is_freed)
{
    sweep(RA_POOL_SIZE_CLASS, begin_odd);
}

/* A launch may be the one: its kernel is loaded when it is first used. */
Test(kernel_cuda_failures, so_it_is_where_any_call_finds_no_memory)
{
    sweep(RA_POOL_OFF, begin_full);
    sweep(RA_POOL_SIZE_CLASS, begin_full);
}

Test(kernel_cuda_failures, a_launch_that_finds_no_memory_says_what_is_held)
{
    static const char start[] = "out of memory: kernel cuda: forward: the driver refused memory "
                                "for context (no limit, held ";
    static cuda_job j;
    prepare(&j);
    cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
    standin.code_error = cudaErrorMemoryAllocation;
    cr_expect_eq(cuda_job_forward(&j), RA_ERR_NO_MEMORY);
    cr_expect_eq(said.errors, 1);
    cr_expect_eq(strncmp(said.line, start, strlen(start)), 0, "%s", said.line);
    cr_expect_not_null(strstr(said.line, " qkv="), "%s", said.line);
    standin.code_error = cudaSuccess;
    cuda_job_give(&j);
}

/* What else would be done in the workspace of a kernel that was not made for it, in none. */
Test(kernel_cuda_failures, a_step_that_was_not_foreseen_is_refused_for_want_of_scratch)
{
    static cuda_job j;
    static float want[RESULTS_MAX];
    for (int may = 0; may < 2; ++may) {
        begin();
        prepare(&j);
        j.use.shares_rows = may == 1;
        cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
        cr_assert_eq(compute(&j), RA_OK);
        memcpy(want, j.results, sizeof(want));
        ra_kernel_drop_map(&j.kernel, &j.host.map);
        j.host.map.shared_rows = true; /* none is, so that results are the same */
        cr_expect_eq(compute(&j), may == 1 ? RA_OK : RA_ERR_INVALID);
        cr_expect_eq(said.errors, 1 - may);
        cr_expect_eq(memcmp(want, j.results, sizeof(want)), 0);
        cuda_job_give(&j);
    }
    begin();
    prepare(&j);
    cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
    ra_linear_pass const pass = {.shape = j.shape, .rows = ROWS, .segments = 1};
    cr_expect_eq(j.kernel.ops->linear->sum(&j.kernel, &pass), RA_ERR_INVALID);
    cr_expect_eq(said.errors, 1);
    cuda_job_give(&j);
}

/* One line, however many steps there are, and the same results. */
Test(kernel_cuda_failures, a_gpu_that_holds_fewer_thread_blocks_is_slower_and_says_so)
{
    static cuda_job j;
    static float want[RESULTS_MAX];
    for (int held = 0; held < 2; ++held) {
        begin();
        prepare(&j);
        standin.blocks_held = held;
        cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
        cr_assert_eq(compute(&j), RA_OK);
        cr_assert_eq(said.warnings, held == 1 ? 1 : 0);
        if (held == 0)
            memcpy(want, j.results, sizeof(want));
        cr_assert_eq(memcmp(want, j.results, sizeof(want)), 0);
        cuda_job_give(&j);
        cuda_job_check_end("runtime", 0, RA_OK, 0);
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
            cr_expect_eq(
                ra_kernel_check(ops, ra_kernel_cpu(RA_ISA_PORTABLE), &use, NULL, NULL, &verdict),
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

/* To the byte, beforehand and in a step. */
Test(kernel_cuda_failures, shared_memory_that_just_suffices_is_enough)
{
    static const ra_kernel_use uses[] = {
        {.dtype = RA_BF16, .dim = 64, .backward = true, .deterministic = true, .threads = 1},
        {.dtype = RA_F16, .dim = 128, .threads = 1},
        {.dtype = RA_F32, .dim = 32, .backward = true, .threads = 1}};
    const ra_kernel_ops *const ops = ra_kernel_cuda();
    for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); ++i) {
        char why[240] = "";
        ra_kernel_verdict verdict = {0};
        begin();
        standin.shared_bytes = ra_cuda_shared_bytes(&uses[i]);
        cr_expect(ops->serves(&uses[i], why, sizeof(why)), "case %zu: %s", i, why);
        cr_expect_eq(
            ra_kernel_check(ops, ra_kernel_cpu(RA_ISA_PORTABLE), &uses[i], NULL, NULL, &verdict),
            RA_OK, "case %zu: %s", i, said.line);
        cr_expect(verdict.agrees, "case %zu", i);
        --standin.shared_bytes;
        cr_expect_not(ops->serves(&uses[i], why, sizeof(why)), "case %zu", i);
    }
}

/* Which takes more than a forward one: who asked for none may be told so late. */
Test(kernel_cuda_failures, a_backward_step_without_its_shared_memory_is_refused)
{
    static cuda_job j;
    cuda_job_prepare(&j, ra_kernel_cuda(), RA_BF16, ROWS, 1);
    standin.shared_bytes = ra_cuda_keys_of(RA_BF16, DIM).shared_bytes - 1;
    cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
    cr_expect_eq(cuda_job_forward(&j), RA_OK);
    cr_expect_eq(cuda_job_backward(&j), RA_ERR_UNSUPPORTED);
    cr_expect_eq(said.errors, 1);
    cuda_job_give(&j);
}

/* A launch of no thread block would be an error. */
Test(kernel_cuda_failures, steps_without_queries_launch_nothing)
{
    static cuda_job j;
    ra_pattern_config const pattern = ra_pattern_config_dense();
    ra_range const none = {0, 1, 0};
    prepare(&j);
    mapped_free(&j.host);
    j.host = mapped_make(&(mapped_config){.pattern = &pattern,
                                          .rows = ROWS,
                                          .heads = 1,
                                          .tile_rows = j.ops->tile_rows(RA_F32, DIM),
                                          .by_keys = true,
                                          .queries = &none,
                                          .query_ranges = 1});
    cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
    int64_t const before = standin.launches;
    cr_expect_eq(cuda_job_forward(&j), RA_OK);
    cr_expect_eq(cuda_job_backward(&j), RA_OK);
    cr_expect_eq(ra_kernel_finish(&j.kernel), RA_OK);
    cr_expect_eq(standin.launches, before);
    cr_expect_eq(said.errors, 0);
    cuda_job_give(&j);
}

Test(kernel_cuda_failures, a_step_that_goes_on_without_its_state_is_refused)
{
    static cuda_job j;
    prepare(&j);
    cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
    ra_forward_step const step = {.map = &j.host.map,
                                  .shape = j.shape,
                                  .q = cuda_job_tensor(&j, 0),
                                  .k = cuda_job_tensor(&j, 1),
                                  .v = cuda_job_tensor(&j, 2),
                                  .first = true};
    int64_t const before = standin.launches;
    cr_expect_eq(j.ops->forward(&j.kernel, &step), RA_ERR_INVALID);
    cr_expect_eq(said.errors, 1);
    cr_expect_eq(standin.launches, before);
    cuda_job_give(&j);
}

/* Of a launch that never ends. */
static void expect_named(ra_status (*pass)(cuda_job *j), const char *name)
{
    static cuda_job j;
    prepare(&j);
    cr_assert_eq(cuda_job_take(&j, INT64_MAX), RA_OK);
    j.kernel.timeout_ms = 64;
    cr_assert_eq(ra_kernel_take_map(&j.kernel, &j.host.map), RA_OK);
    cr_assert_eq(cuda_job_forward(&j), RA_OK);
    cr_assert_eq(ra_kernel_finish(&j.kernel), RA_OK);
    standin.hang_launch = standin.launches + 1;
    cr_assert_eq(pass(&j), RA_OK);
    cr_expect_eq(ra_kernel_finish(&j.kernel), RA_ERR_TIMEOUT);
    cr_expect_not_null(strstr(said.line, name), "%s", said.line);
    cuda_job_give(&j);
}

Test(kernel_cuda_failures, a_gpu_that_hangs_forward_is_said_to)
{
    expect_named(cuda_job_forward, "forward kernel");
}

Test(kernel_cuda_failures, a_gpu_that_hangs_backward_is_said_to)
{
    expect_named(cuda_job_backward, "backward kernel");
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
        cr_assert_eq(ra_kernel_check(ra_kernel_cuda(), ra_kernel_cpu(RA_ISA_PORTABLE), &use, NULL,
                                     NULL, &verdict),
                     RA_OK);
        cr_expect(verdict.agrees, "case %zu: %s is off by %g", i, verdict.tensor, verdict.error);
        cr_expect_eq(standin.single_passes > 0, cases[i].single, "case %zu", i);
    }
}

/* ---- tables of warpgroups -------------------------------------------------------------------- */

/* Forward, and with backward. */
static const ra_kernel_ops *warpgroups(bool backward)
{
    const ra_kernel_ops *const ops =
        backward ? ra_kernel_cuda_sm90a_backward() : ra_kernel_cuda_sm90a();
    if (ops == NULL)
        cr_skip_test("kernels of 9.0 are not built");
    return ops;
}

Test(kernel_cuda_failures, warpgroups_run_on_9_0_alone)
{
    const ra_kernel_ops *const ops = warpgroups(false);
    cr_expect(ops->runs_on(9, 0));
    cr_expect_not(ops->runs_on(9, 1));
    cr_expect_not(ops->runs_on(8, 0));
    cr_expect_not(ops->runs_on(10, 0));
}

/* Where they do not, another table is the same. */
Test(kernel_cuda_failures, warpgroups_differ_where_they_compute)
{
    static const struct {
        ra_kernel_use use;
        bool differs[2];
    } cases[] = {
        {{.dtype = RA_BF16, .dim = 64}, {true, false}},
        {{.dtype = RA_BF16, .dim = 128, .backward = true}, {true, true}},
        {{.dtype = RA_F16, .dim = 128, .backward = true}, {true, false}},
        {{.dtype = RA_BF16, .dim = 256, .backward = true}, {false, false}},
        {{.dtype = RA_BF16, .dim = 64, .backward = true, .deterministic = true}, {true, false}},
        {{.dtype = RA_BF16, .dim = 64, .backward = true, .linear = RA_LINEAR_CAUSAL},
         {false, false}}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i)
        for (int backward = 0; backward < 2; ++backward)
            cr_expect_eq(warpgroups(backward)->differs(&cases[i].use), cases[i].differs[backward],
                         "case %zu, %d", i, backward);
}

/* Or as much as the other kernels, which compute what they do not. */
Test(kernel_cuda_failures, warpgroups_have_shared_memory_of_their_own)
{
    for (int i = 0; i < 8; ++i) {
        bool const backward = i % 2 == 1, theirs = i < 4;
        ra_kernel_use const use = {.dtype = theirs ? RA_BF16 : RA_F32,
                                   .dim = i % 4 < 2 ? 64 : 128,
                                   .backward = backward,
                                   .threads = 1};
        int32_t const forward = ra_cuda_warpgroup_tile_of(use.dim).shared_bytes;
        int32_t const single = ra_cuda_warpgroup_single_of(use.dim).shared_bytes;
        int32_t const own = backward ? ra_hd_max(forward, single) : forward;
        char why[240] = "";
        standin.shared_bytes = ra_hd_max(theirs ? own : 0, ra_cuda_shared_bytes(&use));
        cr_expect(warpgroups(backward)->serves(&use, why, sizeof(why)), "case %d: %s", i, why);
        --standin.shared_bytes;
        cr_expect_not(warpgroups(backward)->serves(&use, why, sizeof(why)), "case %d", i);
    }
}

/* Parts of long tasks, which only maps with long rows have. */
Test(kernel_cuda_failures, warpgroups_have_room_for_parts_of_long_tasks)
{
    ra_kernel_use use = {.dtype = RA_BF16, .dim = 64, .threads = 4};
    size_t const plain = ra_kernel_cuda()->workspace_bytes(&use);
    int32_t const blocks = 4 * ra_cuda_warpgroup_tile_of(64).blocks_per_sm;
    cr_expect_eq(warpgroups(false)->workspace_bytes(&use), plain);
    use.long_rows = true;
    cr_expect_eq(ra_kernel_cuda()->workspace_bytes(&use), plain);
    cr_expect_eq(warpgroups(false)->workspace_bytes(&use), plain + ra_cuda_cuts_bytes(blocks, 64));
    use.linear = RA_LINEAR_CAUSAL;
    cr_expect_eq(warpgroups(false)->workspace_bytes(&use), ra_kernel_cuda()->workspace_bytes(&use));
}

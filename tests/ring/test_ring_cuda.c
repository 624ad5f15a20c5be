/*
 * Rings with the table for GPUs, its kernels emulated, on a stand-in for the runtime, and messages
 * through pinned memory: what a rank does on a GPU, but for the GPU. Held to the CPU's ring.
 */
#include "ring/ring_job_cuda.h"
#include "support/captured_log.h"
#include "support/standin_cudart.h"
#include "support/thin_sweep.h"

#include <criterion/criterion.h>
#include <math.h>

enum { SEQ = 90, DIM = 16 };

static captured_log said;

static void begin(void)
{
    ring_job_begin_cuda();
    captured_log_begin(&said);
}

TestSuite(ring_cuda, .init = begin, .timeout = 1200);

static ring_job make_job(int ranks, int buffers, ra_schedule schedule)
{
    return ring_job_waves(ranks, SEQ, DIM, buffers, schedule);
}

/* At most so much of the norm; NaN passes no comparison. */
static void expect_near(const ra_ring_config *c, int32_t heads, double most, const void *got,
                        const void *want, const char *what)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < c->seq * heads * c->dim; ++i) {
        double const a = (double)ra_dtype_load(c->dtype, got, i);
        double const b = (double)ra_dtype_load(c->dtype, want, i);
        difference += (a - b) * (a - b);
        norm += b * b;
    }
    cr_expect(sqrt(difference) <= most * sqrt(norm), "%s is off by %g", what,
              sqrt(difference / norm));
}

static void expect_same(const ring_job *got, const ring_job *want, double most)
{
    const ra_ring_config *c = &want->config;
    expect_near(c, c->heads, most, got->out, want->out, "out");
    expect_near(c, c->heads, most, got->dq, want->dq, "dq");
    expect_near(c, c->kv_heads, most, got->dk, want->dk, "dk");
    expect_near(c, c->kv_heads, most, got->dv, want->dv, "dv");
}

static void compare(int ranks, int buffers, ra_schedule schedule, int window)
{
    ring_job device = make_job(ranks, buffers, schedule), host = make_job(ranks, buffers, schedule);
    ring_job_on_cuda(&device);
    if (window > 0)
        device.pattern.window_left = host.pattern.window_left = window;
    ring_job_run(&device);
    ring_job_run(&host);
    cr_assert_eq(device.status, RA_OK, "%d ranks: %s", ranks, ra_status_name(device.status));
    cr_assert_eq(host.status, RA_OK);
    cr_expect_eq(device.leaked_bytes, 0);
    expect_same(&device, &host, 2e-6);
    cr_expect_eq(said.errors, 0);
    cr_expect_eq(standin.blocks + standin.pinned_blocks + standin.events + standin.streams, 0);
    ring_job_free(&device);
    ring_job_free(&host);
}

static void compare_all(void)
{
    for (int ranks = 1; ranks <= 3; ++ranks) {
        compare(ranks, 2, RA_SCHEDULE_RING, 0);
        compare(ranks, 0, RA_SCHEDULE_DIRECT, 0);
        compare(ranks, 1, RA_SCHEDULE_DIRECT, 11);
        compare(ranks, 0, RA_SCHEDULE_SCAN, 0);
    }
}

Test(ring_cuda, computes_what_the_ring_on_cpus_does)
{
    compare_all();
}

/* What a stream does too early is seen here, and what it does too late above. */
Test(ring_cuda, computes_the_same_where_work_is_done_at_once)
{
    standin.is_eager = 1;
    compare_all();
}

/* Kernels that store 16-bit gradients cannot where other groups add to them. */
Test(ring_cuda, sums_gradients_of_keys_that_head_groups_share)
{
    static const int32_t groups[] = {2, 4, 12};
    for (int ranks = 1; ranks <= 2; ++ranks)
        for (int i = 0; i < 3; ++i) {
            ring_job together = ring_job_heads(ranks, SEQ, 4, 1, DIM, RA_BF16);
            ring_job apart = ring_job_heads(ranks, SEQ, 4, 1, DIM, RA_BF16);
            together.config.head_groups = 1;
            apart.config.head_groups = groups[i];
            ring_job_on_cuda(&together);
            ring_job_on_cuda(&apart);
            ring_job_run(&together);
            ring_job_run(&apart);
            cr_assert(together.status == RA_OK && apart.status == RA_OK, "%d ranks", ranks);
            expect_same(&apart, &together, 4e-3);
            ring_job_free(&together);
            ring_job_free(&apart);
        }
}

/* Any call fails, and all that was taken goes back, or a warning says so. Of several ranks one has
   the line, and the others end with it. */
static void fail_calls(int ranks, ra_schedule schedule, long usual_every)
{
    thin_sweep const sweep = thin_sweep_begin(usual_every);
    bool done = false;
    for (long call = 1 + sweep.skipped; !done; call += sweep.every) {
        begin();
        ring_job job = make_job(ranks, 2, schedule);
        ring_job_on_cuda(&job);
        standin.calls = 0;
        standin.fail_call = call;
        standin.fail_error = cudaErrorLaunchOutOfResources;
        ring_job_run(&job);
        done = call > standin.calls;
        cr_expect_eq(said.errors, job.status != RA_OK, "call %ld (%s): %d lines", call, sweep.text,
                     said.errors);
        cr_expect_eq(job.leaked_bytes, 0, "call %ld (%s)", call, sweep.text);
        cr_expect(job.status == RA_OK || ranks > 1 || standin.blocks + standin.streams == 0,
                  "call %ld (%s)", call, sweep.text);
        ring_job_free(&job);
    }
    cr_assert_eq(said.errors, 0, "the last one failed nowhere");
}

Test(ring_cuda, survives_the_failure_of_any_call)
{
    fail_calls(1, RA_SCHEDULE_DIRECT, 1);
    fail_calls(2, RA_SCHEDULE_DIRECT, 17);
    fail_calls(2, RA_SCHEDULE_RING, 17);
}

Test(ring_cuda, survives_the_failure_of_any_call_of_linear_attention)
{
    fail_calls(1, RA_SCHEDULE_SCAN, 1);
    fail_calls(2, RA_SCHEDULE_SCAN, 1);
}

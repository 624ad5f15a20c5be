/*
 * Traces of rings whose kernels and messages are a GPU's, over stand-ins for the CUDA runtime and
 * for NCCL: every event of work there has the stand-in's time, not that of its being enqueued.
 */
#include "ring/late_kernels.h"
#include "ring/on_gpus.h"
#include "ring/ring_job.h"
#include "ring/trace_record.h"
#include "support/captured_log.h"
#include "support/own_hosts.h"
#include "support/standin_cudart.h"
#include "support/standin_nccl.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 90, DIM = 4, RANKS_MAX = 4, CAPACITY = 4096 };

/* So long that no machine is slow enough for the host's time to be taken for it. */
static int64_t const LONG_NS = (int64_t)1000 * 1000000000;

static trace_record records[RANKS_MAX];
static captured_log said;

static void begin(void)
{
    standin_reset();
    standin_nccl_reset();
    own_hosts_begin(); /* all ranks have the first GPU */
    captured_log_begin(&said);
}

static void end(void)
{
    trace_records_forget(records, RANKS_MAX);
}

TestSuite(trace_device, .init = begin, .fini = end);

static ra_kernel_ops ops;

static ring_job make_job(int ranks, int buffers, ra_schedule schedule)
{
    ring_job job = ring_job_waves(ranks, SEQ, DIM, buffers, schedule);
    ops = late_kernels();
    job.kernel = &ops;
    job.two_pools = true;
    cr_assert_eq(ra_memory_device(0, &job.kernel_memory), RA_OK);
    job.trace_capacity = CAPACITY;
    job.take_trace = trace_record_take;
    job.trace_context = records;
    return job;
}

static void run(device_maker *make, ring_job *job)
{
    trace_records_forget(records, RANKS_MAX);
    job->wrap_comm = wrap_on_gpu;
    job->wrap_context = &make;
    ring_job_run(job);
    cr_assert_eq(job->status, RA_OK, "%s", ra_status_name(job->status));
    cr_assert_eq(job->leaked_bytes, 0);
    cr_assert(job->left_comm);
    cr_assert_eq(said.errors + said.warnings, 0);
    cr_assert_eq(standin.events + standin.streams, 0);
}

/* Where the backward pass begins. */
static int64_t second_pass(const trace_record *record)
{
    int64_t at = 1;
    while (at < record->count && record->events[at].kind != RA_TRACE_BACKWARD)
        ++at;
    return at;
}

/* ---- what they show -------------------------------------------------------------------------- */

static void check_times(const trace_record *record)
{
    for (int64_t i = 0; i < record->count; ++i) {
        const ra_trace_event *const e = &record->events[i];
        ra_trace_kind const kind = (ra_trace_kind)e->kind;
        bool const waits = ra_trace_kind_track(kind) == RA_TRACK_WAITS;
        cr_assert_eq(e->device, !waits, "%s", ra_trace_kind_name(kind));
        if (kind == RA_TRACE_FORWARD_KERNEL || kind == RA_TRACE_BACKWARD_KERNEL ||
            kind == RA_TRACE_PACK || kind == RA_TRACE_SEND_KEYS || kind == RA_TRACE_RECEIVE_GRADS)
            cr_assert_geq(e->end_ns - e->begin_ns, LONG_NS / 2, "%s is enqueueing",
                          ra_trace_kind_name(kind));
        if (waits)
            cr_assert_lt(e->end_ns - e->begin_ns, LONG_NS / 2, "the host waits by its own clock");
    }
    cr_expect_eq(record->untimed, 0);
    cr_expect_eq(record->lost, 0);
}

static void check_all(device_maker *make)
{
    static const ra_schedule schedules[] = {RA_SCHEDULE_RING, RA_SCHEDULE_DIRECT};
    for (int i = 0; i < 2; ++i)
        for (int buffers = 0; buffers <= 2; ++buffers) {
            ring_job job = make_job(3, buffers, schedules[i]);
            standin.work_ns = standin.peer_ns = LONG_NS;
            run(make, &job);
            for (int r = 0; r < job.ranks; ++r) {
                /* The stand-in's time runs ahead of the clock, which each pass goes back to. */
                int64_t const middle = second_pass(&records[r]);
                trace_record_check(&records[r], 0, middle);
                trace_record_check(&records[r], middle, records[r].count);
                check_times(&records[r]);
                cr_expect_gt(trace_record_count(&records[r], RA_TRACE_SEND_KEYS), 0);
                cr_expect_gt(trace_record_count(&records[r], RA_TRACE_RECEIVE_GRADS), 0);
            }
            ring_job_free(&job);
        }
}

Test(trace_device, work_has_the_times_of_the_device_in_order_over_nccl)
{
    check_all(ra_comm_create_nccl);
}

Test(trace_device, work_has_the_times_of_the_device_in_order_through_pinned_memory)
{
    check_all(ra_comm_create_staged);
}

/* With the clock's own times, all passes are one order, which no wait of the host contradicts. */
Test(trace_device, keeps_to_the_clock_of_the_host)
{
    ring_job job = make_job(3, 2, RA_SCHEDULE_RING);
    run(ra_comm_create_nccl, &job);
    for (int r = 0; r < job.ranks; ++r) {
        const trace_record *const record = &records[r];
        int64_t const first_ns = record->events[0].begin_ns;
        int64_t const last_ns = record->events[second_pass(record)].end_ns;
        trace_record_check(record, 0, record->count);
        for (int64_t i = 0; i < record->count; ++i) {
            cr_expect_geq(record->events[i].begin_ns, first_ns);
            cr_expect_leq(record->events[i].begin_ns, last_ns);
        }
    }
    ring_job_free(&job);
}

static bool overlap(const ra_trace_event *a, const ra_trace_event *b)
{
    return a->begin_ns < b->end_ns && b->begin_ns < a->end_ns;
}

/* Keys of step s + 1 travel while step s computes, and zeroes what it adds to before that. */
Test(trace_device, shows_transfers_beside_the_kernels_that_they_overlap)
{
    ring_job job = make_job(3, 2, RA_SCHEDULE_DIRECT);
    standin.work_ns = LONG_NS;
    standin.peer_ns = 3 * LONG_NS;
    run(ra_comm_create_nccl, &job);
    for (int r = 0; r < job.ranks; ++r)
        for (int backward = 0; backward < 2; ++backward) {
            ra_trace_kind const kernel =
                backward ? RA_TRACE_BACKWARD_KERNEL : RA_TRACE_FORWARD_KERNEL;
            for (int s = 0; s + 1 < job.ranks; ++s) {
                const ra_trace_event *const computes =
                    trace_record_find(&records[r], kernel, backward, 0, s);
                const ra_trace_event *const travels =
                    trace_record_find(&records[r], RA_TRACE_RECEIVE_KEYS, backward, 0, s + 1);
                cr_assert(computes != NULL && travels != NULL);
                cr_expect(overlap(computes, travels), "rank %d, step %d: %lld..%lld, %lld..%lld", r,
                          s, (long long)computes->begin_ns, (long long)computes->end_ns,
                          (long long)travels->begin_ns, (long long)travels->end_ns);
            }
        }
    ring_job_free(&job);
}

/* ---- what it costs --------------------------------------------------------------------------- */

static void expect_same(const ring_job *a, const ring_job *b, int64_t call)
{
    size_t const bytes = sizeof(float) * SEQ * DIM;
    cr_expect_eq(memcmp(a->out, b->out, bytes), 0, "call %lld: out", (long long)call);
    cr_expect_eq(memcmp(a->dq, b->dq, bytes), 0, "call %lld: dq", (long long)call);
    cr_expect_eq(memcmp(a->dk, b->dk, bytes), 0, "call %lld: dk", (long long)call);
    cr_expect_eq(memcmp(a->dv, b->dv, bytes), 0, "call %lld: dv", (long long)call);
}

Test(trace_device, off_makes_no_event_that_tells_a_time_and_results_are_the_same)
{
    ring_job with = make_job(3, 2, RA_SCHEDULE_RING), without = make_job(3, 2, RA_SCHEDULE_RING);
    run(ra_comm_create_nccl, &with);
    int64_t const made = standin.timed_events;
    cr_expect_gt(made, 0);
    cr_expect_leq(made, 3 * (2 * records[0].bound + 4));
    without.trace_capacity = 0;
    run(ra_comm_create_nccl, &without);
    cr_expect_eq(standin.timed_events, made, "the second job made some");
    expect_same(&with, &without, 0);
    ring_job_free(&with);
    ring_job_free(&without);
}

/* One rank, so that calls come in one order: those for the trace cost the trace, and no more. */
Test(trace_device, any_call_that_fails_is_one_line_and_takes_times_at_most)
{
    ring_job plain = make_job(1, 2, RA_SCHEDULE_DIRECT);
    int64_t untimed_jobs = 0;
    plain.trace_capacity = 0;
    ring_job_run(&plain);
    cr_assert_eq(plain.status, RA_OK);
    for (int64_t call = 1; call <= standin.calls; ++call) {
        trace_records_forget(records, RANKS_MAX);
        begin();
        ring_job job = make_job(1, 2, RA_SCHEDULE_DIRECT);
        int64_t const before = standin.calls;
        job.take_trace = trace_record_take;
        standin.fail_call = before + call;
        standin.fail_error = cudaErrorInvalidResourceHandle;
        ring_job_run(&job);
        cr_expect_leq(said.warnings, 1);
        cr_expect_eq(job.leaked_bytes, 0);
        if (job.status == RA_OK)
            expect_same(&job, &plain, call);
        if (records[0].untimed > 0) {
            cr_expect_eq(job.status, RA_OK, "call %lld", (long long)call);
            cr_expect_eq(said.warnings, 1, "call %lld", (long long)call);
            ++untimed_jobs;
        }
        standin.fail_call = 0;
        ring_job_free(&job);
    }
    cr_expect_gt(untimed_jobs, 50);
    ring_job_free(&plain);
}

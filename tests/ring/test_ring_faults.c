/*
 * Failure sweeps: the n-th allocation or communication of one rank fails, for n = 0, 1, … until the
 * job succeeds. Every rank ends, the cause is reported, nothing leaks.
 */
#include "ring/ring_job.h"
#include "support/captured_log.h"
#include "support/faulty_comm.h"

#include <criterion/criterion.h>
#include <stdatomic.h>

enum { SEQ = 90, DIM = 4, RANKS = 3 };

/* The last rank is on another host, where there are two. */
static ring_job small_job(int buffers, ra_schedule schedule, int hosts)
{
    ring_job job = ring_job_waves(RANKS, SEQ, DIM, buffers, schedule);
    if ((schedule == RA_SCHEDULE_DIRECT && buffers == 2) ||
        (schedule == RA_SCHEDULE_SHARED && hosts == 2 && buffers == 0))
        job.config.rounds = 2;
    job.hosts[RANKS - 1] = hosts - 1;
    job.timeout_ms = 60000;
    return job;
}

static captured_log said;

static void listen(void)
{
    captured_log_begin(&said);
}

TestSuite(fault, .init = listen);

static void sweep_allocations(const ra_kernel_ops *kernel, bool dense_mask, int buffers,
                              ra_schedule schedule, int hosts)
{
    refusing_memory memory = {.refused = true};
    bool const sends =
        schedule < RA_SCHEDULE_SHARED || (schedule == RA_SCHEDULE_SHARED && hosts > 1);
    bool const steps_take = kernel != NULL || (sends && buffers == 0);
    int in_passes = 0;
    long n = 0;
    for (; memory.refused; ++n) {
        atomic_store(&memory.countdown, n);
        atomic_store(&memory.refused, false);
        ring_job job = small_job(buffers, schedule, hosts);
        job.kernel = kernel;
        job.config.dense_mask = dense_mask;
        job.refusing = &memory;
        captured_log_begin(&said);
        ring_job_run(&job);
        cr_assert_eq(job.status, memory.refused ? RA_ERR_NO_MEMORY : RA_OK, "allocation %ld: %s", n,
                     ra_status_name(job.status));
        cr_assert_eq(said.errors, memory.refused, "allocation %ld: %d lines", n, said.errors);
        cr_assert(!job.in_pass || (job.failed_together && job.same_status),
                  "allocation %ld: not on all ranks", n);
        in_passes += job.in_pass;
        cr_assert_eq(job.leaked_bytes, 0, "allocation %ld leaks", n);
        ring_job_free(&job);
    }
    cr_assert_gt(n, 10);
    cr_assert_eq(in_passes > 0, steps_take, "%d allocations in passes", in_passes);
}

Test(fault, every_failing_allocation_ends_the_job_with_one_line)
{
    sweep_allocations(NULL, false, 2, RA_SCHEDULE_RING, 1);
    sweep_allocations(NULL, false, 2, RA_SCHEDULE_DIRECT, 1);
    sweep_allocations(NULL, false, 0, RA_SCHEDULE_DIRECT, 1);
    sweep_allocations(NULL, false, 0, RA_SCHEDULE_SHARED, 1);
    sweep_allocations(NULL, false, 0, RA_SCHEDULE_SHARED, 2);
    sweep_allocations(NULL, false, 2, RA_SCHEDULE_SHARED, 2);
    sweep_allocations(NULL, false, 0, RA_SCHEDULE_SCAN, 1);
}

Test(fault, block_masks_that_do_not_fit_end_the_job_with_one_line)
{
    for (int schedule = RA_SCHEDULE_RING; schedule <= RA_SCHEDULE_SHARED; ++schedule)
        for (int hosts = 1; hosts <= 2; ++hosts)
            sweep_allocations(NULL, true, 0, (ra_schedule)schedule, hosts);
}

/* Its steps take memory: in the middle of a pass all ranks end together. */
Test(fault, materialised_scores_that_do_not_fit_end_the_job_with_one_line)
{
    if (ra_kernel_standard() == NULL)
        cr_skip_test("OpenBLAS is not installed");
    for (int schedule = RA_SCHEDULE_RING; schedule <= RA_SCHEDULE_SHARED; ++schedule)
        for (int hosts = 1; hosts <= 2; ++hosts)
            sweep_allocations(ra_kernel_standard(), false, 2, (ra_schedule)schedule, hosts);
}

/* Rank 0 takes memory to choose layout and schedule for all: where it gets none, nobody goes on
   with a choice that was not made. */
static void sweep_choices(bool own_hosts)
{
    refusing_memory memory = {.refused = true};
    long n = 0;
    for (; memory.refused; ++n) {
        atomic_store(&memory.countdown, n);
        atomic_store(&memory.refused, false);
        ring_job job = small_job(2, RA_SCHEDULE_AUTO, 1);
        job.config.layout = RA_LAYOUT_AUTO;
        job.refusing = &memory;
        job.refuses_rank_0 = true;
        for (int rank = 0; rank < RANKS; ++rank)
            job.hosts[rank] = own_hosts ? rank : 0;
        captured_log_begin(&said);
        ring_job_run(&job);
        cr_assert_eq(job.status, memory.refused ? RA_ERR_NO_MEMORY : RA_OK, "allocation %ld: %s", n,
                     ra_status_name(job.status));
        cr_assert_eq(said.errors, memory.refused, "allocation %ld: %d lines", n, said.errors);
        cr_assert_eq(job.leaked_bytes, 0, "allocation %ld leaks", n);
        ring_job_free(&job);
    }
    cr_expect_gt(n, 20);
}

Test(fault, a_choice_that_rank_0_has_no_memory_for_ends_the_job_with_one_line)
{
    sweep_choices(false);
    sweep_choices(true);
}

/* The other ranks' number of head groups is no status. */
Test(fault, memory_whose_room_is_unknown_ends_the_job_alike_on_all_ranks)
{
    static const ra_schedule schedules[] = {RA_SCHEDULE_DIRECT, RA_SCHEDULE_SHARED,
                                            RA_SCHEDULE_SCAN};
    for (int i = 0; i < 3; ++i) {
        refusing_memory memory = {.countdown = -1, .unknown = RA_ERR_IO};
        ring_job job = small_job(0, schedules[i], 1);
        job.config.dim = 1; /* the same tensors, of heads enough for any number of groups */
        job.config.heads = job.config.kv_heads = DIM;
        job.refusing = &memory;
        captured_log_begin(&said);
        ring_job_run(&job);
        cr_expect_eq(job.status, RA_ERR_IO, "%s", ra_status_name(job.status));
        cr_expect(job.same_status && !job.in_pass, "schedule %d", (int)schedules[i]);
        cr_expect_eq(said.errors, 0, "memory says why");
        cr_expect_eq(job.leaked_bytes, 0);
        ring_job_free(&job);
    }
}

typedef struct failing_comm {
    int64_t fail_at;
    int64_t operations;
} failing_comm;

static ra_comm *wrap_comm(void *context, int rank, ra_comm *comm)
{
    failing_comm *self = context;
    if (rank != RING_JOB_VICTIM)
        return comm;
    ra_comm *wrapped = faulty_comm_create(comm, self->fail_at);
    cr_assert_not_null(wrapped);
    return wrapped;
}

/* Ends when the job has fewer operations than fail_at. */
static void sweep_communication(int buffers, ra_schedule schedule, int hosts)
{
    ra_status status = RA_ERR_TIMEOUT;
    int64_t n = 0;
    for (; status != RA_OK && n < 1000; ++n) {
        failing_comm comm = {.fail_at = n};
        ring_job job = small_job(buffers, schedule, hosts);
        job.wrap_comm = wrap_comm;
        job.wrap_context = &comm;
        ring_job_run(&job);
        status = job.status;
        cr_assert(status == RA_OK || status == FAULTY_COMM_STATUS, "operation %lld: %s",
                  (long long)n, ra_status_name(status));
        cr_assert_eq(job.leaked_bytes, 0, "operation %lld leaks", (long long)n);
        ring_job_free(&job);
    }
    cr_assert(n > 8 && n < 1000, "%lld operations", (long long)n);
}

Test(fault, every_failing_exchange_or_collective_ends_the_job_on_all_ranks)
{
    for (int buffers = 0; buffers <= 2; ++buffers) {
        sweep_communication(buffers, RA_SCHEDULE_DIRECT, 1);
        sweep_communication(buffers, RA_SCHEDULE_RING, 1);
        sweep_communication(buffers, RA_SCHEDULE_SHARED, 2);
    }
    sweep_communication(0, RA_SCHEDULE_SHARED, 1);
    sweep_communication(0, RA_SCHEDULE_SCAN, 1);
}

Test(fault, a_limit_is_kept_to_the_byte_and_more_head_groups_need_less)
{
    enum { N = 4096, D = 16, H = 8, ELEMENTS = N * D * H };
    static float big[9][ELEMENTS];
    ring_job job = {.config = {.batch = 1,
                               .seq = N,
                               .heads = H,
                               .kv_heads = H,
                               .dim = D,
                               .dtype = RA_F32,
                               .schedule = RA_SCHEDULE_DIRECT,
                               .comm_buffers = 2,
                               .head_groups = 1,
                               .rounds = 1},
                    .pattern = ra_pattern_config_dense(),
                    .ranks = 2,
                    .q = big[0],
                    .k = big[1],
                    .v = big[2],
                    .out = big[3],
                    .lse = big[4]};
    job.pattern.window_left = 8; /* little to compute, but two live steps */
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK);
    int64_t const whole = job.peak_bytes;
    job.limit_bytes = whole;
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK, "succeeds at exactly its peak");
    job.limit_bytes = whole - 1;
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_ERR_NO_MEMORY, "fails one byte below");
    cr_assert_eq(job.leaked_bytes, 0);
    job.config.head_groups = 0;
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK, "auto takes more groups instead");
    cr_assert_eq(job.info.head_groups, 2);
    cr_assert_lt(job.peak_bytes, whole);
    /* Of 5 to 7 groups the largest has two heads, as of 4: these need no less. */
    static const int32_t groups[] = {2, 3, 4, 8};
    for (int i = 0; i < 4; i++) {
        job.limit_bytes = 0;
        job.config.head_groups = groups[i];
        ring_job_run(&job);
        cr_assert_eq(job.status, RA_OK);
        job.limit_bytes = job.peak_bytes;
        job.config.head_groups = 0;
        ring_job_run(&job);
        cr_assert_eq(job.status, RA_OK);
        cr_assert_eq(job.info.head_groups, groups[i], "of %d bytes", (int)job.limit_bytes);
        job.limit_bytes--;
        ring_job_run(&job);
        cr_assert_eq(job.status, RA_OK);
        cr_assert(i == 3 ? job.info.head_groups > H : job.info.head_groups == groups[i + 1],
                  "one byte less: %d groups", job.info.head_groups); /* parts of the queries */
    }
    job.limit_bytes = job.peak_bytes / 2;
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_ERR_NO_MEMORY, "fails where nothing fits");
}

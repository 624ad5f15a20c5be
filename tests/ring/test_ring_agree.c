/* Ranks of a ring tell each other what became of them: when that holds, and what it is called. */
#include "comm/comm_internal.h"
#include "ring/ring_internal.h"
#include "ring/ring_job.h"
#include "support/captured_log.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

TestSuite(ring_agree);

enum { RANKS = 3, SEQ = 90 };

/* Steps take memory, so ranks agree in each of them. */
static ring_job job_of_steps(void)
{
    ring_job job = ring_job_waves(RANKS, SEQ, 4, 0, RA_SCHEDULE_DIRECT);
    job.config.layout = RA_LAYOUT_CONTIGUOUS;
    job.timeout_ms = 20000;
    return job;
}

/* Whether telling the others of memory that ran out in a pass breaks the communicator. */
static atomic_bool telling_fails;
static atomic_int together_count;

/* What was agreed on, by pass and step. */
static atomic_int agreed[2][RANKS], agreed_before;

static void note_operation(const char *operation)
{
    char pass[16];
    int step;
    atomic_fetch_add(&agreed_before, strcmp(operation, "agreeing on the ring") == 0);
    if (sscanf(operation, "agreeing on step %d of the %15s pass", &step, pass) == 2)
        atomic_fetch_add(&agreed[strcmp(pass, "backward") == 0][step], 1);
}

ra_status __real_ra_comm_reduce_i64(ra_comm *comm, const char *operation, ra_reduce reduce,
                                    int64_t *values, int count);
ra_status __wrap_ra_comm_reduce_i64(ra_comm *comm, const char *operation, ra_reduce reduce,
                                    int64_t *values, int count);
ra_status __wrap_ra_comm_reduce_i64(ra_comm *comm, const char *operation, ra_reduce reduce,
                                    int64_t *values, int count)
{
    if (atomic_load(&telling_fails) && *values == RA_ERR_NO_MEMORY) {
        ra_comm_break(comm);
        return RA_ERR_PEER;
    }
    note_operation(operation);
    return __real_ra_comm_reduce_i64(comm, operation, reduce, values, count);
}

bool __real_ra_ring_failed_together(const ra_ring *ring);
bool __wrap_ra_ring_failed_together(const ra_ring *ring);
bool __wrap_ra_ring_failed_together(const ra_ring *ring)
{
    bool const together = __real_ra_ring_failed_together(ring);
    atomic_fetch_add(&together_count, together);
    return together;
}

/* Rings that are still given before one is refused; negative: all are given. */
static atomic_int rings_left = -1;

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes)
{
    bool const refused =
        count == 1 && bytes == sizeof(ra_ring) && atomic_fetch_sub(&rings_left, 1) == 0;
    return refused ? NULL : __real_calloc(count, bytes);
}

/* Jobs whose n-th allocation is refused; how many of them ended in a pass. */
static int refuse_each_allocation(void)
{
    refusing_memory memory = {.refused = true};
    int in_passes = 0;
    for (long n = 0; memory.refused; ++n) {
        atomic_store(&memory.countdown, n);
        atomic_store(&memory.refused, false);
        ring_job job = job_of_steps();
        job.refusing = &memory;
        ring_job_run(&job);
        cr_assert_eq(job.status, memory.refused ? RA_ERR_NO_MEMORY : RA_OK, "allocation %ld", n);
        in_passes += job.in_pass;
        ring_job_free(&job);
    }
    return in_passes;
}

Test(ring_agree, ranks_fail_together_only_where_they_have_told_each_other, .timeout = 120)
{
    int const told = refuse_each_allocation();
    cr_assert_gt(told, 0);
    cr_expect_eq(atomic_exchange(&together_count, 0), told * RANKS);
    atomic_store(&telling_fails, true);
    cr_expect_eq(refuse_each_allocation(), told);
    cr_expect_eq(atomic_load(&together_count), 0, "a broken communicator has told nobody");
}

/* So the line of a timeout says in which step ranks waited. */
Test(ring_agree, what_is_agreed_on_in_a_pass_names_pass_and_step)
{
    ring_job job = job_of_steps();
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK);
    for (int step = 1; step < RANKS; ++step) {
        cr_expect_geq(atomic_load(&agreed[0][step]), RANKS, "forward, step %d", step);
        cr_expect_geq(atomic_load(&agreed[1][step]), RANKS, "backward, step %d", step);
    }
    cr_expect_gt(atomic_load(&agreed_before), 0);
    ring_job_free(&job);
}

Test(ring_agree, a_rank_without_memory_for_its_ring_ends_all_with_one_status)
{
    for (int given = 0; given < RANKS; ++given) {
        ring_job job = job_of_steps();
        atomic_store(&rings_left, given);
        ring_job_run(&job);
        cr_expect_eq(job.status, RA_ERR_NO_MEMORY, "%s", ra_status_name(job.status));
        cr_expect(job.same_status && !job.in_pass);
        cr_expect_eq(job.leaked_bytes, 0);
        ring_job_free(&job);
    }
}

/* Ranks of which some hand over keys that are not in the ring's memory, in a pass each. */
static void run_stray(unsigned forward, unsigned backward, int last_host, int64_t seq,
                      ra_ring_mode mode, bool refused)
{
    captured_log log;
    ring_job job = ring_job_waves(RANKS, seq, 4, 2, RA_SCHEDULE_SHARED);
    job.config.layout = RA_LAYOUT_CONTIGUOUS;
    job.hosts[RANKS - 1] = last_host;
    job.mode = mode;
    job.stray_keys[0] = forward;
    job.stray_keys[1] = backward;
    captured_log_begin(&log);
    ring_job_run(&job);
    ra_log_set_handler(NULL, NULL);
    cr_assert_eq(job.info.schedule, RA_SCHEDULE_SHARED);
    cr_expect_eq(job.status, refused ? RA_ERR_INVALID : RA_OK, "%u, %u on %d hosts: %s", forward,
                 backward, last_host + 1, ra_status_name(job.status));
    cr_expect(job.same_status && job.in_pass == refused);
    cr_expect_eq(log.count, refused ? __builtin_popcount(forward != 0 ? forward : backward) : 0);
    cr_expect(!refused || strstr(log.line, "where ra_ring_key_memory says") != NULL, "%s",
              log.line);
    cr_expect_eq(job.leaked_bytes, 0);
    ring_job_free(&job);
}

Test(ring_agree, keys_of_any_rank_outside_the_rings_memory_are_refused_on_all)
{
    for (int last_host = 0; last_host < 2; ++last_host)
        for (unsigned ranks = 1; ranks < 1U << RANKS; ++ranks) {
            run_stray(ranks, 0, last_host, SEQ, RA_RING_BOTH, true);
            run_stray(0, ranks, last_host, SEQ, RA_RING_BOTH, true);
        }
    for (ra_ring_mode mode = RA_RING_BOTH; mode <= RA_RING_ENDS_ONLY; ++mode) {
        run_stray(1, 0, 0, SEQ, mode, true);
        run_stray(0, 0, 0, SEQ, mode, false);
    }
}

/* Rank 0 of 3 has none of 2 rows. */
Test(ring_agree, a_rank_without_rows_may_hand_over_any_keys)
{
    run_stray(1, 1, 0, RANKS - 1, RA_RING_BOTH, false);
    run_stray(2, 0, 0, RANKS - 1, RA_RING_BOTH, true);
}

static atomic_int polls;

static void count_poll(void *context)
{
    (void)context;
    atomic_fetch_add(&polls, 1);
}

/* One rank has nobody to poll for: then the caller's poll is called in both passes. */
Test(ring_agree, a_pass_leaves_the_kernel_with_its_callers_poll)
{
    int seen[2];
    for (int backward = 0; backward < 2; ++backward) {
        ring_job job = ring_job_waves(1, 600, 4, 2, RA_SCHEDULE_DIRECT);
        job.config.backward = backward;
        job.poll = count_poll;
        ring_job_run(&job);
        cr_assert_eq(job.status, RA_OK);
        cr_expect(job.poll_stayed);
        seen[backward] = atomic_exchange(&polls, 0);
        ring_job_free(&job);
    }
    cr_expect(seen[0] > 0 && seen[1] > seen[0], "%d, then %d", seen[0], seen[1]);
    for (int schedule = RA_SCHEDULE_RING; schedule <= RA_SCHEDULE_SHARED; ++schedule)
        for (unsigned strays = 0; strays < 2; ++strays) { /* passes that fail, too */
            ring_job job = ring_job_waves(RANKS, SEQ, 4, 2, (ra_schedule)schedule);
            job.poll = count_poll;
            job.stray_keys[0] = strays;
            ring_job_run(&job);
            cr_expect(job.poll_stayed, "%s", ra_schedule_name((ra_schedule)schedule));
            ring_job_free(&job);
        }
    cr_expect_eq(atomic_load(&polls), 0, "several ranks poll for messages");
}

/* What is said of repetitions whose times are told: which count for the spread, and when they end.
 */
#include "comm/local_ranks.h"
#include "tool/job.h"

#include <criterion/criterion.h>
#include <math.h>
#include <time.h>

/* Linked with --wrap for these: time passes in passes alone, for as long as tables say; of each
   rank, which is a thread, its own. */
enum { TOLD = 20, WARM_UP_MS = 7000 };
static _Thread_local const double *forward_told_ms, *backward_told_ms;
static _Thread_local int warmups_left, forwards, backwards;
static _Thread_local int64_t passed_ns;

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    if (clock != CLOCK_MONOTONIC)
        return __real_clock_gettime(clock, time);
    *time = (struct timespec){.tv_sec = 1000 + passed_ns / 1000000000,
                              .tv_nsec = passed_ns % 1000000000};
    return 0;
}

static ra_status pass(const double *told_ms, int *count)
{
    double const ms = warmups_left > 0 ? WARM_UP_MS : told_ms[(*count)++];
    passed_ns += llround(1e6 * ms);
    return RA_OK;
}

ra_status __wrap_ra_ring_forward(ra_ring *ring, const ra_ring_tensors *tensors);
ra_status __wrap_ra_ring_forward(ra_ring *ring, const ra_ring_tensors *tensors)
{
    (void)ring;
    (void)tensors;
    ra_status const status = pass(forward_told_ms, &forwards);
    warmups_left -= warmups_left > 0 && backward_told_ms == NULL;
    return status;
}

ra_status __wrap_ra_ring_backward(ra_ring *ring, const ra_ring_tensors *tensors);
ra_status __wrap_ra_ring_backward(ra_ring *ring, const ra_ring_tensors *tensors)
{
    (void)ring;
    (void)tensors;
    ra_status const status = pass(backward_told_ms, &backwards);
    warmups_left -= warmups_left > 0;
    return status;
}

bool __wrap_ra_ring_failed_together(const ra_ring *ring);
bool __wrap_ra_ring_failed_together(const ra_ring *ring)
{
    (void)ring;
    return false;
}

static ra_status measure_on(ra_comm *comm, const ra_repeat *repeat, const double *forward_ms,
                            const double *backward_ms, ra_times times_out[2])
{
    ra_options const options = {0};
    ra_job job = {.options = &options,
                  .config.backward = backward_ms != NULL,
                  .comm = comm,
                  .ring_comm = comm};
    forward_told_ms = forward_ms;
    backward_told_ms = backward_ms;
    warmups_left = repeat->warmup;
    forwards = backwards = 0;
    passed_ns = 0;
    ra_pool_config config = {.mode = RA_POOL_OFF, .memory = ra_memory_host()};
    ra_status status = ra_ledger_create(1 << 20, &config.ledger);
    if (status == RA_OK)
        status = ra_pool_create(&config, &job.pool);
    job.host_pool = job.pool;
    if (status == RA_OK)
        status = ra_job_time(&job, repeat, &times_out[0], &times_out[1]);
    ra_pool_destroy(job.host_pool);
    ra_ledger_destroy(config.ledger);
    return status;
}

static void measure(const ra_repeat *repeat, const double *forward_ms, const double *backward_ms,
                    ra_times times_out[2])
{
    ra_comm *comm;
    cr_assert_eq(ra_comm_create_self(1000, &comm), RA_OK);
    cr_assert_eq(measure_on(comm, repeat, forward_ms, backward_ms, times_out), RA_OK);
    cr_expect_eq(warmups_left, 0);
    cr_expect_eq(times_out[0].count, forwards);
    cr_expect_eq(backward_ms == NULL ? 0 : times_out[1].count, backwards);
    ra_comm_destroy(comm);
}

static void expect_times(const ra_times *times, int count, double min_ms, double median_ms,
                         double max_ms, double spread)
{
    cr_expect_eq(times->count, count, "%d repetitions", times->count);
    cr_expect_float_eq(times->min_ms, min_ms, 1e-6, "min %g", times->min_ms);
    cr_expect_float_eq(times->median_ms, median_ms, 1e-6, "median %g", times->median_ms);
    cr_expect_float_eq(times->max_ms, max_ms, 1e-6, "max %g", times->max_ms);
    cr_expect_float_eq(times->spread, spread, 1e-9, "spread %g", times->spread);
}

static const double falling_ms[TOLD] = {400, 300, 120, 104, 100, 102, 103, 90};
static const double rising_ms[TOLD] = {20, 21, 20, 21, 30, 31, 30, 50};

/* The last three are within 5 %: those before do not count for the spread, but for the rest. */
Test(job_times, end_once_the_last_are_close_whose_spread_is_told)
{
    ra_times times[2];
    ra_repeat const repeat = {.warmup = 2, .most = 8, .steady_count = 3, .most_ms = INFINITY};
    measure(&repeat, falling_ms, NULL, times);
    expect_times(&times[0], 6, 100, 112, 400, 4.0 / 102);
}

Test(job_times, end_once_the_last_of_both_passes_are_close)
{
    ra_times times[2];
    ra_repeat const repeat = {.warmup = 1, .most = 8, .steady_count = 3, .most_ms = INFINITY};
    measure(&repeat, falling_ms, rising_ms, times);
    expect_times(&times[0], 7, 100, 104, 400, 3.0 / 102);
    expect_times(&times[1], 7, 20, 21, 31, 1.0 / 30);
}

/* Which passes of a warm-up belong to, too. */
Test(job_times, none_begins_after_the_time_that_they_may_take)
{
    ra_times times[2];
    ra_repeat const repeat = {.warmup = 1, .most = 8, .most_ms = WARM_UP_MS + 820.5};
    measure(&repeat, falling_ms, NULL, times);
    expect_times(&times[0], 4, 104, 210, 400, 296.0 / 210);
    ra_repeat const less = {.warmup = 1, .most = 8, .most_ms = WARM_UP_MS + 819.5};
    measure(&less, falling_ms, NULL, times);
    expect_times(&times[0], 3, 120, 300, 400, 280.0 / 300);
}

/* Those of the last sixteen, where no number is told that must be close. */
Test(job_times, are_as_many_as_asked_for_at_most)
{
    double ms[TOLD];
    ra_times times[2];
    ra_repeat const repeat = {.most = TOLD, .most_ms = INFINITY};
    for (int i = 0; i < TOLD; i++)
        ms[i] = i < 4 ? 1000 : 100 + i;
    measure(&repeat, ms, NULL, times);
    expect_times(&times[0], TOLD, 104, 113.5, 1000, 15.0 / 111.5);
}

/* By turns each of the ranks is the slowest. */
static int expect_slowest(ra_comm *comm, void *context)
{
    static const double told_ms[2][4] = {{10, 200, 30, 60}, {100, 20, 300, 50}};
    ra_times times[2];
    ra_repeat const repeat = {.warmup = 1, .most = 4, .most_ms = INFINITY};
    int const rank = ra_comm_rank(comm);
    (void)context;
    return measure_on(comm, &repeat, told_ms[rank], told_ms[1 - rank], times) != RA_OK ||
           times[0].count != 4 || fabs(times[0].min_ms - 60) > 1e-6 ||
           fabs(times[0].median_ms - 150) > 1e-6 || fabs(times[0].max_ms - 300) > 1e-6 ||
           fabs(times[1].median_ms - 150) > 1e-6;
}

Test(job_times, of_each_repetition_are_those_of_the_slowest_rank)
{
    cr_expect_eq(local_ranks_run(2, 60000, expect_slowest, NULL), 0);
}

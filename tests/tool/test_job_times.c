/* What is said of repetitions whose times are told: which count for the spread, and when they end.
 */
#include "tool/job.h"

#include <criterion/criterion.h>
#include <math.h>
#include <time.h>

/* Linked with --wrap for these: time passes in passes alone, for as long as tables say. */
enum { TOLD = 20, WARM_UP_MS = 7000 };
static const double *forward_told_ms, *backward_told_ms;
static int warmups_left, forwards, backwards;
static int64_t passed_ns;

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

static void measure(const ra_repeat *repeat, const double *forward_ms, const double *backward_ms,
                    ra_times times_out[2])
{
    ra_options const options = {0};
    ra_job job = {.options = &options, .config.backward = backward_ms != NULL};
    forward_told_ms = forward_ms;
    backward_told_ms = backward_ms;
    warmups_left = repeat->warmup;
    forwards = backwards = 0;
    passed_ns = 0;
    cr_assert_eq(ra_comm_create_self(1000, &job.comm), RA_OK);
    job.ring_comm = job.comm;
    cr_assert_eq(ra_ledger_create(1 << 20, &job.ledger), RA_OK);
    ra_pool_config const config = {
        .mode = RA_POOL_OFF, .memory = ra_memory_host(), .ledger = job.ledger};
    cr_assert_eq(ra_pool_create(&config, &job.host_pool), RA_OK);
    cr_assert_eq(ra_job_time(&job, repeat, &times_out[0], &times_out[1]), RA_OK);
    cr_expect_eq(warmups_left, 0);
    cr_expect_eq(times_out[0].count, forwards);
    cr_expect_eq(backward_ms == NULL ? 0 : times_out[1].count, backwards);
    ra_pool_destroy(job.host_pool);
    ra_ledger_destroy(job.ledger);
    ra_comm_destroy(job.comm);
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
    ra_repeat const repeat = {
        .warmup = 2, .most = 8, .steady_count = 3, .steady_spread = 0.05, .most_ms = INFINITY};
    measure(&repeat, falling_ms, NULL, times);
    expect_times(&times[0], 6, 100, 112, 400, 4.0 / 102);
}

Test(job_times, end_once_the_last_of_both_passes_are_close)
{
    ra_times times[2];
    ra_repeat const repeat = {
        .warmup = 1, .most = 8, .steady_count = 3, .steady_spread = 0.05, .most_ms = INFINITY};
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

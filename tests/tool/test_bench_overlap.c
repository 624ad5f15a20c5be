/* What three times of a pass say about each other, and when they say nothing. */
#include "tool/tool_bench.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static void expect_text(const ra_overlap *overlap, const char *expected)
{
    char text[96];
    ra_overlap_text(overlap, text, sizeof(text));
    cr_expect_str_eq(text, expected);
}

Test(overlap, is_the_share_of_the_shorter_that_hides)
{
    ra_overlap const most = {.wall_ms = 105, .compute_ms = 100, .comm_ms = 20, .spread_ms = 1};
    cr_expect_float_eq(ra_overlap_share(&most), 0.75, 1e-12);
    cr_expect_float_eq(ra_overlap_exposed_ms(&most), 5, 1e-12);
    expect_text(&most, "5.000 ms exposed, 75 % overlap");
    ra_overlap const comm_bound = {.wall_ms = 130, .compute_ms = 40, .comm_ms = 110};
    cr_expect_float_eq(ra_overlap_share(&comm_bound), 0.5, 1e-12);
    cr_expect_float_eq(ra_overlap_exposed_ms(&comm_bound), 90, 1e-12);
}

Test(overlap, is_not_told_of_next_to_nothing)
{
    ra_overlap const shared = {.wall_ms = 1000, .compute_ms = 990, .comm_ms = 9};
    cr_expect(isnan(ra_overlap_share(&shared)));
    expect_text(&shared, "nothing to overlap");
    ra_overlap const none = {0};
    cr_expect(isnan(ra_overlap_share(&none)));
}

/* Both in less time than computing alone: the machine changed its pace, nothing was hidden. */
Test(overlap, is_not_told_where_times_spread_further)
{
    ra_overlap const noisy = {.wall_ms = 1087, .compute_ms = 1354, .comm_ms = 38, .spread_ms = 300};
    cr_expect(isnan(ra_overlap_share(&noisy)));
    cr_expect_float_eq(ra_overlap_exposed_ms(&noisy), 0, 0);
    expect_text(&noisy, "overlap is lost in the spread of times, 300.000 ms");
}

Test(overlap, is_not_told_by_one_round)
{
    ra_overlap const once = {
        .wall_ms = 105, .compute_ms = 100, .comm_ms = 20, .spread_ms = (double)INFINITY};
    cr_expect(isnan(ra_overlap_share(&once)));
    expect_text(&once, "overlap needs job.repeat of 2 or more");
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* Linked with --wrap=ra_job_time and --wrap=ra_ring_set_mode: times are those of a table. */
enum { TOLD = 9 };
static const double told_ms[3][TOLD] = {/* both; computing alone; communication alone */
                                        {110, 100, 130, 105, 104, 103, 102, 101, 106},
                                        {80, 84, 82, 81, 83, 85, 86, 87, 88},
                                        {30, 50, 40, 90, 20, 10, 60, 70, 15}};
static ra_ring_mode mode;
static int calls, warmups;

void __wrap_ra_ring_set_mode(ra_ring *ring, ra_ring_mode set);
void __wrap_ra_ring_set_mode(ra_ring *ring, ra_ring_mode set)
{
    (void)ring;
    mode = set;
}

static int row_of(ra_ring_mode which)
{
    return which == RA_RING_BOTH ? 0 : which == RA_RING_COMPUTE_ONLY ? 1 : 2;
}

/* Of a backward pass everything takes twice as long. */
ra_status __wrap_ra_job_time(ra_job *job, const ra_repeat *repeat, ra_times *forward_out,
                             ra_times *backward_out);
ra_status __wrap_ra_job_time(ra_job *job, const ra_repeat *repeat, ra_times *forward_out,
                             ra_times *backward_out)
{
    int const round = calls++ / 3;
    double const ms = told_ms[row_of(mode)][round];
    (void)job;
    cr_expect_eq(repeat->most, 1);
    cr_expect_eq(repeat->warmup, round == 0, "round %d warms up %d times", round, repeat->warmup);
    warmups += repeat->warmup;
    *forward_out = (ra_times){.min_ms = ms, .median_ms = ms, .max_ms = ms, .count = 1};
    *backward_out = (ra_times){.min_ms = 2 * ms, .median_ms = 2 * ms, .max_ms = 2 * ms, .count = 1};
    return RA_OK;
}

/* The rounds that there were. */
static int measure(int most, double most_ms, ra_bench_point *point)
{
    ra_job job = {.repeat = {.most = most, .most_ms = most_ms}};
    calls = warmups = 0;
    mode = RA_RING_ENDS_ONLY;
    cr_assert_eq(ra_bench_overlap_measure(&job, point), RA_OK);
    cr_expect_eq(mode, RA_RING_BOTH, "the ring is left in another mode");
    cr_expect_eq(calls % 3, 0);
    cr_expect_eq(warmups, 3, "once in each mode");
    return calls / 3;
}

/* Of communication alone the spread does not count. */
Test(overlap, is_of_medians_and_of_the_larger_spread_of_three_rounds)
{
    ra_bench_point point = {0};
    cr_assert_eq(measure(3, INFINITY, &point), 3);
    cr_expect(point.has_overlap);
    cr_expect_float_eq(point.forward.wall_ms, 110, 0);
    cr_expect_float_eq(point.forward.compute_ms, 82, 0);
    cr_expect_float_eq(point.forward.comm_ms, 40, 0);
    cr_expect_float_eq(point.forward.spread_ms, 30, 0); /* 130 - 100 */
    cr_expect_float_eq(point.backward.wall_ms, 220, 0);
    cr_expect_float_eq(point.backward.compute_ms, 164, 0);
    cr_expect_float_eq(point.backward.comm_ms, 80, 0);
    cr_expect_float_eq(point.backward.spread_ms, 60, 0);
}

/* Each mode may take as long as the passes before, but three rounds there are; nine at most. */
Test(overlap, ends_its_rounds_by_their_number_or_by_time)
{
    ra_bench_point point = {0};
    cr_expect_eq(measure(1, INFINITY, &point), 1);
    cr_expect(isinf(point.forward.spread_ms), "one round has no spread");
    cr_expect_eq(measure(100, INFINITY, &point), 9);
    cr_expect_eq(measure(100, 0, &point), 3);
    /* Three rounds take 3 * 706 ms, four 3 * 982 ms, five 3 * 1,189 ms. */
    cr_expect_eq(measure(100, 705, &point), 3);
    cr_expect_eq(measure(100, 707, &point), 4);
    cr_expect_eq(measure(100, 983, &point), 5);
}

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

/* Which keys of a run some queries see, held to the definition of a band. */
#include "sparse/run_band.h"

#include "support/random_pattern.h"

#include <criterion/criterion.h>

enum { QUERIES = 20, KEYS = 40, CASES = 3000 };

/* As a map has them: with a live pair, and beginning with a key that is seen. */
static ra_run draw_run(test_rng *rng, int32_t q_count)
{
    ra_run run = {0, 1, (int32_t)test_rng_between(rng, 1, KEYS), RA_RUN_NONE_LO, RA_RUN_NONE_HI};
    if (test_rng_between(rng, 0, 2) > 0)
        run.lo = (int32_t)test_rng_between(rng, -q_count, 0);
    if (test_rng_between(rng, 0, 2) > 0)
        run.hi = (int32_t)test_rng_between(rng, run.lo < 1 - q_count ? 1 - q_count : run.lo,
                                           run.k_count);
    return run;
}

static bool is_within(ra_run_keys keys, int32_t b)
{
    return keys.begin <= b && b < keys.end;
}

Test(run_band, seen_are_keys_of_some_query_and_full_those_of_all)
{
    test_rng rng = {1};
    for (int i = 0; i < CASES; ++i) {
        int32_t const q_count = (int32_t)test_rng_between(&rng, 1, QUERIES);
        int32_t const a0 = (int32_t)test_rng_between(&rng, 0, q_count - 1);
        int32_t const a1 = (int32_t)test_rng_between(&rng, a0 + 1, q_count);
        ra_run const run = draw_run(&rng, q_count);
        int32_t const begin = (int32_t)test_rng_between(&rng, 0, run.k_count - 1);
        int32_t const end = (int32_t)test_rng_between(&rng, begin + 1, run.k_count);
        ra_run_band const band = ra_run_band_of(&run, q_count);
        ra_run_keys const seen = ra_run_band_seen(band, a0, a1, begin, end);
        ra_run_keys const full = ra_run_band_full(band, a0, a1, begin, end);
        for (int32_t b = 0; b < run.k_count; ++b) {
            int32_t sees = 0;
            for (int32_t a = a0; a < a1; ++a) {
                bool const live = b - a >= run.lo && b - a <= run.hi;
                cr_assert_eq(ra_run_band_has(band, a, b), live, "case %d", i);
                sees += live;
            }
            bool const is_own = b >= begin && b < end;
            cr_assert_eq(is_within(seen, b), is_own && sees > 0, "case %d key %d", i, b);
            cr_assert_eq(is_within(full, b), is_own && sees == a1 - a0, "case %d key %d", i, b);
        }
    }
}

Test(run_band, queries_that_see_some_key_are_those_of_live_pairs)
{
    test_rng rng = {2};
    for (int i = 0; i < CASES; ++i) {
        int32_t const q_count = (int32_t)test_rng_between(&rng, 1, QUERIES);
        ra_run const run = draw_run(&rng, q_count);
        int32_t const begin = (int32_t)test_rng_between(&rng, 0, run.k_count - 1);
        int32_t const end = (int32_t)test_rng_between(&rng, begin + 1, run.k_count);
        ra_run_band const band = ra_run_band_of(&run, q_count);
        ra_run_queries const seeing = ra_run_band_seeing(band, q_count, begin, end);
        for (int32_t a = 0; a < q_count; ++a) {
            bool sees = false;
            for (int32_t b = begin; b < end; ++b)
                sees = sees || (b - a >= run.lo && b - a <= run.hi);
            cr_assert_eq(a >= seeing.begin && a < seeing.end, sees, "case %d query %d", i, a);
        }
    }
}

Test(run_band, the_longest_run_overflows_nowhere)
{
    ra_run const run = {0, 1, INT32_MAX, RA_RUN_NONE_LO, RA_RUN_NONE_HI};
    ra_run_band const band = ra_run_band_of(&run, 256);
    ra_run_keys const seen = ra_run_band_seen(band, 0, 256, 0, INT32_MAX);
    ra_run_keys const full = ra_run_band_full(band, 128, 256, INT32_MAX - 8, INT32_MAX);
    cr_assert(seen.begin == 0 && seen.end == INT32_MAX);
    cr_assert(full.begin == INT32_MAX - 8 && full.end == INT32_MAX);
    cr_assert(ra_run_band_has(band, 255, INT32_MAX - 1));
    ra_run const last = {0, 1, INT32_MAX, -255, 0};
    ra_run_band const narrow = ra_run_band_of(&last, 256);
    ra_run_queries const all = ra_run_band_seeing(band, 256, INT32_MAX - 1, INT32_MAX);
    ra_run_queries const none = ra_run_band_seeing(narrow, 256, INT32_MAX - 1, INT32_MAX);
    cr_assert(all.begin == 0 && all.end == 256);
    cr_assert(none.begin >= none.end);
}

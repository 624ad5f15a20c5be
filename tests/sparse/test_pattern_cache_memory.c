/* Memory of the pattern cache: what is counted where, and what happens when it is refused. */
#include "sparse/cache_fixture.h"
#include "support/captured_log.h"

#include <criterion/criterion.h>

Test(pattern_cache, what_is_kept_is_counted_in_the_pool_at_hand)
{
    captured_log said;
    fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 20);
    ra_pattern_config const config = window(7), other = window(8);
    use_config(&f, &config);
    use_config(&f, &other);
    int64_t const bytes = counts(&f).bytes;
    ra_pattern_cache_detach(f.cache);
    close_pool(&f);
    open_pool(&f, RA_POOL_OFF, INT64_MAX);
    cr_assert_eq(held_bytes(f.ledger, RA_MEM_PATTERN_CACHE), 0);
    ra_pattern_cache_attach(f.cache, f.pool);
    cr_assert_eq(held_bytes(f.ledger, RA_MEM_PATTERN_CACHE), bytes);
    cr_assert(use_config(&f, &config));
    ra_pattern_cache_detach(f.cache);
    close_pool(&f);
    open_pool(&f, RA_POOL_OFF, bytes - 1); /* no room for both */
    captured_log_begin(&said);
    ra_pattern_cache_attach(f.cache, f.pool);
    cr_assert_eq(said.count, 0);
    cr_assert_eq(counts(&f).entries, 1);
    close_both(&f);
}

Test(pattern_cache, memory_that_is_refused_to_the_cache_fails_nobody)
{
    captured_log said;
    ra_pattern_config const config = window(7);
    captured_log_begin(&said);
    for (long n = 0; n < 3; ++n) {
        fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 20);
        cache_memory.countdown = n;
        for (int64_t i = 0; i < 3; ++i)
            cr_assert_eq(use_config(&f, &config), n == 0 ? i > 1 : i > 0);
        cr_assert_eq(said.count, 0);
        close_both(&f);
    }
}

Test(pattern_cache, idle_maps_make_way_under_a_limit)
{
    captured_log said;
    fixture f = {0};
    captured_log_begin(&said);
    open_pool(&f, RA_POOL_OFF, 24 << 10);
    open_cache(&f, RA_CACHE_EAGER, 100, 1 << 20);
    ra_pattern_cache_attach(f.cache, f.pool);
    for (int64_t left = 1; left < 40; ++left) {
        ra_pattern_config const config = window(left);
        asked a;
        ra_tilemap map;
        ask(&f, &config, SEQ / 4, &a);
        cr_assert_eq(ra_pattern_cache_get(f.cache, &a.request, f.pool, &map), RA_OK);
        ra_pattern_cache_put(f.pool, &map);
        forget(&f, &a);
    }
    cr_assert_eq(said.count, 0);
    cr_assert_gt(counts(&f).evictions, 0);
    cr_assert_gt(counts(&f).entries, 1);
    close_both(&f);
}

/* The n-th request of either memory is refused. An index by keys takes some after the map. */
static void survive_failures(bool by_keys)
{
    ra_pattern_config config = window(700); /* far enough for the index to need sorting */
    config.blocks_kind = RA_BLOCKS_DILATED_SPARSE;
    config.block_size = 16;
    config.block_density = 0.5;
    int failures = 0;
    bool done = false;
    for (long n = 0; !done; ++n) {
        fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 20);
        asked a;
        ask(&f, &config, SEQ, &a);
        a.request.by_keys = by_keys;
        pool_memory.countdown = n;
        ra_tilemap map;
        ra_status const status = ra_pattern_cache_get(f.cache, &a.request, f.pool, &map);
        cr_assert(status == RA_OK || status == RA_ERR_NO_MEMORY);
        failures += status != RA_OK;
        cr_assert_eq(counts(&f).entries, status == RA_OK);
        done = !pool_memory.refused;
        pool_memory.countdown = -1;
        if (status == RA_OK) {
            expect_as_built(&f, &a, &map);
            ra_pattern_cache_put(f.pool, &map);
        }
        cr_assert_eq(held_bytes(f.ledger, RA_MEM_PATTERN_CACHE), counts(&f).bytes);
        use(&f, &a);
        cr_assert(use(&f, &a));
        forget(&f, &a);
        close_both(&f);
    }
    cr_assert_gt(failures, 1);
}

Test(pattern_cache, survives_the_nth_failure_without_a_leak)
{
    survive_failures(false);
    survive_failures(true);
}

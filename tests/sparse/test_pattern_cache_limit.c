/* Maps that nobody uses give way to what a job asks for: the pattern cache as a pool's keeper. */
#include "sparse/cache_fixture.h"
#include "support/captured_log.h"

#include <criterion/criterion.h>

enum { LONG_SEQ = 20000, MAPS = 8, LIMIT_BYTES = 256 << 10 };

static fixture f;
static asked maps[MAPS];
static captured_log said;

static void use_map(int i)
{
    ra_tilemap map;
    cr_assert_eq(ra_pattern_cache_get(f.cache, &maps[i].request, f.pool, &map), RA_OK);
    cr_assert_gt(map.live_pairs, 0);
    ra_pattern_cache_put(f.pool, &map);
}

static int64_t free_bytes(void)
{
    ra_ledger_snapshot now;
    ra_ledger_read(f.ledger, &now);
    return now.limit_bytes - now.reserved_bytes;
}

/* A cache that keeps all maps, in a pool whose limit has room for them and a little more. */
static void begin(ra_pool_mode mode)
{
    captured_log_begin(&said);
    open_pool(&f, mode, LIMIT_BYTES);
    open_cache(&f, RA_CACHE_EAGER, 100, 1 << 20);
    ra_pattern_cache_attach(f.cache, f.pool);
    for (int i = 0; i < MAPS; i++) {
        ra_pattern_config const config = window(10 + i);
        ask(&f, &config, LONG_SEQ, &maps[i]);
        use_map(i);
    }
    cr_assert_eq(counts(&f).entries, MAPS);
}

static void end(void)
{
    for (int i = 0; i < MAPS; i++)
        forget(&f, &maps[i]);
    close_both(&f);
}

static void expect_way(ra_pool_mode mode)
{
    int64_t available;
    ra_block block;
    begin(mode);
    (void)ra_pool_trim(f.pool, 0);
    int64_t const each = counts(&f).bytes / MAPS, left = free_bytes();
    cr_assert_gt(each, 8192);
    cr_assert_eq(ra_pool_available(f.pool, &available), RA_OK);
    cr_assert_eq(available, left + counts(&f).bytes);
    int64_t const wanted = (left + 5 * each / 2) / 4096 * 4096; /* two maps and a half more */
    cr_assert_eq(ra_pool_alloc(f.pool, RA_MEM_QKV, (size_t)wanted, NULL, &block), RA_OK);
    cr_assert_eq(said.count, 0);
    cr_assert_eq(counts(&f).entries, MAPS - 3);
    cr_assert_eq(counts(&f).evictions, 3);
    use_map(MAPS - 1); /* those used last are still there */
    cr_assert_eq(counts(&f).hits, 1);
    ra_pool_free(f.pool, NULL, &block);
    cr_assert_eq(ra_pool_charge(f.pool, RA_MEM_QKV, wanted + each), RA_OK);
    cr_assert_eq(counts(&f).entries, MAPS - 4);
    cr_assert_eq(said.count, 0);
    ra_pool_release(f.pool, RA_MEM_QKV, wanted + each);
    end();
}

Test(cache_limit, maps_that_nobody_uses_give_way_to_a_request)
{
    expect_way(RA_POOL_OFF);
    expect_way(RA_POOL_SIZE_CLASS);
}

Test(cache_limit, maps_in_use_stay_and_the_request_is_refused)
{
    ra_block block;
    ra_tilemap map;
    begin(RA_POOL_OFF);
    cr_assert_eq(ra_pattern_cache_get(f.cache, &maps[2].request, f.pool, &map), RA_OK);
    cr_assert_eq(ra_pool_alloc(f.pool, RA_MEM_QKV, LIMIT_BYTES - 4096, NULL, &block),
                 RA_ERR_NO_MEMORY);
    cr_assert_eq(said.count, 1);
    cr_assert_eq(counts(&f).entries, 1);
    ra_pool_stats stats;
    ra_pool_read_stats(f.pool, &stats);
    cr_assert_eq(stats.ooms, 1);
    cr_assert_eq(stats.retries, MAPS - 1);
    int64_t available;
    cr_assert_eq(ra_pool_available(f.pool, &available), RA_OK);
    cr_assert_eq(available, free_bytes());
    ra_pattern_cache_put(f.pool, &map);
    end();
}

/* One request is refused, the next one is not: what a machine does that has been given memory. */
Test(cache_limit, a_machine_that_refuses_is_asked_again_after_a_map_has_left)
{
    ra_block block;
    begin(RA_POOL_OFF);
    pool_memory.countdown = 0;
    cr_assert_eq(ra_pool_alloc(f.pool, RA_MEM_QKV, 100, NULL, &block), RA_OK);
    cr_assert_eq(said.count, 0);
    cr_assert_eq(counts(&f).entries, MAPS - 1);
    ra_pool_free(f.pool, NULL, &block);
    end();
}

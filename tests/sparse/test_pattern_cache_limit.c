/* Maps that nobody uses give way to what a job asks for: the pattern cache as a pool's keeper. */
#include "ringattn/pattern_cache.h"

#include "support/captured_log.h"
#include "support/poison_memory.h"
#include "support/refusing_memory.h"

#include <criterion/criterion.h>

enum { SEQ = 20000, HEADS = 2, TILE_ROWS = 64, MAPS = 8, LIMIT_BYTES = 256 << 10 };

static ra_ledger *ledger;
static ra_pool *pool;
static ra_pattern_cache *cache;
static ra_pattern *patterns[MAPS];
static ra_rowset rows;
static captured_log said;
static refusing_memory memory; /* the pool's */

static ra_map_request request_at(int i)
{
    return (ra_map_request){patterns[i], {0, 1, HEADS}, &rows, &rows, TILE_ROWS, false};
}

static void use_map(int i)
{
    ra_tilemap map;
    ra_map_request const request = request_at(i);
    cr_assert_eq(ra_pattern_cache_get(cache, &request, pool, &map), RA_OK);
    cr_assert_gt(map.live_pairs, 0);
    ra_pattern_cache_put(pool, &map);
}

static ra_cache_counts counts(void)
{
    ra_cache_counts now;
    ra_pattern_cache_read(cache, &now);
    return now;
}

static int64_t free_bytes(void)
{
    ra_ledger_snapshot now;
    ra_ledger_read(ledger, &now);
    return now.limit_bytes - now.reserved_bytes;
}

/* A cache that keeps all maps, in a pool whose limit has room for them and a little more. */
static void begin(ra_pool_mode mode)
{
    ra_range const all = {0, 1, SEQ};
    captured_log_begin(&said);
    memory = (refusing_memory){.inner = ra_memory_poison(), .countdown = -1};
    cr_assert_eq(ra_ledger_create(LIMIT_BYTES, &ledger), RA_OK);
    ra_pool_config const config = {
        .mode = mode, .memory = ra_memory_refusing(&memory), .ledger = ledger};
    cr_assert_eq(ra_pool_create(&config, &pool), RA_OK);
    ra_pattern_cache_config const kept = {RA_CACHE_EAGER, 100, 1 << 20, ra_memory_poison()};
    cr_assert_eq(ra_pattern_cache_create(&kept, &cache), RA_OK);
    ra_pattern_cache_attach(cache, pool);
    cr_assert_eq(ra_rowset_init(pool, &all, 1, &rows), RA_OK);
    for (int i = 0; i < MAPS; i++) {
        ra_pattern_config window = ra_pattern_config_dense();
        window.window_left = 10 + i;
        window.window_right = 0;
        cr_assert_eq(ra_pattern_create(&window, SEQ, HEADS, pool, &patterns[i]), RA_OK);
        use_map(i);
    }
    cr_assert_eq(counts().entries, MAPS);
}

static void end(void)
{
    ra_ledger_snapshot last;
    for (int i = 0; i < MAPS; i++)
        ra_pattern_destroy(patterns[i]);
    ra_rowset_fini(pool, &rows);
    ra_pattern_cache_detach(cache);
    ra_pattern_cache_destroy(cache);
    (void)ra_pool_trim(pool, 0);
    ra_ledger_read(ledger, &last);
    cr_assert_eq(last.reserved_bytes, 0);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
}

static void expect_way(ra_pool_mode mode)
{
    int64_t available;
    ra_block block;
    begin(mode);
    (void)ra_pool_trim(pool, 0);
    int64_t const each = counts().bytes / MAPS, left = free_bytes();
    cr_assert_gt(each, 8192);
    cr_assert_eq(ra_pool_available(pool, &available), RA_OK);
    cr_assert_eq(available, left + counts().bytes);
    int64_t const wanted = (left + 5 * each / 2) / 4096 * 4096; /* two maps and a half more */
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, (size_t)wanted, NULL, &block), RA_OK);
    cr_assert_eq(said.count, 0);
    cr_assert_eq(counts().entries, MAPS - 3);
    cr_assert_eq(counts().evictions, 3);
    use_map(MAPS - 1); /* those used last are still there */
    cr_assert_eq(counts().hits, 1);
    ra_pool_free(pool, NULL, &block);
    cr_assert_eq(ra_pool_charge(pool, RA_MEM_QKV, wanted + each), RA_OK);
    cr_assert_eq(counts().entries, MAPS - 4);
    cr_assert_eq(said.count, 0);
    ra_pool_release(pool, RA_MEM_QKV, wanted + each);
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
    ra_map_request const request = request_at(2);
    cr_assert_eq(ra_pattern_cache_get(cache, &request, pool, &map), RA_OK);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, LIMIT_BYTES - 4096, NULL, &block),
                 RA_ERR_NO_MEMORY);
    cr_assert_eq(said.count, 1);
    cr_assert_eq(counts().entries, 1);
    ra_pool_stats stats;
    ra_pool_read_stats(pool, &stats);
    cr_assert_eq(stats.ooms, 1);
    cr_assert_eq(stats.retries, MAPS - 1);
    int64_t available;
    cr_assert_eq(ra_pool_available(pool, &available), RA_OK);
    cr_assert_eq(available, free_bytes());
    ra_pattern_cache_put(pool, &map);
    end();
}

/* One request is refused, the next one is not: what a machine does that has been given memory. */
Test(cache_limit, a_machine_that_refuses_is_asked_again_after_a_map_has_left)
{
    ra_block block;
    begin(RA_POOL_OFF);
    memory.countdown = 0;
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, 100, NULL, &block), RA_OK);
    cr_assert_eq(said.count, 0);
    cr_assert_eq(counts().entries, MAPS - 1);
    ra_pool_free(pool, NULL, &block);
    end();
}

/* The pattern cache: maps from it are those that would be built, and its bounds hold. */
#include "sparse/cache_fixture.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>

/* ---- modes -------------------------------------------------------------------------------------
 */

Test(pattern_cache, eager_keeps_a_map_at_once)
{
    fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 20);
    ra_pattern_config const config = window(100);
    cr_assert_not(use_config(&f, &config));
    cr_assert(use_config(&f, &config));
    cr_assert(use_config(&f, &config));
    ra_cache_counts const now = counts(&f);
    cr_assert(now.hits == 2 && now.misses == 1 && now.entries == 1 && now.evictions == 0);
    cr_assert_eq(held_bytes(f.ledger, RA_MEM_PATTERN_CACHE), now.bytes);
    close_both(&f);
}

Test(pattern_cache, lazy_keeps_a_map_when_it_is_asked_for_again)
{
    fixture f = open_both(RA_CACHE_LAZY, 8, 1 << 20);
    ra_pattern_config const config = window(100), other = window(101);
    cr_assert_not(use_config(&f, &config));
    cr_assert_eq(counts(&f).entries, 0);
    cr_assert_eq(held_bytes(f.ledger, RA_MEM_PATTERN_CACHE), 0);
    cr_assert_not(use_config(&f, &other));
    cr_assert_not(use_config(&f, &config));
    cr_assert_eq(counts(&f).entries, 1);
    cr_assert(use_config(&f, &config));
    close_both(&f);
}

/* First uses do not drive each other out, in whatever order maps are asked for. */
Test(pattern_cache, lazy_keeps_each_of_many_maps_that_take_turns)
{
    enum { MAPS = 300 };
    fixture f = open_both(RA_CACHE_LAZY, MAPS, 64 << 20);
    for (int turn = 0; turn < 3; ++turn)
        for (int i = 0; i < MAPS; ++i) {
            ra_pattern_config const config = window(i);
            cr_assert_eq(use_config(&f, &config), turn == 2, "map %d, turn %d", i, turn);
        }
    cr_assert_eq(counts(&f).entries, MAPS);
    close_both(&f);
}

Test(pattern_cache, off_keeps_nothing_and_counts_nothing)
{
    fixture f = open_both(RA_CACHE_OFF, 8, 1 << 20);
    ra_pattern_config const config = window(100);
    for (int i = 0; i < 3; ++i)
        cr_assert_not(use_config(&f, &config));
    cr_assert_eq(counts(&f).misses, 0);
    close_both(&f);
}

Test(pattern_cache, holders_of_one_map_share_its_arrays)
{
    fixture f = open_both(RA_CACHE_EAGER, 8, 1 << 20);
    ra_pattern_config const config = window(100);
    ra_tilemap maps[3];
    asked a;
    ask(&f, &config, SEQ, &a);
    for (int i = 0; i < 3; ++i)
        cr_assert_eq(ra_pattern_cache_get(f.cache, &a.request, f.pool, &maps[i]), RA_OK);
    cr_assert(maps[1].runs == maps[0].runs && maps[2].runs == maps[0].runs);
    for (int i = 0; i < 3; ++i)
        ra_pattern_cache_put(f.pool, &maps[i]);
    forget(&f, &a);
    close_both(&f);
}

/* A copy would show as tilemap bytes beside the entry's. */
Test(pattern_cache, a_map_that_is_kept_is_built_where_it_is_kept)
{
    fixture f = open_both(RA_CACHE_EAGER, 8, 64 << 20);
    ra_pattern_config config = ra_pattern_config_dense();
    config.blocks_kind = RA_BLOCKS_DILATED_SPARSE;
    config.block_size = 16;
    config.block_density = 0.1;
    asked a;
    ask(&f, &config, 1 << 16, &a);
    ra_tilemap map;
    cr_assert_eq(ra_pattern_cache_get(f.cache, &a.request, f.pool, &map), RA_OK);
    ra_ledger_snapshot now;
    ra_ledger_read(f.ledger, &now);
    cr_assert_gt(map.bytes, 1 << 20);
    cr_assert_lt(now.peak_bytes[RA_MEM_TILEMAP], map.bytes / 8);
    cr_assert_geq(now.current_bytes[RA_MEM_PATTERN_CACHE], map.bytes);
    cr_assert_leq(now.current_bytes[RA_MEM_PATTERN_CACHE], map.bytes + 16384);
    ra_pattern_cache_put(f.pool, &map);
    forget(&f, &a);
    close_both(&f);
}

/* ---- bounds ------------------------------------------------------------------------------------
 */

static void expect_bounds(const fixture *f, int64_t entries, int64_t bytes)
{
    ra_cache_counts const now = counts(f);
    ra_ledger_snapshot ledger;
    ra_ledger_read(f->ledger, &ledger);
    cr_assert_leq(now.entries, entries);
    cr_assert_leq(now.bytes, bytes);
    cr_assert_eq(now.bytes, ledger.current_bytes[RA_MEM_PATTERN_CACHE]);
    cr_assert_leq(ledger.peak_bytes[RA_MEM_PATTERN_CACHE], bytes);
}

Test(pattern_cache, never_passes_its_bounds_and_gives_equal_maps_when_thrashing)
{
    static const int64_t bounds[] = {1, 1500, 5000, 20000, 1 << 20};
    for (size_t b = 0; b < sizeof(bounds) / sizeof(bounds[0]); ++b)
        for (int64_t entries = 1; entries <= 16; entries *= 4) {
            fixture f = open_both(RA_CACHE_EAGER, entries, bounds[b]);
            test_rng rng = {seed() + b};
            for (int n = 0; n < 60; ++n) {
                ra_pattern_config const config = window(test_rng_between(&rng, 1, 12) * 50);
                use_config(&f, &config);
                expect_bounds(&f, entries, bounds[b]);
            }
            close_both(&f);
        }
}

Test(pattern_cache, keeps_what_its_bound_holds_to_the_last_byte)
{
    ra_pattern_config const configs[] = {window(30), window(300)};
    int64_t bytes = 1 << 22;
    for (int round = 0; round < 3; ++round) { /* its size, just that, and a byte less */
        fixture f = open_both(RA_CACHE_EAGER, 16, bytes);
        for (int i = 0; i < 2; ++i)
            use_config(&f, &configs[i]);
        cr_assert_eq(counts(&f).entries, round < 2 ? 2 : 1, "of %lld bytes", (long long)bytes);
        bytes = round == 0 ? counts(&f).bytes : bytes - 1;
        close_both(&f);
    }
}

Test(pattern_cache, the_least_recently_used_map_leaves_first)
{
    fixture f = open_both(RA_CACHE_EAGER, 2, 1 << 20);
    ra_pattern_config const a = window(1), b = window(2), c = window(3);
    use_config(&f, &a);
    use_config(&f, &b);
    cr_assert(use_config(&f, &a));
    use_config(&f, &c); /* b leaves */
    cr_assert_eq(counts(&f).evictions, 1);
    cr_assert(use_config(&f, &a));
    cr_assert(use_config(&f, &c));
    cr_assert_not(use_config(&f, &b));
    close_both(&f);
}

Test(pattern_cache, a_map_that_leaves_while_in_use_lives_until_it_is_put_back)
{
    fixture f = open_both(RA_CACHE_EAGER, 1, 1 << 20);
    ra_pattern_config const config = window(1);
    asked a;
    ask(&f, &config, SEQ, &a);
    ra_tilemap map;
    cr_assert_eq(ra_pattern_cache_get(f.cache, &a.request, f.pool, &map), RA_OK);
    int64_t const bytes = counts(&f).bytes;
    int64_t const before = held_bytes(f.ledger, RA_MEM_TILEMAP);
    for (int64_t left = 2; left < 5; ++left) { /* the first takes its place, others come and go */
        ra_pattern_config const other = window(left);
        use_config(&f, &other);
        cr_assert_eq(counts(&f).evictions, left - 1);
        cr_assert_eq(held_bytes(f.ledger, RA_MEM_PATTERN_CACHE), counts(&f).bytes);
        cr_assert_eq(held_bytes(f.ledger, RA_MEM_TILEMAP), before + bytes);
    }
    expect_as_built(&f, &a, &map);
    ra_pattern_cache_put(f.pool, &map);
    cr_assert_eq(held_bytes(f.ledger, RA_MEM_TILEMAP), before);
    forget(&f, &a);
    close_both(&f);
}

/* A tile map's index: what it lists, and how little of it a block of keys must look at. */
#include "ringattn/tilemap.h"
#include "sparse/cuda/query_cursor.h"
#include "support/poison_suite.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>
#include <stdlib.h>

TestSuite(tilemap_keys, .init = poison_suite_begin, .fini = poison_suite_end);

/* A map in a pool; what it is made from lies in the suite's. */
static ra_status make_map_in(ra_pool *place, const ra_pattern_config *config, int64_t n,
                             int32_t heads, int32_t tile_rows, bool by_keys, ra_tilemap *map_out)
{
    ra_pattern *pattern;
    ra_rowset rows;
    cr_assert_eq(ra_pattern_create(config, n, heads, pool, &pattern), RA_OK);
    cr_assert_eq(ra_rowset_init(pool, &(ra_range){0, 1, n}, 1, &rows), RA_OK);
    ra_map_request const request = {pattern, {0, 1, heads}, &rows, &rows, tile_rows, by_keys};
    ra_status const status = ra_tilemap_init(&request, place, map_out);
    ra_rowset_fini(pool, &rows);
    ra_pattern_destroy(pattern);
    return status;
}

static ra_tilemap make_map(const ra_pattern_config *config, int64_t n, int32_t heads,
                           int32_t tile_rows, bool by_keys)
{
    ra_tilemap map;
    cr_assert_eq(make_map_in(pool, config, n, heads, tile_rows, by_keys, &map), RA_OK);
    return map;
}

static ra_pattern_config window_with_sinks(int64_t left)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.causal = true;
    config.window_left = left;
    config.sinks = 4;
    return config;
}

static int32_t last_key(const ra_run *run)
{
    return run->k_begin + run->k_stride * (run->k_count - 1);
}

static void check_index(const ra_tilemap *map, const char *name)
{
    uint8_t *const listed = calloc(map->run_count + 1, 1);
    for (int32_t l = 0; l < map->layer_count; ++l) {
        const uint32_t *const chunk_tile = map->layers[l].chunk_tile;
        uint32_t const begin = map->tiles[chunk_tile[0]].run_begin;
        uint32_t const end = map->tiles[chunk_tile[map->chunk_count]].run_begin;
        for (uint32_t i = begin; i < end; ++i) {
            uint32_t const run = map->by_keys[i], before = map->by_keys[i > begin ? i - 1 : i];
            cr_assert(run >= begin && run < end, "%s: a run of another layer", name);
            cr_assert_eq(listed[run]++, 0, "%s: run %u twice", name, run);
            int32_t const section = map->runs[run].k_begin / RA_SECTION_KEYS;
            int32_t const section_before = map->runs[before].k_begin / RA_SECTION_KEYS;
            cr_assert(section_before < section || (section_before == section && before <= run),
                      "%s: runs %u and %u are not in order", name, before, run);
        }
    }
    free(listed);
    for (uint32_t i = 0; i < map->run_count; ++i) {
        const ra_run *const run = &map->runs[map->by_keys[i]];
        const ra_key_span *const span = &map->spans[i / RA_SPAN_RUNS];
        cr_assert(span->first <= run->k_begin && last_key(run) <= span->last,
                  "%s: place %u lies outside of its span", name, i);
    }
}

Test(tilemap_keys, lists_every_run_of_a_layer_once_by_the_section_it_begins_in)
{
    uint64_t const seed = 20261122;
    for (uint64_t i = 0; i < 300; ++i) {
        test_rng rng = {seed + i};
        test_pattern drawn;
        char text[256];
        int64_t const n = test_rng_between(&rng, 1, 256);
        test_pattern_draw(&rng, n, &drawn);
        test_pattern_print(&drawn.config, text, sizeof(text));
        ra_tilemap map = make_map(&drawn.config, n, (int32_t)test_rng_between(&rng, 1, 3),
                                  (int32_t)test_rng_between(&rng, 1, 40), true);
        check_index(&map, text);
        ra_tilemap_fini(pool, &map);
    }
}

Test(tilemap_keys, costs_4_bytes_per_run_and_8_per_span_only_where_asked_for)
{
    ra_pattern_config const config = window_with_sinks(99);
    ra_tilemap without = make_map(&config, 100000, 1, 32, false);
    ra_tilemap with = make_map(&config, 100000, 1, 32, true);
    int64_t const runs = with.run_count;
    cr_assert_gt(runs, RA_SPAN_RUNS);
    cr_assert_null(without.by_keys);
    cr_assert_eq(with.bytes - without.bytes, 4 * runs + 8 * ((runs + 255) / 256));
    check_index(&with, "a window with sinks");
    ra_tilemap_fini(pool, &without);
    ra_tilemap_fini(pool, &with);
}

Test(tilemap_keys, memory_that_lacks_while_runs_are_dealt_is_told_and_nothing_is_left)
{
    ra_pattern_config const config = window_with_sinks(99);
    ra_tilemap map = make_map(&config, 100000, 1, 32, true);
    int64_t const map_bytes = (int64_t)map.block.reserved_bytes;
    ra_tilemap_fini(pool, &map);
    ra_ledger_snapshot after;
    /* From room for the arrays alone on, until there is some for all else, and for sections. */
    ra_status status = RA_ERR_NO_MEMORY;
    int refusals_with_arrays = 0;
    for (int64_t more = 0; status == RA_ERR_NO_MEMORY; more += 512) {
        ra_pool *small_pool;
        ra_ledger *small;
        poison_pool_begin_within(map_bytes + more, &small, &small_pool);
        status = make_map_in(small_pool, &config, 100000, 1, 32, true, &map);
        ra_ledger_read(small, &after);
        if (status == RA_OK)
            ra_tilemap_fini(small_pool, &map);
        else
            refusals_with_arrays += after.peak_bytes[RA_MEM_TILEMAP] >= map_bytes;
        poison_pool_end(small, small_pool);
    }
    cr_assert_eq(status, RA_OK);
    cr_assert_gt(refusals_with_arrays, 0, "sections were refused once");
}

/* Runs in spans that reach a block of 128 keys, and those that meet it: most over blocks. */
static void expect_looks(const ra_pattern_config *config, int64_t n, int64_t looks_most)
{
    ra_tilemap map = make_map(config, n, 1, 128, true);
    for (int64_t row = 0; row < n; row += n / 64) {
        ra_key_block const block = {(int32_t)row, 1, 128};
        int64_t looked = 0, met = 0;
        bool over = false;
        for (int64_t s = 0; s < ra_tilemap_span_count(map.run_count); ++s) {
            bool const reaches = ra_key_block_reaches(&block, &map.spans[s]);
            over = over || ra_key_block_precedes(&block, &map.spans[s]);
            cr_assert(!over || !reaches, "keys from %lld on reach span %lld behind them",
                      (long long)row, (long long)s);
            if (!reaches)
                continue;
            for (int64_t i = s * RA_SPAN_RUNS; i < (s + 1) * RA_SPAN_RUNS && i < map.run_count;
                 ++i, ++looked)
                met += ra_key_block_meets(&block, &map.runs[map.by_keys[i]]);
        }
        cr_assert_leq(looked - met, looks_most, "keys from %lld on: %lld runs for %lld",
                      (long long)row, (long long)looked, (long long)met);
    }
    ra_tilemap_fini(pool, &map);
}

/* Of a million tokens: 8,192 runs of a window, 16,384 with sinks, 665,581 of random blocks. */
Test(tilemap_keys, a_block_of_keys_looks_at_few_runs_that_do_not_meet_it)
{
    ra_pattern_config window = window_with_sinks(1023);
    expect_looks(&window, 1 << 20, 2 * RA_SPAN_RUNS);
    window.sinks = 0;
    expect_looks(&window, 1 << 20, 2 * RA_SPAN_RUNS);
    ra_pattern_config random = ra_pattern_config_dense();
    random.causal = true;
    random.blocks_kind = RA_BLOCKS_RANDOM;
    random.block_size = 128;
    random.block_density = 0.02;
    expect_looks(&random, 1 << 20, 3 * RA_SPAN_RUNS);
}

/* What tile maps cost. Their contents are checked pair by pair in test_pattern.c. */
#include "ringattn/block_mask.h"
#include "sparse/mapped.h"
#include "support/captured_log.h"

#include <criterion/criterion.h>

enum { TILE_ROWS = 256 }; /* as the kernels of CPUs take them */
static const int64_t million = 1048576, mebibyte = 1048576;

static int64_t map_bytes(ra_pattern_config config, int32_t heads)
{
    mapped m = mapped_make(&(mapped_config){
        .pattern = &config, .rows = million, .heads = heads, .tile_rows = TILE_ROWS});
    int64_t const bytes = m.map.bytes;
    cr_assert_leq(bytes, (int64_t)m.map.block.reserved_bytes);
    cr_assert_eq(m.map.live_pairs, ra_pattern_area(m.pattern, (ra_range){0, 1, million}));
    ra_ledger_snapshot snapshot;
    ra_ledger_read(m.ledger, &snapshot);
    cr_assert_leq(snapshot.peak_bytes[RA_MEM_TILEMAP], bytes + mebibyte,
                  "building takes hardly more than the map itself");
    mapped_free(&m);
    return bytes;
}

Test(tilemap, a_million_causal_tokens_cost_0_16_mebibytes)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.causal = true;
    int64_t const bytes = map_bytes(config, 8);
    cr_assert_leq(bytes, mebibyte * 17 / 100, "%lld", (long long)bytes);
}

Test(tilemap, a_million_windowed_tokens_with_sinks_cost_at_most_a_mebibyte)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.causal = true;
    config.window_left = 4095;
    config.sinks = 4;
    cr_assert_leq(map_bytes(config, 8), mebibyte);
}

Test(tilemap, three_dilated_branches_over_a_million_tokens_cost_at_most_two_mebibytes)
{
    static const int64_t segments[] = {2048, 4096, 8192}, rates[] = {1, 2, 4};
    ra_pattern_config config = ra_pattern_config_dense();
    config.segments = segments;
    config.rates = rates;
    config.branch_count = 3;
    cr_assert_leq(map_bytes(config, 8), 2 * mebibyte);
    config.causal = true;
    cr_assert_leq(map_bytes(config, 8), 2 * mebibyte);
}

/* Of as many heads as there may be, each by itself: going through all for each would take hours. */
Test(tilemap, a_map_of_one_head_does_not_go_through_the_others, .timeout = 60)
{
    enum { HEADS = 1 << 30, MAPS = 2000, SEQ = 64 };
    static const int64_t segments[] = {32, 64}, rates[] = {1, 4};
    ra_pattern_config config = ra_pattern_config_dense();
    config.segments = segments;
    config.rates = rates;
    config.branch_count = 2;
    ra_ledger *ledger;
    ra_pool *pool;
    ra_pattern *pattern;
    ra_rowset rows;
    ra_range const all = {0, 1, SEQ};
    poison_pool_begin(&ledger, &pool);
    cr_assert_eq(ra_pattern_create(&config, SEQ, HEADS, pool, &pattern), RA_OK);
    cr_assert_eq(ra_rowset_init(pool, &all, 1, &rows), RA_OK);
    for (int32_t i = 0; i < MAPS; ++i) {
        ra_tilemap map;
        ra_map_request const request = {
            pattern, (ra_heads){HEADS - 1 - i, 1, 1}, &rows, &rows, TILE_ROWS, false};
        cr_assert_eq(ra_tilemap_init(&request, pool, &map), RA_OK);
        cr_assert_eq(map.layer_count, 2);
        cr_assert_eq(map.live_pairs, 2 * 32 * 32 + 16 * 16);
        ra_tilemap_fini(pool, &map);
    }
    ra_rowset_fini(pool, &rows);
    ra_pattern_destroy(pattern);
    poison_pool_end(ledger, pool);
}

Test(tilemap, block_patterns_of_128_over_a_million_tokens_cost_at_most_16_mebibytes)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.block_size = 128;
    config.block_width = 1;
    config.block_density = 0.02;
    config.blocks_kind = RA_BLOCKS_DILATED_SPARSE;
    cr_assert_leq(map_bytes(config, 8), 16 * mebibyte);
    config.blocks_kind = RA_BLOCKS_LOCAL_WINDOW;
    cr_assert_leq(map_bytes(config, 8), 16 * mebibyte);
}

/* Local numbers of rows are int32. Fewer keys than that make a map, of one run. */
Test(tilemap, more_rows_than_it_can_number_are_refused_in_one_line)
{
    int64_t const most = INT32_MAX;
    ra_pattern_config const config = ra_pattern_config_dense();
    ra_range const ranges[] = {{0, 1, 1}, {0, 1, most}, {0, 1, most + 1}};
    ra_heads const heads = {0, 1, 1};
    ra_ledger *ledger;
    ra_pool *pool;
    ra_pattern *pattern;
    ra_rowset sets[3];
    ra_tilemap map;
    ra_block_mask mask;
    captured_log said;
    captured_log_begin(&said);
    poison_pool_begin(&ledger, &pool);
    cr_assert_eq(ra_pattern_create(&config, most + 1, 1, pool, &pattern), RA_OK);
    for (int i = 0; i < 3; ++i)
        cr_assert_eq(ra_rowset_init(pool, &ranges[i], 1, &sets[i]), RA_OK);
    ra_map_request const fits = {pattern, heads, &sets[0], &sets[1], TILE_ROWS, false};
    cr_assert_eq(ra_tilemap_init(&fits, pool, &map), RA_OK);
    cr_assert_eq(map.live_pairs, most);
    ra_tilemap_fini(pool, &map);
    for (int side = 0; side < 2; ++side) {
        const ra_rowset *queries = &sets[side == 0 ? 2 : 0], *keys = &sets[side == 0 ? 0 : 2];
        ra_map_request const request = {pattern, heads, queries, keys, TILE_ROWS, false};
        said.count = 0;
        cr_assert_eq(ra_tilemap_init(&request, pool, &map), RA_ERR_UNSUPPORTED);
        cr_assert_eq(ra_block_mask_init(pattern, heads, queries, keys, pool, &mask),
                     RA_ERR_UNSUPPORTED);
        cr_assert_eq(said.count, 2);
        cr_assert_not_null(strstr(said.line, "at most 2^31 - 1 rows"), "%s", said.line);
    }
    for (int i = 0; i < 3; ++i)
        ra_rowset_fini(pool, &sets[i]);
    ra_pattern_destroy(pattern);
    poison_pool_end(ledger, pool);
}

/* As a key by itself. */
Test(tilemap, a_query_too_far_from_the_next_one_for_int32_has_stride_1)
{
    static const int64_t far = (int64_t)1 << 32, segment = 2 * far;
    ra_range const first = {0, 1, 8};
    ra_pattern_config config = ra_pattern_config_dense();
    config.segments = &segment;
    config.rates = &far;
    config.branch_count = 1;
    ra_ledger *ledger;
    ra_pool *pool;
    ra_pattern *pattern;
    ra_rowset rows;
    ra_tilemap map;
    poison_pool_begin(&ledger, &pool);
    cr_assert_eq(ra_pattern_create(&config, segment, 1, pool, &pattern), RA_OK);
    cr_assert_eq(ra_rowset_init(pool, &first, 1, &rows), RA_OK);
    ra_map_request const request = {pattern, {0, 1, 1}, &rows, &rows, TILE_ROWS, false};
    cr_assert_eq(ra_tilemap_init(&request, pool, &map), RA_OK);
    cr_assert_eq(map.live_pairs, 1);
    cr_assert_eq(map.tiles[0].q_count, 1);
    cr_assert_eq(map.tiles[0].q_stride, 1);
    cr_assert_eq(map.runs[0].k_count, 1);
    cr_assert_eq(map.runs[0].k_stride, 1);
    ra_tilemap_fini(pool, &map);
    ra_rowset_fini(pool, &rows);
    ra_pattern_destroy(pattern);
    poison_pool_end(ledger, pool);
}

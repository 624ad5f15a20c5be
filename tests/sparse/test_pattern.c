/*
 * The slices against the definition: for random patterns, lengths, ranks and layouts, every tile
 * map of a rank against a rank's keys holds exactly the pairs that the definition counts, and the
 * needed rows are exactly those touched.
 */
#include "ringattn/block_mask.h"
#include "ringattn/ring.h"
#include "support/poison_suite.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ_MAX = 200, HEADS = 3 };

TestSuite(pattern, .init = poison_suite_begin, .fini = poison_suite_end);

typedef struct trial {
    const ra_pattern *pattern;
    int64_t seq;
    int32_t heads;
    uint8_t *counts; /* [heads][seq][seq]: how often the maps hold a pair */
    const char *name;
    bool dense;     /* maps come from block masks */
    bool may_share; /* what ra_pattern_shares_rows says */
} trial;

static void count_run(const trial *t, int32_t head, const ra_rowset *queries, const ra_rowset *keys,
                      const ra_tile *tile, const ra_run *run)
{
    bool any = false;
    cr_assert(run->k_count >= 1 && run->k_begin >= 0 && run->k_stride >= 1, "%s", t->name);
    cr_assert_lt(run->k_begin + (int64_t)(run->k_count - 1) * run->k_stride, keys->row_count, "%s",
                 t->name);
    for (int64_t a = 0; a < tile->q_count; ++a)
        for (int64_t b = 0; b < run->k_count; ++b) {
            if ((run->lo != RA_RUN_NONE_LO && b - a < run->lo) ||
                (run->hi != RA_RUN_NONE_HI && b - a > run->hi))
                continue;
            int64_t const i = ra_rowset_global(queries, tile->q_begin + a * tile->q_stride);
            int64_t const j = ra_rowset_global(keys, run->k_begin + b * run->k_stride);
            ++t->counts[(head * t->seq + i) * t->seq + j];
            any = true;
        }
    cr_assert(any, "%s: a run without a live pair", t->name);
}

/* Adds the map's pairs to the counts; checks the shape of tiles and the flag for shared rows. */
static void count_map(const trial *t, const ra_tilemap *map, const ra_rowset *queries,
                      const ra_rowset *keys)
{
    int64_t pairs_before = 0, pairs_after = 0;
    int64_t const area = (int64_t)t->heads * t->seq * t->seq;
    for (int64_t i = 0; i < area; ++i)
        pairs_before += t->counts[i];
    for (int32_t head = 0; head < t->heads; ++head) {
        uint8_t covered[SEQ_MAX] = {0};
        for (int32_t l = 0; l < map->layer_count; ++l) {
            if (!ra_heads_contain(map->layers[l].heads, head))
                continue;
            for (int32_t c = 0; c < map->chunk_count; ++c)
                for (uint32_t n = map->layers[l].chunk_tile[c];
                     n < map->layers[l].chunk_tile[c + 1]; ++n) {
                    const ra_tile *tile = &map->tiles[n];
                    int64_t const last =
                        tile->q_begin + (int64_t)(tile->q_count - 1) * tile->q_stride;
                    cr_assert_leq(tile->q_count, map->tile_rows, "%s", t->name);
                    cr_assert_geq(tile->q_begin, (int64_t)c * map->chunk_rows, "%s", t->name);
                    cr_assert_lt(last, (int64_t)(c + 1) * map->chunk_rows, "%s", t->name);
                    cr_assert_lt(last, queries->row_count, "%s", t->name);
                    for (int64_t a = 0; a < tile->q_count; ++a)
                        cr_assert(covered[tile->q_begin + a * tile->q_stride]++ == 0 ||
                                      map->shared_rows,
                                  "%s: rows are shared and not said to be", t->name);
                    for (uint32_t r = tile->run_begin; r < tile[1].run_begin; ++r)
                        count_run(t, head, queries, keys, tile, &map->runs[r]);
                }
        }
    }
    for (int64_t i = 0; i < area; ++i)
        pairs_after += t->counts[i];
    cr_assert_eq(pairs_after - pairs_before, map->live_pairs, "%s: live pairs", t->name);
    cr_assert(!map->shared_rows || t->may_share, "%s: rows are shared unforeseen", t->name);
    cr_assert(!map->shared_rows || map->chunk_rows <= RA_SHARED_CHUNK_ROWS_MAX, "%s", t->name);
}

/* Exactly the rows of `keys` that a query of `queries` touches, listed alike in both ways. */
static void check_needed(const trial *t, const ra_rowset *queries, const ra_rowset *keys,
                         const ra_rowset *needed, const ra_rowset *local)
{
    uint8_t listed[SEQ_MAX] = {0};
    cr_assert_eq(needed->row_count, local->row_count, "%s", t->name);
    for (int64_t x = 0; x < needed->row_count; ++x) {
        int64_t const row = ra_rowset_global(needed, x);
        cr_assert_eq(row, ra_rowset_global(keys, ra_rowset_global(local, x)), "%s", t->name);
        cr_assert_eq(ra_rowset_local(needed, row), x, "%s", t->name);
        cr_assert_eq(listed[row]++, 0, "%s: row %lld twice", t->name, (long long)row);
    }
    for (int64_t y = 0; y < keys->row_count; ++y) {
        int64_t const j = ra_rowset_global(keys, y);
        bool touched = false;
        for (int32_t h = 0; h < t->heads && !touched; ++h)
            for (int64_t x = 0; x < queries->row_count && !touched; ++x)
                touched =
                    ra_pattern_multiplicity(t->pattern, h, ra_rowset_global(queries, x), j) > 0;
        cr_assert_eq(listed[j], touched, "%s: key row %lld needed %d listed %d", t->name,
                     (long long)j, touched, listed[j]);
    }
}

/* That many are counted where nobody asks which. */
static void check_needed_count(const trial *t, const ra_rowset *queries, const ra_rowset *keys,
                               const ra_rowset *needed)
{
    int64_t rows = -1;
    cr_assert_eq(
        ra_pattern_count_needed(t->pattern, (ra_heads){0, 1, t->heads}, queries, keys, pool, &rows),
        RA_OK);
    cr_assert_eq(rows, needed->row_count, "%s", t->name);
}

/* Against all rows there are, whatever the strides of the queries. */
static void check_needed_of_all(const trial *t, const ra_rowset *queries)
{
    ra_heads const heads = {0, 1, t->heads};
    ra_range const whole = {0, 1, t->seq};
    ra_rowset all, needed, local;
    cr_assert_eq(ra_rowset_init(pool, &whole, 1, &all), RA_OK);
    cr_assert_eq(ra_pattern_needed_rows(t->pattern, heads, queries, &all, pool, &needed, &local),
                 RA_OK);
    check_needed(t, queries, &all, &needed, &local);
    check_needed_count(t, queries, &all, &needed);
    ra_rowset_fini(pool, &needed);
    ra_rowset_fini(pool, &local);
    ra_rowset_fini(pool, &all);
}

static void check_pair(const trial *t, const ra_rowset *queries, const ra_rowset *keys,
                       int32_t tile_rows, bool packed)
{
    ra_heads const heads = {0, 1, t->heads};
    ra_rowset needed, local;
    ra_tilemap map;
    cr_assert_eq(ra_pattern_needed_rows(t->pattern, heads, queries, keys, pool, &needed, &local),
                 RA_OK);
    check_needed(t, queries, keys, &needed, &local);
    check_needed_count(t, queries, keys, &needed);
    const ra_rowset *columns = packed ? &needed : keys;
    ra_map_request const request = {t->pattern, heads, queries, columns, tile_rows, false};
    cr_assert_eq(t->dense ? ra_tilemap_init_dense(&request, pool, &map)
                          : ra_tilemap_init(&request, pool, &map),
                 RA_OK);
    count_map(t, &map, queries, columns);
    ra_tilemap_fini(pool, &map);
    ra_rowset_fini(pool, &needed);
    ra_rowset_fini(pool, &local);
}

/* Small chunks dealt at random: many pieces, which the layouts have only for long sequences. Half
   of the sets are in no order, as those of several ranks joined are. */
static void deal_at_random(test_rng *rng, const trial *t, ra_layout *layout)
{
    int64_t const chunk = test_rng_between(rng, 1, 17);
    uint8_t owner[SEQ_MAX];
    for (int64_t i = 0; i < t->seq; ++i)
        owner[i] =
            i % chunk == 0 ? (uint8_t)test_rng_between(rng, 0, layout->ranks - 1) : owner[i - 1];
    for (int r = 0; r < layout->ranks; ++r) {
        ra_range ranges[SEQ_MAX];
        int64_t count = 0;
        for (int64_t i = 0; i < t->seq; i += chunk)
            if (owner[i] == r)
                ranges[count++] = (ra_range){i, 1, i + chunk < t->seq ? chunk : t->seq - i};
        for (int64_t k = count - 1; k > 0 && r % 2 == 1; --k) {
            int64_t const other = test_rng_between(rng, 0, k);
            ra_range const range = ranges[k];
            ranges[k] = ranges[other];
            ranges[other] = range;
        }
        ra_rowset_fini(pool, &layout->rows[r]);
        cr_assert_eq(ra_rowset_init(pool, ranges, count, &layout->rows[r]), RA_OK);
    }
}

static void check_trial(const trial *t, test_rng *rng, int ranks, ra_layout_kind kind,
                        int32_t tile_rows)
{
    ra_layout layout;
    cr_assert_eq(ra_layout_init(kind, t->pattern, ranks, NULL, pool, &layout), RA_OK);
    if (test_rng_chance(rng, 0.2))
        deal_at_random(rng, t, &layout);
    memset(t->counts, 0, (size_t)t->heads * (size_t)t->seq * (size_t)t->seq);
    int64_t rows = 0;
    for (int r = 0; r < ranks; ++r) {
        rows += layout.rows[r].row_count;
        check_needed_of_all(t, &layout.rows[r]);
        for (int o = 0; o < ranks; ++o)
            check_pair(t, &layout.rows[r], &layout.rows[o], tile_rows, r != o);
    }
    cr_assert_eq(rows, t->seq, "%s", t->name);
    for (int32_t h = 0; h < t->heads; ++h)
        for (int64_t i = 0; i < t->seq; ++i)
            for (int64_t j = 0; j < t->seq; ++j)
                cr_assert_eq(t->counts[(h * t->seq + i) * t->seq + j],
                             ra_pattern_multiplicity(t->pattern, h, i, j),
                             "%s: head %d query %lld key %lld: %d pairs, definition %d", t->name, h,
                             (long long)i, (long long)j, t->counts[(h * t->seq + i) * t->seq + j],
                             ra_pattern_multiplicity(t->pattern, h, i, j));
    ra_layout_fini(pool, &layout);
}

static void stretch(test_rng *rng, int64_t *number)
{
    *number = test_rng_chance(rng, 0.4) ? INT64_MAX : *number;
}

/* Some of the numbers that have no upper bound become the largest there is. */
static void stretch_some(test_rng *rng, test_pattern *p)
{
    ra_pattern_config *c = &p->config;
    int64_t *const numbers[] = {&c->window_left, &c->window_right, &c->sinks,
                                &c->block_size,  &c->block_width,  &c->block_globals};
    bool const keeps_blocks = c->blocks_kind == RA_BLOCKS_LIST; /* pairs are of blocks there are */
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); ++i)
        if (numbers[i] != &c->block_size || !keeps_blocks)
            stretch(rng, numbers[i]);
    for (int64_t i = 0; i < c->block_rate_count; ++i)
        stretch(rng, &p->block_rates[i]);
    for (int64_t i = 0; i < c->branch_count; ++i) {
        stretch(rng, &p->segments[i]);
        stretch(rng, &p->rates[i]);
    }
}

static void run_trials(uint64_t seed, int count, bool dense, bool stretched)
{
    uint8_t *counts = malloc((size_t)HEADS * SEQ_MAX * SEQ_MAX);
    for (int n = 0; n < count; ++n) {
        test_rng rng = {seed + (uint64_t)n};
        int64_t const seq = test_rng_chance(&rng, 0.2) ? test_rng_between(&rng, 1, 8)
                                                       : test_rng_between(&rng, 1, SEQ_MAX);
        /* A mask has blocks of 128 rows. */
        int const ranks = (int)test_rng_between(&rng, 1, dense ? 3 : 7);
        int32_t const tile_rows = (int32_t)test_rng_between(&rng, 1, dense ? 300 : 40);
        ra_layout_kind const kind = (ra_layout_kind)test_rng_between(&rng, 0, RA_LAYOUT_AUTO - 1);
        int32_t const heads = (int32_t)test_rng_between(&rng, 1, HEADS);
        test_pattern drawn;
        test_pattern_draw(&rng, seq, &drawn);
        if (stretched)
            stretch_some(&rng, &drawn);
        char text[256], name[400];
        test_pattern_print(&drawn.config, text, sizeof(text));
        snprintf(name, sizeof(name), "seed %llu: N %lld H %d ranks %d %s tile %d: %s",
                 (unsigned long long)(seed + (uint64_t)n), (long long)seq, heads, ranks,
                 ra_layout_name(kind), tile_rows, text);
        ra_pattern *pattern;
        cr_assert_eq(ra_pattern_create(&drawn.config, seq, heads, pool, &pattern), RA_OK, "%s",
                     name);
        bool const may_share = ra_pattern_shares_rows(&drawn.config, ranks, dense);
        check_trial(&(trial){pattern, seq, heads, counts, name, dense, may_share}, &rng, ranks,
                    kind, tile_rows);
        ra_pattern_destroy(pattern);
    }
    free(counts);
}

Test(pattern, slices_equal_the_definition_for_2000_random_cases)
{
    run_trials(20261121, 2000, false, false);
}

Test(pattern, block_masks_hold_the_same_pairs_for_600_random_cases)
{
    run_trials(20261122, 600, true, false);
}

Test(pattern, numbers_may_be_the_largest_there_are)
{
    run_trials(20261124, 300, false, true);
}

/* Layers that heads [begin, end) are in. */
static int layers_of(const ra_pattern *pattern, int32_t begin, int32_t end)
{
    int count = 0;
    for (int32_t i = 0; i < ra_pattern_layer_count(pattern); i++) {
        int32_t head = begin;
        while (head < end && !ra_heads_contain(ra_pattern_layer_heads(pattern, i), head))
            head++;
        count += head < end;
    }
    return count;
}

Test(pattern, heads_that_share_keys_are_in_one_layer_unless_it_is_said)
{
    int64_t const seq = 60;
    int said = 0, several = 0;
    for (uint64_t n = 0; n < 500; n++) {
        test_rng rng = {20261123 + n};
        int32_t const group = (int32_t)test_rng_between(&rng, 1, 3);
        int32_t const kv_heads = (int32_t)test_rng_between(&rng, 1, 3);
        test_pattern drawn;
        ra_pattern *pattern;
        char text[256];
        test_pattern_draw(&rng, seq, &drawn);
        test_pattern_print(&drawn.config, text, sizeof(text));
        cr_assert_eq(ra_pattern_create(&drawn.config, seq, group * kv_heads, pool, &pattern),
                     RA_OK);
        int most = 0;
        for (int32_t h = 0; h < kv_heads; h++) {
            int const count = layers_of(pattern, h * group, (h + 1) * group);
            most = most > count ? most : count;
        }
        bool const may_share = ra_pattern_shares_keys(&drawn.config, group * kv_heads, kv_heads);
        cr_expect(most <= 1 || may_share, "%d layers, %d heads each: %s", most, group, text);
        said += may_share;
        several += most > 1;
        ra_pattern_destroy(pattern);
    }
    cr_expect(several > 20 && 5 * said < 6 * several, "%d of %d are in several", several, said);
}

/* The first half's queries, the second half's keys, in segments of the whole: at most as many
   pieces as the heads' offsets make, whatever the lcm of rates; rows of two rates are listed once.
 */
static void expect_pieces(const int64_t *segments, const int64_t *rates, int64_t branches,
                          int32_t heads, int64_t pieces)
{
    enum { ROWS = 1 << 14 };
    ra_range const halves[2] = {{0, 1, ROWS / 2}, {ROWS / 2, 1, ROWS / 2}};
    ra_pattern_config config = ra_pattern_config_dense();
    ra_pattern *pattern;
    ra_rowset queries, keys, needed;
    config.segments = segments;
    config.rates = rates;
    config.branch_count = branches;
    cr_assert_eq(ra_pattern_create(&config, ROWS, heads, pool, &pattern), RA_OK);
    cr_assert_eq(ra_rowset_init(pool, &halves[0], 1, &queries), RA_OK);
    cr_assert_eq(ra_rowset_init(pool, &halves[1], 1, &keys), RA_OK);
    cr_assert_eq(ra_pattern_needed_rows(pattern, (ra_heads){0, 1, heads}, &queries, &keys, pool,
                                        &needed, NULL),
                 RA_OK);
    cr_expect_leq(needed.piece_count, pieces, "rate %lld: %lld pieces", (long long)rates[0],
                  (long long)needed.piece_count);
    for (int64_t j = ROWS / 2; j < ROWS; ++j) {
        bool touched = false;
        for (int64_t b = 0; b < branches; ++b)
            touched = touched || j % rates[b] < heads;
        cr_assert_eq(ra_rowset_local(&needed, j) >= 0, touched, "row %lld", (long long)j);
    }
    ra_rowset_fini(pool, &needed);
    ra_rowset_fini(pool, &keys);
    ra_rowset_fini(pool, &queries);
    ra_pattern_destroy(pattern);
}

Test(pattern, needed_rows_that_are_far_apart_keep_their_stride)
{
    static const int64_t whole[] = {1 << 14, 1 << 14, 1 << 14};
    expect_pieces(whole, (const int64_t[]){128}, 1, 8, 8);
    expect_pieces(whole, (const int64_t[]){5, 16}, 2, 1, 80 / 5 + 80 / 16);
    expect_pieces(whole, (const int64_t[]){12, 16, 20}, 3, 1, 240 / 12 + 240 / 16 + 240 / 20);
    expect_pieces(whole, (const int64_t[]){256}, 1, 2, 2);
}

/* Rows of a stripe that heads of several offsets touch, segment by segment: a search for some need
   not go through all. */
Test(pattern, needed_rows_of_segments_interleave_within_these_alone)
{
    enum { ROWS = 1 << 14, RANKS = 7, SEGMENT = 64, RATE = 3, OFFSETS = 2 };
    ra_range const own = {3, RANKS, (ROWS - 3) / RANKS}, other = {1, RANKS, (ROWS - 1) / RANKS};
    ra_pattern_config config = ra_pattern_config_dense();
    ra_pattern *pattern;
    ra_rowset queries, keys, needed;
    config.segments = (const int64_t[]){SEGMENT};
    config.rates = (const int64_t[]){RATE};
    config.branch_count = 1;
    cr_assert_eq(ra_pattern_create(&config, ROWS, OFFSETS, pool, &pattern), RA_OK);
    cr_assert_eq(ra_rowset_init(pool, &own, 1, &queries), RA_OK);
    cr_assert_eq(ra_rowset_init(pool, &other, 1, &keys), RA_OK);
    cr_assert_eq(ra_pattern_needed_rows(pattern, (ra_heads){0, 1, OFFSETS}, &queries, &keys, pool,
                                        &needed, NULL),
                 RA_OK);
    cr_expect_geq(needed.piece_count, ROWS / SEGMENT);
    cr_expect(needed.overlap > 0 && needed.overlap <= RATE, "%lld", (long long)needed.overlap);
    ra_rowset_fini(pool, &needed);
    ra_rowset_fini(pool, &keys);
    ra_rowset_fini(pool, &queries);
    ra_pattern_destroy(pattern);
}

enum { LONG_ROWS = 129, BRANCHES = 2 };

typedef struct sharing {
    const char *what;
    int64_t segments[BRANCHES], rates[BRANCHES], branches;
    ra_dilated_heads heads;
    int ranks;
    bool masked;
    ra_range keys[2];
    bool shares;
} sharing;

/* Of queries of all rows against some keys. */
static bool map_shares_rows(const sharing *c, const ra_pattern_config *config)
{
    ra_pattern *pattern;
    ra_rowset queries, keys;
    ra_tilemap map;
    ra_range const all = {0, 1, LONG_ROWS};
    cr_assert_eq(ra_pattern_create(config, LONG_ROWS, 2, pool, &pattern), RA_OK);
    cr_assert_eq(ra_rowset_init(pool, &all, 1, &queries), RA_OK);
    cr_assert_eq(ra_rowset_init(pool, c->keys, 2, &keys), RA_OK);
    ra_map_request const request = {pattern, {0, 1, 2}, &queries, &keys, 32, false};
    cr_assert_eq(c->masked ? ra_tilemap_init_dense(&request, pool, &map)
                           : ra_tilemap_init(&request, pool, &map),
                 RA_OK);
    bool const shares = map.shared_rows;
    ra_tilemap_fini(pool, &map);
    ra_rowset_fini(pool, &keys);
    ra_rowset_fini(pool, &queries);
    ra_pattern_destroy(pattern);
    return shares;
}

/* Each cause there is, on a map that it is true of; and what is next to it. */
Test(pattern, says_beforehand_which_maps_share_rows)
{
    static const sharing cases[] = {
        {"dense", {0}, {0}, 0, RA_HEADS_ALL, 8, true, {{0, 1, LONG_ROWS}}, false},
        {"a branch", {64}, {2}, 1, RA_HEADS_ALL, 8, false, {{0, 1, LONG_ROWS}}, false},
        {"two", {64, LONG_ROWS}, {2, 2}, 2, RA_HEADS_ALL, 1, false, {{0, 1, LONG_ROWS}}, true},
        {"grouped", {64, LONG_ROWS}, {2, 4}, 2, RA_HEADS_GROUPED, 1, false, {{0, 1, 129}}, false},
        {"of ranks",
         {64, 129},
         {2, 4},
         2,
         RA_HEADS_GROUPED,
         2,
         false,
         {{0, 4, 4}, {16, 2, 4}},
         true},
        {"one rate",
         {64, 129},
         {2, 2},
         2,
         RA_HEADS_GROUPED,
         2,
         false,
         {{0, 1, 8}, {16, 2, 4}},
         false},
        {"masked", {LONG_ROWS}, {2}, 1, RA_HEADS_ALL, 1, true, {{0, 1, LONG_ROWS}}, true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        const sharing *const c = &cases[i];
        ra_pattern_config config = ra_pattern_config_dense();
        config.causal = true;
        config.segments = c->branches > 0 ? c->segments : NULL;
        config.rates = c->rates;
        config.branch_count = c->branches;
        config.dilated_heads = c->heads;
        cr_expect_eq(ra_pattern_shares_rows(&config, c->ranks, c->masked), c->shares, "%s",
                     c->what);
        cr_expect_eq(map_shares_rows(c, &config), c->shares, "%s: its map", c->what);
    }
}

/* All powers of two below the most blocks there may be, in blocks of one row: the first row sees
   itself and one row per power, the row in the middle one on either side but for the last. */
Test(pattern, distances_between_blocks_double_up_to_the_most_blocks)
{
    int64_t const rows = INT32_MAX, middle = rows / 2;
    ra_pattern_config config = ra_pattern_config_dense();
    ra_pattern *pattern;
    config.blocks_kind = RA_BLOCKS_DILATED_SPARSE;
    config.block_size = 1;
    config.block_density = 1;
    cr_assert_eq(ra_pattern_create(&config, rows, 1, pool, &pattern), RA_OK);
    cr_expect_eq(ra_pattern_area(pattern, (ra_range){0, 1, 1}), 1 + 31);
    cr_expect_eq(ra_pattern_area(pattern, (ra_range){middle, 1, 1}), 1 + 2 * 30);
    ra_pattern_destroy(pattern);
}

/* Blocks of one row each, so that a pair of rows is a pair of blocks. */
static void expect_drawn(int64_t rows, double density, uint64_t seed, int64_t count, int64_t digest)
{
    ra_pattern_config config = ra_pattern_config_dense();
    ra_pattern *pattern;
    config.blocks_kind = RA_BLOCKS_RANDOM;
    config.block_size = 1;
    config.block_density = density;
    config.block_seed = seed;
    cr_assert_eq(ra_pattern_create(&config, rows, 1, pool, &pattern), RA_OK);
    cr_expect_eq(ra_pattern_area(pattern, (ra_range){0, 1, rows}), count);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < rows; ++j)
            digest -= ra_pattern_multiplicity(pattern, 0, i, j) * (i * 131 + j) * (j + 1);
    cr_expect_eq(digest, 0, "%lld rows, density %g", (long long)rows, density);
    ra_pattern_destroy(pattern);
}

/* Counts and digests of the definition in Python: keep where i = j, or where
   splitmix64(seed ^ (i << 32 | j)) < density * 2^64. */
Test(pattern, random_blocks_are_the_same_everywhere)
{
    expect_drawn(70, 0.1, 123, 585, 97158486);
    expect_drawn(129, 0.02, 9223372036854775813u, 479, 277280805);
    expect_drawn(5, 1.0, 0, 25, 19850);
    expect_drawn(5, 0.0, 9, 5, 5280);
}

/* Layouts that are predicted of more ranks than are followed, against the ring's own choice. */
#include "ring/ring_internal.h"
#include "ringattn/predict.h"

#include <criterion/criterion.h>

TestSuite(predict_layout);

enum { RANKS_MOST = 200, HEADS = 2, DOCUMENTS = 4, BRANCHES = 2 };

typedef struct test_case {
    const char *name;
    bool causal;
    int64_t window_left, window_right, sinks, globals;
    bool has_documents, is_dilated;
} test_case;

static const test_case cases[] = {
    {.name = "dense", .window_left = -1, .window_right = -1},
    {.name = "causal", .causal = true, .window_left = -1, .window_right = -1},
    {.name = "narrow causal window", .causal = true, .window_left = 30, .window_right = -1},
    {.name = "causal window", .causal = true, .window_left = 255, .window_right = -1},
    {.name = "wide causal window", .causal = true, .window_left = 1000, .window_right = -1},
    {.name = "window", .window_left = 100, .window_right = 30},
    {.name = "window with sinks", .window_left = 100, .window_right = 30, .sinks = 40},
    {.name = "causal window with sinks", true, .window_left = 200, .window_right = -1, .sinks = 40},
    {.name = "one-sided window", .window_left = -1, .window_right = 300},
    {.name = "documents", true, -1, -1, .has_documents = true},
    {.name = "windows of documents", true, 50, -1, .has_documents = true},
    {.name = "global and local blocks", false, -1, -1, .globals = 1},
    {.name = "causal global and local blocks", true, -1, -1, .globals = 1},
    {.name = "dilated branches", true, -1, -1, .is_dilated = true}};

typedef struct test_arrays {
    int64_t documents[DOCUMENTS], segments[BRANCHES], rates[BRANCHES];
} test_arrays;

static ra_pattern_config config_of(const test_case *t, int64_t seq, test_arrays *arrays)
{
    ra_pattern_config c = ra_pattern_config_dense();
    *arrays = (test_arrays){{1500, 700, 300, seq - 2500}, {512, 2048}, {1, 4}};
    c.causal = t->causal;
    c.window_left = t->window_left;
    c.window_right = t->window_right;
    c.sinks = t->sinks;
    if (t->globals > 0) {
        c.blocks_kind = RA_BLOCKS_GLOBAL_LOCAL;
        c.block_size = 32;
        c.block_width = 2;
        c.block_globals = t->globals;
    }
    if (t->has_documents) {
        c.documents = arrays->documents;
        c.document_count = DOCUMENTS;
    }
    if (t->is_dilated) {
        c.segments = arrays->segments;
        c.rates = arrays->rates;
        c.branch_count = BRANCHES;
    }
    return c;
}

typedef struct test_choice {
    ra_layout_kind kind;
    double imbalance;
    int64_t live_pairs;
} test_choice;

/* Ranks fill hosts one after the other. */
static test_choice choice_of_ring(const ra_pattern_config *config, int64_t seq, int ranks,
                                  int ranks_per_node)
{
    int hosts[RANKS_MOST];
    ra_teams teams;
    ra_ledger *ledger;
    ra_pool *pool;
    ra_pattern *pattern;
    ra_layout layout;
    cr_assert_eq(ra_ledger_create(INT64_MAX, &ledger), RA_OK);
    ra_pool_config const with = {.mode = RA_POOL_OFF, .memory = ra_memory_host(), .ledger = ledger};
    cr_assert_eq(ra_pool_create(&with, &pool), RA_OK);
    cr_assert_eq(ra_pattern_create(config, seq, HEADS, pool, &pattern), RA_OK);
    for (int r = 0; r < ranks; ++r)
        hosts[r] = r / ranks_per_node;
    cr_assert_eq(ra_teams_init(ranks, hosts, pool, &teams), RA_OK);
    cr_assert_eq(ra_layout_choose(pattern, &teams, false, NULL, pool, &layout), RA_OK);
    test_choice const choice = {layout.kind, layout.imbalance,
                                ra_pattern_area(pattern, (ra_range){0, 1, seq})};
    ra_layout_fini(pool, &layout);
    ra_teams_fini(pool, &teams);
    ra_pattern_destroy(pattern);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
    return choice;
}

static ra_prediction predict(const ra_pattern_config *config, int64_t seq, int ranks,
                             int ranks_per_node, ra_layout_kind layout)
{
    ra_predict_request const request = {.ring = {.batch = 1,
                                                 .seq = seq,
                                                 .heads = HEADS,
                                                 .kv_heads = HEADS,
                                                 .dim = 16,
                                                 .layout = layout,
                                                 .schedule = RA_SCHEDULE_AUTO,
                                                 .head_groups = 1},
                                        .pattern = config,
                                        .ranks = ranks,
                                        .ranks_per_node = ranks_per_node,
                                        .may_share = true,
                                        .tile_rows = 64,
                                        .workspace_bytes = 4096,
                                        .memory_bytes = INT64_MAX};
    ra_prediction prediction;
    cr_assert_eq(ra_predict(&request, &prediction), RA_OK);
    return prediction;
}

/* What is not planned of so many ranks, balanced and stripes of strided patterns, a plan says that
   it left out. */
static int compare(const test_case *t, int64_t seq, int ranks, int per_node)
{
    test_arrays arrays;
    ra_pattern_config const config = config_of(t, seq, &arrays);
    test_choice const ring = choice_of_ring(&config, seq, ranks, per_node);
    ra_prediction p = predict(&config, seq, ranks, per_node, RA_LAYOUT_AUTO);
    bool const same = !p.left_out[ring.kind];
    cr_expect_eq((int64_t)p.live_pairs, ring.live_pairs, "%s, seq %lld, %d ranks: %g, not %lld",
                 t->name, (long long)seq, ranks, p.live_pairs, (long long)ring.live_pairs);
    if (same)
        cr_expect_eq(p.layout, ring.kind, "%s, seq %lld, %d ranks (%d a node): %s %g, not %s %g",
                     t->name, (long long)seq, ranks, per_node, ra_layout_name(p.layout),
                     p.imbalance, ra_layout_name(ring.kind), ring.imbalance);
    if (same && ring.kind != RA_LAYOUT_STRIPED)
        cr_expect_float_eq(p.imbalance, ring.imbalance, 1e-12, "%s: %g, not %g", t->name,
                           p.imbalance, ring.imbalance);
    ra_prediction_fini(&p);
    return same;
}

Test(predict_layout, of_many_ranks_is_the_one_that_the_ring_takes, .timeout = 600)
{
    static const struct {
        int64_t seq;
        int ranks, per_node;
    } jobs[] = {{4160, 65, 1},  {5003, 65, 1},  {4160, 66, 1}, {5003, 100, 1}, {4160, 128, 1},
                {5003, 200, 1}, {4160, 200, 1}, {5003, 66, 8}, {4160, 128, 8}, {5003, 200, 40}};
    int same = 0, tried = 0;
    for (size_t t = 0; t < sizeof(cases) / sizeof(cases[0]); ++t)
        for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); ++i, ++tried)
            same += compare(&cases[t], jobs[i].seq, jobs[i].ranks, jobs[i].per_node);
    cr_assert_geq(same, tried * 9 / 10, "%d of %d could be compared", same, tried);
}

/* Query i has i + 1 pairs. Two stripes have a row more than the others, which are between those
   that are followed: the mean is that of all of them. */
Test(predict_layout, of_short_stripes_is_as_uneven_as_all_of_them_are)
{
    enum { RANKS = 200, SEQ = 25 * RANKS + 2 };
    ra_pattern_config config = ra_pattern_config_dense();
    double pairs[RANKS] = {0}, most = 0, sum = 0;
    config.causal = true;
    for (int i = 0; i < SEQ; ++i)
        pairs[i % RANKS] += i + 1;
    for (int r = 0; r < RANKS; ++r) {
        most = pairs[r] > most ? pairs[r] : most;
        sum += pairs[r];
    }
    ra_prediction prediction = predict(&config, SEQ, RANKS, 1, RA_LAYOUT_STRIPED);
    cr_expect_float_eq(prediction.imbalance, most * RANKS / sum, 1e-12, "%g, not %g",
                       prediction.imbalance, most * RANKS / sum);
    ra_prediction_fini(&prediction);
}

/* Chunks of queries stand for others: those at both ends of a shard see the rows of its neighbours.
 */
Test(predict_layout, a_sampled_window_reaches_into_both_neighbours)
{
    enum { SEQ = 1 << 22, WIDTH = 5, ROW_BYTES = 2 * HEADS * 16 * 4 };
    ra_pattern_config config = ra_pattern_config_dense();
    config.blocks_kind = RA_BLOCKS_LOCAL_WINDOW;
    config.block_size = 1;
    config.block_width = WIDTH;
    ra_prediction prediction = predict(&config, SEQ, 3, 1, RA_LAYOUT_AUTO);
    cr_expect_not(prediction.counted);
    cr_expect_eq(prediction.layout, RA_LAYOUT_CONTIGUOUS);
    cr_expect_eq(prediction.sent_bytes, 4 * WIDTH * ROW_BYTES, "%g", prediction.sent_bytes);
    ra_prediction_fini(&prediction);
}

/* As the ring: one token is as uneven in every layout, and full blocks of tokens are as even. */
Test(predict_layout, is_the_first_of_layouts_that_are_alike)
{
    ra_pattern_config const dense = ra_pattern_config_dense();
    for (int64_t seq = 1; seq <= 4096; seq *= 64) {
        ra_prediction prediction = predict(&dense, seq, 2, 1, RA_LAYOUT_AUTO);
        cr_expect_eq(prediction.layout, RA_LAYOUT_CONTIGUOUS, "%lld tokens: %s", (long long)seq,
                     ra_layout_name(prediction.layout));
        ra_prediction_fini(&prediction);
    }
}

/* Further apart than a look is long: these are counted, however long the sequence. */
Test(predict_layout, of_rows_that_looks_would_miss_is_the_ring_s)
{
    static const int64_t jobs[][2] = {{200000, 50000}, {300000, 65536}, {400000, 4096}};
    for (int i = 0; i < 3; ++i)
        for (int ranks = 1; ranks <= 3; ranks += 2) {
            ra_pattern_config config = ra_pattern_config_dense();
            int64_t const seq = jobs[i][0];
            config.causal = i > 0;
            config.segments = &jobs[i][0];
            config.rates = &jobs[i][1];
            config.branch_count = 1;
            test_choice const ring = choice_of_ring(&config, seq, ranks, 1);
            ra_prediction p = predict(&config, seq, ranks, 1, RA_LAYOUT_AUTO);
            cr_expect_eq((int64_t)p.live_pairs, ring.live_pairs, "seq %lld: %g, not %lld",
                         (long long)seq, p.live_pairs, (long long)ring.live_pairs);
            cr_expect_eq(p.layout, ring.kind, "seq %lld, %d ranks: %s, not %s", (long long)seq,
                         ranks, ra_layout_name(p.layout), ra_layout_name(ring.kind));
            cr_expect_float_eq(p.imbalance, ring.imbalance, 1e-12, "%g, not %g", p.imbalance,
                               ring.imbalance);
            ra_prediction_fini(&p);
        }
}

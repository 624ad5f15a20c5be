/* What is expected of random blocks against what is drawn of them. */
#include "ringattn/predict.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LARGE_BYTES = 100000 };

typedef struct random_case {
    ra_pattern_config pattern;
    ra_predict_request request;
    int64_t documents[2];
    char text[400];
} random_case;

static void draw_case(test_rng *rng, random_case *c)
{
    /* The denser, the fewer rows: all chunks of what is drawn are looked at. */
    static const double densities[] = {0.005, 0.02, 0.1, 0.25, 0.5};
    static const int64_t least_rows[] = {4000, 1800, 700, 500, 400};
    static const int64_t sizes[] = {4, 7, 12, 16};
    int64_t const size = sizes[test_rng_between(rng, 0, 3)];
    int64_t const density = test_rng_between(rng, 0, 4);
    int64_t const rows = least_rows[density] + test_rng_between(rng, 0, 50);
    int64_t const seq = rows * size - test_rng_between(rng, 0, size - 1);
    c->pattern = ra_pattern_config_dense();
    c->pattern.blocks_kind = RA_BLOCKS_RANDOM;
    c->pattern.block_size = size;
    c->pattern.block_density = densities[density];
    c->pattern.causal = test_rng_chance(rng, 0.5);
    if (test_rng_chance(rng, 0.4))
        c->pattern.window_left = test_rng_between(rng, seq / 6, seq / 2);
    if (test_rng_chance(rng, 0.2))
        c->pattern.window_right = test_rng_between(rng, seq / 6, seq / 2);
    c->pattern.sinks = test_rng_chance(rng, 0.3) ? test_rng_between(rng, 1, 300) : 0;
    if (test_rng_chance(rng, 0.2)) {
        c->documents[0] = test_rng_between(rng, seq / 4, seq / 2);
        c->documents[1] = seq - c->documents[0];
        c->pattern.documents = c->documents;
        c->pattern.document_count = 2;
    }
    c->request =
        (ra_predict_request){.ring = {.batch = 1, .seq = seq, .heads = 4, .kv_heads = 2, .dim = 64},
                             .pattern = &c->pattern,
                             .ranks = (int)test_rng_between(rng, 1, 8),
                             .ranks_per_node = 1,
                             .may_share = true,
                             .tile_rows = (int32_t)test_rng_between(rng, size / 2, 2 * size),
                             .workspace_bytes = 4096,
                             .cache = RA_CACHE_OFF,
                             .memory_bytes = INT64_MAX};
    ra_ring_config *ring = &c->request.ring;
    ring->layout = (ra_layout_kind)test_rng_between(rng, 0, RA_LAYOUT_BALANCED - 1);
    ring->schedule = test_rng_chance(rng, 0.3) ? RA_SCHEDULE_RING : RA_SCHEDULE_AUTO;
    ring->head_groups = 1;
    ring->comm_buffers = (int)test_rng_between(rng, 0, 2);
    ring->backward = test_rng_chance(rng, 0.5);
    ring->rounds = ring->schedule != RA_SCHEDULE_RING ? (int32_t)test_rng_between(rng, 0, 3) : 1;
    if (test_rng_chance(rng, 0.3))
        c->request.ranks_per_node = (int)test_rng_between(rng, 1, c->request.ranks);
    snprintf(c->text, sizeof(c->text),
             "seq %lld size %lld density %g tile %d causal %d window %lld %lld sinks %lld "
             "documents %lld "
             "ranks %d per node %d layout %d schedule %d buffers %d rounds %d backward %d",
             (long long)seq, (long long)size, c->pattern.block_density, c->request.tile_rows,
             c->pattern.causal, (long long)c->pattern.window_left,
             (long long)c->pattern.window_right, (long long)c->pattern.sinks,
             (long long)c->pattern.document_count, c->request.ranks, c->request.ranks_per_node,
             ring->layout, ring->schedule, ring->comm_buffers, ring->rounds, ring->backward);
}

/* What both predict, added up over draws of one job. */
typedef struct sums {
    double pairs, sent, peak, maps, memory[RA_MEM_CATEGORY_COUNT];
    bool counted;
} sums;

static void add_draws(random_case *c, int64_t drawn_rows_max, sums *out)
{
    enum { DRAWS = 5 };
    *out = (sums){.counted = true};
    c->request.drawn_rows_max = drawn_rows_max;
    for (uint64_t seed = 0; seed < DRAWS; ++seed) {
        ra_prediction p;
        c->pattern.block_seed = seed;
        cr_assert_eq(ra_predict(&c->request, &p), RA_OK, "%s", c->text);
        cr_expect_eq(p.blocks_expected, drawn_rows_max == 1, "%s", c->text);
        out->counted = out->counted && p.counted;
        out->pairs += p.live_pairs / DRAWS;
        out->sent += p.sent_bytes / DRAWS;
        out->peak += (double)p.peak_bytes / DRAWS;
        out->maps += (double)p.tilemap_bytes / DRAWS;
        for (int i = 0; i < RA_MEM_CATEGORY_COUNT; ++i)
            out->memory[i] += (double)p.memory_bytes[i] / DRAWS;
        ra_prediction_fini(&p);
    }
}

static void near(double expected, double drawn, double most, const char *what, const char *text)
{
    double const off = drawn > 0 ? expected / drawn - 1 : expected;
    cr_expect(fabs(off) <= most, "%s: expected %.10g, drawn %.10g (%+.2f %%): %s", what, expected,
              drawn, 100 * off, text);
}

static void compare(const sums *expected, const sums *drawn, int ranks, const char *text)
{
    cr_expect(!expected->counted, "%s", text);
    near(expected->pairs, drawn->pairs, 0.02, "pairs", text);
    near(expected->sent, drawn->sent, 0.02, "sent", text);
    near(expected->peak, drawn->peak, 0.02, "peak", text);
    /* Of several ranks, the drawn one is the largest of as many that chance made. */
    near(expected->maps, drawn->maps, ranks > 1 ? 0.05 : 0.02, "maps", text);
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; ++i)
        if (drawn->memory[i] > LARGE_BYTES || expected->memory[i] > LARGE_BYTES)
            near(expected->memory[i], drawn->memory[i], 0.02, ra_category_name((ra_category)i),
                 text);
}

Test(predict_random, expects_what_is_drawn, .timeout = 1200)
{
    enum { CASES = 16, COMPARED_LEAST = 10 };
    const char *seed = getenv("RA_TEST_SEED");
    test_rng rng = {seed != NULL ? strtoull(seed, NULL, 10) : 3};
    int compared = 0;
    for (int n = 0; n < CASES; ++n) {
        random_case c;
        sums drawn, expected;
        draw_case(&rng, &c);
        add_draws(&c, 0, &drawn);
        if (!drawn.counted)
            continue; /* it says itself that it is from some of the chunks */
        add_draws(&c, 1, &expected);
        compare(&expected, &drawn, c.request.ranks, c.text);
        ++compared;
    }
    cr_expect_geq(compared, COMPARED_LEAST, "%d of %d", compared, CASES);
}

/* So few that what the band cuts on the left may go on to what it cuts on the right. */
Test(predict_random, expects_what_is_drawn_of_windows_of_few_blocks, .timeout = 60)
{
    for (int64_t width = 40; width <= 100; width += 20) {
        random_case c = {.pattern = ra_pattern_config_dense()};
        sums drawn, expected;
        c.pattern.blocks_kind = RA_BLOCKS_RANDOM;
        c.pattern.block_size = 16;
        c.pattern.block_density = 0.7;
        c.pattern.window_left = c.pattern.window_right = width;
        c.request = (ra_predict_request){.ring = {.batch = 1,
                                                  .seq = 8000,
                                                  .heads = 4,
                                                  .kv_heads = 2,
                                                  .dim = 64,
                                                  .head_groups = 1,
                                                  .layout = RA_LAYOUT_CONTIGUOUS,
                                                  .schedule = RA_SCHEDULE_DIRECT},
                                         .pattern = &c.pattern,
                                         .ranks = 2,
                                         .ranks_per_node = 1,
                                         .tile_rows = 16,
                                         .memory_bytes = INT64_MAX};
        snprintf(c.text, sizeof(c.text), "window of %lld", (long long)width);
        add_draws(&c, 0, &drawn);
        cr_assert(drawn.counted);
        add_draws(&c, 1, &expected);
        near(expected.pairs, drawn.pairs, 0.02, "pairs", c.text);
        near(expected.maps, drawn.maps, 0.05, "maps", c.text);
    }
}

/* Where nothing is left to chance both are exact, and so is what a cache keeps of each map. With
   four documents a word less in its key would be a line less. */
Test(predict_random, of_blocks_on_the_diagonal_alone_is_what_is_drawn)
{
    static const int64_t documents[] = {250, 250, 250, 250};
    for (int ranks = 1; ranks <= 8; ++ranks)
        for (int layout = 0; layout <= RA_LAYOUT_STRIPED; layout += RA_LAYOUT_STRIPED) {
            random_case c = {.pattern = ra_pattern_config_dense()};
            ra_prediction p[2];
            c.pattern.blocks_kind = RA_BLOCKS_RANDOM;
            c.pattern.block_size = 16;
            c.pattern.block_density = 0;
            c.pattern.documents = documents;
            c.pattern.document_count = 4;
            c.request = (ra_predict_request){.ring = {.batch = 1,
                                                      .seq = 1000,
                                                      .heads = 4,
                                                      .kv_heads = 2,
                                                      .dim = 64,
                                                      .head_groups = 1,
                                                      .layout = (ra_layout_kind)layout,
                                                      .schedule = RA_SCHEDULE_DIRECT},
                                             .pattern = &c.pattern,
                                             .ranks = ranks,
                                             .ranks_per_node = 1,
                                             .tile_rows = 16,
                                             .cache = RA_CACHE_EAGER,
                                             .cache_entries = 100,
                                             .cache_bytes = 1 << 24,
                                             .memory_bytes = INT64_MAX};
            for (int expected = 0; expected < 2; ++expected) {
                c.request.drawn_rows_max = expected;
                cr_assert_eq(ra_predict(&c.request, &p[expected]), RA_OK);
                cr_expect_eq(p[expected].blocks_expected, expected == 1);
            }
            cr_expect_gt(p[0].memory_bytes[RA_MEM_PATTERN_CACHE], 0);
            cr_expect_eq(p[1].memory_bytes[RA_MEM_PATTERN_CACHE],
                         p[0].memory_bytes[RA_MEM_PATTERN_CACHE],
                         "%d ranks, layout %d: %lld, not %lld", ranks, layout,
                         (long long)p[1].memory_bytes[RA_MEM_PATTERN_CACHE],
                         (long long)p[0].memory_bytes[RA_MEM_PATTERN_CACHE]);
            ra_prediction_fini(&p[0]);
            ra_prediction_fini(&p[1]);
        }
}

Test(predict_random, plans_a_billion_tokens_over_4096_ranks)
{
    ra_pattern_config pattern = ra_pattern_config_dense();
    int64_t const seq = 1000000000, size = 4096, rows = (seq + size - 1) / size;
    pattern.blocks_kind = RA_BLOCKS_RANDOM;
    pattern.block_size = size;
    pattern.block_density = 0.02;
    ra_predict_request const request = {.ring = {.batch = 1,
                                                 .seq = seq,
                                                 .heads = 8,
                                                 .kv_heads = 8,
                                                 .dim = 64,
                                                 .head_groups = 1,
                                                 .layout = RA_LAYOUT_CONTIGUOUS,
                                                 .schedule = RA_SCHEDULE_DIRECT},
                                        .pattern = &pattern,
                                        .ranks = 4096,
                                        .ranks_per_node = 8,
                                        .tile_rows = 64,
                                        .memory_bytes = INT64_MAX};
    ra_prediction p;
    cr_assert_eq(ra_predict(&request, &p), RA_OK);
    double const n = (double)rows, kept = n + n * (n - 1) * 0.02;
    double const starts = kept - (n - 1) * (2 * 0.02 + (n - 2) * 0.02 * 0.02);
    /* A rank has 59.6 rows of blocks, so parts of 60 or 61. */
    double const needed = 1 - pow(0.98, n / 4096 + 1);
    cr_expect(p.blocks_expected && !p.exact);
    cr_expect_float_eq(p.live_pairs / (8 * kept * (double)(size * size)), 1, 1e-3);
    cr_expect_gt((double)p.memory_bytes[RA_MEM_TILEMAP], 8 * starts);
    cr_expect_lt((double)p.memory_bytes[RA_MEM_TILEMAP], 1.1 * 8 * starts);
    cr_expect_float_eq(p.sent_bytes / p.full_ring_bytes, needed, 0.02 * needed);
    ra_prediction_fini(&p);
}

Test(predict_random, refuses_dilated_branches_and_deals)
{
    static const int64_t segments[] = {512}, rates[] = {2};
    random_case c = {.pattern = ra_pattern_config_dense()};
    c.pattern.blocks_kind = RA_BLOCKS_RANDOM;
    c.pattern.block_size = 4;
    c.pattern.block_density = 0.1;
    c.request = (ra_predict_request){.ring = {.batch = 1,
                                              .seq = 4000,
                                              .heads = 2,
                                              .kv_heads = 2,
                                              .dim = 8,
                                              .head_groups = 1,
                                              .layout = RA_LAYOUT_BALANCED},
                                     .pattern = &c.pattern,
                                     .ranks = 2,
                                     .ranks_per_node = 1,
                                     .tile_rows = 16,
                                     .drawn_rows_max = 999,
                                     .memory_bytes = INT64_MAX};
    ra_prediction p;
    cr_expect_eq(ra_predict(&c.request, &p), RA_ERR_UNSUPPORTED);
    c.request.ring.layout = RA_LAYOUT_ZIGZAG;
    cr_assert_eq(ra_predict(&c.request, &p), RA_OK);
    cr_expect(p.blocks_expected);
    ra_prediction_fini(&p);
    c.pattern.segments = segments;
    c.pattern.rates = rates;
    c.pattern.branch_count = 1;
    cr_expect_eq(ra_predict(&c.request, &p), RA_ERR_UNSUPPORTED);
    c.request.drawn_rows_max = 1000;
    cr_assert_eq(ra_predict(&c.request, &p), RA_OK);
    cr_expect(!p.blocks_expected);
    ra_prediction_fini(&p);
}

/* What takes long to count is expected, where that can be said; else it is drawn all the same. */
Test(predict_random, draws_what_is_counted_in_time)
{
    static const int64_t segments[] = {512}, rates[] = {2};
    ra_pattern_config pattern = ra_pattern_config_dense();
    pattern.blocks_kind = RA_BLOCKS_RANDOM;
    pattern.block_size = 4;
    pattern.block_density = 0.1;
    /* 500 rows: 977 visits to draw them, and 25,450 blocks that are kept. */
    ra_predict_request const plain = {.ring = {.batch = 1,
                                               .seq = 2000,
                                               .heads = 2,
                                               .kv_heads = 2,
                                               .dim = 8,
                                               .head_groups = 1,
                                               .layout = RA_LAYOUT_ZIGZAG},
                                      .pattern = &pattern,
                                      .ranks = 3,
                                      .ranks_per_node = 1,
                                      .tile_rows = 16,
                                      .visits_max = 26427,
                                      .memory_bytes = INT64_MAX};
    enum { ZIGZAG, FEWER, STRIPED, AUTO, BALANCED, MASKED, DILATED, CASES };
    for (int i = 0; i < CASES; ++i) {
        ra_predict_request request = plain;
        ra_prediction p;
        request.visits_max -= i == FEWER;
        request.visits_max = i == STRIPED ? 977 + 3 * 25450 - 1 : request.visits_max;
        request.visits_max = i == AUTO ? 977 + 6 * 25450 - 1 : request.visits_max;
        request.visits_max = i >= BALANCED ? 1 : request.visits_max;
        request.ring.layout = i == STRIPED    ? RA_LAYOUT_STRIPED
                              : i == AUTO     ? RA_LAYOUT_AUTO
                              : i == BALANCED ? RA_LAYOUT_BALANCED
                                              : RA_LAYOUT_ZIGZAG;
        request.ring.dense_mask = i == MASKED;
        pattern.segments = segments;
        pattern.rates = rates;
        pattern.branch_count = i == DILATED;
        if (i != DILATED)
            pattern.segments = pattern.rates = NULL;
        cr_assert_eq(ra_predict(&request, &p), RA_OK, "case %d", i);
        cr_expect_eq(p.blocks_expected, i == FEWER || i == STRIPED || i == AUTO, "case %d", i);
        cr_expect_eq(p.counted, !p.blocks_expected, "case %d", i);
        ra_prediction_fini(&p);
    }
}

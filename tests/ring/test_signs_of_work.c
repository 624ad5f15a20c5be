/* Making or planning a ring may take long: the other ranks hear of it wherever live pairs are gone
 * through. */
#include "comm/comm_internal.h"
#include "ring/ring_internal.h"
#include "ringattn/predict.h"
#include "support/poison_suite.h"

#include <criterion/criterion.h>

TestSuite(signs_of_work, .init = poison_suite_begin, .fini = poison_suite_end);

enum { RANKS = 6, SEQ = 6144 };

/* Signs of work, and the rows among which pairs were counted without one, at most. */
static int beats;
static int64_t silent_rows, silent_rows_most;

static void count_beat(ra_comm *comm)
{
    (void)comm;
    beats++;
    silent_rows = 0;
}

static const ra_comm_ops counting_ops = {.name = "counting", .beat = count_beat};

int64_t __real_ra_pattern_area(const ra_pattern *pattern, ra_range queries);
int64_t __wrap_ra_pattern_area(const ra_pattern *pattern, ra_range queries);
int64_t __wrap_ra_pattern_area(const ra_pattern *pattern, ra_range queries)
{
    silent_rows += queries.stride * (queries.count - 1) + 1;
    silent_rows_most = silent_rows > silent_rows_most ? silent_rows : silent_rows_most;
    return __real_ra_pattern_area(pattern, queries);
}

/* A long sequence, many ranks, and how many of its rows may be gone through in silence. */
enum { LONG = 1 << 18, MANY = 16, PART = 8192 };

/* Whatever the layout, the others hear of every small part of the sequence that is gone through. */
Test(signs_of_work, come_while_pairs_of_a_layout_are_counted)
{
    ra_pattern_config config = ra_pattern_config_dense();
    ra_pattern *pattern;
    ra_comm comm;
    config.causal = true;
    ra_comm_init(&comm, &counting_ops, 0, MANY, 1000);
    cr_assert_eq(ra_pattern_create(&config, LONG, 1, pool, &pattern), RA_OK);
    for (int kind = 0; kind < RA_LAYOUT_AUTO; ++kind) {
        ra_layout layout;
        silent_rows = silent_rows_most = 0;
        cr_assert_eq(ra_layout_init((ra_layout_kind)kind, pattern, MANY, &comm, pool, &layout),
                     RA_OK);
        cr_expect(silent_rows_most > 0 && silent_rows_most <= PART, "%s: %lld rows",
                  ra_layout_name((ra_layout_kind)kind), (long long)silent_rows_most);
        ra_layout_fini(pool, &layout);
    }
    ra_pattern_destroy(pattern);
}

/* Those who wait for a plan hear of a deal likewise. */
Test(signs_of_work, come_while_a_plan_deals_rows)
{
    ra_pattern_config config = ra_pattern_config_dense();
    ra_prediction prediction;
    ra_comm comm;
    config.causal = true;
    ra_comm_init(&comm, &counting_ops, 0, MANY, 1000);
    ra_predict_request const request = {.ring = {.batch = 1,
                                                 .seq = LONG,
                                                 .heads = 1,
                                                 .kv_heads = 1,
                                                 .dim = 64,
                                                 .layout = RA_LAYOUT_BALANCED},
                                        .pattern = &config,
                                        .ranks = MANY,
                                        .ranks_per_node = 1,
                                        .tile_rows = 64,
                                        .memory_bytes = INT64_MAX,
                                        .comm = &comm};
    silent_rows = silent_rows_most = 0;
    cr_assert_eq(ra_predict(&request, &prediction), RA_OK);
    cr_expect(silent_rows_most > 0 && silent_rows_most <= PART, "%lld rows",
              (long long)silent_rows_most);
    ra_prediction_fini(&prediction);
}

/* Of schedule ring, beside its maps, what each rank needs of each other and all of it. */
Test(signs_of_work, come_with_every_step_of_a_plan)
{
    ra_pattern_config const config = ra_pattern_config_dense();
    ra_pattern *pattern;
    ra_layout layout;
    ra_teams teams;
    ra_comm comm;
    ra_comm_init(&comm, &counting_ops, 0, RANKS, 1000);
    cr_assert_eq(ra_pattern_create(&config, SEQ, 1, pool, &pattern), RA_OK);
    cr_assert_eq(ra_teams_init(RANKS, NULL, pool, &teams), RA_OK);
    cr_assert_eq(ra_layout_init(RA_LAYOUT_CONTIGUOUS, pattern, RANKS, NULL, pool, &layout), RA_OK);
    for (int schedule = RA_SCHEDULE_RING; schedule <= RA_SCHEDULE_SHARED; ++schedule) {
        ra_plan_request const request = {.pattern = pattern,
                                         .layout = &layout,
                                         .queries = layout.rows,
                                         .teams = &teams,
                                         .schedule = (ra_schedule)schedule,
                                         .comm = &comm,
                                         .heads = {0, 1, 1},
                                         .rounds = 1,
                                         .tile_rows = 64};
        ra_plan plan;
        beats = 0;
        cr_assert_eq(ra_plan_init(&request, pool, &plan), RA_OK);
        bool const hops = schedule == RA_SCHEDULE_RING;
        /* Of each owner's rows: which are needed, the nearest reader, the farthest. */
        cr_expect_eq(beats, RANKS + (hops ? 3 * RANKS : 2 * (RANKS - 1)), "schedule %d: %d",
                     schedule, beats);
        ra_plan_fini(pool, &plan);
    }
    ra_layout_fini(pool, &layout);
    ra_teams_fini(pool, &teams);
    ra_pattern_destroy(pattern);
}

/* The others wait for the choice, and hear of it layout by layout and rank by rank. */
Test(signs_of_work, come_while_a_layout_is_chosen)
{
    ra_pattern_config const config = ra_pattern_config_dense();
    ra_pattern *pattern;
    ra_teams teams;
    ra_comm comm;
    bool full = false;
    ra_comm_init(&comm, &counting_ops, 0, RANKS, 1000);
    cr_assert_eq(ra_pattern_create(&config, SEQ, 1, pool, &pattern), RA_OK);
    cr_assert_eq(ra_teams_init(RANKS, NULL, pool, &teams), RA_OK);
    for (int hops = 0; hops < 2; ++hops) {
        ra_layout layout;
        beats = 0;
        cr_assert_eq(ra_layout_choose(pattern, &teams, hops == 1, &comm, pool, &layout), RA_OK);
        cr_expect_geq(beats, RA_LAYOUT_AUTO * (1 + RANKS), "%d", beats);
        beats = 0;
        cr_assert_eq(ra_plan_is_full(pattern, &layout, &comm, pool, &full), RA_OK);
        cr_expect(full && beats == RANKS);
        ra_layout_fini(pool, &layout);
    }
    ra_teams_fini(pool, &teams);
    ra_pattern_destroy(pattern);
}

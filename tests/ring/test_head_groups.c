/* Head groups: what is in each, and auto: the fewest that fit, found in few looks. Where keys
   travel again for them, test_rounds.c. */
#include "ring/ring_internal.h"
#include "ring/ring_job.h"
#include "ringattn/predict.h"
#include "support/open_pool.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

TestSuite(head_groups);

enum { HEADS = 1024, SEQ = 64, RANKS = 2, LOOKS_MOST = 32 * HEADS };

static atomic_llong looks;

ra_head_group __real_ra_ring_group_of(const ra_ring_config *c, int32_t count, int32_t group);
ra_head_group __wrap_ra_ring_group_of(const ra_ring_config *c, int32_t count, int32_t group);
ra_head_group __wrap_ra_ring_group_of(const ra_ring_config *c, int32_t count, int32_t group)
{
    atomic_fetch_add(&looks, 1);
    return __real_ra_ring_group_of(c, count, group);
}

static ring_job job_for(ra_schedule schedule)
{
    ring_job job = ring_job_waves(RANKS, SEQ * HEADS, 1, 1, schedule);
    job.config.seq = SEQ;
    job.config.heads = job.config.kv_heads = HEADS;
    return job;
}

/* Peak of a ring, or of a prediction, with so many groups; 0: auto, and *groups_out are taken. */
static int64_t ring_peak(ring_job *job, int32_t groups, int64_t limit, int32_t *groups_out)
{
    job->config.head_groups = groups;
    job->limit_bytes = limit;
    ring_job_run(job);
    cr_assert_eq(job->status, RA_OK, "%d groups", groups);
    *groups_out = job->info.head_groups;
    return job->peak_bytes;
}

static int64_t predicted_peak(ring_job *job, int32_t groups, int64_t limit, int32_t *groups_out)
{
    ra_predict_request request = {.ring = job->config,
                                  .pattern = &job->pattern,
                                  .ranks = RANKS,
                                  .ranks_per_node = 1,
                                  .tile_rows = 64,
                                  .threads = 1,
                                  .memory_bytes = limit > 0 ? limit : INT64_MAX};
    ra_prediction prediction;
    request.ring.head_groups = groups;
    request.ring.tensors_follow = true;
    cr_assert_eq(ra_predict(&request, &prediction), RA_OK);
    int64_t const peak = prediction.peak_bytes;
    *groups_out = prediction.head_groups;
    ra_prediction_fini(&prediction);
    return peak;
}

static double predicted_sent(const ring_job *job, int32_t groups, int ranks)
{
    ra_predict_request request = {.ring = job->config,
                                  .pattern = &job->pattern,
                                  .ranks = ranks,
                                  .ranks_per_node = 1,
                                  .tile_rows = 64,
                                  .memory_bytes = INT64_MAX};
    ra_prediction prediction;
    request.ring.head_groups = groups;
    cr_assert_eq(ra_predict(&request, &prediction), RA_OK);
    double const sent = prediction.sent_bytes;
    ra_prediction_fini(&prediction);
    return sent;
}

typedef int64_t peak_function(ring_job *job, int32_t groups, int64_t limit, int32_t *groups_out);

/* These have the least number of groups of those whose largest is as large. */
static void check(ra_schedule schedule, peak_function *peak_of)
{
    static const int32_t fewest[] = {1, 3, 31, HEADS / 2, HEADS};
    for (int i = 0; i < 5; ++i) {
        ring_job job = job_for(schedule);
        int32_t groups;
        int64_t const peak = peak_of(&job, fewest[i], 0, &groups);
        atomic_store(&looks, 0);
        (void)peak_of(&job, 0, peak, &groups);
        cr_expect_eq(groups, fewest[i], "schedule %d: %d groups, not %d", schedule, groups,
                     fewest[i]);
        cr_expect_leq(atomic_load(&looks), LOOKS_MOST, "schedule %d, %d groups: %lld looks",
                      schedule, groups, (long long)atomic_load(&looks));
        if (i + 1 < 5) {
            (void)peak_of(&job, 0, peak - 1, &groups);
            cr_expect_gt(groups, fewest[i], "schedule %d: one byte less", schedule);
        }
        ring_job_free(&job);
    }
}

/* Groups with plans of their own: a layer of a dilated pattern is in the maps of several, which
   together take more than the map of all heads, here as much as what groups save. */
static void check_plans_by_group(ring_job job, peak_function *peak_of,
                                 int64_t (*peak_or_0)(ring_job *job))
{
    enum { LIMITS = 24 };
    int32_t groups;
    job.config.schedule = RA_SCHEDULE_DIRECT;
    job.config.rounds = 1;
    int64_t const most = peak_of(&job, 1, 0, &groups);
    int64_t const least = peak_of(&job, job.config.heads, 0, &groups);
    job.config.head_groups = 0;
    cr_assert_lt(least, most);
    for (int i = 0; i <= LIMITS; i++) {
        job.limit_bytes = least + (most - least) * i / LIMITS;
        int64_t const peak = peak_or_0(&job);
        cr_expect(peak > 0 && peak <= job.limit_bytes, "limit %lld: %lld",
                  (long long)job.limit_bytes, (long long)peak);
    }
    ring_job_free(&job);
}

static int64_t ring_peak_or_0(ring_job *job)
{
    ring_job_run(job);
    return job->status == RA_OK ? job->peak_bytes : 0;
}

static int64_t predicted_peak_of(ring_job *job)
{
    int32_t groups;
    return predicted_peak(job, 0, job->limit_bytes, &groups);
}

/* Heads of one dilated branch, and random blocks. */
static ring_job blocks_job(void)
{
    enum { N = 2048 };
    static const int64_t segments[] = {N}, rates[] = {2};
    ring_job job = ring_job_heads(2, N, 8, 8, 8, RA_F16);
    job.config.comm_buffers = 1;
    job.pattern.segments = segments;
    job.pattern.rates = rates;
    job.pattern.branch_count = 1;
    job.pattern.blocks_kind = RA_BLOCKS_RANDOM;
    job.pattern.block_size = 8;
    job.pattern.block_density = 0.5;
    return job;
}

/* Each head has a branch: maps of whole pages, and steps of chunks, in every group. */
static ring_job pages_job(void)
{
    enum { N = 1 << 16 };
    static const int64_t segments[] = {N, N, N, N, N, N, N, N};
    static const int64_t rates[] = {1, 1, 1, 1, 1, 1, 1, 1};
    ring_job job = ring_job_heads(2, N, 8, 8, 2, RA_F32);
    job.mode = RA_RING_COMM_ONLY;
    job.pattern.causal = false;
    job.pattern.segments = segments;
    job.pattern.rates = rates;
    job.pattern.branch_count = 8;
    job.pattern.dilated_heads = RA_HEADS_GROUPED;
    job.pattern.window_left = job.pattern.window_right = 64;
    return job;
}

Test(head_groups, with_plans_of_their_own_fit_wherever_most_of_them_do, .timeout = 300)
{
    check_plans_by_group(blocks_job(), ring_peak, ring_peak_or_0);
    check_plans_by_group(blocks_job(), predicted_peak, predicted_peak_of);
    check_plans_by_group(pages_job(), ring_peak, ring_peak_or_0);
    check_plans_by_group(pages_job(), predicted_peak, predicted_peak_of);
}

Test(head_groups, of_a_ring_are_the_fewest_that_fit_in_few_looks, .timeout = 600)
{
    check(RA_SCHEDULE_DIRECT, ring_peak);
    check(RA_SCHEDULE_SCAN, ring_peak);
}

Test(head_groups, of_a_prediction_are_the_fewest_that_fit_in_few_looks, .timeout = 600)
{
    check(RA_SCHEDULE_DIRECT, predicted_peak);
    check(RA_SCHEDULE_SCAN, predicted_peak);
}

/* ---- query heads of one key head --------------------------------------------------------------
 */

static void check_groups(const ra_ring_config *c, int32_t count)
{
    int32_t const ratio = c->heads / c->kv_heads;
    int32_t const first = ra_ring_group_of(c, count, 0).q_count;
    int32_t const last = ra_ring_group_of(c, count, count - 1).q_count;
    int32_t const parts = ra_ring_parts(c, count);
    int32_t heads = 0, part = 0, keys = 0, sent = 0;
    for (int32_t g = 0; g < count; ++g) {
        ra_head_group const of = ra_ring_group_of(c, count, g);
        cr_assert(of.q_begin == heads && of.kv_begin == keys, "group %d of %d", g, count);
        cr_assert(first <= of.q_count && of.q_count <= last, "group %d of %d", g, count);
        cr_assert(of.q_part == part && of.q_parts == parts, "group %d of %d", g, count);
        cr_assert(parts == 1 || of.q_count == 1, "group %d of %d", g, count);
        cr_assert_eq(of.q_begin / ratio, of.kv_begin);
        cr_assert_eq((heads + of.q_count - 1) / ratio, of.kv_begin + of.kv_count - 1);
        part = (part + 1) % parts;
        heads += part == 0 ? of.q_count : 0;
        cr_assert_eq(of.begins_keys, of.q_begin % ratio == 0 && of.q_part == 0);
        cr_assert_eq(of.ends_keys, heads % ratio == 0 && part == 0);
        keys += of.ends_keys ? of.kv_count : 0;
        sent += of.kv_count;
    }
    cr_assert(heads == c->heads && keys == c->kv_heads, "%d groups", count);
    cr_assert_eq(sent, count > c->kv_heads ? count : c->kv_heads, "%d groups", count);
}

Test(head_groups, have_every_head_once_and_its_keys_with_it)
{
    for (int32_t kv = 1; kv <= 5; ++kv)
        for (int32_t ratio = 1; ratio <= 5; ++ratio) {
            ra_ring_config c = {.heads = kv * ratio, .kv_heads = kv};
            for (int32_t count = 0; count <= c.heads * (RA_QUERY_PARTS_MAX + 2); ++count) {
                bool const divides = count <= c.heads ? count % kv == 0
                                                      : count % c.heads == 0 &&
                                                            count <= c.heads * RA_QUERY_PARTS_MAX;
                c.linear = RA_LINEAR_CAUSAL;
                cr_assert_eq(ra_ring_has_groups(&c, count), count >= 1 && count <= kv);
                c.linear = RA_LINEAR_NONE;
                cr_assert_eq(ra_ring_has_groups(&c, count), count >= 1 && (count <= kv || divides));
                if (ra_ring_has_groups(&c, count))
                    check_groups(&c, count);
            }
        }
}

/* [groups]: what so many need, and what rounds could make smaller. */
typedef struct need {
    int64_t bytes, buffers;
} need;

static int64_t needed(const void *context, int32_t groups, int64_t *buffers_out)
{
    const need *needs = context;
    cr_assert_gt(needs[groups].bytes, 0, "%d groups", groups);
    *buffers_out = needs[groups].buffers;
    return needs[groups].bytes;
}

enum { PLAN_BYTES = 7 };

static void expect_found(const ra_ring_config *c, const need *needs, int64_t room, int32_t fewest,
                         ra_groups_found want)
{
    int32_t const most = c->linear == RA_LINEAR_NONE ? 2 * c->heads : c->kv_heads;
    ra_groups_found const found =
        ra_ring_find_groups(c, needed, needs, room, PLAN_BYTES, fewest, most);
    cr_expect(found.fit == want.fit && found.could == want.could && found.least == want.least,
              "room %lld: %d, %d, %d", (long long)room, found.fit, found.could, found.least);
}

Test(head_groups, are_the_fewest_that_fit_or_those_that_need_least)
{
    enum { NONE = RA_GROUPS_NONE, FUTILE = RA_GROUPS_FUTILE };
    ra_ring_config c = {.heads = 8, .kv_heads = 2};
    static const need shrink[17] = {
        [1] = {90, 20}, [2] = {50, 10}, [4] = {30, 10}, [8] = {20, 10}, [16] = {19, 9}};
    static const need grow[17] = {
        [1] = {90, 0}, [2] = {50, 0}, [4] = {70, 0}, [8] = {60, 0}, [16] = {80, 0}};
    static const need bound[17] = {
        [1] = {30, 0}, [2] = {60, 0}, [4] = {40, 0}, [8] = {70, 0}, [16] = {90, 0}};
    expect_found(&c, shrink, 90, 1, (ra_groups_found){1, 1, 1, 0});
    expect_found(&c, shrink, 90, 2, (ra_groups_found){2, 2, 2, 0});
    expect_found(&c, shrink, 89, 1, (ra_groups_found){2, 1, 2, 0});
    expect_found(&c, shrink, 40, 4, (ra_groups_found){4, 4, 4, 0});
    expect_found(&c, shrink, 40, 1, (ra_groups_found){4, 2, 4, 0});
    expect_found(&c, shrink, 10, 1, (ra_groups_found){NONE, 8, 16, 0});
    expect_found(&c, shrink, 9, 1, (ra_groups_found){NONE, NONE, 16, 0});
    expect_found(&c, shrink, -PLAN_BYTES, 2, (ra_groups_found){NONE, NONE, 16, 0});
    expect_found(&c, shrink, -PLAN_BYTES - 1, 2, (ra_groups_found){NONE, FUTILE, 8, 0});
    expect_found(&c, grow, 40, 1, (ra_groups_found){NONE, NONE, 2, 0});
    expect_found(&c, bound, 20, 1, (ra_groups_found){NONE, NONE, 4, 0}); /* 1 is none to end with */
    c.linear = RA_LINEAR_CAUSAL;
    expect_found(&c, shrink, 40, 1, (ra_groups_found){NONE, 2, 2, 0});
    c.linear = RA_LINEAR_NONE;
    c.head_groups = 4; /* asked for */
    expect_found(&c, shrink, 90, 1, (ra_groups_found){4, 4, 4, 0});
    expect_found(&c, shrink, 20, 1, (ra_groups_found){NONE, 4, 4, 0});
    expect_found(&c, shrink, -20, 1, (ra_groups_found){NONE, FUTILE, 4, 0});
}

Test(head_groups, are_no_more_than_can_be_counted)
{
    static const int32_t heads[] = {1, 1 << 20, 1 << 25, 1 << 26, 1 << 30};
    for (int i = 0; i < 5; ++i) {
        ra_ring_config const c = {.seq = INT64_C(1) << 40, .heads = heads[i], .kv_heads = 1};
        int32_t const most = ra_ring_most_groups(&c, 2, 64, false);
        cr_expect(most >= heads[i] && most % heads[i] == 0, "%d: %d", heads[i], most);
        cr_expect(most == heads[i] || most < RA_GROUPS_NONE - heads[i], "%d: %d", heads[i], most);
    }
}

Test(head_groups, that_share_keys_send_them_to_each)
{
    enum { KEY_HEADS = 2, SHARING = 3, PARTS = 5, RANKS_HERE = 4, FOLLOWED = 2 };
    static const int32_t times[] = {1, SHARING, SHARING * PARTS};
    double sent[FOLLOWED] = {0};
    for (int i = 0; i < 3; ++i) {
        int32_t const groups = KEY_HEADS * times[i];
        ring_job job =
            ring_job_heads(RANKS_HERE, 2048, KEY_HEADS * SHARING, KEY_HEADS, 16, RA_BF16);
        int32_t taken;
        job.mode = RA_RING_COMM_ONLY;
        job.config.rounds = 1;
        job.pattern = ra_pattern_config_dense();
        (void)ring_peak(&job, groups, 0, &taken);
        double now[FOLLOWED] = {predicted_sent(&job, groups, RANKS_HERE)};
        cr_expect_eq((double)job.sent_bytes, now[0], "%d groups", groups);
        job.config.seq = 1 << 20;
        now[1] = predicted_sent(&job, groups, 500); /* more than are */
        for (int k = 0; k < FOLLOWED; ++k)
            cr_expect(i == 0 ? now[k] > 0 : fabs(now[k] / sent[k] - times[i]) < k * 1e-3 + 1e-12,
                      "%d groups, %d: %g of %g", groups, k, now[k], sent[k]);
        if (i == 0)
            memcpy(sent, now, sizeof(sent));
        ring_job_free(&job);
    }
}

/* ---- parts of the queries --------------------------------------------------------------------
 */

Test(head_groups, of_parts_have_every_query_once)
{
    static const int64_t rows[] = {0, 1, 5, 63, 64, 1000, 1 << 20, (1 << 20) + 777};
    ra_ring_config const c = {.heads = 1, .kv_heads = 1};
    for (int32_t parts = 1; parts <= RA_QUERY_PARTS_MAX; ++parts)
        for (int i = 0; i < 8; ++i) {
            int64_t begin = 0, last = 0;
            for (int32_t p = 0; p < parts; ++p) {
                ra_head_group const of = ra_ring_group_of(&c, parts, p);
                last = ra_head_group_rows(&of, rows[i]);
                cr_assert_eq(ra_head_group_begin(&of, rows[i]), begin);
                cr_assert(last >= 0 && last <= rows[i] / parts * 18 / 16 + 1);
                begin += last;
            }
            ra_head_group const first = ra_ring_group_of(&c, parts, 0);
            cr_assert_eq(begin, rows[i], "%d parts", parts);
            cr_assert_leq(ra_head_group_rows(&first, rows[i]), last, "%d parts", parts);
        }
}

/* Rows that only the first queries of a rank need travel with these alone. */
Test(head_groups, of_parts_send_what_their_queries_need)
{
    enum { PARTS = 4, TOKENS = 4096, RANKS_HERE = 4 };
    int64_t sent[2];
    for (int i = 0; i < 2; ++i) {
        int32_t const groups = i == 0 ? 1 : PARTS;
        ring_job job = ring_job_heads(RANKS_HERE, TOKENS, 1, 1, 16, RA_BF16);
        int32_t taken;
        job.config.layout = RA_LAYOUT_CONTIGUOUS;
        job.config.schedule = RA_SCHEDULE_DIRECT;
        job.pattern.window_left = TOKENS / RANKS_HERE / PARTS - 1;
        (void)ring_peak(&job, groups, 0, &taken);
        sent[i] = job.sent_bytes;
        cr_expect_eq((double)sent[i], predicted_sent(&job, groups, RANKS_HERE));
        ring_job_free(&job);
    }
    cr_expect(sent[0] > 0 && sent[1] == sent[0], "%lld, %lld bytes", (long long)sent[0],
              (long long)sent[1]);
}

/* One head, whose every row has sums: between the peaks of whole queries and of most parts auto
   finds parts that fit. */
static void check_parts(peak_function *peak_of, ra_schedule schedule, bool backward)
{
    enum { LIMITS = 12, MOST = 16, TOKENS = MOST * RANKS * 256 };
    ring_job job = ring_job_heads(RANKS, TOKENS, 1, 1, 64, RA_BF16);
    int32_t groups, before = 0;
    job.mode = RA_RING_COMM_ONLY;
    job.config.schedule = schedule;
    job.config.rounds = 1;
    job.config.backward = backward;
    int64_t const most = peak_of(&job, 1, 0, &groups);
    int64_t const least = peak_of(&job, MOST, 0, &groups);
    cr_assert_lt(least, most);
    for (int i = LIMITS; i >= 1; i--) {
        int64_t const limit = least + (most - least) * i / LIMITS;
        int64_t const peak = peak_of(&job, 0, limit, &groups);
        cr_expect(peak <= limit, "limit %lld: %lld in %d groups", (long long)limit, (long long)peak,
                  groups);
        cr_expect(groups >= before && (groups > 1) == (i < LIMITS), "%d groups", groups);
        before = groups;
    }
    ring_job_free(&job);
}

/* Chunks of 3 tiles, or 8, that parts of 16K rows cut, and of one, but with records and ends of
   maps that are large beside what parts save: just below what some parts take, others fit. */
static void check_ends_of_parts(peak_function *peak_of, int64_t rate)
{
    enum { MOST = 4 };
    int64_t const rows = rate > 1 ? 3 << 15 : 1 << 16, segment = RANKS * rows;
    ra_dtype const dtype = rate > 1 ? RA_BF16 : RA_F32;
    ring_job job = ring_job_heads(RANKS, segment, 1, 1, rate > 1 ? 8 : 1, dtype);
    int32_t groups;
    job.mode = RA_RING_COMM_ONLY;
    job.config.schedule = RA_SCHEDULE_DIRECT;
    job.config.layout = RA_LAYOUT_CONTIGUOUS;
    job.config.rounds = 1;
    job.pattern.causal = false;
    job.pattern.segments = &segment;
    job.pattern.rates = &rate;
    job.pattern.branch_count = 1;
    if (rate > 1) {
        job.pattern.blocks_kind = RA_BLOCKS_RANDOM;
        job.pattern.block_size = 64 * rate;
        job.pattern.block_density = 0.3;
    }
    for (int32_t parts = 1; parts < MOST; ++parts) {
        int64_t const limit = peak_of(&job, parts, 0, &groups) - 1;
        int64_t const peak = peak_of(&job, 0, limit, &groups);
        cr_expect(peak <= limit, "rate %d: %lld in %d parts, limit %lld", (int)rate,
                  (long long)peak, groups, (long long)limit);
    }
    ring_job_free(&job);
}

Test(head_groups, of_parts_fit_with_what_is_cut_where_they_begin, .timeout = 300)
{
    static const int64_t rates[] = {1, 3, 8};
    for (int i = 0; i < 3; ++i) {
        check_ends_of_parts(ring_peak, rates[i]);
        check_ends_of_parts(predicted_peak, rates[i]);
    }
}

Test(head_groups, of_parts_are_taken_where_nothing_else_fits, .timeout = 300)
{
    for (int backward = 0; backward < 2; ++backward) {
        check_parts(ring_peak, RA_SCHEDULE_DIRECT, backward);
        check_parts(ring_peak, RA_SCHEDULE_RING, backward);
        check_parts(predicted_peak, RA_SCHEDULE_DIRECT, backward);
        check_parts(predicted_peak, RA_SCHEDULE_RING, backward);
    }
}

/* ---- what travels ----------------------------------------------------------------------------
 */

/* Dilated attention of two branches, the first of short segments, on so many ranks. */
static ring_job dilated_job(int ranks, int64_t rows, const int64_t segments[2],
                            const int64_t rates[2])
{
    ring_job job = ring_job_heads(ranks, ranks * rows, 8, 8, 1, RA_BF16);
    job.mode = RA_RING_COMM_ONLY;
    job.config.layout = RA_LAYOUT_CONTIGUOUS;
    job.config.schedule = RA_SCHEDULE_DIRECT;
    job.pattern.segments = segments;
    job.pattern.rates = rates;
    job.pattern.branch_count = 2;
    return job;
}

Test(head_groups, keep_rows_from_travelling_with_heads_that_do_not_need_them, .timeout = 300)
{
    enum { ROWS = 1 << 16, RANKS_HERE = 2 };
    ring_job job = dilated_job(RANKS_HERE, ROWS, (const int64_t[]){2048, RANKS_HERE * ROWS},
                               (const int64_t[]){1, 8});
    int32_t groups;
    (void)ring_peak(&job, 1, 0, &groups);
    double const whole = (double)job.sent_bytes;
    int64_t const peak = ring_peak(&job, 0, 0, &groups);
    cr_expect_eq(groups, 8);
    cr_expect_eq(8 * (double)job.sent_bytes, whole, "%lld bytes, %g in one group",
                 (long long)job.sent_bytes, whole);
    (void)predicted_peak(&job, 0, 0, &groups);
    cr_expect_eq(groups, 8);
    (void)ring_peak(&job, 0, 2 * peak, &groups); /* what fits decides beyond that alone */
    cr_expect_eq(groups, 8);
    (void)predicted_peak(&job, 0, 4 * peak, &groups); /* with tensors */
    cr_expect_eq(groups, 8);
    ring_job_free(&job);
}

static int32_t fewest(int ranks, int teams, int64_t rows, const int64_t segments[2],
                      const int64_t rates[2])
{
    ring_job job = dilated_job(ranks, rows, segments, rates);
    ra_pattern *pattern;
    cr_assert_eq(
        ra_pattern_create(&job.pattern, job.config.seq, job.config.heads, open_pool(), &pattern),
        RA_OK);
    int32_t const groups = ra_ring_fewest_groups(&job.config, pattern, ranks, teams);
    ra_pattern_destroy(pattern);
    ring_job_free(&job);
    return groups;
}

Test(head_groups, are_few_where_it_saves_little_or_leaves_a_group_little_work)
{
    enum { ROWS = 1 << 16 };
    static const int64_t whole[] = {2048, 2 * ROWS}, halves[] = {2048, ROWS};
    static const int64_t both[] = {2 * ROWS, 2 * ROWS};
    static const int64_t apart[] = {1, 8}, dense[] = {1, 1}, wide[] = {8, 64};
    cr_expect_eq(fewest(2, 2, ROWS, whole, apart), 8);
    cr_expect_eq(fewest(2, 1, ROWS, whole, apart), 1, "nothing is sent");
    cr_expect_eq(fewest(2, 2, ROWS / 2, (const int64_t[]){2048, ROWS}, apart), 4);
    cr_expect_eq(fewest(2, 2, ROWS / 8, (const int64_t[]){2048, ROWS / 4}, apart), 1);
    cr_expect_eq(fewest(2, 2, ROWS, halves, apart), 1, "no segment reaches another rank");
    cr_expect_eq(fewest(2, 2, ROWS, whole, dense), 1, "all heads are alike");
    cr_expect_eq(fewest(2, 2, ROWS, both, apart), 1, "each needs all rows");
    cr_expect_eq(fewest(2, 2, ROWS, both, wide), 8);
}

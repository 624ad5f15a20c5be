/* Head groups auto: the fewest that fit, found in few looks, however many heads there are. */
#include "ring/ring_internal.h"
#include "ring/ring_job.h"
#include "ringattn/predict.h"
#include "support/open_pool.h"

#include <criterion/criterion.h>
#include <stdatomic.h>

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
static void check_plans_by_group(peak_function *peak_of, int64_t (*peak_or_0)(ring_job *job))
{
    enum { N = 2048, H = 8, LIMITS = 24 };
    static const int64_t segments[] = {N}, rates[] = {2};
    ring_job job = ring_job_heads(2, N, H, H, 8, RA_F16);
    job.config.schedule = RA_SCHEDULE_DIRECT;
    job.config.comm_buffers = 1;
    job.config.rounds = 1;
    job.config.tensors_follow = true;
    job.pattern.segments = segments;
    job.pattern.rates = rates;
    job.pattern.branch_count = 1;
    job.pattern.blocks_kind = RA_BLOCKS_RANDOM;
    job.pattern.block_size = 8;
    job.pattern.block_density = 0.5;
    int32_t groups;
    int64_t const most = peak_of(&job, 1, 0, &groups), least = peak_of(&job, H, 0, &groups);
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

Test(head_groups, with_plans_of_their_own_fit_wherever_most_of_them_do)
{
    check_plans_by_group(ring_peak, ring_peak_or_0);
    check_plans_by_group(predicted_peak, predicted_peak_of);
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
    (void)predicted_peak(&job, 0, 2 * peak, &groups);
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

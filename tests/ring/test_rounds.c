/* Rounds auto: the fewest powers of two that fit, and none where buffers are not what is short. */
#include "ring/ring_internal.h"
#include "ring/ring_job.h"
#include "ringattn/predict.h"
#include "support/captured_log.h"
#include "support/open_pool.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(rounds);

enum { RANKS = 4, SEQ = 2048, HEADS = 2, DIM = 32, ROUNDS_MOST = 8 };

/* A job whose buffers weigh more than the maps of its rounds. */
static ring_job job_for(ra_schedule schedule, int buffers, bool backward)
{
    ring_job job = ring_job_waves(RANKS, SEQ * HEADS, DIM, buffers, schedule);
    job.config.heads = job.config.kv_heads = HEADS;
    job.config.seq = SEQ;
    job.config.layout = RA_LAYOUT_CONTIGUOUS;
    job.config.backward = backward;
    job.pattern.causal = false; /* so that auto takes schedule ring */
    job.mode = RA_RING_COMM_ONLY;
    for (int r = 0; r < RANKS; ++r)
        job.hosts[r] = schedule == RA_SCHEDULE_SHARED ? r / 2 : r;
    return job;
}

typedef struct outcome {
    ra_status status;
    int64_t peak_bytes;
    int32_t groups, rounds;
    ra_schedule schedule;
} outcome;

typedef outcome try_job(ring_job *job, int32_t groups, int32_t rounds, int64_t limit);

static outcome run_job(ring_job *job, int32_t groups, int32_t rounds, int64_t limit)
{
    job->config.head_groups = groups;
    job->config.rounds = rounds;
    job->limit_bytes = limit;
    ring_job_run(job);
    cr_expect_eq(job->leaked_bytes, 0);
    return (outcome){job->status, job->peak_bytes, job->info.head_groups, job->info.rounds,
                     job->info.schedule};
}

static ra_cache_mode cache; /* of plans */

static outcome predict_job(ring_job *job, int32_t groups, int32_t rounds, int64_t limit)
{
    bool const shared = job->config.schedule == RA_SCHEDULE_SHARED;
    ra_predict_request request = {.ring = job->config,
                                  .pattern = &job->pattern,
                                  .ranks = job->ranks,
                                  .ranks_per_node = shared ? 2 : 1,
                                  .may_share = shared,
                                  .tile_rows = 64,
                                  .threads = 1,
                                  .workspace_bytes = 5000,
                                  .pair_bytes = 3000,
                                  .cache = cache,
                                  .cache_entries = 1000,
                                  .cache_bytes = 1 << 24,
                                  .memory_bytes = limit > 0 ? limit : INT64_MAX};
    ra_prediction p;
    request.ring.head_groups = groups;
    request.ring.rounds = rounds;
    request.ring.tensors_follow = true;
    cr_assert_eq(ra_predict(&request, &p), RA_OK);
    bool const fits = p.peak_bytes <= request.memory_bytes;
    bool const tried = rounds == 0 && (p.rounds > 1 || !fits);
    /* What a cache keeps of maps that were tried is not followed. */
    bool const one_plan =
        job->pattern.dilated_heads != RA_HEADS_GROUPED && p.head_groups <= request.ring.heads;
    if (one_plan) /* else others may have been tried, which took more */
        cr_expect_eq(p.exact, cache == RA_CACHE_OFF || !tried);
    outcome const o = {fits ? RA_OK : RA_ERR_NO_MEMORY, p.peak_bytes, p.head_groups, p.rounds,
                       p.schedule};
    ra_prediction_fini(&p);
    return o;
}

/* With the bytes that so many rounds need, auto takes these, and with a byte less, more. */
static void check(try_job *try_it, ra_schedule schedule, int buffers, bool backward)
{
    ring_job job = job_for(schedule, buffers, backward);
    int64_t before = INT64_MAX;
    for (int32_t rounds = 1; rounds <= ROUNDS_MOST; rounds *= 2) {
        char what[80];
        snprintf(what, sizeof(what), "schedule %d, %d buffers, backward %d, %d rounds", schedule,
                 buffers, backward, rounds);
        outcome const fixed = try_it(&job, HEADS, rounds, 0);
        cr_assert_eq(fixed.status, RA_OK, "%s", what);
        cr_expect_eq(fixed.rounds, rounds, "%s", what);
        cr_assert_lt(fixed.peak_bytes, before, "%s", what);
        before = fixed.peak_bytes;
        outcome const fits = try_it(&job, 0, 0, fixed.peak_bytes);
        cr_expect_eq(fits.status, RA_OK, "%s", what);
        cr_expect_eq(fits.rounds, rounds, "%s: %d", what, fits.rounds);
        cr_expect_eq(fits.groups, HEADS, "%s: %d groups", what, fits.groups);
        cr_expect_eq(fits.schedule, fixed.schedule, "%s: schedule %d", what, fits.schedule);
        cr_expect_eq(fits.peak_bytes, fixed.peak_bytes, "%s", what);
        outcome const more = try_it(&job, 0, 0, fixed.peak_bytes - 1);
        if (rounds < ROUNDS_MOST) {
            cr_expect_eq(more.status, RA_OK, "%s: a byte less", what);
            cr_expect_eq(more.rounds, 2 * rounds, "%s: a byte less: %d", what, more.rounds);
        }
    }
    ring_job_free(&job);
}

static void check_all(try_job *try_it)
{
    for (int buffers = 1; buffers <= 2; ++buffers)
        for (int backward = 0; backward <= 1; ++backward) {
            check(try_it, RA_SCHEDULE_DIRECT, buffers, backward);
            check(try_it, RA_SCHEDULE_SHARED, buffers, backward);
            check(try_it, RA_SCHEDULE_AUTO, buffers, backward);
        }
}

Test(rounds, of_a_ring_are_the_fewest_that_fit, .timeout = 600)
{
    check_all(run_job);
}

Test(rounds, of_a_prediction_are_the_fewest_that_fit, .timeout = 600)
{
    check_all(predict_job);
}

/* Which is beside the buffers. */
Test(rounds, of_a_prediction_leave_room_for_what_a_cache_keeps)
{
    cache = RA_CACHE_EAGER;
    check(predict_job, RA_SCHEDULE_DIRECT, 1, false);
    check(predict_job, RA_SCHEDULE_DIRECT, 2, true);
}

/* Where heads differ, what groups need is estimated: a job that fits is not refused. */
Test(rounds, do_not_refuse_what_one_round_does)
{
    static const int64_t segments[] = {256, 1024}, rates[] = {1, 4};
    ring_job job = ring_job_waves(RANKS, 5000 * 8, 4, 2, RA_SCHEDULE_DIRECT);
    job.config.seq = 5000;
    job.config.heads = job.config.kv_heads = 8;
    job.pattern.causal = false;
    job.pattern.segments = segments;
    job.pattern.rates = rates;
    job.pattern.branch_count = 2;
    job.pattern.dilated_heads = RA_HEADS_GROUPED;
    job.mode = RA_RING_COMM_ONLY;
    outcome const one = run_job(&job, 8, 1, 0);
    cr_assert_eq(one.status, RA_OK);
    cr_expect_eq(run_job(&job, 0, 0, one.peak_bytes).status, RA_OK);
    outcome const planned = predict_job(&job, 8, 1, 0);
    cr_expect_eq(predict_job(&job, 0, 0, planned.peak_bytes).status, RA_OK);
    ring_job_free(&job);
}

/* In any of the tries, until the fourth fits without parts of the queries. */
Test(rounds, end_with_any_failing_allocation_of_a_try, .timeout = 600)
{
    refusing_memory memory = {.refused = true};
    ring_job sized = job_for(RA_SCHEDULE_DIRECT, 1, false);
    int64_t const limit = run_job(&sized, HEADS, 8, 0).peak_bytes;
    long n = 0, refused = 0;
    for (; memory.refused; ++n) {
        atomic_store(&memory.countdown, n);
        atomic_store(&memory.refused, false);
        sized.refusing = &memory;
        outcome const o = run_job(&sized, 0, 0, limit);
        /* What is refused to a try is not missed where one before it, or after it, fits. */
        cr_assert(o.status == RA_OK || (memory.refused && o.status == RA_ERR_NO_MEMORY),
                  "allocation %ld: %s", n, ra_status_name(o.status));
        cr_assert(!sized.in_pass, "allocation %ld", n);
        cr_assert(memory.refused || (o.rounds == 8 && o.groups == HEADS), "%d rounds", o.rounds);
        refused += o.status != RA_OK;
    }
    cr_assert(n > 100 && refused > 50, "%ld allocations, %ld refused", n, refused);
    ring_job_free(&sized);
}

/* Results are those of the same rounds, asked for. */
Test(rounds, change_results_no_more_when_they_are_chosen)
{
    ring_job job = job_for(RA_SCHEDULE_AUTO, 2, false);
    job.mode = RA_RING_BOTH;
    size_t const bytes = (size_t)SEQ * HEADS * DIM * sizeof(float);
    float *asked = malloc(bytes);
    cr_assert_not_null(asked);
    outcome const fixed = run_job(&job, HEADS, 4, 0);
    memcpy(asked, job.out, bytes);
    memset(job.out, 0, bytes);
    outcome const chosen = run_job(&job, 0, 0, fixed.peak_bytes);
    cr_expect_eq(chosen.rounds, 4);
    cr_expect_eq(memcmp(asked, job.out, bytes), 0);
    free(asked);
    ring_job_free(&job);
}

/* Schedule ring has one, and so have ranks of one host, whatever is asked for. */
Test(rounds, are_one_where_nothing_travels_or_blocks_hop)
{
    ring_job hops = job_for(RA_SCHEDULE_RING, 2, false);
    outcome const one = run_job(&hops, HEADS, 0, 0);
    cr_expect_eq(one.rounds, 1);
    cr_expect_eq(run_job(&hops, HEADS, 0, one.peak_bytes - 1).status, RA_ERR_NO_MEMORY);
    cr_expect_eq(predict_job(&hops, HEADS, 0, one.peak_bytes / 2).rounds, 1);
    ring_job_free(&hops);
    ring_job host = job_for(RA_SCHEDULE_SHARED, 2, false);
    memset(host.hosts, 0, sizeof(host.hosts));
    outcome const alone = run_job(&host, HEADS, 16, 0);
    cr_expect_eq(alone.rounds, 1);
    cr_expect_eq(run_job(&host, HEADS, 0, alone.peak_bytes - 1).status, RA_ERR_NO_MEMORY);
    ring_job_free(&host);
}

/* What lacks room without any buffer is not cut into rounds, whose maps would only take more. */
Test(rounds, are_one_if_buffers_are_not_what_is_short)
{
    ring_job job = job_for(RA_SCHEDULE_DIRECT, 2, true);
    outcome const least = predict_job(&job, HEADS, RA_ROUNDS_MAX, 0);
    outcome const hopeless = predict_job(&job, 0, 0, least.peak_bytes / 2);
    cr_expect_eq(hopeless.status, RA_ERR_NO_MEMORY);
    cr_expect_eq(hopeless.rounds, 1);
    ring_job_free(&job);
}

/* Of so many maps only some chunks are looked at in many rounds, but all in one. */
Test(rounds, that_were_tried_leave_a_prediction_as_sure_as_it_is)
{
    ra_pattern_config const dense = ra_pattern_config_dense();
    ra_predict_request request = {.ring = {.batch = 16,
                                           .seq = 1 << 17,
                                           .heads = 1,
                                           .kv_heads = 1,
                                           .dim = 256,
                                           .layout = RA_LAYOUT_CONTIGUOUS,
                                           .schedule = RA_SCHEDULE_DIRECT,
                                           .comm_buffers = 2},
                                  .pattern = &dense,
                                  .ranks = 32,
                                  .ranks_per_node = 1,
                                  .tile_rows = 64,
                                  .threads = 1,
                                  .memory_bytes = INT64_MAX};
    int64_t least = INT64_MAX;
    int sampled = 0;
    ra_prediction p;
    request.ring.tensors_follow = true;
    for (int rounds = 1; rounds <= RA_ROUNDS_MAX; rounds *= 2) {
        request.ring.rounds = rounds;
        cr_assert_eq(ra_predict(&request, &p), RA_OK);
        least = p.peak_bytes < least ? p.peak_bytes : least;
        sampled += !p.counted;
        ra_prediction_fini(&p);
    }
    cr_expect(sampled > 0 && sampled < 6, "%d", sampled);
    request.memory_bytes = least / 2; /* nor do parts of the queries fit */
    request.ring.rounds = 0;
    cr_assert_eq(ra_predict(&request, &p), RA_OK);
    cr_expect_eq(p.rounds, 1, "%d", p.rounds);
    cr_expect(p.counted);
    ra_prediction_fini(&p);
}

/* One query sees every step-th key, and the first of each rank one of every rank. */
static int64_t list_pairs(int64_t seq, int ranks, int64_t step, int32_t (*pairs)[2])
{
    int64_t count = 0;
    for (int64_t k = 0; k < seq; k += step, ++count)
        pairs[count][0] = (int32_t)(seq / 2 + seq / ranks / 2), pairs[count][1] = (int32_t)k;
    for (int r = 0; r < ranks; ++r)
        for (int from = 0; from < ranks; ++from, ++count) {
            pairs[count][0] = (int32_t)(seq / ranks * r);
            pairs[count][1] = (int32_t)(seq / ranks * from);
        }
    return count;
}

/* Twice as many maps of so many slices would be refused, so they are not tried. */
Test(rounds, of_a_prediction_are_none_that_it_could_not_look_at)
{
    enum { MANY = 64, TOKENS = 200000, PAIRS_MOST = TOKENS + MANY * MANY };
    static int32_t pairs[PAIRS_MOST][2];
    ra_pattern_config pattern = ra_pattern_config_dense();
    ra_predict_request request = {.ring = {.batch = 1,
                                           .seq = TOKENS,
                                           .heads = 1,
                                           .kv_heads = 1,
                                           .dim = 16,
                                           .layout = RA_LAYOUT_CONTIGUOUS,
                                           .schedule = RA_SCHEDULE_DIRECT,
                                           .comm_buffers = 2,
                                           .tensors_follow = true},
                                  .pattern = &pattern,
                                  .ranks = MANY,
                                  .ranks_per_node = 1,
                                  .tile_rows = 64,
                                  .threads = 1};
    pattern.blocks_kind = RA_BLOCKS_LIST;
    pattern.block_size = 1;
    pattern.block_pairs = (const int32_t(*)[2])pairs;
    for (int64_t step = 2; step <= 4; step += 2) {
        ra_prediction p;
        pattern.block_pair_count = list_pairs(TOKENS, MANY, step, pairs);
        request.memory_bytes = INT64_MAX;
        cr_assert_eq(ra_predict(&request, &p), RA_OK);
        request.memory_bytes = p.peak_bytes - 1;
        ra_prediction_fini(&p);
        cr_assert_eq(ra_predict(&request, &p), RA_OK, "every key of %lld", (long long)step);
        cr_expect_eq(p.rounds, step == 2 ? 1 : 2, "every key of %lld: %d", (long long)step,
                     p.rounds);
        ra_prediction_fini(&p);
    }
}

/* ---- and head groups that share keys ---------------------------------------------------------
 */

enum { KEY_HEADS = 2, SHARING = 3, PARTS = 4 /* of 128 rows */, ROUNDS = 7 /* 1 to 64 */ };

/* Of dim 2 with maps that leave no room in many rounds. */
static ring_job shared_keys_job(int32_t dim, bool backward)
{
    ring_job job = ring_job_heads(4, 2048, KEY_HEADS * SHARING, KEY_HEADS, dim, RA_BF16);
    job.mode = RA_RING_COMM_ONLY;
    job.config.schedule = RA_SCHEDULE_DIRECT;
    job.config.comm_buffers = 1;
    job.config.layout = RA_LAYOUT_CONTIGUOUS;
    job.config.backward = backward;
    job.pattern.causal = false;
    if (dim == 2) {
        job.pattern.blocks_kind = RA_BLOCKS_RANDOM;
        job.pattern.block_size = 16;
        job.pattern.block_density = 0.3;
    }
    return job;
}

/* Whether auto should rather take so many groups in so many rounds. */
static bool is_better(int32_t groups, int32_t rounds, const outcome *than)
{
    bool const once = groups <= KEY_HEADS;
    if (once != (than->groups <= KEY_HEADS))
        return once;
    if (!once && groups != than->groups)
        return groups < than->groups;
    return rounds < than->rounds;
}

/* Every limit at which some groups in some rounds fit is met: where that does, keys travel once for
   each head of theirs, else for the fewest groups; and both in the fewest rounds. What parts of the
   queries need beside them is estimated. Tries that did not fit are not spoken of. */
static void check_shared_keys(try_job *try_it, int32_t dim, bool backward)
{
    ring_job job = shared_keys_job(dim, backward);
    captured_log said;
    int64_t peaks[SHARING * PARTS + 1][ROUNDS], least = INT64_MAX, least_whole = INT64_MAX;
    for (int32_t n = 1; n <= SHARING * PARTS; n += n < SHARING ? 1 : SHARING)
        for (int i = 0; i < ROUNDS; ++i) {
            outcome const asked = try_it(&job, n * KEY_HEADS, 1 << i, 0);
            cr_assert(asked.groups == n * KEY_HEADS && asked.rounds == 1 << i);
            peaks[n][i] = asked.peak_bytes;
            least = asked.peak_bytes < least ? asked.peak_bytes : least;
            if (n == SHARING)
                least_whole = least;
        }
    for (int p = 0; p < 2 * SHARING * ROUNDS; ++p) {
        int64_t const limit = peaks[1 + p / 2 / ROUNDS][p / 2 % ROUNDS] - p % 2;
        captured_log_begin(&said);
        outcome const made = try_it(&job, 0, 0, limit);
        ra_log_set_handler(NULL, NULL);
        cr_expect(made.status != RA_OK || (made.peak_bytes <= limit && said.count == 0), "%s",
                  said.line);
        cr_expect(limit >= least || made.status != RA_OK, "limit %lld, least %lld",
                  (long long)limit, (long long)least);
        cr_expect(limit < least_whole || made.status == RA_OK, "limit %lld, least %lld",
                  (long long)limit, (long long)least_whole);
        for (int32_t n = 1; n <= SHARING && made.status == RA_OK; ++n)
            for (int i = 0; i < ROUNDS; ++i)
                cr_expect(peaks[n][i] > limit || !is_better(n * KEY_HEADS, 1 << i, &made),
                          "limit %lld: %d groups, %d rounds, not %d, %d", (long long)limit,
                          made.groups, made.rounds, n * KEY_HEADS, 1 << i);
    }
    ring_job_free(&job);
}

Test(rounds, of_a_ring_come_before_groups_that_share_keys, .timeout = 300)
{
    check_shared_keys(run_job, 16, false);
    check_shared_keys(run_job, 16, true);
    check_shared_keys(run_job, 2, false);
}

Test(rounds, of_a_prediction_come_before_groups_that_share_keys, .timeout = 300)
{
    check_shared_keys(predict_job, 16, false);
    check_shared_keys(predict_job, 16, true);
}

/* Buffers are short down to the last round, whose maps are small beside them. */
static void check_after_all_rounds(try_job *try_it)
{
    ring_job job = ring_job_heads(2, 1024, 2, 1, 256, RA_BF16);
    ring_job_free(&job);
    job.mode = RA_RING_COMM_ONLY;
    job.config.schedule = RA_SCHEDULE_DIRECT;
    job.config.batch = 16;
    job.pattern.causal = false;
    ring_job_take_tensors(&job);
    outcome const before = try_it(&job, 1, RA_ROUNDS_MAX / 2, 0);
    outcome const last = try_it(&job, 1, RA_ROUNDS_MAX, 0);
    cr_assert_lt(last.peak_bytes, before.peak_bytes);
    outcome const made = try_it(&job, 0, 0, last.peak_bytes);
    cr_expect(made.groups == 1 && made.rounds == RA_ROUNDS_MAX && made.status == RA_OK);
    outcome const split = try_it(&job, 0, 0, last.peak_bytes - 1);
    cr_expect(split.groups == 2 && split.rounds < RA_ROUNDS_MAX && split.status == RA_OK,
              "%d groups, %d rounds, %lld bytes", split.groups, split.rounds,
              (long long)split.peak_bytes);
    ring_job_free(&job);
}

Test(rounds, give_way_to_groups_that_share_keys_when_no_number_fits, .timeout = 300)
{
    check_after_all_rounds(run_job);
    check_after_all_rounds(predict_job);
}

/* Answers for ra_choose_plans, and what it asked for. */
typedef struct told_plans {
    const ra_groups_found *found; /* in 1, 2, 4, ... rounds; lack_bytes RA_LACK_UNKNOWN: refused */
    const ra_plans_made *made;    /* of plans, one try after the other; NULL: the first fit */
    int found_count, made_count;
    int wholes, tries;
    double stretches[16]; /* of each whole plan */
    ra_plans_choice last;
    bool last_may_lack;
} told_plans;

static ra_status tell_whole(void *context, int32_t rounds, double stretch, bool may_lack,
                            ra_groups_found *found_out)
{
    told_plans *told = context;
    int const at = __builtin_ctz((unsigned)rounds);
    cr_assert(at < told->found_count && told->wholes < 16, "%d rounds", rounds);
    told->stretches[told->wholes++] = stretch;
    *found_out = told->found[at];
    return found_out->lack_bytes != RA_LACK_UNKNOWN || may_lack ? RA_OK : RA_ERR_NO_MEMORY;
}

static ra_status tell_all(void *context, ra_plans_choice choice, bool may_lack,
                          ra_plans_made *made_out)
{
    told_plans *told = context;
    told->last = choice;
    told->last_may_lack = may_lack;
    if (told->made != NULL && may_lack) {
        cr_assert_lt(told->tries, told->made_count);
        *made_out = told->made[told->tries];
    }
    ++told->tries;
    return RA_OK;
}

enum { NONE = RA_GROUPS_NONE, FUTILE = RA_GROUPS_FUTILE };

static told_plans choose_by(const ra_ring_config *c, const ra_groups_found *found, int found_count,
                            const ra_plans_made *made, int made_count)
{
    told_plans told = {.found = found, .found_count = found_count};
    told.made = made;
    told.made_count = made_count;
    ra_teams teams;
    cr_assert_eq(ra_teams_init(4, NULL, open_pool(), &teams), RA_OK);
    ra_plans_maker const maker = {c, &teams, &told, tell_whole, tell_all};
    cr_assert_eq(ra_choose_plans(&maker), RA_OK);
    ra_teams_fini(open_pool(), &teams);
    return told;
}

#define CHOOSE(config, found, made)                                                                \
    choose_by(config, found, sizeof(found) / sizeof((found)[0]), made,                             \
              sizeof(made) / sizeof((made)[0]))

/* What is chosen of plans that fit once they are made. */
static void expect_rounds(const ra_groups_found *found, int found_count, int32_t rounds, int wholes)
{
    ra_ring_config const c = {.heads = 8, .kv_heads = 2, .schedule = RA_SCHEDULE_DIRECT};
    told_plans const told = choose_by(&c, found, found_count, NULL, 0);
    cr_expect(told.last.rounds == rounds && told.wholes == wholes && told.tries == 1,
              "%d rounds after %d plans, not %d after %d", told.last.rounds, told.wholes, rounds,
              wholes);
    cr_expect_eq(told.last.groups, ra_groups_taken(found[__builtin_ctz((unsigned)rounds)]));
}

#define EXPECT_ROUNDS(rounds, wholes, ...)                                                         \
    do {                                                                                           \
        ra_groups_found const found[] = {__VA_ARGS__};                                             \
        expect_rounds(found, sizeof(found) / sizeof(found[0]), rounds, wholes);                    \
    } while (0)

Test(rounds, are_the_first_that_send_nothing_twice_or_those_of_fewest_groups)
{
    EXPECT_ROUNDS(1, 1, {2, 1, 2, 0});
    EXPECT_ROUNDS(4, 3, {8, 2, 8, 0}, {4, 2, 4, 0}, {2, 2, 2, 0});
    EXPECT_ROUNDS(2, 4, {8, 2, 8, 0}, {4, 2, 4, 0}, {4, 4, 4, 0}); /* planned again */
    EXPECT_ROUNDS(2, 2, {8, 4, 8, 0}, {4, 4, 4, 0}); /* no more rounds can do with fewer */
    EXPECT_ROUNDS(1, 1, {4, 4, 4, 0});
    EXPECT_ROUNDS(1, 3, {NONE, 4, 8, 9}, {NONE, NONE, 8, 9});
    EXPECT_ROUNDS(2, 2, {NONE, 4, 8, 9}, {NONE, NONE, 8, 5}); /* lack least */
    EXPECT_ROUNDS(1, 1, {NONE, NONE, 8, 9});
    /* There is no memory for the plan of more rounds. */
    EXPECT_ROUNDS(1, 3, {8, 2, 8, 0}, {NONE, NONE, 0, RA_LACK_UNKNOWN});
}

/* What fitted by the estimate and not once it was made stretches the estimate. */
Test(rounds, are_chosen_again_with_what_their_plans_took)
{
    ra_ring_config const c = {.heads = 8, .kv_heads = 8, .schedule = RA_SCHEDULE_DIRECT};
    ra_groups_found const fits[] = {{8, 4, 8, 0}};
    ra_plans_made const made[] = {{90, 2.5}, {50, 1}, {RA_LACK_UNKNOWN, 0}, {0, 3}};
    told_plans const told = CHOOSE(&c, fits, made);
    cr_expect_eq(told.tries, 4, "the last fit");
    cr_expect_eq(told.stretches[0], 1);
    cr_expect_eq(told.stretches[1], 2.5);
    cr_expect(told.stretches[2] > 2.74 && told.stretches[2] < 2.76, "by a tenth at least");
    cr_expect_eq(told.stretches[3], 2 * told.stretches[2], "memory did not suffice");
}

Test(rounds, are_not_chosen_again_for_ever)
{
    ra_ring_config const c = {.heads = 8, .kv_heads = 8, .schedule = RA_SCHEDULE_DIRECT};
    ra_groups_found const fits[] = {{8, 4, 8, 0}};
    ra_plans_made const made[] = {{90, 1}, {50, 1}, {60, 1}, {70, 1}, {80, 1}};
    told_plans const told = CHOOSE(&c, fits, made);
    cr_expect(told.tries == 6 && !told.last_may_lack, "%d", told.tries);
}

/* Where nothing fits by the estimate, rounds are tried from those that lack least on, and what
   lacked least once it was made is what the ring ends with. */
Test(rounds, that_lacked_least_are_taken_in_the_end)
{
    ra_ring_config const c = {.heads = 8, .kv_heads = 8, .schedule = RA_SCHEDULE_DIRECT};
    ra_groups_found const lacks[] = {{NONE, 4, 8, 70}, {NONE, 4, 16, 60}, {NONE, NONE, 32, 80}};
    ra_plans_made const one_lacks_least[] = {{90, 1}, {50, 1}, {95, 1}}; /* of 2, 1 and 4 rounds */
    ra_plans_made const two_lack_least[] = {{50, 1}, {90, 1}, {95, 1}};
    for (int rounds = 1; rounds <= 2; ++rounds) {
        told_plans const told =
            choose_by(&c, lacks, 3, rounds == 1 ? one_lacks_least : two_lack_least, 3);
        cr_expect_eq(told.tries, 4);
        cr_expect(told.last.groups == 8 * rounds && told.last.rounds == rounds,
                  "%d groups in %d rounds", told.last.groups, told.last.rounds);
        cr_expect(!told.last_may_lack);
    }
}

/* The plan of two rounds may be refused after those of one have failed. */
Test(rounds, are_returned_to_when_others_are_refused)
{
    ra_ring_config const c = {.heads = 8, .kv_heads = 8, .schedule = RA_SCHEDULE_DIRECT};
    ra_groups_found const lacks[] = {{NONE, 4, 8, 70}, {NONE, NONE, 0, RA_LACK_UNKNOWN}};
    ra_plans_made const made[] = {{90, 1}};
    told_plans const told = CHOOSE(&c, lacks, made);
    cr_expect(told.tries == 2 && !told.last_may_lack);
    cr_expect(told.last.groups == 8 && told.last.rounds == 1, "%d groups in %d rounds",
              told.last.groups, told.last.rounds);
}

Test(rounds, and_groups_that_were_asked_for_are_made_once)
{
    ra_ring_config c = {.heads = 8, .kv_heads = 8, .rounds = 1, .schedule = RA_SCHEDULE_DIRECT};
    ra_groups_found const lacks[] = {{NONE, 4, 8, 70}}, fits[] = {{8, 4, 8, 0}};
    cr_expect(!choose_by(&c, lacks, 1, NULL, 0).last_may_lack, "there are no other rounds");
    cr_expect(choose_by(&c, fits, 1, NULL, 0).last_may_lack, "but other groups");
    c.head_groups = 16;
    cr_expect(!choose_by(&c, fits, 1, NULL, 0).last_may_lack, "all is given");
}

Test(rounds, and_groups_are_made_once_where_tensors_alone_do_not_fit)
{
    ra_ring_config const c = {.heads = 8, .kv_heads = 8, .schedule = RA_SCHEDULE_DIRECT};
    ra_groups_found const futile[] = {{NONE, FUTILE, 8, 70}};
    told_plans const told = choose_by(&c, futile, 1, NULL, 0);
    cr_expect(told.wholes == 1 && told.tries == 1 && !told.last_may_lack);
}

Test(rounds, end_before_the_steps_get_too_many)
{
    ra_ring_config config = {.schedule = RA_SCHEDULE_AUTO};
    ra_teams teams;
    cr_assert_eq(ra_teams_init(64, NULL, open_pool(), &teams), RA_OK);
    cr_expect_eq(ra_plan_more_rounds(&config, &teams, 32), 64, "4,033 steps");
    cr_expect_eq(ra_plan_more_rounds(&config, &teams, 64), 0, "not beyond the most");
    ra_teams_fini(open_pool(), &teams);
    cr_assert_eq(ra_teams_init(129, NULL, open_pool(), &teams), RA_OK);
    cr_expect_eq(ra_plan_more_rounds(&config, &teams, 8), 16, "2,049 steps");
    cr_expect_eq(ra_plan_more_rounds(&config, &teams, 16), 0, "4,097 steps");
    config.rounds = 1;
    cr_expect_eq(ra_plan_more_rounds(&config, &teams, 1), 0, "asked for one");
    config.rounds = 0;
    config.schedule = RA_SCHEDULE_RING;
    cr_expect_eq(ra_plan_more_rounds(&config, &teams, 1), 0, "blocks hop");
    ra_teams_fini(open_pool(), &teams);
}

/* Predictions against what rings of all kinds have taken and sent. */
#include "ring/ring_job.h"
#include "ringattn/block_mask.h"
#include "ringattn/pattern_cache.h"
#include "ringattn/predict.h"
#include "support/captured_log.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MOST = 8 };

/* Ranks fill hosts one after the other. */
static ra_predict_request request_for(const ring_job *job, int ranks_per_node)
{
    const ra_kernel_ops *ops = job->kernel != NULL ? job->kernel : ra_kernel_cpu(RA_ISA_AUTO);
    ra_kernel_use const use = {.dim = job->config.dim, .threads = 1};
    return (ra_predict_request){.ring = job->config,
                                .standard = ops == ra_kernel_standard(),
                                .pattern = &job->pattern,
                                .ranks = job->ranks,
                                .ranks_per_node = ranks_per_node,
                                .may_share = true,
                                .tile_rows = ops->tile_rows(job->config.dtype, job->config.dim),
                                .workspace_bytes = (int64_t)ops->workspace_bytes(&use),
                                .memory_bytes = INT64_MAX};
}

static int draw_job(test_rng *rng, test_pattern *pattern, ring_job *job)
{
    bool const is_long = test_rng_chance(rng, 0.3);
    int64_t const small = test_rng_between(rng, 1, 256);
    int64_t const seq = is_long ? test_rng_between(rng, 257, 3000) : small;
    int32_t const ratio = (int32_t)test_rng_between(rng, 1, 4);
    ra_ring_config *c = &job->config;
    test_pattern_draw(rng, small, pattern);
    if (is_long) {
        pattern->config.documents = NULL;
        pattern->config.document_count = 0;
    }
    *job = (ring_job){.pattern = pattern->config,
                      .ranks = (int)test_rng_between(rng, 1, RANKS_MOST),
                      .mode = RA_RING_COMM_ONLY,
                      .timeout_ms = 60000};
    *c = (ra_ring_config){.batch = test_rng_between(rng, 1, 2), .seq = seq};
    c->kv_heads = (int32_t)test_rng_between(rng, 1, 3);
    c->heads = c->kv_heads * ratio;
    c->dim = (int32_t)test_rng_between(rng, 1, 40);
    c->dtype = (ra_dtype)test_rng_between(rng, 0, 2);
    c->layout = (ra_layout_kind)test_rng_between(rng, 0, RA_LAYOUT_AUTO);
    c->schedule = (ra_schedule)test_rng_between(rng, 0, RA_SCHEDULE_AUTO);
    c->comm_buffers = (int)test_rng_between(rng, 0, 2);
    c->head_groups = ring_job_draw_groups(rng, c);
    c->backward = test_rng_chance(rng, 0.5);
    c->dense_mask = test_rng_chance(rng, 0.3);
    if (c->schedule != RA_SCHEDULE_RING && test_rng_chance(rng, 0.4))
        c->rounds = (int32_t)test_rng_between(rng, 1, 5);
    int const ranks_per_node = (int)test_rng_between(rng, 1, job->ranks);
    for (int r = 0; r < job->ranks; ++r)
        job->hosts[r] = r / ranks_per_node;
    return ranks_per_node;
}

static void describe(const ring_job *job, char *text, size_t bytes)
{
    const ra_ring_config *c = &job->config;
    int const used =
        snprintf(text, bytes,
                 "ranks %d batch %lld seq %lld heads %d/%d dim %d dtype %d layout %d schedule %d "
                 "buffers %d groups %d rounds %d backward %d mask %d hosts %d ",
                 job->ranks, (long long)c->batch, (long long)c->seq, c->heads, c->kv_heads, c->dim,
                 c->dtype, c->layout, c->schedule, c->comm_buffers, c->head_groups, c->rounds,
                 c->backward, c->dense_mask, job->hosts[job->ranks - 1] + 1);
    test_pattern_print(&job->pattern, text + used, bytes - (size_t)used);
}

static void compare(const ring_job *job, const ra_prediction *p, const char *what)
{
    static const ra_category standing[] = {RA_MEM_TILEMAP, RA_MEM_ACCUMULATOR, RA_MEM_WORKSPACE,
                                           RA_MEM_COMM_BUFFER};
    static const ra_category passing[] = {RA_MEM_WORKSPACE, RA_MEM_COMM_BUFFER};
    const ra_ledger_snapshot *held = &job->standing[p->fullest_rank];
    cr_assert_eq(p->layout, job->info.layout, "%s: layout %d, not %d", what, p->layout,
                 job->info.layout);
    cr_assert_eq(p->schedule, job->info.schedule, "%s", what);
    cr_assert_float_eq(p->imbalance, job->info.imbalance, 1e-12, "%s: imbalance %g, not %g", what,
                       p->imbalance, job->info.imbalance);
    cr_assert_eq((int64_t)p->live_pairs, job->live_pairs, "%s: pairs %g, not %lld", what,
                 p->live_pairs, (long long)job->live_pairs);
    cr_assert_eq((int64_t)p->sent_bytes, job->sent_bytes, "%s: sent %g, not %lld", what,
                 p->sent_bytes, (long long)job->sent_bytes);
    cr_assert_eq((int64_t)p->full_ring_bytes, job->info.full_ring_bytes, "%s", what);
    cr_assert_eq(p->tilemap_bytes, job->tilemap_bytes, "%s: maps %lld, not %lld", what,
                 (long long)p->tilemap_bytes, (long long)job->tilemap_bytes);
    for (size_t i = 0; i < sizeof(standing) / sizeof(standing[0]); ++i) {
        ra_category const category = standing[i];
        if (category == RA_MEM_WORKSPACE && job->config.comm_buffers == 0)
            continue; /* steps take some and give it back: see peaks below */
        cr_assert_eq(p->memory_bytes[category], held->current_bytes[category],
                     "%s: rank %d, %s: %lld, not %lld", what, p->fullest_rank,
                     ra_category_name(category), (long long)p->memory_bytes[category],
                     (long long)held->current_bytes[category]);
    }
    for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); ++i)
        cr_assert_eq(p->memory_bytes[passing[i]], held->peak_bytes[passing[i]],
                     "%s: rank %d: %s at most %lld, not %lld", what, p->fullest_rank,
                     ra_category_name(passing[i]), (long long)p->memory_bytes[passing[i]],
                     (long long)held->peak_bytes[passing[i]]);
    if (job->config.comm_buffers == 0)
        cr_assert_eq(held->alloc_count[RA_MEM_COMM_BUFFER], 0, "%s", what);
}

/* A job cut into more pieces than are looked at says so, and is near. */
static void compare_sampled(const ring_job *job, const ra_prediction *p, const char *what)
{
    const ra_ledger_snapshot *held = &job->standing[p->fullest_rank];
    double const maps = (double)held->current_bytes[RA_MEM_TILEMAP];
    cr_assert_float_eq(p->live_pairs / (double)job->live_pairs, 1, 0.02, "%s: pairs %g, not %lld",
                       what, p->live_pairs, (long long)job->live_pairs);
    cr_assert_float_eq((double)p->memory_bytes[RA_MEM_TILEMAP] / maps, 1, 0.02,
                       "%s: maps %lld, not %g", what, (long long)p->memory_bytes[RA_MEM_TILEMAP],
                       maps);
}

/* The most that a rank's pool held at a time. The tensors are not in it, so this is below the peak,
   unless that comes before them. */
static int64_t most_without_tensors(const ring_job *job)
{
    int64_t most = 0;
    for (int r = 0; r < job->ranks; ++r)
        if (job->standing[r].reserved_peak_bytes > most)
            most = job->standing[r].reserved_peak_bytes;
    return most;
}

Test(predict, is_exactly_what_the_ledger_and_the_counters_of_a_ring_say, .timeout = 1200)
{
    enum { CASES = 600, SAMPLED_MOST = CASES / 100 };
    const char *seed = getenv("RA_TEST_SEED");
    test_rng rng = {seed != NULL ? strtoull(seed, NULL, 10) : 7};
    int sampled = 0;
    for (int n = 0; n < CASES; ++n) {
        ra_ledger_snapshot standing[RANKS_MOST];
        test_pattern pattern;
        ring_job job;
        char what[800];
        ra_prediction prediction;
        uint64_t const state = rng.state;
        int const ranks_per_node = draw_job(&rng, &pattern, &job);
        describe(&job, what, sizeof(what));
        job.standing = standing;
        ring_job_take_tensors(&job);
        ring_job_run(&job);
        cr_assert_eq(job.status, RA_OK, "state %llu: %s", (unsigned long long)state, what);
        ra_predict_request const request = request_for(&job, ranks_per_node);
        cr_assert_eq(ra_predict(&request, &prediction), RA_OK, "%s", what);
        if (prediction.counted)
            compare(&job, &prediction, what);
        else
            compare_sampled(&job, &prediction, what);
        sampled += !prediction.counted;
        cr_assert(!prediction.exact || most_without_tensors(&job) <= prediction.peak_bytes,
                  "%s: %lld bytes without tensors, and %lld with them", what,
                  (long long)most_without_tensors(&job), (long long)prediction.peak_bytes);
        ra_prediction_fini(&prediction);
        ring_job_free(&job);
    }
    cr_assert_leq(sampled, SAMPLED_MOST, "%d of %d jobs were not looked at whole", sampled, CASES);
}

/* Rows that branches of several rates leave partly unread, in shares of so many that what repeats
   is not looked at row by row. */
Test(predict, counts_the_rows_of_long_shares_exactly, .timeout = 600)
{
    enum { CASES = 60, BRANCHES_MOST = 3, SEQ_LEAST = 8000, SEQ_MOST = 48000 };
    static const int64_t rates[] = {2, 3, 4, 5, 6, 8, 12, 16, 20, 60, 512, 1024};
    test_rng rng = {11};
    for (int n = 0; n < CASES; ++n) {
        int64_t segments[BRANCHES_MOST], strides[BRANCHES_MOST];
        ra_ledger_snapshot standing[RANKS_MOST];
        ra_prediction prediction;
        char what[800];
        ring_job job = ring_job_heads((int)test_rng_between(&rng, 2, 4),
                                      test_rng_between(&rng, SEQ_LEAST, SEQ_MOST),
                                      (int32_t)test_rng_between(&rng, 1, 2), 1, 1, RA_BF16);
        int64_t const seq = job.config.seq;
        job.mode = RA_RING_COMM_ONLY;
        job.standing = standing;
        job.config.layout = (ra_layout_kind)test_rng_between(&rng, 0, RA_LAYOUT_AUTO);
        job.config.schedule = RA_SCHEDULE_DIRECT;
        job.config.backward = test_rng_chance(&rng, 0.5);
        job.pattern.causal = test_rng_chance(&rng, 0.5);
        job.pattern.branch_count = test_rng_between(&rng, 2, BRANCHES_MOST);
        job.pattern.segments = segments;
        job.pattern.rates = strides;
        for (int64_t i = 0; i < job.pattern.branch_count; ++i) {
            segments[i] = test_rng_chance(&rng, 0.5) ? seq : test_rng_between(&rng, seq / 4, seq);
            strides[i] = rates[test_rng_between(&rng, 0, sizeof(rates) / sizeof(rates[0]) - 1)];
        }
        describe(&job, what, sizeof(what));
        ring_job_run(&job);
        cr_assert_eq(job.status, RA_OK, "%s", what);
        ra_predict_request const request = request_for(&job, job.ranks);
        cr_assert_eq(ra_predict(&request, &prediction), RA_OK, "%s", what);
        cr_assert(prediction.counted, "%s", what);
        compare(&job, &prediction, what);
        ra_prediction_fini(&prediction);
        ring_job_free(&job);
    }
}

/* Rows of shares that are longer than any bitmap of theirs. */
Test(predict, counts_rows_that_repeat_in_shares_of_any_length)
{
    enum { SHARE = 24000000, RANKS = 2, RATES = 2 };
    static const int64_t rates[][RATES] = {{3, 8}, {3, 128}, {10, 2500}};
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); ++i) {
        ring_job job = ring_job_heads(RANKS, RANKS * (int64_t)SHARE, 1, 1, 1, RA_BF16);
        int64_t const both = ra_lcm_i64(rates[i][0], rates[i][1]);
        ra_prediction p;
        job.config.layout = RA_LAYOUT_CONTIGUOUS;
        job.config.schedule = RA_SCHEDULE_DIRECT;
        job.config.backward = false;
        job.pattern.segments = (const int64_t[RATES]){job.config.seq, job.config.seq};
        job.pattern.rates = rates[i];
        job.pattern.branch_count = RATES;
        job.pattern.causal = true;
        ra_predict_request const request = request_for(&job, 1);
        cr_assert_eq(ra_predict(&request, &p), RA_OK);
        int64_t const rows = SHARE / rates[i][0] + SHARE / rates[i][1] - SHARE / both;
        cr_expect_eq((int64_t)p.sent_bytes, 2 * rows * (int64_t)sizeof(uint16_t),
                     "rates %lld and %lld: %g for %lld rows", (long long)rates[i][0],
                     (long long)rates[i][1], p.sent_bytes, (long long)rows);
        ra_prediction_fini(&p);
        ring_job_free(&job);
    }
}

/* Blocks of a list that outlives the job. */
static void keep_pairs(ring_job *job, int32_t (*pairs)[2], int64_t count, int64_t block_size)
{
    job->pattern.blocks_kind = RA_BLOCKS_LIST;
    job->pattern.block_size = block_size;
    job->pattern.block_pairs = (const int32_t(*)[2])pairs;
    job->pattern.block_pair_count = count;
}

/* Query 0 sees every other key, and the others none; a list of so many pairs, some of them again
   and again. */
static ring_job job_of_one_busy_row(int ranks, int64_t seq, int32_t dim, int64_t pair_count)
{
    enum { PAIRS_MOST = 1 << 19 };
    static int32_t pairs[PAIRS_MOST][2];
    ring_job job = ring_job_heads(ranks, seq, 1, 1, dim, RA_BF16);
    cr_assert_leq(pair_count, PAIRS_MOST);
    for (int64_t i = 0; i < pair_count; ++i)
        pairs[i][1] = (int32_t)(2 * i < seq ? 2 * i : 0);
    job.mode = RA_RING_COMM_ONLY;
    job.config.layout = RA_LAYOUT_CONTIGUOUS;
    job.config.schedule = RA_SCHEDULE_AUTO;
    job.config.backward = false;
    job.pattern.causal = false;
    keep_pairs(&job, pairs, pair_count, 1);
    return job;
}

/* Maps are cut, and blocks listed, before there are tensors. The pairs of blocks, what the kernel
   works in, and keys that others read in place are there then, and do not make room for it. */
Test(predict, is_not_exact_where_the_peak_comes_before_the_tensors)
{
    static const struct {
        const char *what;
        int ranks, dim;
        int64_t seq, pairs;
    } cases[] = {{"a row of many runs", 1, 8, 4100, 2050},
                 {"beside the kernel's workspace", 1, 15, 2050, 1025},
                 {"beside keys that are read in place", 2, 65, 8200, 4100},
                 {"beside a list of blocks", 1, 16, 4100, 66000},
                 {"a list of blocks alone", 1, 64, 64, 1 << 19}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        ra_ledger_snapshot standing[RANKS_MOST];
        ra_prediction p;
        ring_job job =
            job_of_one_busy_row(cases[i].ranks, cases[i].seq, cases[i].dim, cases[i].pairs);
        job.standing = standing;
        ring_job_run(&job);
        cr_assert_eq(job.status, RA_OK, "%s", cases[i].what);
        ra_predict_request request = request_for(&job, cases[i].ranks);
        request.pair_bytes = cases[i].pairs * (int64_t)sizeof(*job.pattern.block_pairs);
        cr_assert_eq(ra_predict(&request, &p), RA_OK, "%s", cases[i].what);
        int64_t const early = request.pair_bytes + most_without_tensors(&job);
        cr_expect_gt(early, p.peak_bytes, "%s: %lld bytes, and %lld later", cases[i].what,
                     (long long)early, (long long)p.peak_bytes);
        cr_expect(p.counted && !p.exact, "%s", cases[i].what);
        ra_prediction_fini(&p);
        ring_job_free(&job);
    }
}

/* Of a team's step backward they are computed owner by owner, and of those with a live pair. */
Test(predict, counts_the_scores_of_ranks_on_several_hosts)
{
    enum { CASES = 80 };
    test_rng rng = {31};
    int several = 0;
    if (ra_kernel_standard() == NULL)
        cr_skip_test("OpenBLAS is not installed");
    for (int n = 0; n < CASES; ++n) {
        ra_ledger_snapshot standing[RANKS_MOST];
        test_pattern pattern;
        ring_job job;
        char what[800];
        ra_prediction p;
        int const ranks_per_node = draw_job(&rng, &pattern, &job);
        job.config.seq = job.config.seq > 256 ? 128 : job.config.seq;
        job.config.comm_buffers = 1 + n % 2; /* without them scores need not be at the peak */
        job.config.dense_mask = false;
        job.kernel = ra_kernel_standard();
        if (job.config.head_groups > job.config.heads)
            job.config.head_groups = job.config.heads;
        job.mode = 0;
        job.standing = standing;
        describe(&job, what, sizeof(what));
        ring_job_take_tensors(&job);
        ring_job_run(&job);
        cr_assert_eq(job.status, RA_OK, "%s", what);
        ra_predict_request const request = request_for(&job, ranks_per_node);
        cr_assert_eq(ra_predict(&request, &p), RA_OK, "%s", what);
        int64_t const held = standing[p.fullest_rank].peak_bytes[RA_MEM_SCORES];
        cr_assert_eq(p.memory_bytes[RA_MEM_SCORES], held, "%s: rank %d: %lld, not %lld", what,
                     p.fullest_rank, (long long)p.memory_bytes[RA_MEM_SCORES], (long long)held);
        several += job.info.schedule == RA_SCHEDULE_SHARED && job.hosts[job.ranks - 1] > 0 &&
                   ranks_per_node > 1 && job.config.backward;
        ra_prediction_fini(&p);
        ring_job_free(&job);
    }
    cr_expect_geq(several, 5, "%d", several);
}

/* Ranks of one host exchange nothing: rounds leave their plan as it is, and as sure. */
Test(predict, rounds_leave_a_host_alone_as_it_is)
{
    ra_pattern_config pattern = ra_pattern_config_dense();
    ra_predict_request request = {.ring = {.batch = 1,
                                           .seq = 1 << 20,
                                           .heads = 1,
                                           .kv_heads = 1,
                                           .dim = 64,
                                           .layout = RA_LAYOUT_CONTIGUOUS,
                                           .schedule = RA_SCHEDULE_AUTO,
                                           .head_groups = 1},
                                  .pattern = &pattern,
                                  .ranks = 64,
                                  .ranks_per_node = 64,
                                  .may_share = true,
                                  .tile_rows = 256,
                                  .threads = 1,
                                  .memory_bytes = INT64_MAX};
    ra_prediction one, many;
    pattern.causal = true;
    cr_assert_eq(ra_predict(&request, &one), RA_OK);
    request.ring.rounds = RA_ROUNDS_MAX;
    cr_assert_eq(ra_predict(&request, &many), RA_OK);
    cr_expect(one.counted && many.counted);
    cr_expect_eq(memcmp(one.memory_bytes, many.memory_bytes, sizeof(one.memory_bytes)), 0);
    ra_prediction_fini(&one);
    ra_prediction_fini(&many);
}

/* Scores of standard attention, and states of cumsum, pass 2^63 bytes: on one rank, and of many. */
static void check_growth(bool standard, bool backward, int ranks)
{
    ra_pattern_config pattern = ra_pattern_config_dense();
    pattern.causal = true;
    pattern.window_left = 1024;
    ra_predict_request request = {.ring = {.batch = 1,
                                           .heads = 32,
                                           .kv_heads = 32,
                                           .dim = 128,
                                           .layout = RA_LAYOUT_CONTIGUOUS,
                                           .schedule = RA_SCHEDULE_AUTO,
                                           .head_groups = 1,
                                           .backward = backward,
                                           .linear = standard ? RA_LINEAR_NONE : RA_LINEAR_CAUSAL,
                                           .linear_method = RA_LINEAR_CUMSUM},
                                  .standard = standard,
                                  .pattern = &pattern,
                                  .ranks = ranks,
                                  .ranks_per_node = 1,
                                  .tile_rows = 256,
                                  .threads = 1,
                                  .memory_bytes = INT64_MAX};
    int64_t before = 0;
    for (int bits = 10; bits <= 31; bits += 3) {
        int64_t const seq = ((int64_t)1 << bits) - 1;
        ra_prediction p;
        request.ring.seq = seq;
        cr_assert_eq(ra_predict(&request, &p), RA_OK);
        double const floats = standard ? 2.0 * (double)seq * (double)seq / ranks / ranks
                                       : (double)seq * 128.0 * 129.0 / ranks;
        cr_expect_geq((double)p.peak_bytes, fmin(0x1p60, 0.9 * 4 * 32 * floats),
                      "%d ranks, seq %lld: %lld bytes", ranks, (long long)seq,
                      (long long)p.peak_bytes);
        cr_expect_geq(p.peak_bytes, before, "%d ranks, seq %lld", ranks, (long long)seq);
        before = p.peak_bytes;
        ra_prediction_fini(&p);
    }
}

Test(predict, needs_no_less_of_a_longer_sequence, .timeout = 600)
{
    for (int ranks = 1; ranks <= 4; ranks += 3) {
        check_growth(true, false, ranks);
        check_growth(true, true, ranks);
        check_growth(false, false, ranks);
    }
}

/* A plan for each of many groups: going through all heads for each would take hours. */
Test(predict, of_a_head_group_does_not_go_through_the_other_heads, .timeout = 60)
{
    enum { HEADS = 1 << 30, GROUPS = 2000, SEQ = 64 };
    static const int64_t segments[] = {32, 64}, rates[] = {1, 4};
    ring_job job = {.pattern = ra_pattern_config_dense(), .ranks = 1};
    job.pattern.segments = segments;
    job.pattern.rates = rates;
    job.pattern.branch_count = 2;
    job.config = (ra_ring_config){
        .batch = 1, .seq = SEQ, .heads = HEADS, .kv_heads = HEADS, .dim = 1, .head_groups = GROUPS};
    ra_predict_request const request = request_for(&job, 1);
    ra_prediction p;
    cr_assert_eq(ra_predict(&request, &p), RA_OK);
    cr_expect_eq(p.head_groups, GROUPS);
    /* All heads have the first branch, and each one offset of the second. */
    cr_expect_eq(p.live_pairs, (double)HEADS * (2 * 32 * 32 + 16 * 16));
    ra_prediction_fini(&p);
}

typedef struct test_map {
    int64_t bytes, live_pairs;
} test_map;

/* Of all rows against themselves, made with its mask. */
static test_map make_map(const ring_job *job, int32_t tile_rows)
{
    const ra_ring_config *c = &job->config;
    ra_range const all = {0, 1, c->seq};
    ra_ledger *ledger;
    ra_pool *pool;
    ra_pattern *pattern;
    ra_rowset rows;
    ra_tilemap map;
    cr_assert_eq(ra_ledger_create(INT64_MAX, &ledger), RA_OK);
    ra_pool_config const config = {
        .mode = RA_POOL_OFF, .memory = ra_memory_host(), .ledger = ledger};
    cr_assert_eq(ra_pool_create(&config, &pool), RA_OK);
    cr_assert_eq(ra_pattern_create(&job->pattern, c->seq, c->heads, pool, &pattern), RA_OK);
    cr_assert_eq(ra_rowset_init(pool, &all, 1, &rows), RA_OK);
    ra_map_request const request = {pattern, {0, 1, c->heads}, &rows, &rows, tile_rows, false};
    cr_assert_eq(ra_tilemap_init_dense(&request, pool, &map), RA_OK);
    test_map const made = {map.bytes, map.live_pairs};
    ra_tilemap_fini(pool, &map);
    ra_rowset_fini(pool, &rows);
    ra_pattern_destroy(pattern);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
    return made;
}

/* Tiles of any height: a chunk may end within a block of queries. */
Test(predict, counts_what_a_block_mask_makes_of_a_pattern_for_tiles_of_any_height)
{
    enum { CASES = 400 };
    test_rng rng = {23};
    for (int n = 0; n < CASES; ++n) {
        test_pattern drawn;
        ring_job job;
        char what[800];
        ra_prediction prediction;
        (void)draw_job(&rng, &drawn, &job);
        job.ranks = 1;
        job.config.dense_mask = true;
        job.config.schedule = RA_SCHEDULE_AUTO;
        job.config.layout = RA_LAYOUT_CONTIGUOUS;
        job.config.head_groups = 1;
        describe(&job, what, sizeof(what));
        ra_predict_request request = request_for(&job, 1);
        request.tile_rows = (int32_t)test_rng_between(&rng, 1, 300);
        test_map const map = make_map(&job, request.tile_rows);
        cr_assert_eq(ra_predict(&request, &prediction), RA_OK, "%s", what);
        cr_assert(prediction.counted, "%s", what);
        cr_assert_eq(prediction.tilemap_bytes, map.bytes, "%s: tiles of %d: %lld, not %lld", what,
                     request.tile_rows, (long long)prediction.tilemap_bytes, (long long)map.bytes);
        cr_assert_eq((int64_t)prediction.live_pairs, map.live_pairs * job.config.batch, "%s", what);
        ra_prediction_fini(&prediction);
    }
}

/* Far more chunks than are looked at: queries within the window of a shard's ends carry state. */
Test(predict, finds_the_edges_of_shards_that_are_not_looked_at_whole)
{
    enum { RANKS = 16, DIM = 64, SHARD = 1 << 20, WIDTH = 20000, TILE_ROWS = 256 };
    ra_pattern_config pattern = ra_pattern_config_dense();
    pattern.blocks_kind = RA_BLOCKS_LOCAL_WINDOW;
    pattern.block_size = 1;
    pattern.block_width = WIDTH;
    ra_predict_request const request = {.ring = {.batch = 1,
                                                 .seq = (int64_t)RANKS * SHARD,
                                                 .heads = 1,
                                                 .kv_heads = 1,
                                                 .dim = DIM,
                                                 .dtype = RA_BF16,
                                                 .layout = RA_LAYOUT_CONTIGUOUS,
                                                 .schedule = RA_SCHEDULE_DIRECT,
                                                 .head_groups = 1},
                                        .pattern = &pattern,
                                        .ranks = RANKS,
                                        .ranks_per_node = 1,
                                        .tile_rows = TILE_ROWS,
                                        .threads = 1,
                                        .memory_bytes = INT64_MAX};
    int64_t const chunks = 2 * ((WIDTH + TILE_ROWS - 1) / TILE_ROWS);
    ra_prediction p;
    cr_assert_eq(ra_predict(&request, &p), RA_OK);
    cr_expect_not(p.counted);
    cr_expect_eq(p.memory_bytes[RA_MEM_ACCUMULATOR], chunks * TILE_ROWS * (DIM + 2) * 4, "%lld",
                 (long long)p.memory_bytes[RA_MEM_ACCUMULATOR]);
    ra_prediction_fini(&p);
}

/* Run a job with a cache, and compare what that keeps, and what it does not, with the prediction.
 */
static void expect_kept(ring_job *job, ra_cache_mode mode, int64_t entries, int64_t bytes)
{
    ra_ledger_snapshot standing[RANKS_MOST];
    ra_prediction prediction;
    job->standing = standing;
    for (int r = 0; r < job->ranks; ++r) {
        ra_pattern_cache_config const config = {
            .mode = mode, .entries = entries, .bytes = bytes, .memory = ra_memory_host()};
        cr_assert_eq(ra_pattern_cache_create(&config, &job->caches[r]), RA_OK);
    }
    ring_job_run(job);
    cr_assert_eq(job->status, RA_OK);
    ra_predict_request request = request_for(job, 1);
    request.cache = mode;
    request.cache_entries = entries;
    request.cache_bytes = bytes;
    cr_assert_eq(ra_predict(&request, &prediction), RA_OK);
    int64_t const kept = standing[prediction.fullest_rank].current_bytes[RA_MEM_PATTERN_CACHE];
    cr_expect(kept > 0 || mode == RA_CACHE_LAZY);
    cr_expect_eq(prediction.memory_bytes[RA_MEM_PATTERN_CACHE], kept, "%lld, not %lld",
                 (long long)prediction.memory_bytes[RA_MEM_PATTERN_CACHE], (long long)kept);
    int64_t const rest = standing[prediction.fullest_rank].current_bytes[RA_MEM_TILEMAP];
    cr_expect_eq(prediction.memory_bytes[RA_MEM_TILEMAP], rest, "%lld, not %lld",
                 (long long)prediction.memory_bytes[RA_MEM_TILEMAP], (long long)rest);
    ra_prediction_fini(&prediction);
    for (int r = 0; r < job->ranks; ++r)
        ra_pattern_cache_destroy(job->caches[r]);
}

static void expect_kept_bytes(ring_job *job, ra_cache_mode mode)
{
    expect_kept(job, mode, 64, 1 << 24);
    ring_job_free(job);
}

/* What is kept of a list: neighbours and repeated blocks are one run. */
Test(predict, counts_the_list_of_blocks_that_a_pattern_cache_keeps_with_each_map)
{
    enum { ROWS = 40, PAIRS = 3 * ROWS };
    static int32_t pairs[PAIRS][2];
    for (int32_t i = 0; i < PAIRS; ++i) /* in each row two neighbours, one of them twice */
        pairs[i][0] = i % ROWS, pairs[i][1] = (i % ROWS + (i < ROWS)) % ROWS;
    ring_job job = ring_job_waves(2, ROWS * 16, 8, 0, RA_SCHEDULE_DIRECT);
    job.config.layout = RA_LAYOUT_CONTIGUOUS;
    keep_pairs(&job, pairs, PAIRS, 16);
    expect_kept_bytes(&job, RA_CACHE_EAGER);
}

/* 7 blocks of 25 are a density of 0.28, though 0.28 * 25 is more than 7 in float64. One distance
   more would make the keys of zigzag's three pieces a line longer. */
Test(predict, counts_the_distances_that_reach_a_density_exactly)
{
    ring_job job = ring_job_waves(2, 25 * 16, 8, 0, RA_SCHEDULE_DIRECT);
    job.config.layout = RA_LAYOUT_ZIGZAG;
    job.pattern.blocks_kind = RA_BLOCKS_DILATED_SPARSE;
    job.pattern.block_size = 16;
    job.pattern.block_density = 0.28;
    expect_kept_bytes(&job, RA_CACHE_EAGER);
}

/* Of a rank's steps but the first two: a lazy cache makes it twice and keeps it once, if it is
   asked for twice. */
Test(predict, counts_the_map_without_keys_that_a_cache_keeps)
{
    for (int i = 0; i < 4; ++i) {
        int const ranks = i < 2 ? 6 : 3;
        ring_job job = ring_job_waves(ranks, 600, 8, 0, RA_SCHEDULE_DIRECT);
        job.config.layout = RA_LAYOUT_CONTIGUOUS;
        job.pattern.window_left = 8;
        for (int r = 0; r < ranks; ++r)
            job.hosts[r] = r;
        expect_kept_bytes(&job, i % 2 == 0 ? RA_CACHE_EAGER : RA_CACHE_LAZY);
    }
}

/* Of a rank's own keys, of its neighbour's, and without keys. */
Test(predict, is_exact_where_a_cache_has_an_entry_for_every_map)
{
    ring_job job = ring_job_waves(6, 600, 8, 0, RA_SCHEDULE_DIRECT);
    job.config.layout = RA_LAYOUT_CONTIGUOUS;
    job.pattern.window_left = 8;
    ra_predict_request request = request_for(&job, 1);
    request.cache = RA_CACHE_EAGER;
    request.cache_bytes = 1 << 24;
    for (request.cache_entries = 2; request.cache_entries <= 3; ++request.cache_entries) {
        ra_prediction p;
        cr_assert_eq(ra_predict(&request, &p), RA_OK);
        cr_expect_eq(p.exact, request.cache_entries == 3, "%lld entries",
                     (long long)request.cache_entries);
        ra_prediction_fini(&p);
    }
    ring_job_free(&job);
}

/* All alike, as those of dense attention are, so that it does not matter which are kept. */
Test(predict, counts_as_many_maps_as_a_cache_has_room_for)
{
    enum { MAPS = 4 };
    ring_job job = ring_job_waves(MAPS, MAPS * 400, 8, 0, RA_SCHEDULE_DIRECT);
    ra_prediction p;
    job.config.layout = RA_LAYOUT_CONTIGUOUS;
    job.pattern.causal = false;
    for (int r = 0; r < MAPS; ++r)
        job.hosts[r] = r;
    ra_predict_request request = request_for(&job, 1);
    request.cache = RA_CACHE_EAGER;
    request.cache_entries = MAPS;
    request.cache_bytes = 1 << 24;
    cr_assert_eq(ra_predict(&request, &p), RA_OK);
    int64_t const bytes = p.memory_bytes[RA_MEM_PATTERN_CACHE] / MAPS;
    ra_prediction_fini(&p);
    for (int most = 1; most <= MAPS; ++most) {
        expect_kept(&job, RA_CACHE_EAGER, most, 1 << 24);
        expect_kept(&job, RA_CACHE_EAGER, 64, most * bytes);
    }
    ring_job_free(&job);
}

/* Each rank has rows that others need, and passes on those of others besides. */
Test(predict, takes_the_same_sums_whether_rows_hop_or_not)
{
    ring_job job = ring_job_heads(3, 192, 1, 1, 8, RA_BF16);
    int64_t bytes[2];
    job.config.layout = RA_LAYOUT_CONTIGUOUS;
    job.pattern.causal = false;
    ra_predict_request request = request_for(&job, 1);
    request.stores = (ra_stored_grads){.dq = true, .dkv = true};
    for (int hops = 0; hops < 2; ++hops) {
        ra_prediction p;
        request.ring.schedule = hops == 1 ? RA_SCHEDULE_RING : RA_SCHEDULE_DIRECT;
        cr_assert_eq(ra_predict(&request, &p), RA_OK);
        bytes[hops] = p.memory_bytes[RA_MEM_ACCUMULATOR];
        ra_prediction_fini(&p);
    }
    cr_expect_eq(bytes[0], bytes[1], "%lld and %lld bytes", (long long)bytes[0],
                 (long long)bytes[1]);
    ring_job_free(&job);
}

/* Rank 1 passes a row of rank 0 on to rank 2, and has none that another needs: nothing is added to
   the gradients of its keys, which a kernel may store at once. Its many runs make it the fullest.
 */
Test(predict, takes_no_sums_for_rows_that_are_only_passed_on)
{
    enum { ROWS = 64, PAIRS = 2 * ROWS + 1 + ROWS * ROWS / 2 };
    static int32_t pairs[PAIRS][2];
    int count = 0;
    for (int32_t i = 0; i < 3 * ROWS; ++i)
        for (int32_t j = i / ROWS == 1 ? ROWS : i; j < 2 * ROWS || j == i; j += 2) {
            pairs[count][0] = i, pairs[count++][1] = j;
            if (i / ROWS != 1)
                break;
        }
    pairs[count][0] = 2 * ROWS, pairs[count++][1] = 0;
    cr_assert_eq(count, PAIRS);
    ring_job job = ring_job_heads(3, 3 * ROWS, 1, 1, 1, RA_BF16);
    ra_prediction p;
    job.config.layout = RA_LAYOUT_CONTIGUOUS;
    job.config.schedule = RA_SCHEDULE_RING;
    job.pattern.causal = false;
    keep_pairs(&job, pairs, PAIRS, 1);
    ra_predict_request request = request_for(&job, 1);
    request.stores = (ra_stored_grads){.dq = true, .dkv = true};
    cr_assert_eq(ra_predict(&request, &p), RA_OK);
    cr_expect_eq(p.fullest_rank, 1);
    cr_expect_gt(p.sent_bytes, 0);
    cr_expect_eq(p.memory_bytes[RA_MEM_ACCUMULATOR], ROWS * (int64_t)sizeof(float), "delta: %lld",
                 (long long)p.memory_bytes[RA_MEM_ACCUMULATOR]);
    ra_prediction_fini(&p);
    ring_job_free(&job);
}

/* Also where no backward pass reads it; of linear attention there is none. */
Test(predict, counts_lse_where_it_is_kept)
{
    enum { SEQ = 2048, RANKS = 2 };
    ring_job job = ring_job_plain(RANKS, SEQ, 8);
    job.config.backward = false;
    job.config.layout = RA_LAYOUT_CONTIGUOUS;
    ra_predict_request request = request_for(&job, 1);
    for (int keeps = 0; keeps < 2; ++keeps) {
        ra_prediction p;
        request.ring.lse_follows = keeps == 1;
        cr_assert_eq(ra_predict(&request, &p), RA_OK);
        cr_expect_eq(p.memory_bytes[RA_MEM_LSE], keeps * SEQ / RANKS * (int64_t)sizeof(float));
        ra_prediction_fini(&p);
    }
    ra_prediction linear;
    request.ring.linear = RA_LINEAR_BIDIRECTIONAL;
    request.ring.schedule = RA_SCHEDULE_AUTO;
    cr_assert_eq(ra_predict(&request, &linear), RA_OK);
    cr_expect_eq(linear.memory_bytes[RA_MEM_LSE], 0);
    ra_prediction_fini(&linear);
    ring_job_free(&job);
}

/* Where ranks begin is counted without passing what 64 bits hold. */
Test(predict, rows_of_the_longest_sequences_are_dealt)
{
    enum { RANKS = 4096 };
    ring_job job = ring_job_heads(1, 100, 1, 1, 1, RA_F32);
    ra_predict_request request = request_for(&job, 1);
    ra_pattern_config const dense = ra_pattern_config_dense();
    ra_prediction p;
    request.ranks = RANKS;
    request.pattern = &dense;
    request.ring.seq = INT64_C(1) << 52;
    request.ring.linear = RA_LINEAR_BIDIRECTIONAL;
    request.ring.layout = RA_LAYOUT_CONTIGUOUS;
    request.ring.schedule = RA_SCHEDULE_AUTO;
    request.ring.scale = 0;
    request.ring.backward = false;
    cr_assert_eq(ra_predict(&request, &p), RA_OK);
    cr_expect_eq(p.rows, request.ring.seq / RANKS);
    ra_prediction_fini(&p);
    ring_job_free(&job);
}

/* What ra_ring_create refuses whatever the pattern is. */
Test(predict, refuses_what_no_ring_has)
{
    captured_log said;
    ring_job job = ring_job_heads(2, 100, 16, 4, 2, RA_F32);
    ra_predict_request const good = request_for(&job, 1);
    ra_predict_request bad[] = {good, good, good, good, good, good,
                                good, good, good, good, good, good};
    ra_prediction out;
    bad[0].ring.kv_heads = 0;
    bad[1].ring.kv_heads = 3;
    bad[2].ring.dim = 0;
    bad[3].ring.dtype = (ra_dtype)7;
    bad[4].ring.head_groups = -1;
    bad[5].ring.batch = -1;
    bad[6].ring.seq = INT64_C(1) << 56;
    bad[7].ring.linear = (ra_linear_kind)7;
    bad[8].ring.linear = RA_LINEAR_CAUSAL;
    bad[8].ring.linear_method = (ra_linear_method)9000000;
    bad[9].ring.linear = RA_LINEAR_BIDIRECTIONAL;
    bad[9].ring.layout = RA_LAYOUT_STRIPED;
    bad[10].ring.head_groups = 16 * (RA_QUERY_PARTS_MAX + 1);
    bad[11].ring.head_groups = 16 * 2;
    bad[11].standard = true;
    cr_assert_eq(ra_predict(&good, &out), RA_OK);
    ra_prediction_fini(&out);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
        captured_log_begin(&said);
        cr_expect_eq(ra_predict(&bad[i], &out), RA_ERR_INVALID, "case %d", (int)i);
        cr_expect_eq(said.errors, 1, "case %d", (int)i);
    }
    ring_job_free(&job);
}

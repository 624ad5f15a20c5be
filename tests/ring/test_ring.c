/*
 * Whole jobs against the float64 oracle: every layout, schedule, number of buffers and ranks,
 * random patterns, shapes and dtypes, forward and backward.
 */
#include "ring/ring_tensors.h"
#include "support/captured_log.h"
#include "support/oracle.h"
#include "support/poison_pool.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void ask_oracle(tensors *t, const ra_ring_config *c, const ra_pattern_config *pattern)
{
    oracle_shape const shape = {c->batch, c->seq, c->heads, c->kv_heads, c->dim, c->scale};
    oracle_inputs const in = {t->in[0], t->in[1], t->in[2], c->backward ? t->in[3] : NULL};
    oracle_outputs const out = {t->want[0], t->want[4], t->want[1], t->want[2], t->want[3]};
    oracle_attend(&shape, pattern, &in, &out);
}

/* Errors within the documented bounds. */
static void check_results(const tensors *t, const ra_ring_config *c, double dout_factor,
                          const char *name)
{
    double const floor = (c->dtype == RA_F32 ? 0.25 : 0.01) * dout_factor;
    double const lse = oracle_max_error(RA_F32, t->lse, t->want[4], t->lines);
    cr_assert(lse <= oracle_lse_bound(c->dtype), "%s: lse %g", name, lse);
    expect_wanted(t, c, floor, floor, name);
}

/* Ranks dealt to 1 to 3 hosts at random, in any order. */
static void draw_hosts(test_rng *rng, int ranks, int *hosts)
{
    int const count = (int)test_rng_between(rng, 1, 3);
    int names[3] = {-1, -1, -1}, seen = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        int *const name = &names[test_rng_between(rng, 0, count - 1)];
        if (*name < 0)
            *name = seen++;
        hosts[rank] = *name;
    }
}

static void print_hosts(const int *hosts, int ranks, char *text)
{
    for (int rank = 0; rank < ranks; ++rank)
        text[rank] = (char)('0' + hosts[rank]);
    text[ranks] = '\0';
}

static void run_random_case(const ra_kernel_ops *kernel, bool dense_mask, uint64_t seed,
                            int64_t seq_max)
{
    test_rng rng = {seed};
    int32_t const kv_heads = (int32_t)test_rng_between(&rng, 1, 3);
    ra_ring_config c = {.batch = test_rng_between(&rng, 1, 2),
                        .seq = test_rng_between(&rng, 1, seq_max),
                        .heads = kv_heads * (int32_t)test_rng_between(&rng, 1, 3),
                        .kv_heads = kv_heads,
                        .dim = (int32_t)test_rng_between(&rng, 1, 40),
                        .dtype = (ra_dtype)test_rng_between(&rng, 0, 2),
                        .layout = (ra_layout_kind)test_rng_between(&rng, 0, RA_LAYOUT_AUTO),
                        .schedule = (ra_schedule)test_rng_between(&rng, 0, RA_SCHEDULE_AUTO),
                        .comm_buffers = (int)test_rng_between(&rng, 0, 2),
                        .backward = test_rng_chance(&rng, 0.8),
                        .dense_mask = dense_mask};
    c.head_groups = test_rng_chance(&rng, 0.2) ? 0 : ring_job_draw_groups(&rng, &c);
    if (kernel != NULL && kernel == ra_kernel_standard() && c.head_groups > c.heads)
        c.head_groups = c.heads; /* its scores are those of all queries */
    if (c.schedule != RA_SCHEDULE_RING && seed % 3 == 0)
        c.rounds = (int32_t)(seed / 3 % 4 + 2);
    int const ranks = (int)test_rng_between(&rng, 1, RING_JOB_RANKS_MAX);
    int hosts[RING_JOB_RANKS_MAX];
    test_pattern drawn;
    tensors t;
    char text[256], name[512], places[RING_JOB_RANKS_MAX + 1];
    draw_hosts(&rng, ranks, hosts);
    print_hosts(hosts, ranks, places);
    test_pattern_draw(&rng, c.seq, &drawn);
    test_pattern_print(&drawn.config, text, sizeof(text));
    snprintf(name, sizeof(name),
             "seed %llu: B %d N %d H %d/%d D %d %s ranks %d on hosts %s %s %s buffers %d "
             "groups %d rounds %d: %s",
             (unsigned long long)seed, (int)c.batch, (int)c.seq, c.heads, c.kv_heads, c.dim,
             ra_dtype_name(c.dtype), ranks, places, ra_layout_name(c.layout),
             ra_schedule_name(c.schedule), c.comm_buffers, c.head_groups, c.rounds, text);
    double const factor = test_rng_chance(&rng, 0.1) ? 1e-4 : 1;
    tensors_init(&t, &c, seed, factor);
    ask_oracle(&t, &c, &drawn.config);
    ring_job job = job_for(&t, &c, &drawn.config, ranks);
    memcpy(job.hosts, hosts, sizeof(hosts));
    job.kernel = kernel;
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK, "%s: %s", name, ra_status_name(job.status));
    cr_assert_eq(job.leaked_bytes, 0, "%s", name);
    check_results(&t, &c, factor, name);
    tensors_fini(&t);
}

Test(ring, equals_the_oracle_for_400_random_jobs)
{
    for (uint64_t seed = 1000; seed < 1400; ++seed)
        run_random_case(NULL, false, seed, 150);
}

Test(ring, materialised_scores_give_the_same_for_200_random_jobs)
{
    if (ra_kernel_standard() == NULL)
        cr_skip_test("OpenBLAS is not installed");
    for (uint64_t seed = 2000; seed < 2200; ++seed)
        run_random_case(ra_kernel_standard(), false, seed, 150);
}

Test(ring, block_masks_give_the_same_for_120_random_jobs)
{
    for (uint64_t seed = 3000; seed < 3100; ++seed)
        run_random_case(NULL, true, seed, 256);
    for (uint64_t seed = 3100; seed < 3120 && ra_kernel_standard() != NULL; ++seed)
        run_random_case(ra_kernel_standard(), true, seed, 256);
}

/* One pattern with everything in it, over all ways to run it; results also agree bit for bit when
   the same job is run again. */
static void run_ways(ra_dtype dtype, int ranks)
{
    static const int64_t documents[] = {37, 1, 90, 42}, segments[] = {64, 170}, rates[] = {2, 3};
    ra_pattern_config pattern = ra_pattern_config_dense();
    pattern.causal = true;
    pattern.window_left = 50;
    pattern.sinks = 2;
    pattern.documents = documents;
    pattern.document_count = 4;
    pattern.segments = segments;
    pattern.rates = rates;
    pattern.branch_count = 2;
    ra_ring_config c = {.batch = 2,
                        .seq = 170,
                        .heads = 6,
                        .kv_heads = 3,
                        .dim = 20,
                        .dtype = dtype,
                        .backward = true};
    tensors t;
    tensors_init(&t, &c, 99, 1);
    ask_oracle(&t, &c, &pattern);
    for (int way = ranks % 3; way < 5 * 4 * 3 * 4; way += 3) { /* three counts of ranks: all ways */
        char name[128];
        c.layout = (ra_layout_kind)(way % 5);
        c.schedule = (ra_schedule)(way / 5 % 4);
        c.comm_buffers = way / 20 % 3;
        c.head_groups = (const int32_t[]){0, 2, 3, 12}[way / 60 % 4];
        c.rounds = c.schedule != RA_SCHEDULE_RING ? way % 4 : 1;
        snprintf(name, sizeof(name), "%s, %d ranks, %s, %s, %d buffers, %d groups, %d rounds",
                 ra_dtype_name(dtype), ranks, ra_layout_name(c.layout),
                 ra_schedule_name(c.schedule), c.comm_buffers, c.head_groups, c.rounds);
        ring_job job = job_for(&t, &c, &pattern, ranks);
        for (int r = 0; r < ranks && way % 2 == 1; ++r)
            job.hosts[r] = r * 2 / ranks; /* two hosts */
        ring_job_run(&job);
        cr_assert_eq(job.status, RA_OK, "%s: %s", name, ra_status_name(job.status));
        cr_assert_eq(job.leaked_bytes, 0, "%s", name);
        check_results(&t, &c, 1, name);
    }
    tensors_fini(&t);
}

Test(ring, every_layout_schedule_buffer_and_group_count_gives_the_same_answer)
{
    for (int ranks = 1; ranks <= 8; ++ranks)
        run_ways((ra_dtype)(ranks % 3), ranks);
}

static void stored_errors(int ranks, const ra_ring_config *c, tensors *t,
                          const ra_pattern_config *pattern, double errors[5])
{
    ring_job job = job_for(t, c, pattern, ranks);
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK);
    for (int i = 0; i < 4; ++i)
        errors[i] = oracle_floored_error(c->dtype, t->data[4 + i], t->want[i],
                                         i < 2 ? t->wide : t->narrow, 0);
    errors[4] = oracle_max_error(RA_F32, t->lse, t->want[4], t->lines);
}

static void check_growth(ra_dtype dtype, bool causal)
{
    ra_pattern_config pattern = ra_pattern_config_dense();
    ra_ring_config c = {.batch = 1,
                        .seq = 1000,
                        .heads = 2,
                        .kv_heads = 1,
                        .dim = 64,
                        .dtype = dtype,
                        .layout = RA_LAYOUT_ZIGZAG,
                        .comm_buffers = 2,
                        .head_groups = 1,
                        .backward = true};
    double one[5], eight[5];
    tensors t;
    pattern.causal = causal;
    tensors_init(&t, &c, 7, 1);
    ask_oracle(&t, &c, &pattern);
    stored_errors(1, &c, &t, &pattern, one);
    for (int schedule = 0; schedule < RA_SCHEDULE_AUTO; ++schedule) {
        c.schedule = (ra_schedule)schedule;
        stored_errors(8, &c, &t, &pattern, eight);
        for (int i = 0; i < 5; ++i)
            cr_assert(eight[i] <= 1.1 * one[i] + (i == 4 ? 1e-6 : 5e-8),
                      "%s causal %d %s, result %d: %g at 8 ranks, %g at 1", ra_dtype_name(dtype),
                      causal, ra_schedule_name(c.schedule), i, eight[i], one[i]);
    }
    tensors_fini(&t);
}

Test(ring, the_error_does_not_grow_with_the_number_of_ranks)
{
    for (int dtype = 0; dtype < 3; ++dtype)
        for (int causal = 0; causal < 2; ++causal)
            check_growth((ra_dtype)dtype, causal);
}

static void check_repeats(ra_schedule schedule, int ranks, const int *hosts)
{
    ra_pattern_config pattern = ra_pattern_config_dense();
    pattern.causal = true;
    ra_ring_config const c = {.batch = 1,
                              .seq = 700,
                              .heads = 4,
                              .kv_heads = 2,
                              .dim = 32,
                              .dtype = RA_BF16,
                              .layout = RA_LAYOUT_BALANCED,
                              .comm_buffers = 2,
                              .schedule = schedule,
                              .head_groups = 2,
                              .backward = true};
    tensors first, second;
    tensors_init(&first, &c, 5, 1);
    tensors_init(&second, &c, 5, 1);
    for (int again = 0; again < 5; ++again) {
        ring_job a = job_for(&first, &c, &pattern, ranks),
                 b = job_for(&second, &c, &pattern, ranks);
        a.threads = b.threads = 3;
        memcpy(a.hosts, hosts, (size_t)ranks * sizeof(int));
        memcpy(b.hosts, hosts, (size_t)ranks * sizeof(int));
        ring_job_run(&a);
        ring_job_run(&b);
        cr_assert(a.status == RA_OK && b.status == RA_OK);
        cr_assert_eq(a.info.schedule, schedule);
        expect_same(&first, &second, c.dtype);
    }
    tensors_fini(&first);
    tensors_fini(&second);
}

Test(ring, a_run_repeats_bit_for_bit)
{
    static const int one_host[3] = {0}, two_hosts[5] = {0, 1, 0, 1, 0};
    check_repeats(RA_SCHEDULE_DIRECT, 3, one_host);
    check_repeats(RA_SCHEDULE_SHARED, 3, one_host);
    check_repeats(RA_SCHEDULE_SHARED, 5, two_hosts);
}

/* Values with a common mean, keys that follow queries: the terms of dq and dk cancel, and what the
   rounding of a 16-bit output would add to delta does not. No base but the gradients' own norm. */
Test(ring, gradients_do_not_suffer_from_the_rounding_of_outputs)
{
    for (int dtype = RA_F16; dtype <= RA_BF16; ++dtype)
        for (int keys_follow = 0; keys_follow < 2; ++keys_follow) {
            ra_pattern_config pattern = ra_pattern_config_dense();
            ra_ring_config const c = {.batch = 1,
                                      .seq = 300,
                                      .heads = 2,
                                      .kv_heads = 2,
                                      .dim = 64,
                                      .dtype = (ra_dtype)dtype,
                                      .schedule = RA_SCHEDULE_DIRECT,
                                      .comm_buffers = 2,
                                      .backward = true};
            tensors t;
            pattern.causal = true;
            tensors_init(&t, &c, 11, 1);
            for (int64_t i = 0; i < t.narrow; ++i) {
                int const changed = keys_follow ? 1 : 2;
                double const value = keys_follow ? 1.5 * t.in[0][i] : t.in[2][i] + 4;
                ra_dtype_store(c.dtype, t.data[changed], i, (float)value);
                t.in[changed][i] = (double)ra_dtype_load(c.dtype, t.data[changed], i);
            }
            ask_oracle(&t, &c, &pattern);
            ring_job job = job_for(&t, &c, &pattern, 3);
            ring_job_run(&job);
            cr_assert_eq(job.status, RA_OK);
            expect_wanted(&t, &c, 0, 0, keys_follow ? "keys follow" : "values have a mean");
            tensors_fini(&t);
        }
}

/* One line that has what the caller gave. */
Test(ring, refuses_what_does_not_go_together)
{
    captured_log said;
    ring_job job = ring_job_plain(1, 10, 4);
    ra_ring_config const good = job.config;
    struct {
        ra_ring_config config;
        const char *part;
    } cases[] = {{good, "schedule scan"},  {good, "schedule unknown"},   {good, "comm_buffers 3"},
                 {good, "head_groups 65"}, {good, "rounds 65"},          {good, "schedule ring"},
                 {good, "layout unknown"}, {good, "dtype unknown"},      {good, "scale nan"},
                 {good, "scale inf"},      {good, "too large to count"}, {good, "follow_bytes -1"},
                 {good, "and 4611"}};
    cases[0].config.schedule = RA_SCHEDULE_SCAN;
    cases[1].config.schedule = (ra_schedule)9;
    cases[2].config.comm_buffers = 3;
    cases[3].config.head_groups = RA_QUERY_PARTS_MAX + 1;
    cases[4].config.rounds = RA_ROUNDS_MAX + 1;
    cases[5].config.schedule = RA_SCHEDULE_RING;
    cases[5].config.rounds = 2;
    cases[6].config.layout = (ra_layout_kind)9;
    cases[7].config.dtype = (ra_dtype)9;
    cases[8].config.scale = NAN;
    cases[9].config.scale = INFINITY;
    cases[10].config.batch = INT64_C(1) << 54;
    cases[11].config.follow_bytes[0] = -1;
    cases[12].config.follow_bytes[1] = INT64_C(1) << 62;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        job.config = cases[i].config;
        captured_log_begin(&said);
        ring_job_run(&job);
        cr_expect_eq(job.status, RA_ERR_INVALID, "%s", cases[i].part);
        cr_expect_eq(said.errors, 1);
        cr_expect_not_null(strstr(said.line, cases[i].part), "%s", said.line);
    }
    ring_job_free(&job);
}

/* Scores are those of all queries. */
Test(ring, takes_no_parts_of_queries_with_standard_attention)
{
    captured_log said;
    ring_job job = ring_job_plain(1, 10, 4);
    job.kernel = ra_kernel_standard();
    job.config.head_groups = 2;
    if (job.kernel == NULL)
        cr_skip_test("OpenBLAS is not installed");
    captured_log_begin(&said);
    ring_job_run(&job);
    cr_expect_eq(job.status, RA_ERR_INVALID);
    cr_expect_eq(said.errors, 1);
    cr_expect_not_null(strstr(said.line, "head_groups 2"), "%s", said.line);
    ring_job_free(&job);
}

/* That is seen before anything but the kernel's table is looked at. */
Test(ring, refuses_a_pattern_of_another_shape)
{
    captured_log said;
    ra_ledger *ledger;
    ra_pool *pool;
    ra_pattern *pattern;
    ra_ring *ring = NULL;
    ra_kernel kernel = {.ops = ra_kernel_cpu(RA_ISA_AUTO)};
    enum { SEQ = 100000 };
    ra_ring_config const good = {.batch = 1, .seq = SEQ, .heads = 1, .kv_heads = 1, .dim = 4};
    ra_ring_config bad[] = {good, good, good};
    ra_pattern_config const dense = ra_pattern_config_dense();
    bad[0].seq = SEQ + 1;
    bad[1].heads = bad[1].kv_heads = 2;
    bad[2].batch = INT64_C(1) << 30; /* elements can be counted, pairs cannot */
    poison_pool_begin(&ledger, &pool);
    cr_assert_eq(ra_pattern_create(&dense, SEQ, 1, pool, &pattern), RA_OK);
    for (int i = 0; i < 3; ++i) {
        captured_log_begin(&said);
        cr_expect_eq(ra_ring_create(&bad[i], pattern, NULL, &kernel, NULL, NULL, &ring),
                     RA_ERR_INVALID, "case %d", i);
        cr_expect_eq(said.errors, 1, "case %d", i);
        cr_expect_not_null(strstr(said.line, "a pattern of seq 100000 and heads 1"), "%s",
                           said.line);
    }
    ra_pattern_destroy(pattern);
    poison_pool_end(ledger, pool);
}

/* A group has query heads of one head of keys, or all of several. */
Test(ring, refuses_groups_that_heads_cannot_be_divided_into)
{
    captured_log said;
    ring_job job = ring_job_heads(1, 10, 4, 2, 4, RA_F32);
    for (int32_t groups = 1; groups <= 6; ++groups) {
        bool const is_good = groups == 1 || groups == 2 || groups == 4;
        job.config.head_groups = groups;
        captured_log_begin(&said);
        ring_job_run(&job);
        cr_expect_eq(job.status, is_good ? RA_OK : RA_ERR_INVALID, "%d groups", groups);
        cr_expect_eq(said.errors, !is_good, "%d groups", groups);
        cr_expect(is_good || strstr(said.line, "do not go together") != NULL, "%s", said.line);
    }
    ring_job_free(&job);
}

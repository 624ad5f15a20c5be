/* A feature that is off leaves no trace of its category: no byte, at no moment, on no rank. */
#include "ring/ring_job.h"

#include <criterion/criterion.h>
#include <stdio.h>

enum { SEQ = 97, DIM = 8, RANKS_MOST = 4 };

typedef struct features {
    bool pool, cache, buffers;
} features;

static const struct {
    const char *name;
    ra_category category;
    features on;
} sets[] = {{"no pool", RA_MEM_POOL_IDLE, {false, true, true}},
            {"no cache", RA_MEM_PATTERN_CACHE, {true, false, true}},
            {"no buffers", RA_MEM_COMM_BUFFER, {true, true, false}}};
enum { SETS = sizeof(sets) / sizeof(sets[0]) };

static const ra_schedule schedules[] = {RA_SCHEDULE_RING, RA_SCHEDULE_DIRECT, RA_SCHEDULE_SHARED};
static const int rank_counts[] = {1, 2, 4};

/* Ranks of the first host, half of them where there are two. */
static void run(const features *on, ra_schedule schedule, int ranks, int hosts, bool standard,
                ra_ledger_snapshot held[RANKS_MOST])
{
    ring_job job = ring_job_plain(ranks, SEQ, DIM);
    job.config.schedule = schedule;
    job.config.comm_buffers = on->buffers ? 2 : 0;
    job.pattern.causal = true;
    job.pool_mode = on->pool ? RA_POOL_SIZE_CLASS : RA_POOL_OFF;
    job.kernel = standard ? ra_kernel_standard() : NULL;
    job.standing = held;
    for (int r = 0; r < ranks; ++r)
        job.hosts[r] = hosts == 2 && r >= ranks / 2;
    ra_pattern_cache_config const config = {RA_CACHE_EAGER, 100, 1 << 20, ra_memory_host()};
    for (int r = 0; on->cache && r < ranks; ++r)
        cr_assert_eq(ra_pattern_cache_create(&config, &job.caches[r]), RA_OK);
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK);
    cr_assert_eq(job.leaked_bytes, 0);
    for (int r = 0; r < ranks; ++r)
        ra_pattern_cache_destroy(job.caches[r]);
    ring_job_free(&job);
}

static void expect_no_trace(const ra_ledger_snapshot *held, ra_category category, const char *what)
{
    cr_expect_eq(held->current_bytes[category], 0, "%s", what);
    cr_expect_eq(held->peak_bytes[category], 0, "%s", what);
    cr_expect_eq(held->at_peak_bytes[category], 0, "%s", what);
    cr_expect_eq(held->alloc_count[category], 0, "%s", what);
}

static void check_schedule(ra_schedule schedule, int ranks, int hosts, bool standard)
{
    static const features all = {true, true, true}, none = {false, false, false};
    ra_ledger_snapshot held[RANKS_MOST];
    char what[160];
    for (int n = 0; n <= SETS; ++n) {
        run(n < SETS ? &sets[n].on : &none, schedule, ranks, hosts, standard, held);
        for (int r = 0; r < ranks; ++r)
            for (int of = 0; of < SETS; ++of) {
                snprintf(what, sizeof(what), "%s, schedule %s, rank %d of %d on %d hosts: %s",
                         n < SETS ? sets[n].name : "all off", ra_schedule_name(schedule), r, ranks,
                         hosts, ra_category_name(sets[of].category));
                if (of == n || n == SETS)
                    expect_no_trace(&held[r], sets[of].category, what);
            }
    }
    /* What is on leaves one, or the test would not see it. */
    run(&all, schedule, ranks, hosts, standard, held);
    bool const sends = ranks > 1 && !(schedule == RA_SCHEDULE_SHARED && hosts == 1);
    cr_expect_gt(held[0].alloc_count[RA_MEM_PATTERN_CACHE], 0);
    cr_expect_eq(held[0].peak_bytes[RA_MEM_COMM_BUFFER] > 0, sends);
    cr_expect_gt(held[0].peak_bytes[RA_MEM_POOL_IDLE], 0);
}

Test(toggles, what_is_off_leaves_no_trace_in_the_ledger, .timeout = 120)
{
    for (size_t s = 0; s < sizeof(schedules) / sizeof(schedules[0]); ++s)
        for (size_t n = 0; n < sizeof(rank_counts) / sizeof(rank_counts[0]); ++n)
            for (int hosts = 1; hosts <= (rank_counts[n] > 1 ? 2 : 1); ++hosts)
                check_schedule(schedules[s], rank_counts[n], hosts, false);
}

/* Scores are taken in steps, too. */
Test(toggles, materialised_attention_leaves_none_either, .timeout = 120)
{
    if (ra_kernel_standard() == NULL)
        cr_skip_test("OpenBLAS is not installed here");
    for (size_t s = 0; s < sizeof(schedules) / sizeof(schedules[0]); ++s)
        check_schedule(schedules[s], 2, 2, true);
}

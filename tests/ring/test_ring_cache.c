/* Jobs with pattern caches: equal results, whatever is found, kept or thrown out. */
#include "ring/ring_job.h"
#include "support/captured_log.h"
#include "support/refusing_memory.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 150, HEADS = 4, KV_HEADS = 2, DIM = 8, RANKS = 3, OUTPUTS = 5 };
enum { WIDE = SEQ * HEADS * DIM, NARROW = SEQ * KV_HEADS * DIM, LINES = SEQ * HEADS };

static const size_t output_bytes[OUTPUTS] = {WIDE * 2, WIDE * 2, NARROW * 2, NARROW * 2,
                                             LINES * sizeof(float)};

/* A bf16 job of a few heads, forward and backward. */
typedef struct small_job {
    ring_job job;
    void *got[OUTPUTS];    /* the job's o dq dk dv lse */
    void *wanted[OUTPUTS]; /* without a cache */
} small_job;

static void begin(small_job *s, int ranks, int hosts, ra_schedule schedule, int32_t groups)
{
    ring_job job = ring_job_heads(ranks, SEQ, HEADS, KV_HEADS, DIM, RA_BF16);
    job.config.schedule = schedule;
    job.config.head_groups = groups;
    job.hosts[ranks - 1] = hosts - 1;
    *s = (small_job){.job = job, .got = {job.out, job.dq, job.dk, job.dv, job.lse}};
    for (int i = 0; i < OUTPUTS; ++i)
        s->wanted[i] = calloc(1, output_bytes[i]);
}

static void end(small_job *s)
{
    ring_job_free(&s->job);
    for (int i = 0; i < OUTPUTS; ++i)
        free(s->wanted[i]);
}

static void open_caches(small_job *s, ra_cache_mode mode, int64_t entries, int64_t bytes)
{
    ra_pattern_cache_config const config = {mode, entries, bytes, ra_memory_host()};
    for (int r = 0; r < s->job.ranks; ++r)
        cr_assert_eq(ra_pattern_cache_create(&config, &s->job.caches[r]), RA_OK);
}

static void close_caches(small_job *s)
{
    for (int r = 0; r < s->job.ranks; ++r) {
        ra_pattern_cache_destroy(s->job.caches[r]);
        s->job.caches[r] = NULL;
    }
}

static ra_cache_counts counts_of(const small_job *s, int rank)
{
    ra_cache_counts now;
    ra_pattern_cache_read(s->job.caches[rank], &now);
    return now;
}

static void run(small_job *s)
{
    for (int i = 0; i < OUTPUTS; ++i)
        memset(s->got[i], 0xff, output_bytes[i]);
    ring_job_run(&s->job);
    cr_assert_eq(s->job.status, RA_OK);
    cr_assert_eq(s->job.leaked_bytes, 0);
}

static void expect_wanted(const small_job *s, const char *what)
{
    for (int i = 0; i < OUTPUTS; ++i)
        cr_assert_eq(memcmp(s->got[i], s->wanted[i], output_bytes[i]), 0, "%s: output %d", what, i);
}

static const int64_t segments[] = {32, 64}, rates[] = {1, 2};

static ra_pattern_config pattern_at(int which)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.causal = which != 0;
    if (which == 1) {
        config.window_left = 20;
        config.sinks = 2;
    }
    if (which == 2) {
        config.segments = segments;
        config.rates = rates;
        config.branch_count = 2;
        config.dilated_heads = RA_HEADS_GROUPED;
    }
    return config;
}

/* Caches that keep nothing, everything, the second use, little, and one map at a time. */
static void expect_equal_results(small_job *s, const char *name)
{
    static const struct {
        ra_cache_mode mode;
        int64_t entries, bytes;
    } caches[] = {{RA_CACHE_OFF, 100, 1 << 20},  {RA_CACHE_EAGER, 100, 1 << 20},
                  {RA_CACHE_LAZY, 100, 1 << 20}, {RA_CACHE_EAGER, 100, 4096},
                  {RA_CACHE_EAGER, 1, 1 << 20},  {RA_CACHE_EAGER, 1, 1}};
    run(s);
    for (int i = 0; i < OUTPUTS; ++i)
        memcpy(s->wanted[i], s->got[i], output_bytes[i]);
    for (size_t c = 0; c < sizeof(caches) / sizeof(caches[0]); ++c) {
        open_caches(s, caches[c].mode, caches[c].entries, caches[c].bytes);
        for (int turn = 0; turn < 3; ++turn) {
            run(s);
            expect_wanted(s, name);
            cr_assert_leq(counts_of(s, 0).bytes, caches[c].bytes);
        }
        ra_cache_counts const now = counts_of(s, 0);
        if (caches[c].entries == 100 && caches[c].bytes == 1 << 20 && c > 0)
            cr_assert_gt(now.hits, 0, "%s", name);
        if (caches[c].entries == 1)
            cr_assert_leq(now.entries, 1);
        close_caches(s);
    }
}

Test(ring_cache, gives_the_same_bits_off_on_full_and_thrashing)
{
    static const struct {
        const char *name;
        int ranks, hosts;
        ra_schedule schedule;
        int32_t groups;
    } cases[] = {{"one rank", 1, 1, RA_SCHEDULE_AUTO, 1},
                 {"direct", RANKS, 1, RA_SCHEDULE_DIRECT, 1},
                 {"direct, groups", RANKS, 1, RA_SCHEDULE_DIRECT, 2},
                 {"ring", RANKS, 1, RA_SCHEDULE_RING, 1},
                 {"shared", RANKS, 1, RA_SCHEDULE_SHARED, 1},
                 {"shared, two hosts", RANKS, 2, RA_SCHEDULE_SHARED, 2}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i)
        for (int which = 0; which < 3; ++which) {
            small_job s;
            begin(&s, cases[i].ranks, cases[i].hosts, cases[i].schedule, cases[i].groups);
            s.job.pattern = pattern_at(which);
            expect_equal_results(&s, cases[i].name);
            end(&s);
        }
}

/* A map that forward and backward share, or two plans, is asked for once. */
Test(ring_cache, one_rank_builds_one_map)
{
    static const ra_schedule schedules[] = {RA_SCHEDULE_RING, RA_SCHEDULE_DIRECT,
                                            RA_SCHEDULE_SHARED, RA_SCHEDULE_AUTO};
    for (int i = 0; i < 4; ++i) {
        small_job s;
        begin(&s, 1, 1, schedules[i], 2);
        s.job.pattern = pattern_at(1);
        open_caches(&s, RA_CACHE_EAGER, 100, 1 << 20);
        run(&s);
        cr_assert_eq(counts_of(&s, 0).misses, 1, "%s", ra_schedule_name(schedules[i]));
        run(&s);
        cr_assert_eq(counts_of(&s, 0).misses, 1);
        cr_assert_eq(counts_of(&s, 0).hits, 1);
        close_caches(&s);
        end(&s);
    }
}

/* Steps that hold rows of one owner alone have one map for both passes. */
Test(ring_cache, no_rank_asks_for_a_map_twice)
{
    for (int hosts = 1; hosts <= 2; ++hosts) {
        small_job s;
        begin(&s, RANKS, hosts, RA_SCHEDULE_SHARED, 1);
        s.job.pattern = pattern_at(0);
        open_caches(&s, RA_CACHE_EAGER, 100, 1 << 20);
        run(&s);
        for (int r = 0; r < RANKS; ++r)
            cr_assert_eq(counts_of(&s, r).hits, 0, "rank %d, %d hosts", r, hosts);
        close_caches(&s);
        end(&s);
    }
}

/* ---- memory ------------------------------------------------------------------------------------
 */

/* The n-th request of rank 0's cache is refused: every job succeeds, as without a cache. */
Test(ring_cache, memory_refused_to_a_cache_changes_no_result)
{
    captured_log said;
    small_job s;
    captured_log_begin(&said);
    begin(&s, RANKS, 1, RA_SCHEDULE_DIRECT, 1);
    s.job.pattern = pattern_at(1);
    run(&s);
    for (int i = 0; i < OUTPUTS; ++i)
        memcpy(s.wanted[i], s.got[i], output_bytes[i]);
    bool failed = true;
    long n = 0;
    for (; failed; ++n) {
        refusing_memory memory = {.inner = ra_memory_host(), .countdown = n};
        open_caches(&s, RA_CACHE_EAGER, 100, 1 << 20);
        ra_pattern_cache_destroy(s.job.caches[0]);
        ra_pattern_cache_config const config = {RA_CACHE_EAGER, 100, 1 << 20,
                                                ra_memory_refusing(&memory)};
        cr_assert_eq(ra_pattern_cache_create(&config, &s.job.caches[0]), RA_OK);
        for (int turn = 0; turn < 2; ++turn) {
            run(&s);
            expect_wanted(&s, "refused");
        }
        failed = memory.refused;
        close_caches(&s);
    }
    cr_assert_gt(n, 2);
    cr_assert_eq(said.errors, 0);
    end(&s);
}

/* The n-th request of a rank's pool is refused: one line, and every map goes back to its cache. */
Test(ring_cache, jobs_that_fail_give_their_maps_back)
{
    captured_log said;
    small_job s;
    begin(&s, RANKS, 1, RA_SCHEDULE_DIRECT, 1);
    s.job.timeout_ms = 60000;
    s.job.pattern = pattern_at(2);
    open_caches(&s, RA_CACHE_EAGER, 3, 1 << 20);
    bool failed = true;
    long n = 0;
    for (; failed; ++n) {
        refusing_memory memory = {.countdown = n};
        s.job.refusing = &memory;
        captured_log_begin(&said);
        ring_job_run(&s.job); /* detaching insists that no map is out */
        failed = memory.refused;
        cr_assert_eq(s.job.status, failed ? RA_ERR_NO_MEMORY : RA_OK, "allocation %ld", n);
        cr_assert_eq(said.errors, failed, "allocation %ld: %d lines", n, said.errors);
        cr_assert_eq(s.job.leaked_bytes, 0);
    }
    cr_expect_gt(n, 20);
    close_caches(&s);
    end(&s);
}

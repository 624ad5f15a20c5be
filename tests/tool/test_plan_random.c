/* Fifty random jobs: what `plan` says they take, and what `run` says they took. */
#include "tool/command_runner.h"
#include "tool/json_reader.h"
#include "tool/plan_jobs.h"
#include "tool/plan_points.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(plan_random, .init = command_folder_make, .fini = command_folder_remove, .timeout = 6000);

enum { JOBS = 32, JOBS_OF_SEVERAL = 6 };

/* Kinds that this machine computes: `standard` needs OpenBLAS. */
static const char *draw_kind(test_rng *rng, bool has_blas)
{
    const char *kind =
        ONE_OF(rng, "flash", "flash", "flash", "standard", "linear", "linear_causal");
    return strcmp(kind, "standard") == 0 && !has_blas ? "flash" : kind;
}

/* With the pool off all that there is has a formula; the cache may be on. */
static void draw_job(test_rng *rng, int ranks, bool has_blas, const char *pool, job_text *job)
{
    const char *attention = draw_kind(rng, has_blas);
    bool backward = test_rng_chance(rng, 0.5);
    bool const is_short = strcmp(attention, "standard") == 0 || test_rng_chance(rng, 0.5);
    int const seq = is_short ? job_between(rng, 256, 600) : job_between(rng, 600, 3000);
    *job = (job_text){.used = 0};
    job_add(job, " --set memory.pool.mode=%s --set compute.threads=%d --set job.repeat=%d", pool,
            job_between(rng, 1, 2), job_between(rng, 1, 3));
    job_draw_heads(rng, attention, job);
    job_add(job, " --set shape.seq=%d --set attention.kind=%s", seq, attention);
    job_add(job, " --set shape.batch=%d --set shape.head_dim=%d --set shape.dtype=%s",
            job_between(rng, 1, 2), job_between(rng, 4, 80), ONE_OF(rng, "f32", "f16", "bf16"));
    if (strcmp(attention, "flash") == 0 || strcmp(attention, "standard") == 0) {
        job_draw_pattern(rng, seq, job);
        if (test_rng_chance(rng, 0.25))
            job_add(job, " --set attention.mask=dense_blocks");
        else
            job_add(job, " --set memory.pattern_cache.mode=%s",
                    ONE_OF(rng, "off", "lazy", "eager"));
        if (ranks > 0)
            job_draw_ring(rng, true, job);
    } else if (strcmp(attention, "linear_causal") == 0) {
        const char *method = ONE_OF(rng, "chunked", "recurrent", "cumsum");
        job_add(job, " --set attention.linear_method=%s", method);
        backward = backward && strcmp(method, "chunked") == 0;
    }
    job_add(job, backward ? " --backward" : "");
}

/* Within 1 %; what is smaller than 4 KiB, within that, as pages are. */
static void agree(const char *what, const char *job, int ranks, long long planned, long long taken)
{
    long long const off = planned > taken ? planned - taken : taken - planned;
    cr_expect(off * 100 <= taken || (off < 4096 && taken < 400000),
              "%s: planned %lld, taken %lld (%d ranks%s)", what, planned, taken, ranks, job);
}

/* `idle_most`: bytes that a pool may keep idle, which no plan has. */
static void compare(const char *job, int ranks, long long idle_most)
{
    char line[JOB_TEXT_BYTES + 64];
    const char *category;
    json_t *bytes;
    snprintf(line, sizeof(line), "run%s", job);
    json_t *run = plan_point_of(ranks, line);
    snprintf(line, sizeof(line), "plan --ranks %d%s", ranks > 0 ? ranks : 1, job);
    json_t *plan = plan_point_of(0, line);
    long long const peak = integer(run, "peak_bytes");
    long long const idle = integer(member(run, "memory_bytes"), "pool_idle");
    cr_expect_leq(idle, idle_most, "%lld idle bytes (%d ranks%s)", idle, ranks, job);
    cr_expect(llabs(integer(plan, "peak_bytes") - peak) * 100 <= peak ||
                  llabs(integer(plan, "peak_bytes") + idle - peak) * 100 <= peak,
              "planned %lld, taken %lld (%d ranks%s)", integer(plan, "peak_bytes"), peak, ranks,
              job);
    cr_expect_eq(json_is_true(member(plan, "may_keep_idle")), idle_most > 0);
    cr_expect_eq(json_is_true(member(plan, "exact")), idle_most == 0, "%d ranks%s", ranks, job);
    json_object_foreach(member(run, "memory_bytes"), category, bytes)
    {
        if (strcmp(category, "pool_idle") != 0)
            agree(category, job, ranks, integer(member(plan, "memory_bytes"), category),
                  json_integer_value(bytes));
    }
    agree("head groups", job, ranks, integer(plan, "head_groups"), integer(run, "head_groups"));
    cr_expect_eq(json_number_value(member(plan, "live_pairs")),
                 json_number_value(member(run, "live_pairs")), "%d ranks%s", ranks, job);
    cr_expect_eq(json_number_value(member(plan, "sent_bytes")),
                 json_number_value(member(run, "sent_bytes")), "%d ranks%s", ranks, job);
    json_decref(run);
    json_decref(plan);
}

static void compare_jobs(uint64_t seed, const char *pool, int count, int of_several,
                         long long idle_most)
{
    const char *given = getenv("RA_TEST_SEED");
    test_rng rng = {given != NULL ? strtoull(given, NULL, 10) : seed};
    bool const has_blas = command_has_openblas();
    for (int i = 0; i < count; i++) {
        job_text job;
        int const ranks = i < of_several && command_has_mpi() ? 2 + i % 4 : 0;
        draw_job(&rng, ranks, has_blas, pool, &job);
        compare(job.text, ranks, idle_most);
    }
}

Test(plan_random, jobs_take_what_plan_says)
{
    compare_jobs(11, "off", JOBS, JOBS_OF_SEVERAL, 0);
}

/* A pool keeps idle what small blocks have left in segments that are still in use: in jobs of this
   size less than the largest of them, 64 KiB. launch/plan-jobs.py compares more jobs. */
Test(plan_random, pooled_jobs_take_what_plan_says_and_a_little_that_is_idle)
{
    enum { POOLED = 16, POOLED_OF_SEVERAL = 2, IDLE_MOST_BYTES = 64 << 10 };
    compare_jobs(12, "size_class", POOLED, POOLED_OF_SEVERAL, IDLE_MOST_BYTES);
}

/* As most people run it: pool, cache and buffers at their defaults. */
Test(plan_random, default_jobs_take_within_one_percent_of_what_plan_says)
{
    static const char *const jobs[] = {"", " --backward",
                                       " --set pattern.window.left=511 --set pattern.causal=true",
                                       " --set pattern.blocks.kind=dilated_sparse --backward"};
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        int const ranks = command_has_mpi() && i % 2 == 1 ? 3 : 0;
        char line[512];
        snprintf(line, sizeof(line), "run --set shape.seq=4K%s", jobs[i]);
        json_t *run = plan_point_of(ranks, line);
        snprintf(line, sizeof(line), "plan --set shape.seq=4K --ranks %d%s", ranks > 0 ? ranks : 1,
                 jobs[i]);
        json_t *plan = plan_point_of(0, line);
        long long const peak = integer(run, "peak_bytes");
        cr_expect(llabs(integer(plan, "peak_bytes") - peak) * 100 <= peak,
                  "planned %lld, taken %lld (%d ranks%s)", integer(plan, "peak_bytes"), peak, ranks,
                  jobs[i]);
        json_decref(run);
        json_decref(plan);
    }
}

/* Those of the plan that the choice of head groups went by. */
Test(plan_random, kept_maps_that_nobody_uses_give_way_to_a_limit)
{
    static const char job[] =
        "--backward --set shape.seq=4409 --set shape.heads=1 --set shape.head_dim=16 "
        "--set ring.layout=contiguous --set ring.schedule=direct --set memory.pool.mode=off "
        "--set memory.pattern_cache.mode=eager --set compute.threads=1 --set pattern.causal=true "
        "--set 'pattern.dilated.segments=[3,4409]' --set 'pattern.dilated.rates=[8,8]' "
        "--set pattern.dilated.heads=grouped";
    char line[1024];
    if (!command_has_mpi())
        cr_skip_test("no MPI in this build");
    snprintf(line, sizeof(line), "plan --ranks 2 %s --set ring.head_groups=2", job);
    json_t *plan = plan_point_of(0, line);
    long long const limit =
        integer(plan, "peak_bytes") - integer(member(plan, "memory_bytes"), "pattern_cache") / 4;
    json_decref(plan);
    snprintf(line, sizeof(line),
             "plan --ranks 2 %s --set ring.head_groups=2 --set memory.limit=%lld", job, limit);
    plan = plan_point_of(0, line);
    cr_expect_str_eq(text(plan, "status"), "ok");
    cr_expect(json_is_false(member(plan, "exact")));
    json_decref(plan);
    snprintf(line, sizeof(line), "run %s --set ring.head_groups=2 --set memory.limit=%lld", job,
             limit);
    json_decref(plan_point_of(2, line));
}

/* Pieces of two branches meet in rows that lie farther apart than 32 bits can say. */
Test(plan_random, strides_of_branches_whose_product_passes_64_bits)
{
    static const char job[] =
        "--set shape.seq=3439352 --set shape.heads=3 --set shape.head_dim=1 "
        "--set shape.dtype=f32 --set compute.threads=1 --set memory.pool.mode=off "
        "--set pattern.causal=true --set pattern.dilated.heads=grouped "
        "--set 'pattern.dilated.segments=[3439352,1746734,1808810]' "
        "--set 'pattern.dilated.rates=[477688,23431,20701]' --set ring.schedule=direct "
        "--set ring.layout=contiguous --set ring.head_groups=1";
    char line[1024];
    snprintf(line, sizeof(line), "plan --ranks 4 %s", job);
    json_decref(plan_point_of(0, line));
    if (!command_has_mpi())
        return;
    snprintf(line, sizeof(line), "run --verify %s", job);
    json_decref(plan_point_of(4, line));
}

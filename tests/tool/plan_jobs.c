#include "tool/plan_jobs.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void job_add(job_text *job, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    job->used += (size_t)vsnprintf(job->text + job->used, JOB_TEXT_BYTES - job->used, format, args);
    va_end(args);
    cr_assert_lt(job->used, JOB_TEXT_BYTES);
}

const char *job_one_of(test_rng *rng, const char *const *names)
{
    int count = 0;
    while (names[count] != NULL)
        count++;
    return names[test_rng_between(rng, 0, count - 1)];
}

int job_between(test_rng *rng, int low, int high)
{
    return (int)test_rng_between(rng, low, high);
}

void job_draw_pattern(test_rng *rng, int seq, job_text *job)
{
    const char *kind =
        ONE_OF(rng, "", "", "local_window", "dilated_sparse", "global_local", "random");
    if (test_rng_chance(rng, 0.5))
        job_add(job, " --set pattern.causal=true");
    if (test_rng_chance(rng, 0.4))
        job_add(job, " --set pattern.window.left=%d", job_between(rng, 0, seq));
    if (test_rng_chance(rng, 0.3))
        job_add(job, " --set pattern.sinks=%d", job_between(rng, 1, 9));
    if (kind[0] != '\0')
        job_add(job, " --set pattern.blocks.kind=%s --set pattern.blocks.size=%s", kind,
                ONE_OF(rng, "16", "64", "100", "128"));
    if (strcmp(kind, "random") == 0)
        job_add(job, " --set pattern.blocks.density=%s", ONE_OF(rng, "0.02", "0.1", "0.5"));
    if (test_rng_chance(rng, 0.25))
        job_add(job,
                " --set 'pattern.dilated.segments=[%d,%d]' --set 'pattern.dilated.rates=[1,%d]'",
                job_between(rng, 16, 500), job_between(rng, 500, 4000), job_between(rng, 2, 8));
    if (test_rng_chance(rng, 0.2)) {
        int const first = job_between(rng, 1, seq - 1);
        job_add(job, " --set 'pattern.documents=[%d,%d]'", first, seq - first);
    }
}

void job_draw_heads(test_rng *rng, const char *attention, job_text *job)
{
    int const kv_heads = job_between(rng, 1, 4), ratio = job_between(rng, 1, 3);
    int const heads = kv_heads * ratio;
    int groups = job_between(rng, 1, kv_heads);
    if (strncmp(attention, "linear", 6) != 0 && test_rng_chance(rng, 0.6))
        groups = kv_heads * job_between(rng, 1, ratio);
    if (strcmp(attention, "flash") == 0 && test_rng_chance(rng, 0.3))
        groups = heads * job_between(rng, 2, 5); /* parts of the queries */
    job_add(job, " --set shape.kv_heads=%d --set shape.heads=%d --set ring.head_groups=%d",
            kv_heads, heads, groups);
}

void job_draw_ring(test_rng *rng, bool may_share, job_text *job)
{
    const char *const schedule = may_share ? ONE_OF(rng, "auto", "ring", "direct", "shared")
                                           : ONE_OF(rng, "auto", "ring", "direct");
    job_add(job, " --set ring.layout=%s --set ring.schedule=%s --set ring.comm_buffers=%d",
            ONE_OF(rng, "auto", "contiguous", "zigzag", "striped", "balanced"), schedule,
            job_between(rng, 0, 2));
    if (strcmp(schedule, "ring") != 0 && test_rng_chance(rng, 0.4))
        job_add(job, " --set ring.rounds=%d", job_between(rng, 2, 5));
}

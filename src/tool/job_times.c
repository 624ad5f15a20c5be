/* Passes, as often as it takes. */
#include "console.h"
#include "internal.h"
#include "job.h"
#include "job_phases.h"

#include <math.h>
#include <stdlib.h>

enum { STEADY_MAX = 16 };
static const double steady_spread = 0.05; /* (max - min) / median */

ra_times ra_times_of(double *ms, int count)
{
    qsort(ms, (size_t)count, sizeof(*ms), ra_compare_f64);
    double const middle = (ms[(count - 1) / 2] + ms[count / 2]) / 2;
    return (ra_times){
        .min_ms = ms[0], .median_ms = middle, .max_ms = ms[count - 1], .count = count};
}

/* (max - min) / median of the last `window` times. */
static double spread_of(const double *ms, int count, int window)
{
    double last[STEADY_MAX];
    int const taken = window < count ? window : count;
    for (int i = 0; i < taken; i++)
        last[i] = ms[count - taken + i];
    if (taken < 2)
        return (double)NAN;
    ra_times const times = ra_times_of(last, taken);
    return times.median_ms > 0 ? (times.max_ms - times.min_ms) / times.median_ms : 0;
}

/* Run one pass, which begins on all ranks together, and tell how long it took here. */
static ra_status pass_time(ra_job *job, bool backward, double *ms_out)
{
    ra_status status = ra_comm_barrier(job->comm, "beginning a pass together");
    if (status != RA_OK)
        return status;
    int64_t const begin_ns = ra_clock_ns();
    status = backward ? ra_ring_backward(job->ring, &job->tensors)
                      : ra_ring_forward(job->ring, &job->tensors);
    *ms_out = 1e-6 * (double)(ra_clock_ns() - begin_ns);
    return status;
}

/* The number of repetitions depends on time; the allocations of one do not. */
static void allocations_note(ra_job *job)
{
    if (job->alloc_count > 0)
        return;
    ra_ledger_snapshot snapshot;
    ra_ledger_read(ra_pool_ledger(job->pool), &snapshot);
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; i++)
        job->alloc_count += snapshot.alloc_count[i];
}

/* The repetitions so far, with the slowest rank's time of each. */
typedef struct timing {
    const ra_repeat *repeat;
    double *forward_ms, *backward_ms; /* backward_ms: NULL if there is no backward pass */
    int64_t begin_ns;
    int count;
} timing;

/* Run repetition i, of the warm-up if i < 0; every rank then knows the same times. */
static ra_status repetition(ra_job *job, timing *t, int i, double *elapsed_ms)
{
    bool const warms = i < 0;
    int const index = warms ? i + t->repeat->warmup + 1 : i + 1;
    int const count = warms ? t->repeat->warmup : t->repeat->most;
    double ms[3] = {0};
    ra_progress_set(job->progress, warms ? "warm-up" : "forward", index, count);
    ra_job_phases_restart(job); /* those of the last repetition are reported */
    ra_status status = pass_time(job, false, &ms[0]);
    if (status == RA_OK && job->config.backward) {
        ra_progress_set(job->progress, warms ? "warm-up" : "backward", index, count);
        status = pass_time(job, true, &ms[1]);
    }
    allocations_note(job);
    ms[2] = 1e-6 * (double)(ra_clock_ns() - t->begin_ns);
    if (status == RA_OK)
        status = ra_comm_reduce_f64(job->comm, "gathering times", RA_MAX, ms, 3);
    if (status != RA_OK || warms)
        return status;
    t->forward_ms[i] = ms[0];
    if (t->backward_ms != NULL)
        t->backward_ms[i] = ms[1];
    *elapsed_ms = ms[2];
    t->count++;
    return RA_OK;
}

static bool is_steady(const timing *t)
{
    const ra_repeat *repeat = t->repeat;
    int const window = repeat->steady_count;
    return window > 0 && t->count >= window &&
           spread_of(t->forward_ms, t->count, window) <= steady_spread &&
           (t->backward_ms == NULL || spread_of(t->backward_ms, t->count, window) <= steady_spread);
}

static ra_times summary(double *ms, int count, int window)
{
    double const spread = spread_of(ms, count, window > 0 ? window : STEADY_MAX);
    ra_times times = ra_times_of(ms, count); /* sorts ms */
    times.spread = spread;
    return times;
}

int64_t ra_job_times_bytes(int repetitions, bool backward)
{
    return repetitions * (backward ? 2 : 1) * (int64_t)sizeof(double);
}

/* Run all repetitions. */
static ra_status repetitions(ra_job *job, timing *t)
{
    double elapsed_ms = 0;
    ra_status status = RA_OK;
    for (int i = -t->repeat->warmup; i < 0 && status == RA_OK; i++)
        status = repetition(job, t, i, &elapsed_ms);
    ra_comm_reset_stats(job->ring_comm);
    while (status == RA_OK && t->count < t->repeat->most && !is_steady(t) &&
           elapsed_ms <= t->repeat->most_ms)
        status = repetition(job, t, t->count, &elapsed_ms);
    return status;
}

/*
 * A refusal in the middle of a pass is one for all ranks, and one of them logs it. A rank that
 * fails alone logs at once: the others may be gone.
 */
static ra_status repetitions_agreed(ra_job *job, timing *t)
{
    ra_console_hold();
    ra_status const status = repetitions(job, t);
    bool const together = ra_ring_failed_together(job->ring);
    job->alone = status != RA_OK && !together && ra_comm_size(job->comm) > 1;
    if (job->alone) {
        ra_console_release();
        return status;
    }
    return ra_console_agree(job->comm, "agreeing on the passes", status);
}

ra_status ra_job_time(ra_job *job, const ra_repeat *repeat, ra_times *forward_out,
                      ra_times *backward_out)
{
    RA_ASSERT(repeat->most >= 1 && repeat->warmup >= 0 && repeat->steady_count <= STEADY_MAX);
    bool const backward = job->config.backward;
    ra_block block = {0};
    size_t const bytes = (size_t)ra_job_times_bytes(repeat->most, backward);
    ra_console_hold();
    ra_status status =
        ra_console_agree(job->comm, "agreeing on the times",
                         ra_pool_alloc(job->host_pool, RA_MEM_IO, bytes, NULL, &block));
    if (status != RA_OK)
        goto out;
    double *ms = block.data;
    RA_ASSERT(ms != NULL); /* the agreed status is never better than this rank's */
    timing t = {.repeat = repeat,
                .forward_ms = ms,
                .backward_ms = backward ? ms + repeat->most : NULL,
                .begin_ns = ra_clock_ns()};
    status = repetitions_agreed(job, &t);
    if (status == RA_OK) {
        *forward_out = summary(t.forward_ms, t.count, repeat->steady_count);
        if (backward)
            *backward_out = summary(t.backward_ms, t.count, repeat->steady_count);
    }
out:
    ra_pool_free(job->host_pool, NULL, &block);
    return status;
}

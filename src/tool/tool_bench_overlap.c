/*
 * How much of the communication hides behind computing: complete passes, passes without exchanges,
 * and passes without kernels take turns, so that a change in the machine's speed affects all three.
 */
#include "duration.h"
#include "tool_bench.h"

#include <math.h>
#include <stdio.h>

enum { ROUNDS_MAX = 9, ROUNDS_LEAST = 3, WHOLE = 0, COMPUTE, COMM, MODES };

double ra_overlap_share(const ra_overlap *overlap)
{
    double const least = fmin(overlap->compute_ms, overlap->comm_ms);
    return least >= 0.01 * overlap->wall_ms && least > overlap->spread_ms
               ? (overlap->compute_ms + overlap->comm_ms - overlap->wall_ms) / least
               : (double)NAN;
}

double ra_overlap_exposed_ms(const ra_overlap *overlap)
{
    return fmax(overlap->wall_ms - overlap->compute_ms, 0);
}

void ra_overlap_text(const ra_overlap *overlap, char *text, size_t bytes)
{
    double const share = ra_overlap_share(overlap);
    char time[32];
    if (isfinite(share))
        snprintf(text, bytes, "%s exposed, %.0f %% overlap",
                 ra_duration_text(ra_overlap_exposed_ms(overlap), time), 100 * share);
    else if (fmin(overlap->compute_ms, overlap->comm_ms) < 0.01 * overlap->wall_ms)
        snprintf(text, bytes, "nothing to overlap");
    else if (isinf(overlap->spread_ms))
        snprintf(text, bytes, "overlap needs job.repeat of 2 or more");
    else
        snprintf(text, bytes, "overlap is lost in the spread of times, %s",
                 ra_duration_text(overlap->spread_ms, time));
}

/* Times of one pass, by mode and round. */
typedef struct rounds {
    double ms[MODES][ROUNDS_MAX];
} rounds;

static ra_overlap overlap_of(rounds *pass, int count)
{
    double median_ms[MODES], spread_ms[MODES];
    for (int mode = 0; mode < MODES; mode++) {
        ra_times const times = ra_times_of(pass->ms[mode], count);
        median_ms[mode] = times.median_ms;
        spread_ms[mode] = times.max_ms - times.min_ms;
    }
    return (ra_overlap){.wall_ms = median_ms[WHOLE],
                        .compute_ms = median_ms[COMPUTE],
                        .comm_ms = median_ms[COMM],
                        .spread_ms = count > 1 ? fmax(spread_ms[WHOLE], spread_ms[COMPUTE])
                                               : (double)INFINITY};
}

/* One pass in each mode; ranks know the same times, so they agree on when to end. */
static ra_status round_measure(ra_job *job, int round, rounds *forward, rounds *backward,
                               double *spent_ms)
{
    static const ra_ring_mode modes[MODES] = {RA_RING_BOTH, RA_RING_COMPUTE_ONLY,
                                              RA_RING_COMM_ONLY};
    ra_repeat const once = {.warmup = round == 0, .most = 1, .most_ms = INFINITY};
    for (int mode = 0; mode < MODES; mode++) {
        ra_times f, b = {0};
        ra_ring_set_mode(job->ring, modes[mode]);
        ra_status const status = ra_job_time(job, &once, &f, &b);
        if (status != RA_OK)
            return status;
        forward->ms[mode][round] = f.median_ms;
        backward->ms[mode][round] = b.median_ms;
        *spent_ms += f.median_ms + b.median_ms;
    }
    return RA_OK;
}

ra_status ra_bench_overlap_measure(ra_job *job, ra_bench_point *point)
{
    int const most = job->repeat.most < ROUNDS_MAX ? job->repeat.most : ROUNDS_MAX;
    rounds forward, backward;
    double spent_ms = 0;
    int count = 0;
    ra_status status = RA_OK;
    while (status == RA_OK && count < most &&
           (count < ROUNDS_LEAST || spent_ms <= MODES * job->repeat.most_ms))
        status = round_measure(job, count++, &forward, &backward, &spent_ms);
    ra_ring_set_mode(job->ring, RA_RING_BOTH);
    if (status != RA_OK)
        return status;
    point->has_overlap = true;
    point->forward = overlap_of(&forward, count);
    point->backward = overlap_of(&backward, count);
    return RA_OK;
}

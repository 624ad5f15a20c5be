/*
 * `ringattn probe`: for each variant the longest sequence that fits and runs. Lengths double until
 * one is refused, then the gap is halved until it is at most 1/256 of the length that fits; that
 * one runs whole. Every rank takes the same turns, because a try has the same outcome on all.
 */
#include "tool_probe.h"

#include "feature_sets.h"
#include "internal.h"
#include "job_memory.h"

#include <stdio.h>
#include <stdlib.h>

enum { GAP_SHARE = 256, WHOLE_TRIES_MAX = 8 };

/* ---- the search ------------------------------------------------------------------------------ */

static int64_t gap_of(int64_t tokens)
{
    return ra_max_i64(tokens / GAP_SHARE, 1);
}

static void refuse_at(ra_probe_point *point, int64_t tokens, const ra_job_outcome *outcome)
{
    point->refused_tokens = tokens;
    snprintf(point->held_back, sizeof(point->held_back), "%s", outcome->message);
}

/* A length that fits becomes point->tokens, one that does not point->refused_tokens. */
static ra_status tokens_try(ra_probe *probe, ra_probe_point *point, int64_t tokens,
                            ra_job_outcome *outcome)
{
    ra_status const status = ra_probe_try(probe, point, tokens, false, outcome);
    if (status != RA_OK)
        return status;
    if (outcome->status == RA_OK)
        point->tokens = tokens;
    else
        refuse_at(point, tokens, outcome);
    return RA_OK;
}

static ra_status tokens_search(ra_probe *probe, ra_probe_point *point)
{
    ra_job_outcome outcome;
    int64_t next = RA_PROBE_BEGIN_TOKENS;
    ra_status status = tokens_try(probe, point, next, &outcome);
    /* No other length would avoid this failure. */
    if (status == RA_OK && outcome.status != RA_OK && outcome.status != RA_ERR_NO_MEMORY) {
        point->status = outcome.status;
        point->refused_tokens = 0;
        return RA_OK;
    }
    while (status == RA_OK && outcome.status == RA_OK && next < RA_PROBE_MOST_TOKENS) {
        next = ra_min_i64(2 * next, RA_PROBE_MOST_TOKENS);
        status = tokens_try(probe, point, next, &outcome);
    }
    while (status == RA_OK && point->refused_tokens - point->tokens > gap_of(point->tokens))
        status = tokens_try(probe, point,
                            point->tokens + (point->refused_tokens - point->tokens) / 2, &outcome);
    if (status == RA_OK && point->tokens == 0)
        point->status = RA_ERR_NO_MEMORY;
    return status;
}

/* Run the whole job. If another process has taken memory meanwhile, try a little less. */
static ra_status whole_run(ra_probe *probe, ra_probe_point *point)
{
    ra_job_outcome outcome = {0};
    for (int i = 0; i < WHOLE_TRIES_MAX && point->tokens > 0; i++) {
        ra_status const status = ra_probe_try(probe, point, point->tokens, true, &outcome);
        if (status != RA_OK || outcome.status == RA_OK)
            return status;
        if (outcome.status != RA_ERR_NO_MEMORY)
            break;
        refuse_at(point, point->tokens, &outcome);
        point->tokens -= gap_of(point->tokens);
    }
    point->status = outcome.status;
    point->tokens = 0;
    snprintf(point->held_back, sizeof(point->held_back), "%s", outcome.message);
    return RA_OK;
}

static ra_status point_run(ra_probe *probe, ra_probe_point *point)
{
    int64_t const begin_ns = ra_clock_ns();
    point->rss_before_bytes = ra_rss_bytes();
    ra_status status = tokens_search(probe, point);
    if (status == RA_OK && point->status == RA_OK)
        status = whole_run(probe, point);
    if (status != RA_OK)
        return status;
    point->seconds = 1e-9 * (double)(ra_clock_ns() - begin_ns);
    point->rss_after_bytes = ra_rss_bytes();
    if (point->status == RA_OK && point->refused_tokens == 0)
        snprintf(point->held_back, sizeof(point->held_back),
                 "shape.seq ends at %d tokens: memory would allow more", RA_PROBE_MOST_TOKENS);
    if (ra_series_is_first(&probe->series) && probe->series.options->predict &&
        point->status == RA_OK)
        ra_probe_predict(probe, point);
    if (ra_series_is_first(&probe->series)) {
        ra_probe_report_point(probe, point);
        ra_series_add(&probe->series, ra_probe_point_to_json(probe, point));
    }
    ra_series_count(&probe->series, point->status, &point->report);
    ra_series_save(&probe->series, probe);
    return RA_OK;
}

/* ---- before and after ------------------------------------------------------------------------ */

/* Make points for the file's variants, for that of --variant, or for base and ring. */
static ra_status points_make(ra_probe *probe)
{
    const ra_config *base = &probe->series.base;
    const char *named = probe->series.options->source.pick.variant;
    int const count = named != NULL ? 1 : base->variant_count > 0 ? base->variant_count : 2;
    probe->points = calloc((size_t)count, sizeof(*probe->points));
    if (probe->points == NULL)
        return ra_refuse_memory("the variants");
    probe->point_count = count;
    for (int i = 0; i < count; i++) {
        ra_probe_point *point = &probe->points[i];
        ra_config_pick *pick = &point->pick;
        if (named == NULL && base->variant_count == 0)
            pick->features = i == 0 ? &ra_feature_sets[0] : &ra_feature_ring;
        else
            pick->variant = named != NULL ? named : base->variants[i];
        point->variant = pick->features != NULL ? pick->features->name : pick->variant;
    }
    return RA_OK;
}

static ra_status prepare(void *command)
{
    ra_probe *probe = command;
    ra_status const status =
        ra_host_pool_make(ra_comm_local_size(probe->series.comm), &probe->checks);
    return status == RA_OK ? points_make(probe) : status;
}

static ra_status run(void *command)
{
    ra_probe *probe = command;
    ra_status status = RA_OK;
    for (int i = 0; i < probe->point_count && status == RA_OK; i++)
        status = point_run(probe, &probe->points[i]);
    return status;
}

static void fini(void *command)
{
    ra_probe *probe = command;
    json_decref(probe->report_json);
    free(probe->points);
    ra_pool_destroy_with_ledger(probe->checks);
}

int ra_command_probe(const ra_options *options, ra_comm *comm)
{
    static const ra_series_ops ops = {.name = "probe",
                                      .agreeing = "agreeing on the variants",
                                      .jobs = "variants of a probe",
                                      .makes_tensors = true,
                                      .prepare = prepare,
                                      .run = run,
                                      .report = ra_probe_report_end,
                                      .fini = fini};
    ra_probe probe = {.series = {.options = options, .comm = comm}};
    return ra_series_command(&probe.series, &ops, &probe);
}

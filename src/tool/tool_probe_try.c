/* One try at a length: a job like run's, whose failure is an answer. */
#include "documents.h"
#include "duration.h"
#include "tool_probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The file's own documents sum to another length. */
static ra_status documents_fit(ra_config *config, int64_t tokens)
{
    ra_pattern_config *pattern = &config->pattern;
    int64_t *lengths, count;
    ra_status const status = ra_documents_repeat(pattern, tokens, &lengths, &count);
    if (status != RA_OK || lengths == NULL)
        return status;
    free((void *)(uintptr_t)pattern->documents); /* the configuration owns its lists */
    pattern->documents = lengths;
    pattern->document_count = count;
    return RA_OK;
}

static ra_status config_fit(ra_config *config, int64_t tokens)
{
    config->seq = tokens;
    config->verify = false; /* the whole run verifies, and not in the job's memory */
    return documents_fit(config, tokens);
}

/* The job's report and verification, while the job is there. */
static ra_status whole_report(ra_probe *probe, ra_job *job, ra_probe_point *point)
{
    job->config.verify = true;
    ra_status const status = ra_job_results(job);
    if (status != RA_OK)
        return status;
    point->report = job->report;
    if (ra_series_is_first(&probe->series)) {
        json_decref(probe->report_json); /* of a longer run that then failed on another rank */
        probe->report_json = ra_report_to_json(&point->report); /* NULL: found when written */
    }
    return RA_OK;
}

/*
 * The ends are two tiles of queries of each head and rank, and see about as many keys as others do.
 * The last one may be short, so of tries that differ by less than a factor of two the slowest
 * counts. Tiles of dilated patterns are of other lengths, and linear attention has none.
 */
static void ends_note(const ra_job *job, int64_t tokens, ra_probe_point *point)
{
    const ra_config *config = &job->config;
    const ra_report *report = &job->report;
    double const ms = report->forward.median_ms + report->backward.median_ms - report->waiting_ms;
    double const rows =
        2.0 * job->ops->tile_rows(config->dtype, config->head_dim) * ra_comm_size(job->comm);
    /* Threads without a tile, which have one in a whole pass. */
    double const tiles = 2.0 * (double)config->batch * config->heads;
    double const busy = fmin(1, tiles / job->threads);
    double const ms_per_pair = busy * ms / (rows * (double)tokens);
    if (ra_config_linear(config) != RA_LINEAR_NONE || config->pattern.branch_count > 0)
        return;
    if (tokens < 2 * point->timed_tokens && ms_per_pair < point->ms_per_pair)
        return;
    point->ms_per_pair = ms_per_pair;
    point->timed_tokens = tokens;
}

static ra_status job_try(ra_probe *probe, ra_job *job, ra_probe_point *point, int64_t tokens,
                         bool whole)
{
    ra_status status = ra_series_configure(&probe->series, &point->pick, job);
    if (status != RA_OK)
        return status;
    ra_console_hold();
    status =
        ra_console_agree(job->comm, "agreeing on the length", config_fit(&job->config, tokens));
    if (status != RA_OK)
        return status;
    job->repeat = (ra_repeat){.most = 1, .most_ms = (double)INFINITY};
    job->fills = !whole;
    job->checks = probe->checks;
    point->floor_bytes = ra_floor_row_bytes(&job->config);
    status = ra_job_build(job);
    if (status != RA_OK)
        return status;
    if (!whole)
        ra_ring_set_mode(job->ring, RA_RING_ENDS_ONLY);
    status = ra_job_passes(job);
    if (status != RA_OK)
        return status;
    if (whole)
        return whole_report(probe, job, point);
    ends_note(job, tokens, point);
    return RA_OK;
}

/* "ring, 2,700,000 tokens, whole, about 12.40 h": the time from a minute on. */
static void about_set(const ra_probe *probe, const ra_probe_point *point, int64_t tokens,
                      bool whole)
{
    char about[80], count[32], time[32], lasts[48] = "";
    double const ms = point->ms_per_pair * (double)tokens * (double)tokens;
    if (whole && ms > 60e3)
        snprintf(lasts, sizeof(lasts), ", about %s", ra_duration_text(ms, time));
    snprintf(about, sizeof(about), "%.30s, %s tokens%s%s", point->variant,
             ra_count_text(tokens, count), whole ? ", whole" : "", lasts);
    ra_progress_about(probe->series.progress, about);
}

ra_status ra_probe_try(ra_probe *probe, ra_probe_point *point, int64_t tokens, bool whole,
                       ra_job_outcome *outcome_out)
{
    const ra_series *series = &probe->series;
    ra_job job = {.options = series->options, .comm = series->comm, .progress = series->progress};
    about_set(probe, point, tokens, whole);
    point->try_count++;
    ra_console_defer();
    ra_status status = job_try(probe, &job, point, tokens, whole);
    status = ra_series_share_outcome(&job, status, true, outcome_out);
    (void)ra_job_describe_backend(&job, point->backend);
    ra_job_clear(&job);
    return status;
}

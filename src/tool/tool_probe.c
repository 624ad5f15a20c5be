/*
 * `ringattn probe`: for each variant the longest sequence that fits and runs. Lengths double until
 * one is refused, then the gap is halved until it is at most 1/256 of the length that fits; that
 * one runs whole. Every rank takes the same turns, as every try comes out the same on all.
 */
#include "tool_probe.h"

#include "feature_sets.h"
#include "internal.h"
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GAP_SHARE = 256, WHOLE_TRIES_MAX = 8 };

static bool is_first(const ra_probe *probe)
{
    return ra_comm_rank(probe->comm) == 0;
}

/* ---- the search ------------------------------------------------------------------------------ */

static int64_t gap_of(int64_t tokens)
{
    return ra_max_i64(tokens / GAP_SHARE, 1);
}

static void refuse_at(ra_probe_point *point, int64_t tokens, const ra_probe_outcome *outcome)
{
    point->refused_tokens = tokens;
    snprintf(point->held_back, sizeof(point->held_back), "%s", outcome->message);
}

/* A length that fits becomes point->tokens, one that does not point->refused_tokens. */
static ra_status tokens_try(ra_probe *probe, ra_probe_point *point, int64_t tokens,
                            ra_probe_outcome *outcome)
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
    ra_probe_outcome outcome;
    int64_t next = RA_PROBE_BEGIN_TOKENS;
    ra_status status = tokens_try(probe, point, next, &outcome);
    /* What another length would not mend. */
    if (status == RA_OK && outcome.status != RA_OK && outcome.status != RA_ERR_NO_MEMORY) {
        point->status = outcome.status;
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

/* All of it. Another process may have taken memory meanwhile: then a little less. */
static ra_status whole_run(ra_probe *probe, ra_probe_point *point)
{
    ra_probe_outcome outcome = {0};
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
    int64_t const rss = ra_rss_bytes();
    ra_status status = tokens_search(probe, point);
    if (status == RA_OK && point->status == RA_OK)
        status = whole_run(probe, point);
    if (status != RA_OK)
        return status;
    point->seconds = 1e-9 * (double)(ra_clock_ns() - begin_ns);
    point->rss_growth_bytes = rss < 0 ? -1 : ra_rss_bytes() - rss;
    if (point->status != RA_OK)
        memcpy(point->message, point->held_back, sizeof(point->message));
    else if (point->refused_tokens == 0)
        snprintf(point->held_back, sizeof(point->held_back),
                 "shape.seq ends at %d tokens: memory would allow more", RA_PROBE_MOST_TOKENS);
    if (is_first(probe) && probe->options->predict && point->status == RA_OK)
        ra_probe_predict(probe, point);
    if (is_first(probe))
        ra_probe_report_point(probe, point);
    return RA_OK;
}

/* ---- before and after ------------------------------------------------------------------------ */

/* Those of the file, the one that --variant names, or base and ring. */
static ra_status points_make(ra_probe *probe)
{
    const ra_config *base = &probe->base;
    bool const named = probe->named;
    const char *name = probe->options->source.variant; /* another rank's may be missing */
    int const count = named ? 1 : base->variant_count > 0 ? base->variant_count : 2;
    probe->points = calloc((size_t)count, sizeof(*probe->points));
    if (probe->points == NULL) {
        ra_log(RA_LOG_ERROR, "out of memory (variants)");
        return RA_ERR_NO_MEMORY;
    }
    probe->point_count = count;
    for (int i = 0; i < count; i++) {
        ra_probe_point *point = &probe->points[i];
        const ra_feature_set *set = i == 0 ? &ra_feature_base : &ra_feature_ring;
        point->variant = named                     ? (name != NULL ? name : "")
                         : base->variant_count > 0 ? base->variants[i]
                                                   : set->name;
        point->features = !named && base->variant_count == 0 ? set : NULL;
        point->column = ra_memory_column_of(point->variant, NULL);
    }
    return RA_OK;
}

static ra_status alone_prepare(ra_probe *probe)
{
    ra_job const job = {.options = probe->options, .comm = probe->comm, .config = probe->base};
    ra_status status = ra_probe_check_files(&probe->base);
    if (status == RA_OK)
        status = ra_job_check_outputs(&job);
    if (status == RA_OK)
        status = ra_ledger_create(INT64_MAX, &probe->ledger);
    if (status != RA_OK)
        return status;
    ra_pool_config const config = {
        .mode = RA_POOL_OFF, .memory = ra_memory_host(), .ledger = probe->ledger};
    status = ra_pool_create(&config, &probe->checks);
    return status == RA_OK ? points_make(probe) : status;
}

static ra_status prepare(ra_probe *probe)
{
    const ra_options *options = probe->options;
    ra_status status = ra_job_text_share(options, probe->comm, &probe->text);
    if (status == RA_OK)
        status = ra_job_text_parse(probe->text, probe->comm, NULL, 0, &probe->base);
    if (status == RA_OK)
        status = ra_job_connect(&probe->base, &probe->comm);
    /* As with the configuration, rank 0's command line holds for all. */
    int64_t named = options->source.variant != NULL;
    if (status == RA_OK)
        status = ra_comm_broadcast(probe->comm, "sharing options", 0, &named, sizeof(named));
    if (status == RA_OK)
        status = ra_job_share_cores(probe->comm, &probe->cores);
    if (status != RA_OK)
        return status;
    probe->named = named != 0;
    ra_console_hold();
    status = ra_console_agree(probe->comm, "agreeing on the variants", alone_prepare(probe));
    if (status == RA_OK)
        ra_job_mention_sweep(&probe->base, probe->comm);
    if (status == RA_OK)
        status = ra_progress_create(is_first(probe) && !options->quiet, &probe->progress);
    return status;
}

static void fini(ra_probe *probe)
{
    ra_progress_destroy(probe->progress);
    for (int i = 0; i < probe->point_count; i++)
        json_decref(probe->points[i].report);
    free(probe->points);
    ra_pool_destroy(probe->checks);
    ra_ledger_destroy(probe->ledger);
    ra_config_fini(&probe->base);
    ra_job_text_destroy(probe->text);
    ra_ranks_leave(probe->comm);
}

/* Of all variants together: every rank comes to the same. */
static int points_code(const ra_probe *probe)
{
    ra_job_outcomes outcomes = {0};
    for (int i = 0; i < probe->point_count; i++)
        ra_job_outcomes_add(&outcomes, probe->points[i].status, probe->points[i].passes);
    return ra_job_outcomes_code(&outcomes, is_first(probe));
}

int ra_command_probe(const ra_options *options, ra_comm *comm)
{
    ra_probe probe = {.options = options, .comm = comm};
    ra_status status = prepare(&probe);
    bool const entered = status == RA_OK;
    for (int i = 0; i < probe.point_count && status == RA_OK; i++)
        status = point_run(&probe, &probe.points[i]);
    /* Whoever fails between two tries fails alone: the others would wait for it. */
    if (entered && status != RA_OK && ra_comm_size(probe.comm) > 1)
        ra_comm_abort(probe.comm, ra_exit_code(status));
    if (status == RA_OK) {
        ra_progress_destroy(probe.progress);
        probe.progress = NULL;
        ra_console_hold();
        ra_status const written = is_first(&probe) ? ra_probe_report_end(&probe) : RA_OK;
        status = ra_console_agree(probe.comm, "agreeing on the report", written);
    }
    int const code = status == RA_OK ? points_code(&probe) : ra_exit_code(status);
    fini(&probe);
    return code;
}

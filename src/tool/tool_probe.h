/* `ringattn probe`, inside: one try at a length, the search per variant, and its report. */
#ifndef RINGATTN_TOOL_TOOL_PROBE_H
#define RINGATTN_TOOL_TOOL_PROBE_H

#include "job_series.h"

enum { RA_PROBE_BEGIN_TOKENS = 1024, RA_PROBE_MOST_TOKENS = INT32_MAX };

/* What was found for one variant. */
typedef struct ra_probe_point {
    const char *variant;
    ra_config_pick pick;                 /* with features if the file has no variants */
    ra_status status;                    /* RA_OK, or why there is no length */
    int64_t tokens;                      /* the longest that runs; 0: none */
    int64_t refused_tokens;              /* the shortest that was refused; 0: none was */
    char held_back[RA_CONSOLE_LINE_MAX]; /* why none is longer, or why there is no length */
    int64_t floor_bytes;                 /* per token: the least that any method needs */
    int try_count;
    /* What a whole pass takes per query row and key, by tries of timed_tokens; 0: not known. */
    double ms_per_pair;
    int64_t timed_tokens;
    double seconds;
    int64_t rss_before_bytes, rss_after_bytes; /* the whole search; -1: unknown */
    ra_report report;                          /* of the whole run; report.config is gone */
    char backend[RA_BACKEND_TEXT_MAX];         /* of the last try */
    /* --predict, rank 0's: the longest that should fit, and the peak of what was found. */
    bool predicted;
    char unpredicted[RA_CONSOLE_LINE_MAX]; /* why not */
    int64_t predicted_tokens, predicted_peak_bytes;
} ra_probe_point;

typedef struct ra_probe {
    ra_series series;
    ra_pool *checks; /* of verification's memory, which is not part of the job */
    ra_probe_point *points;
    int point_count;
    json_t *report_json; /* rank 0's, of a whole run that is not among the series' points yet */
} ra_probe;

/**
 * Collective. Build the job of a variant at `tokens`, with all its memory, and run its passes: the
 * first and last tiles of queries on filled tensors, or, if `whole`, everything on drawn ones,
 * verified, with the report in *point. RA_OK also if the length does not fit.
 */
RA_CHECKED ra_status ra_probe_try(ra_probe *probe, ra_probe_point *point, int64_t tokens,
                                  bool whole, ra_job_outcome *outcome_out);

/**
 * Rank 0 alone: what `plan` predicts for a variant under the probe's memory. If it cannot be
 * predicted, that is no failure: point->unpredicted says why.
 */
void ra_probe_predict(ra_probe *probe, ra_probe_point *point);

/* Rank 0 only. */
void ra_probe_report_point(ra_probe *probe, const ra_probe_point *point);
/** The "points" entry, which takes probe->report_json over; NULL: no memory. */
json_t *ra_probe_point_to_json(ra_probe *probe, const ra_probe_point *point);
/** For a ra_probe: the end of the table. */
RA_CHECKED ra_status ra_probe_report_end(void *command);

#endif

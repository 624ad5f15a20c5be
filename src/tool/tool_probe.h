/* `ringattn probe`, inside: one try at a length, the search per variant, and what is said of it. */
#ifndef RINGATTN_TOOL_TOOL_PROBE_H
#define RINGATTN_TOOL_TOOL_PROBE_H

#include "job_series.h"
#include "memory_table.h"

enum { RA_PROBE_BEGIN_TOKENS = 1024, RA_PROBE_MOST_TOKENS = INT32_MAX };

/* What was found for one variant. */
typedef struct ra_probe_point {
    const char *variant;
    const ra_feature_set *features; /* of a variant that the file does not name; NULL: it does */
    ra_status status;               /* RA_OK, or why there is no length */
    char message[RA_CONSOLE_LINE_MAX];
    int64_t tokens;         /* the longest that runs; 0: none */
    int64_t refused_tokens; /* the shortest that was refused; 0: none was */
    char held_back[RA_CONSOLE_LINE_MAX];
    int64_t floor_bytes; /* per token: what no method can do without */
    int try_count;
    double seconds;
    int64_t rss_growth_bytes; /* rank 0's resident set over the whole search; -1: unknown */
    bool passes;              /* verification of the whole run */
    ra_memory_column column;
    json_t *report; /* rank 0's, of the whole run; owned */
    /* --predict, rank 0's: the longest that should fit, and the peak of what was found. */
    bool predicted;
    char unpredicted[RA_CONSOLE_LINE_MAX]; /* why not */
    int64_t predicted_tokens, predicted_peak_bytes, peak_bytes;
    int64_t peak_bytes_sum, limit_bytes_sum;
} ra_probe_point;

typedef struct ra_probe {
    ra_series series;
    ra_ledger *ledger; /* of what verification works in: it is no part of the job */
    ra_pool *checks;
    ra_probe_point *points;
    int point_count;
} ra_probe;

/**
 * Collective. Build the job of a variant at `tokens`, with all its memory, and run its passes:
 * the first and last tiles of queries on filled tensors, or where `whole` all of it on drawn
 * ones, verified, with its report in *point. RA_OK also where the length does not fit.
 */
RA_CHECKED ra_status ra_probe_try(ra_probe *probe, ra_probe_point *point, int64_t tokens,
                                  bool whole, ra_job_outcome *outcome_out);

/**
 * Rank 0 alone: what plan says of a variant under the memory that the probe had. What cannot be
 * predicted is no failure: point->unpredicted says why.
 */
void ra_probe_predict(ra_probe *probe, ra_probe_point *point);

/** Whether a configuration names tensors to read or write, which a probe does not. */
RA_CHECKED ra_status ra_probe_check_files(const ra_config *config);

/* Rank 0 only. */
void ra_probe_report_point(const ra_probe *probe, const ra_probe_point *point);
/** Of a ra_probe: the end of the table, and JSON. */
RA_CHECKED ra_status ra_probe_report_end(void *command);

#endif

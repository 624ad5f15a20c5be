/* `ringattn ablate`, inside: the job under each set of features, and its report. */
#ifndef RINGATTN_TOOL_TOOL_ABLATE_H
#define RINGATTN_TOOL_TOOL_ABLATE_H

#include "feature_sets.h"
#include "job_series.h"

/* The job under one set. */
typedef struct ra_ablate_point {
    const ra_feature_set *set;
    ra_job_outcome outcome; /* after a failure nothing else is filled */
    char backend[RA_BACKEND_TEXT_MAX];
    ra_report report; /* report.config is gone with its job */
} ra_ablate_point;

typedef struct ra_ablate {
    ra_series series;
    ra_ablate_point *points; /* one per set */
    int point_count;         /* done so far */
} ra_ablate;

/* Rank 0 only. */

/** The "points" entry, while the point's job is there; NULL: no memory. */
json_t *ra_ablate_point_to_json(const ra_ablate *ablate, const ra_ablate_point *point);
/** For a ra_ablate: the table. */
RA_CHECKED ra_status ra_ablate_report(void *command);

#endif

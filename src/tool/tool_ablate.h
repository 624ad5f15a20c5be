/* `ringattn ablate`, inside: the job under each set of features, and what is said of it. */
#ifndef RINGATTN_TOOL_TOOL_ABLATE_H
#define RINGATTN_TOOL_TOOL_ABLATE_H

#include "feature_sets.h"
#include "job.h"
#include "job_source.h"
#include "memory_table.h"

/* The job under one set. */
typedef struct ra_ablate_point {
    const ra_feature_set *set;
    ra_status status; /* RA_OK, or why there is nothing more than the message */
    char message[RA_CONSOLE_LINE_MAX];
    bool passes;         /* verification, where it was asked for */
    ra_report report;    /* report.config is gone */
    json_t *report_json; /* rank 0's; owned */
} ra_ablate_point;

typedef struct ra_ablate {
    const ra_options *options;
    ra_comm *comm;
    ra_job_text *text;
    ra_config base;
    ra_job_cores cores; /* threads: where compute.threads is auto */
    ra_progress *progress;
    ra_ablate_point *points; /* one per set */
} ra_ablate;

/** Rank 0 only: the table and JSON. */
RA_CHECKED ra_status ra_ablate_report(const ra_ablate *ablate);

#endif

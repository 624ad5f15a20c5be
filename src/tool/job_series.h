/*
 * Several jobs of one configuration, one after the other: what `bench`, `probe` and `ablate` have
 * in common. A job that is refused, or has no room, is a result; what fails on one rank alone ends
 * the series.
 */
#ifndef RINGATTN_TOOL_JOB_SERIES_H
#define RINGATTN_TOOL_JOB_SERIES_H

#include "job.h"
#include "job_source.h"

/* A command with such a series. */
typedef struct ra_series_ops {
    const char *agreeing; /* "agreeing on the sweep": what ranks do after `prepare` */
    const char *jobs;     /* "points of a bench" */
    int64_t base_point;   /* the sweep's combination that base is, as in ra_job_text_parse */
    /* What a rank does by itself before the first job; it may say why not. */
    ra_status (*prepare)(void *command);
    ra_status (*run)(void *command);    /* collective: the jobs */
    ra_status (*report)(void *command); /* rank 0 only, after the last */
    void (*fini)(void *command);        /* also if `prepare` failed early */
} ra_series_ops;

/* How a job came out. */
typedef struct ra_job_outcome {
    ra_status status; /* RA_OK: it ran; else a failure that is a result */
    char message[RA_CONSOLE_LINE_MAX];
} ra_job_outcome;

/* Begins with options and communicator, the rest zeroed. */
typedef struct ra_series {
    const ra_options *options;
    ra_comm *comm;
    const ra_series_ops *ops;
    ra_job_text *text;
    ra_config base;      /* variants, sweep, and what holds for all jobs */
    bool named, overlap; /* of rank 0's command line: it names the variant; --overlap */
    ra_job_cores cores;  /* threads: where compute.threads is auto */
    ra_progress *progress;
    int ran, wrong;          /* jobs; wrong: of those that ran, verification failed */
    int oom, files, refused; /* refused: by configuration, or by this build */
} ra_series;

/**
 * The whole command, from the configuration to the end of the communicator. @return the exit code:
 * 6 where a job was wrong, 0 where one ran; where none did, 4 if memory was short for any, else 3
 * if a file was at fault for any, else 2
 */
int ra_series_command(ra_series *series, const ra_series_ops *ops, void *command);
bool ra_series_is_first(const ra_series *series); /* whether this is rank 0 */

/**
 * Collective. The configuration of a job and what its communicator and threads are by it.
 * @param variant   passed over where the command line names one, and with `features`
 * @param point     combination of the sweep, as in ra_job_text_parse
 * @param features  NULL: none
 */
RA_CHECKED ra_status ra_series_configure(const ra_series *series, const char *variant,
                                         int64_t point, const ra_feature_set *features,
                                         ra_job *job);
/** Rank 0 alone: the same configuration, with as many threads, for a prediction. */
RA_CHECKED ra_status ra_series_configure_alone(const ra_series *series, const char *variant,
                                               int64_t point, const ra_feature_set *features,
                                               ra_config *config_out);
/**
 * Collective. Ends ra_console_defer, which comes before all that a job does: every rank gets the
 * first line that one has kept. It is said where the failure is no result, and with `says` where
 * there was none, as of a verification that failed.
 * @param status  of the job. @return RA_OK where the next job has a chance
 */
RA_CHECKED ra_status ra_series_settle(const ra_job *job, ra_status status, bool says,
                                      ra_job_outcome *outcome_out);
/** To be called for every job, or for the outcome of several: these decide the exit code. */
void ra_series_count(ra_series *series, ra_status status, bool passes);

/** Repetitions of a job: job.repeat at most, else as often as it takes to be steady. */
ra_repeat ra_job_repeat_of(const ra_config *config);
/** "ok", "oom", "config", ... */
const char *ra_job_status_text(ra_status status, bool passes);

#endif

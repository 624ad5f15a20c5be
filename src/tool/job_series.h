/*
 * Several jobs of one configuration, one after the other: what `bench`, `probe` and `ablate` have
 * in common. A job that is refused, or has no room, is a result; what fails on one rank alone ends
 * the series.
 */
#ifndef RINGATTN_TOOL_JOB_SERIES_H
#define RINGATTN_TOOL_JOB_SERIES_H

#include "console.h"
#include "job.h"
#include "job_source.h"

#include <jansson.h>

/* What differs between commands that run such a series. */
typedef struct ra_series_ops {
    const char *name;     /* "bench" */
    const char *agreeing; /* "agreeing on the sweep": what ranks do after `prepare` */
    const char *jobs;     /* "points of a bench" */
    bool makes_tensors;   /* of its own: job.input is refused */
    bool writes_pool_log; /* of each job; else memory.pool.log is refused */
    int64_t base_point;   /* combination of the sweep for `base`, as in ra_config_pick */
    /* What a rank does by itself before the first job; it may say why not. */
    ra_status (*prepare)(void *command);
    ra_status (*run)(void *command);    /* collective: the jobs */
    ra_status (*report)(void *command); /* rank 0 only, after the last: all but JSON */
    /* Rank 0 only: what stands beside "points"; it may return NULL: no memory. NULL: nothing does.
     */
    json_t *(*to_json)(const void *command);
    void (*fini)(void *command); /* also if `prepare` failed early */
} ra_series_ops;

/* How a job came out. */
typedef struct ra_job_outcome {
    ra_status status; /* RA_OK: it ran; else a failure that is a result */
    char message[RA_CONSOLE_LINE_MAX];
} ra_job_outcome;

/* The caller sets options and communicator, and zeroes the rest. */
typedef struct ra_series {
    const ra_options *options;
    ra_comm *comm;
    const ra_series_ops *ops;
    ra_job_text text;
    ra_config base;     /* variants, sweep, and what holds for all jobs */
    ra_job_cores cores; /* threads: if compute.threads is auto */
    ra_progress *progress;
    json_t *points;            /* rank 0's so far, for JSON and CSV; NULL: no memory */
    json_t *machine;           /* rank 0's, once it has written JSON */
    int64_t save_ns, saved_ns; /* how long the last report so far took, and its end */
    bool behind;               /* that report lacks a job which is over */
    bool unsaved;              /* it has been said that one could not be written */
    int ran, wrong;            /* jobs that ran; wrong: those of them that failed verification */
    int oom, files, refused;   /* jobs that did not run; refused: by configuration or build */
    ra_status lacked;          /* the first failure of a file of a job that ran */
    char backend[RA_BACKEND_TEXT_MAX]; /* that the table has named last; "": none yet */
} ra_series;

/**
 * The whole command, from the configuration to the end of the communicator. @return the exit code:
 * 6 if a job was wrong, else that of a file which is lacking of one that ran, else 0 if one ran; if
 * none did, 4 if memory was short for any, else 3 if a file was at fault for any, else 2
 */
int ra_series_command(ra_series *series, const ra_series_ops *ops, void *command);
bool ra_series_is_first(const ra_series *series); /* whether this is rank 0 */

/**
 * Collective. Set a job's configuration, and the communicator and threads that follow from it.
 * @param pick  as for ra_job_text_parse
 */
RA_CHECKED ra_status ra_series_configure(const ra_series *series, const ra_config_pick *pick,
                                         ra_job *job);
/** Rank 0 alone: the same configuration, with as many threads, for a prediction. */
RA_CHECKED ra_status ra_series_configure_alone(const ra_series *series, const ra_config_pick *pick,
                                               ra_config *config_out);
/**
 * Collective. Ends a job, and the ra_console_defer before it: outcome_out gets, on every rank, the
 * kept line of the first rank that has one. Lines of a failure that is no result are printed.
 * @param status  of the job
 * @param says    whether lines of a job that did not fail are printed: a verification that failed
 *                leaves one
 * @return RA_OK if the next job has a chance
 */
RA_CHECKED ra_status ra_series_share_outcome(const ra_job *job, ra_status status, bool says,
                                             ra_job_outcome *outcome_out);
/** How writing a file of a job that ran has ended: the job stands without it, the exit code tells.
    @return RA_OK if the next job has a chance */
RA_CHECKED ra_status ra_series_lack(ra_series *series, const ra_job *job, ra_status status);
/** To be called for every job, or for the outcome of several: these decide the exit code.
    @param report  of a job that ran: whether verification failed */
void ra_series_count(ra_series *series, ra_status status, const ra_report *report);

/**
 * Rank 0, before a job's row of the table: a row that names the backend, unless it is that of the
 * row before, or the CPU and there was no other choice.
 * @param backend  as of ra_job_describe_backend; "": it is not known
 * @param whose    the job's name, if rows cannot tell
 */
void ra_series_tell_backend(ra_series *series, const char *backend, const char *whose);

/** Rank 0, after each job: take over its "points" entry; NULL: no memory, as the report will say.
 */
void ra_series_add(ra_series *series, json_t *point);
/**
 * After each job: on rank 0, if JSON goes to a file, replace that by a report with "complete"
 * false; not yet if the last one took more than a tenth of the time since, as with thousands of
 * short jobs; a series that fails catches up. A failure is a warning, once: the end of the series
 * writes it again.
 */
void ra_series_save(ra_series *series, const void *command);

/** Repetitions of a job: at most job.repeat if it was given, else as many as it takes. */
ra_repeat ra_job_repeat_of(const ra_config *config);
/** "ok", "verification failed", "oom", "config", ... @param report  of a job that ran */
const char *ra_job_status_text(ra_status status, const ra_report *report);

#endif

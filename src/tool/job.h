/* `ringattn run`, inside: one job from its configuration to its report. */
#ifndef RINGATTN_TOOL_JOB_H
#define RINGATTN_TOOL_JOB_H

#include "options.h"
#include "progress.h"
#include "report.h"

enum { RA_JOB_BLOCKS = 9 };

/* Everything a rank holds for a job. Zeroed, then filled in the order of the members. */
typedef struct ra_job {
    const ra_options *options;
    ra_comm *comm;
    ra_config config;
    ra_ledger *ledger;
    ra_pool *pool;
    ra_progress *progress;
    ra_tensor_source *source;
    ra_pattern *pattern;
    int threads; /* of the kernel */
    ra_kernel kernel;
    ra_ring *ring;
    ra_block blocks[RA_JOB_BLOCKS]; /* of the tensors */
    ra_ring_tensors tensors;
    int64_t rss_before_bytes; /* -1: unknown */
    bool entered;             /* into collective work: a rank that fails must tell the others */
    ra_report report;
} ra_job;

/**
 * Collective. Read the configuration on rank 0 and give it to all, make the communicator where
 * there is none yet, open the inputs, check everything, and take what passes need. What is wrong
 * with configuration or files is said by one rank, and every rank returns the same status.
 */
RA_CHECKED ra_status ra_job_prepare(ra_job *job);
/** Collective. Tensors in, passes, measurements into job->report. */
RA_CHECKED ra_status ra_job_passes(ra_job *job);
/** Collective. Verify and write the output. RA_OK also where verification failed. */
RA_CHECKED ra_status ra_job_results(ra_job *job);
/** Give everything back, the communicator too. */
void ra_job_fini(ra_job *job);

/** Resident set of this process, and its high-water mark since ra_rss_mark; -1: unknown. */
int64_t ra_rss_bytes(void);
int64_t ra_rss_peak_bytes(void);
/** Let the high-water mark begin here, where the system can. */
void ra_rss_mark(void);

#endif

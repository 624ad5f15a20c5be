/* The pattern cache of a job, or of many jobs that come one after the other. */
#ifndef RINGATTN_TOOL_JOB_CACHE_H
#define RINGATTN_TOOL_JOB_CACHE_H

#include "config.h"
#include "report.h"

/* Zeroed; whoever holds it destroys it after the last job. */
typedef struct ra_job_cache {
    ra_pattern_cache *cache; /* NULL: the last job had none */
    ra_cache_mode mode;
    int64_t entries, bytes;
    bool attached;
    ra_cache_counts before; /* the counts when it was attached */
} ra_job_cache;

/**
 * Make the cache that a configuration asks for and attach it to the job's pool. Maps of earlier
 * jobs stay if those had the same cache configuration; otherwise the cache begins empty, and mode
 * off has none. So nothing is held that the current job does not account for.
 */
RA_CHECKED ra_status ra_job_cache_attach(ra_job_cache *holder, const ra_config *config,
                                         ra_pool *pool);
/** Call it after the job's ring and before its pool is destroyed; fine if nothing is attached. */
void ra_job_cache_detach(ra_job_cache *holder);
/** Counts since the cache was attached, and what is kept now. */
ra_cache_counts ra_job_cache_read(const ra_job_cache *holder);
void ra_job_cache_destroy(ra_job_cache *holder);

#endif

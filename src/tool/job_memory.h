/* Where a job's bytes live: a pool of host memory, and, if a GPU computes, one of its memory. */
#ifndef RINGATTN_TOOL_JOB_MEMORY_H
#define RINGATTN_TOOL_JOB_MEMORY_H

#include "job.h"

/**
 * Collective; ra_job_build does it unless it is done. Choose the backend, the same on all ranks:
 * with auto, GPUs if every rank has one that can do the job; else the CPU, and job->backend_note
 * says why.
 * @return RA_ERR_CONFIG  compute.backend: cuda, which cannot be had; one rank has said why
 */
RA_CHECKED ra_status ra_job_choose_backend(ra_job *job);

/** Rank 0 warns, once in a process, if auto has led several ranks to one GPU. */
void ra_job_warn_of_sharing(const ra_job *job);

/** Use the GPU that was chosen, from here on, and read what its context takes, before anything else
    is taken there. */
RA_CHECKED ra_status ra_job_take_device(ra_job *job);

/**
 * Ledgers and pools of the backend; with a GPU, one that has been taken. memory.limit applies to
 * the memory that the kernel works in; the default is this rank's share of what is available there,
 * less 2 %. Host memory beside a GPU always has this default. Ranks of a host take its GPUs in
 * turn.
 */
RA_CHECKED ra_status ra_job_make_pools(ra_job *job);
/** A pool of host memory that keeps no idle bytes, with a ledger of its own: as above, at most the
    share of one of `sharers` ranks; 0: without a limit, and without asking what there is. */
RA_CHECKED ra_status ra_host_pool_make(int sharers, ra_pool **pool_out);
/** In both, everything must have been given back. NULL is fine. */
void ra_pool_destroy_with_ledger(ra_pool *pool);
void ra_job_end_pools(ra_job *job);

#endif

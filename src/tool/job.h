/*
 * One job from its configuration to its report: `ringattn run`, and each point of `bench`, `probe`
 * and `ablate`.
 */
#ifndef RINGATTN_TOOL_JOB_H
#define RINGATTN_TOOL_JOB_H

#include "backend.h"
#include "job_cache.h"
#include "kernel_choice.h"
#include "options.h"
#include "placement.h"
#include "progress.h"
#include "report.h"

#include "ringattn/pool_log.h"

enum { RA_JOB_BLOCKS = 9 };

/* How often passes are timed. */
typedef struct ra_repeat {
    int warmup, most; /* most: at least 1 */
    int steady_count; /* end early once the last so many lie within 5 %; 0: never */
    double most_ms;   /* begin no further repetition after so long; INFINITY: no bound */
} ra_repeat;

/* Everything a rank holds for a job. Zeroed, then filled in the order of the members. */
typedef struct ra_job {
    const ra_options *options;
    ra_comm *comm;
    ra_config config;
    ra_backend backend; /* what computes; AUTO until it is chosen. ra_job_build may still move an
                           auto to the CPU */
    ra_backend_gpu gpu; /* its device is the next member, once it is taken */
    ra_device device;
    int64_t context_bytes; /* of the GPU's context, counted in the pool */
    /* Of the kernel's memory and of the host's; if the CPU computes, one serves as both. */
    ra_pool *pool, *host_pool;
    int pool_log_number;    /* of this job's file, if there are several; 0: it is the only one */
    ra_pool_log *pool_log;  /* NULL: none is wanted */
    ra_shard_memory shards; /* where the tensors lie, and what stages them */
    ra_progress *progress;
    ra_tensor_source *source;
    ra_pattern *pattern;
    int threads;      /* of the kernel; 0 until ra_job_build decides */
    ra_caches caches; /* decided with threads */
    ra_repeat repeat;
    bool fills;      /* tensors are filled with zeros instead of being drawn or read */
    ra_pool *checks; /* what verification works in, borrowed; NULL: the job's own pool, from which
                        it is taken before passes begin */
    ra_job_cache own_cache;
    ra_job_cache *cache; /* one that outlives the job, borrowed; NULL: own_cache */
    char backend_note[RA_BACKEND_NOTE_MAX];
    const ra_kernel_ops *ops;             /* what computes; checked */
    char kernel_note[RA_KERNEL_NOTE_MAX]; /* which kernels `ops` replaced, and why; or "" */
    ra_kernel kernel;
    ra_comm *ring_comm; /* one between GPUs, owned, or `comm` itself */
    ra_ring *ring;
    ra_block blocks[RA_JOB_BLOCKS]; /* of the tensors */
    ra_block verify_block;          /* if verification was requested */
    ra_ring_tensors tensors;
    int64_t rss_before_bytes; /* -1: unknown */
    int64_t alloc_count;      /* up to the end of the first repetition; 0: it is not over */
    bool alone;               /* a pass failed here; what the other ranks do is not known */
    ra_report report;
    ra_ledger_mark *phases; /* of the report; owned */
} ra_job;

/**
 * Collective. Read the configuration on rank 0 and give it to all, make the communicator where
 * there is none yet, open the inputs, check everything, and take what passes need. What is wrong
 * with configuration or files is said by one rank, and every rank returns the same status.
 */
RA_CHECKED ra_status ra_job_prepare(ra_job *job);
/**
 * Collective. The part of ra_job_prepare that comes after configuration, communicator and progress:
 * nothing but these and the options is needed.
 */
RA_CHECKED ra_status ra_job_build(ra_job *job);
/** Make, or make anew, the communicator that a configuration asks for. */
RA_CHECKED ra_status ra_job_connect(const ra_config *config, ra_comm **comm);
/* What a rank has of its host. */
typedef struct ra_job_cores {
    int threads; /* one per core of its share */
    ra_caches caches;
} ra_job_cores;
/**
 * Collective. This rank's share of the cores of its host. To be asked before anything computes:
 * an OpenMP runtime may bind the calling thread to one core.
 */
RA_CHECKED ra_status ra_job_share_cores(ra_comm *comm, ra_job_cores *cores_out);
/** Compute with them, or with as many threads as the configuration asks for. */
void ra_job_take_cores(ra_job *job, const ra_job_cores *cores);
/** What computes, in words; "": it was not settled before the job failed. Returns `text`. */
const char *ra_job_describe_backend(const ra_job *job, char text[RA_BACKEND_TEXT_MAX]);
/**
 * Collective, after ra_job_build. Compare the ranks' places with what the job needs, and warn.
 * @param own  from ra_place_read
 */
RA_CHECKED ra_status ra_job_check_placement(ra_job *job, ra_place own);
/** Remark on sections of the file that a command for one job does not use: `sweep`, for `bench` and
    `plan`; and `variants`, unless --variant names one. Rank 0 speaks. */
void ra_job_mention_sweep(const ra_config *config, const ra_comm *comm);
void ra_job_mention_variants(const ra_config *config, const ra_options *options,
                             const ra_comm *comm);
/**
 * Whether outputs of the configuration and the command line can be written, and are neither each
 * other, nor a file that is read, by name or by inode, nor the file of standard output; rank 0
 * looks, or who has no communicator. memory.pool.log stands for all names with numbers, too.
 * @param tensors  whether job.output and memory.pool.log are written, and not the report alone
 */
RA_CHECKED ra_status ra_job_check_outputs(const ra_options *options, const ra_config *config,
                                          const ra_comm *comm, bool tensors);
/**
 * Whether the results fit on the file system of job.output, as it is now; rank 0 looks. Needs a
 * checked configuration.
 */
RA_CHECKED ra_status ra_job_check_space(const ra_job *job);

/** Whether two paths, through whatever names and links, lead to one regular file that exists. */
bool ra_is_one_file(const char *a, const char *b);
/** A ring's configuration but for its cache; it leaves room for the times of the repetitions. */
ra_ring_config ra_job_ring_config(const ra_config *config, int repetitions);
/** Whether lse is kept, which it is if somebody reads it. */
bool ra_job_wants_lse(const ra_config *config);
/** Collective. Bring tensors in, run the passes, and put what was measured into job->report. */
RA_CHECKED ra_status ra_job_passes(ra_job *job);
/**
 * Collective. Time passes over the tensors that ra_job_passes has brought in, in the mode that the
 * ring is in. job->report is not changed; the communicator's counters are left as they are after
 * the last pass. If all ranks fail together, one of them logs it.
 */
RA_CHECKED ra_status ra_job_time(ra_job *job, const ra_repeat *repeat, ra_times *forward_out,
                                 ra_times *backward_out);
/** Least, median and most of `count` (>= 1) times, which are left sorted; no spread. */
ra_times ra_times_of(double *ms, int count);
/** Bytes that ra_job_time takes for so many repetitions. */
int64_t ra_job_times_bytes(int repetitions, bool backward);
/** Collective. Verify and write the output. RA_OK also if verification failed. */
RA_CHECKED ra_status ra_job_results(ra_job *job);
/** Collective. Write this rank's events up to here, if memory.pool.log asks for them. */
RA_CHECKED ra_status ra_job_write_pool_log(ra_job *job);
/**
 * Whether a status of the functions above is this rank's alone, who then tells the others by
 * ra_comm_abort. Any other failure all ranks return.
 */
bool ra_job_failed_alone(const ra_job *job, ra_status status);
/** Give back what ra_job_build and the passes have taken, and the configuration. */
void ra_job_clear(ra_job *job);
/** Give everything back, progress and the communicator too. */
void ra_job_fini(ra_job *job);

/** Resident set of this process, and its high-water mark since ra_rss_mark; -1: unknown. */
int64_t ra_rss_bytes(void);
int64_t ra_rss_peak_bytes(void);
/** Let the high-water mark begin here, if the system can. */
void ra_rss_mark(void);

#endif

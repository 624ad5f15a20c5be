/* From a command line to a job that is ready to compute. */
#include "console.h"
#include "job.h"
#include "job_memory.h"
#include "job_source.h"
#include "ranks.h"

#include "ringattn/comm_device.h"
#include "ringattn/topology.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* If mpirun started us, there is a communicator already. */
ra_status ra_job_connect(const ra_config *config, ra_comm **comm)
{
    if (*comm != NULL && config->comm == RA_COMM_SELF) {
        if (ra_comm_size(*comm) > 1) {
            ra_console_hold();
            return ra_console_agree(*comm, "agreeing on comm.backend",
                                    ra_config_refuse(config, "comm.backend",
                                                     "self is for one rank, but %d were started: "
                                                     "use mpi or auto",
                                                     ra_comm_size(*comm)));
        }
        ra_comm_destroy(*comm);
        *comm = NULL;
    }
    ra_status status = RA_OK;
    if (*comm == NULL && config->comm == RA_COMM_MPI)
        status = ra_ranks_begin(NULL, NULL, RA_RANKS_JOIN_MS, config->timeout_ms, comm);
    else if (*comm == NULL)
        status = ra_comm_create_self(config->timeout_ms, comm);
    if (status != RA_OK)
        return status;
    ra_comm_set_timeout(*comm, config->timeout_ms);
    ra_console_open(*comm);
    return RA_OK;
}

ra_status ra_job_share_cores(ra_comm *comm, ra_job_cores *cores_out)
{
    ra_topology topology;
    ra_console_hold();
    ra_status const status =
        ra_console_agree(comm, "agreeing on cores", ra_topology_read(&topology));
    if (status != RA_OK)
        return status;
    cores_out->caches = (ra_caches){topology.l1_bytes, topology.l2_bytes};
    return ra_topology_threads(&topology, comm, &cores_out->threads);
}

void ra_job_take_cores(ra_job *job, const ra_job_cores *cores)
{
    job->threads = job->config.threads > 0 ? job->config.threads : cores->threads;
    job->caches = cores->caches;
}

/* A GPU that is said to lack something, although it was taken, may be lost: that ends any job. */
static ra_status gpu_refuse(ra_job *job)
{
    int64_t taken_bytes;
    ra_status const status = ra_device_taken(&taken_bytes);
    if (status != RA_OK || ra_backend_may_be_cpu(&job->config))
        return status;
    return ra_backend_refuse(&job->config, job->backend_note);
}

/*
 * Done before anything of the job is taken or measured, because the check gives its memory back. On
 * one thread, because compilers and processors get every thread's work wrong alike. For a GPU the
 * plain kernel has larger tiles to compute, and uses all threads.
 */
static ra_status kernel_choose(ra_job *job)
{
    const ra_config *config = &job->config;
    bool const on_gpu = job->backend == RA_BACKEND_CUDA;
    ra_kernel_use const use =
        ra_job_kernel_use(config, ra_comm_size(job->comm), on_gpu ? job->threads : 1);
    ra_kernel_list list;
    if (on_gpu && !ra_backend_gpu_serves(config, job->backend_note))
        return gpu_refuse(job);
    ra_status const status = ra_kernel_list_make(config, job->backend, NULL, &list);
    return status == RA_OK
               ? ra_kernel_list_check(&list, &use, job->comm, &job->ops, job->kernel_note)
               : status;
}

/*
 * What taking the GPU, or the check on it, came to: a GPU can be listed, and yet belong to another
 * process, have no room for a context, or lack code for it in this build. If another backend is
 * allowed, the line says what is missing, and ends nothing. Not if the GPU is lost.
 */
static ra_status gpu_forgive(ra_job *job, ra_status status)
{
    if (status == RA_OK || job->backend != RA_BACKEND_CUDA ||
        !ra_backend_may_be_cpu(&job->config) || ra_device_is_lost())
        return status;
    if (!ra_console_forget(job->backend_note, sizeof(job->backend_note)))
        snprintf(job->backend_note, sizeof(job->backend_note), "the GPU cannot be used: %s",
                 ra_status_name(status));
    job->ops = NULL;
    return RA_OK;
}

/* Ranks that share a GPU have their contexts before any of them asks what is free there: a rank
   that cannot take it, or ends before, meets the others, too. */
static ra_status gpu_take(ra_job *job, ra_status status)
{
    if (status == RA_OK)
        status = gpu_forgive(job, ra_job_take_device(job));
    if (job->gpu.sharers_max < 2)
        return status;
    ra_status const met = ra_comm_barrier(job->comm, "taking GPUs that ranks share");
    return status == RA_OK ? met : status;
}

static bool gpu_is_refused(const ra_job *job)
{
    return job->backend == RA_BACKEND_CUDA && job->backend_note[0] != '\0';
}

static ra_status kernel_make(ra_job *job)
{
    ra_kernel_use const use =
        ra_job_kernel_use(&job->config, ra_comm_size(job->comm), job->threads);
    ra_status const status = ra_kernel_init(job->ops, &use, job->pool, &job->kernel);
    if (status != RA_OK)
        return status;
    job->kernel.caches = job->caches;
    job->shards.stream = job->kernel.stream;
    return RA_OK;
}

/*
 * What every rank does by itself, with the same outcome unless its machine differs; but for meeting
 * those it shares a GPU with. If the GPU cannot be used or run the kernels, or they compute wrong
 * results, and another backend is allowed, this only finds out: job->ops is NULL and
 * job->backend_note says what is missing.
 */
static ra_status alone_prepare(ra_job *job)
{
    ra_config *config = &job->config;
    ra_status status = ra_job_check_outputs(job->options, config, job->comm, true);
    if (job->backend == RA_BACKEND_CUDA)
        status = gpu_take(job, status);
    if (status != RA_OK || gpu_is_refused(job))
        return status;
    status = ra_job_make_pools(job);
    if (status == RA_OK)
        status = ra_tensor_source_open(config, job->host_pool, job->threads, &job->source);
    if (status == RA_OK)
        status = ra_config_check(config, ra_comm_size(job->comm));
    if (status == RA_OK)
        status = ra_job_check_space(job);
    if (status == RA_OK)
        status = gpu_forgive(job, kernel_choose(job));
    if (status != RA_OK || job->ops == NULL)
        return status;
    ra_rss_mark();
    job->rss_before_bytes = ra_rss_bytes();
    if (job->cache == NULL)
        job->cache = &job->own_cache;
    status = ra_job_cache_attach(job->cache, config, job->host_pool);
    if (status != RA_OK)
        return status;
    ra_pattern_config pattern = config->pattern;
    /* Linear attention computes without it; verification asks it who sees whom. */
    pattern.causal = pattern.causal || ra_config_linear(config) == RA_LINEAR_CAUSAL;
    status = ra_pattern_create(&pattern, config->seq, config->heads, job->host_pool, &job->pattern);
    if (status == RA_OK)
        status = kernel_make(job);
    return status;
}

/* Give back all that alone_prepare has taken, and what was taken with it. */
static void alone_undo(ra_job *job)
{
    ra_kernel_fini(&job->kernel);
    ra_pattern_destroy(job->pattern);
    ra_tensor_source_close(job->source);
    if (job->cache != NULL)
        ra_job_cache_detach(job->cache);
    ra_job_end_pools(job);
    job->kernel = (ra_kernel){0};
    job->pattern = NULL;
    job->source = NULL;
}

static ra_status prepare_agreed(ra_job *job)
{
    ra_console_hold();
    ra_status const status = ra_console_agree(job->comm, "agreeing on the job", alone_prepare(job));
    if (job->kernel_note[0] != '\0') /* about this rank's machine, so every rank logs it */
        ra_log(RA_LOG_WARNING, "%s", job->kernel_note);
    return status;
}

/* What a rank finds of its GPU; the largest value of all ranks decides. */
enum { GPU_SERVES, GPU_IS_WRONG, GPU_LACKS };

static int64_t gpu_verdict(const ra_job *job)
{
    if (job->ops != NULL)
        return GPU_SERVES;
    return job->backend_note[0] != '\0' ? GPU_LACKS : GPU_IS_WRONG;
}

/* Ranks that found wrong results have logged them; the first that lacks something says what. */
static void note_refusal(ra_job *job, int64_t verdict, bool speaks)
{
    bool const own = gpu_verdict(job) == verdict;
    if (verdict == GPU_IS_WRONG)
        snprintf(job->backend_note, sizeof(job->backend_note),
                 "the GPU's kernels compute wrong results%s; see ringattn info --check",
                 own ? "" : " on another rank");
    else if (!own)
        snprintf(job->backend_note, sizeof(job->backend_note),
                 "the GPU of another rank cannot be used for this job");
    if (verdict == GPU_LACKS && speaks)
        ra_log(RA_LOG_WARNING, "%s: the CPU computes instead", job->backend_note);
}

/* If a rank's GPU cannot compute the job, and the configuration leaves it open, none computes. */
static ra_status prepare(ra_job *job)
{
    ra_status status = prepare_agreed(job);
    bool const may_end = job->backend == RA_BACKEND_CUDA && ra_backend_may_be_cpu(&job->config);
    int const rank = ra_comm_rank(job->comm), size = ra_comm_size(job->comm);
    int64_t refused = gpu_verdict(job) * size + size - 1 - rank; /* the first rank wins */
    if (status == RA_OK && may_end)
        status = ra_comm_reduce_i64(job->comm, "agreeing on the kernels", RA_MAX, &refused, 1);
    if (status == RA_OK && may_end && refused / size != GPU_SERVES) {
        note_refusal(job, refused / size, refused % size == size - 1 - rank);
        alone_undo(job);
        job->backend = RA_BACKEND_CPU;
        job->gpu.device = NULL;
        job->kernel_note[0] = '\0'; /* it has been logged */
        status = prepare_agreed(job);
    }
    return status == RA_OK ? ra_tensor_source_agree(job->source, job->comm) : status;
}

ra_ring_config ra_job_ring_config(const ra_config *config, int repetitions)
{
    return (ra_ring_config){.batch = config->batch,
                            .seq = config->seq,
                            .heads = config->heads,
                            .kv_heads = config->kv_heads,
                            .dim = config->head_dim,
                            .dtype = config->dtype,
                            .scale = (float)config->scale,
                            .layout = config->layout,
                            .schedule = config->schedule,
                            .comm_buffers = config->comm_buffers,
                            .head_groups = config->head_groups,
                            .rounds = config->rounds,
                            .backward = config->backward,
                            .tensors_follow = true,
                            .lse_follows = ra_job_wants_lse(config),
                            .follow_bytes = {ra_job_times_bytes(repetitions, config->backward),
                                             config->verify ? ra_verify_bytes(config) : 0},
                            .linear = ra_config_linear(config),
                            .linear_method = config->linear_method,
                            .dense_mask = config->mask == RA_MASK_DENSE_BLOCKS};
}

/* Collective. Make the ring's communicator: if messages lie on GPUs, a separate one. */
static ra_status ring_comm_make(ra_job *job)
{
    ra_comm_device const device = {
        .memory = job->shards.memory, .pool = job->pool, .host_pool = job->host_pool};
    job->ring_comm = job->comm;
    if (job->backend != RA_BACKEND_CUDA || ra_comm_size(job->comm) == 1)
        return RA_OK;
    ra_comm *made = NULL;
    ra_status const status =
        job->config.comm == RA_COMM_NCCL  ? ra_comm_create_nccl(job->comm, &device, &made)
        : job->config.comm == RA_COMM_MPI ? ra_comm_create_staged(job->comm, &device, &made)
                                          : ra_comm_create_device(job->comm, &device, &made);
    if (status == RA_OK)
        job->ring_comm = made;
    return status;
}

static ra_status ring_make(ra_job *job)
{
    ra_ring_config ring = ra_job_ring_config(&job->config, job->repeat.most);
    if (job->host_pool != job->pool)
        ring.follow_bytes[0] = ring.follow_bytes[1] = 0; /* these are in host memory */
    ring.cache = job->cache->cache;
    ra_status const status = ring_comm_make(job);
    if (status != RA_OK)
        return status;
    return ra_ring_create(&ring, job->pattern, job->ring_comm, &job->kernel, job->pool,
                          job->host_pool, &job->ring);
}

ra_status ra_job_build(ra_job *job)
{
    ra_status status = RA_OK;
    ra_progress_set(job->progress, "preparing", 0, 0);
    if (job->threads == 0) {
        ra_job_cores cores = {0};
        status = ra_job_share_cores(job->comm, &cores);
        ra_job_take_cores(job, &cores);
    }
    if (status == RA_OK && job->backend == RA_BACKEND_AUTO)
        status = ra_job_choose_backend(job);
    if (status != RA_OK)
        return status;
    status = prepare(job);
    if (status != RA_OK)
        return status;
    ra_console_hold();
    return ra_console_agree(job->comm, "agreeing on the ring", ring_make(job));
}

ra_status ra_job_check_placement(ra_job *job, ra_place own)
{
    ra_ring_info ring;
    ra_ring_read_info(job->ring, &ring);
    /* With a GPU the host's part of passes has one thread, whatever the configuration says. */
    bool const on_gpu = job->backend == RA_BACKEND_CUDA;
    own.threads = on_gpu ? 1 : job->kernel.threads;
    own.threads_are_auto = !on_gpu && job->config.threads == 0;
    own.domains = on_gpu ? 0 : own.domains; /* it needs none to itself */
    return ra_placement_check(&own, job->comm, ring.schedule != RA_SCHEDULE_SHARED);
}

void ra_job_mention_sweep(const ra_config *config, const ra_comm *comm)
{
    if (config->has_sweep && ra_comm_rank(comm) == 0)
        ra_console_tell(
            RA_LOG_INFO,
            "the section 'sweep' is for 'bench' and 'plan': it is checked and not used");
}

void ra_job_mention_variants(const ra_config *config, const ra_options *options,
                             const ra_comm *comm)
{
    if (config->variant_count > 0 && options->source.pick.variant == NULL &&
        ra_comm_rank(comm) == 0)
        ra_console_tell(
            RA_LOG_INFO,
            "no variant of the section 'variants' is used: --variant names one, as '%s'",
            config->variants[0]);
}

/* What others call [batch, heads, seq, head_dim] has four dimensions too, and results. */
static void mention_axes(const ra_config *config, const ra_comm *comm)
{
    if (config->input != NULL && config->seq < config->heads && ra_comm_rank(comm) == 0)
        ra_console_tell(RA_LOG_WARNING,
                        "%s: q is read as %d heads of %lld tokens: tensors are "
                        "[batch, seq, heads, head_dim]",
                        config->input, config->heads, (long long)config->seq);
}

ra_status ra_job_prepare(ra_job *job)
{
    ra_status status = ra_job_load_config(job->options, job->comm, &job->config);
    if (status == RA_OK)
        status = ra_job_connect(&job->config, &job->comm);
    if (status != RA_OK)
        return status;
    job->repeat =
        (ra_repeat){.warmup = job->config.warmup, .most = job->config.repeat, .most_ms = INFINITY};
    if (ra_comm_rank(job->comm) == 0 && !job->options->quiet)
        job->progress = ra_progress_create();
    status = ra_job_build(job);
    if (status == RA_OK) {
        ra_job_mention_sweep(&job->config, job->comm);
        ra_job_mention_variants(&job->config, job->options, job->comm);
        mention_axes(&job->config, job->comm);
    }
    return status;
}

bool ra_job_failed_alone(const ra_job *job, ra_status status)
{
    return status != RA_OK && ra_ranks_count(job->comm) > 1 &&
           (job->alone || ra_comm_is_broken(job->comm) || ra_status_is_of_ranks(status));
}

void ra_job_clear(ra_job *job)
{
    if (job->host_pool != NULL)
        ra_pool_free(job->host_pool, NULL, &job->verify_block);
    for (int i = 0; i < RA_JOB_BLOCKS && job->pool != NULL; i++)
        ra_pool_free(job->pool, job->kernel.stream, &job->blocks[i]);
    ra_ring_destroy(job->ring);
    if (job->ring_comm != job->comm)
        ra_comm_destroy(job->ring_comm);
    alone_undo(job);
    ra_job_cache_destroy(&job->own_cache);
    free(job->phases);
    ra_config_fini(&job->config);
    *job = (ra_job){.options = job->options, .comm = job->comm, .progress = job->progress};
}

void ra_job_fini(ra_job *job)
{
    ra_progress_destroy(job->progress);
    job->progress = NULL;
    ra_job_clear(job);
    ra_ranks_leave(job->comm);
    job->comm = NULL;
}

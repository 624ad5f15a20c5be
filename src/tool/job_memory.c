#include "job_memory.h"

#include "bytes_text.h"
#include "console.h"
#include "internal.h"
#include "ringattn/comm_device.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the backend ----------------------------------------------------------------------------- */

static ra_status backend_agree(ra_job *job)
{
    static const char operation[] = "agreeing on the backend";
    ra_console_hold();
    ra_status status = ra_console_agree(
        job->comm, operation,
        ra_backend_choose(&job->config, ra_comm_size(job->comm), &job->backend, job->backend_note));
    if (status != RA_OK || ra_comm_size(job->comm) == 1)
        return status;
    int64_t least = job->backend;
    status = ra_comm_reduce_i64(job->comm, operation, RA_MIN, &least, 1);
    if (status == RA_OK && least != (int64_t)job->backend) {
        job->backend = (ra_backend)least;
        snprintf(job->backend_note, sizeof(job->backend_note),
                 "not every rank has a GPU that can do this");
    }
    return status;
}

ra_status ra_job_choose_backend(ra_job *job)
{
    ra_status const status = backend_agree(job);
    if (status != RA_OK || job->backend != RA_BACKEND_CUDA)
        return status;
    return ra_comm_pick_device(job->comm, &job->gpu.index, &job->gpu.sharers,
                               &job->gpu.sharers_max);
}

const char *ra_job_describe_backend(const ra_job *job, char text[RA_BACKEND_TEXT_MAX])
{
    text[0] = '\0';
    return job->ops == NULL ? text : ra_backend_describe(&job->gpu, job->backend_note, text);
}

void ra_job_warn_of_sharing(const ra_job *job)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (job->backend != RA_BACKEND_CUDA || job->config.backend != RA_BACKEND_AUTO ||
        job->gpu.sharers_max < 2 || ra_comm_rank(job->comm) != 0 || atomic_flag_test_and_set(&said))
        return;
    ra_console_tell(RA_LOG_WARNING,
                    "compute.backend: auto has given one GPU to %d ranks, which share its memory "
                    "and its time: start one rank per GPU ('ringattn info' has the line), or "
                    "say cuda or cpu",
                    job->gpu.sharers_max);
}

/* ---- pools ----------------------------------------------------------------------------------- */

/*
 * Of what is taken of the GPU, our context. It takes some hundred MiB, so whatever is beyond 1 GiB
 * is other processes', and no job's limit pays for it. Said once by a process.
 */
static int64_t context_of(const ra_job *job, int64_t taken_bytes)
{
    static int64_t const most_bytes = (int64_t)1 << 30;
    static atomic_flag said = ATOMIC_FLAG_INIT;
    char text[32];
    if (taken_bytes > most_bytes && !atomic_flag_test_and_set(&said))
        ra_log(
            RA_LOG_WARNING,
            "GPU %d: before the job %s of its memory are taken, more than a context takes: 1 GiB "
            "counts as ours, and other processes have the rest",
            job->gpu.index, ra_bytes_text(taken_bytes, text));
    return ra_min_i64(taken_bytes, most_bytes);
}

/* Said once by rank 0: the environment of ranks is one. */
static void warn_of_queues(const ra_job *job)
{
    static int const least = 8; /* CUDA's own choice */
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const char *const queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (queues == NULL || strtol(queues, NULL, 10) >= least || ra_comm_rank(job->comm) != 0 ||
        atomic_flag_test_and_set(&said))
        return;
    ra_log(RA_LOG_WARNING,
           "CUDA_DEVICE_MAX_CONNECTIONS=%s: with so few queues a look at the GPU may wait for its "
           "kernels, so that it seems to hang, and messages for both: unset it",
           queues);
}

ra_status ra_job_take_device(ra_job *job)
{
    int64_t taken_bytes = 0;
    ra_devices devices;
    ra_devices_read(&devices);
    job->device = devices.list[job->gpu.index];
    job->gpu.device = &job->device;
    ra_device_share(job->gpu.sharers > 1);
    ra_status status = ra_device_use(job->gpu.index);
    if (status != RA_OK)
        return status;
    warn_of_queues(job);
    job->shards.memory = ra_kernel_cuda()->memory();
    if (job->shards.memory.ops == NULL)
        return RA_ERR_CUDA; /* the cause has been logged */
    status = ra_device_taken(&taken_bytes);
    if (status == RA_OK)
        job->context_bytes = context_of(job, taken_bytes);
    return status;
}

/* What each of `sharers` ranks may take of the available memory. Some host memory is left over,
   because malloc refuses nothing; a GPU refuses what it does not have. */
static ra_status share_of(const ra_memory *memory, int sharers, int64_t *bytes_out)
{
    int64_t bytes = 0;
    ra_status const status = memory->ops->available(memory, &bytes);
    int64_t const left = ra_memory_is_host(memory) ? bytes / 50 : 0;
    *bytes_out = ra_max_i64((bytes - left) / sharers, 1);
    return status;
}

/* A pool with a ledger of its own, of so many bytes. */
static ra_status pool_make(ra_pool_config config, int64_t limit_bytes, ra_pool **pool_out)
{
    ra_status status = ra_ledger_create(limit_bytes, &config.ledger);
    if (status == RA_OK)
        status = ra_pool_create(&config, pool_out);
    if (status != RA_OK)
        ra_ledger_destroy(config.ledger);
    return status;
}

ra_status ra_host_pool_make(int sharers, ra_pool **pool_out)
{
    ra_pool_config const config = {.mode = RA_POOL_OFF, .memory = ra_memory_host()};
    int64_t limit_bytes = INT64_MAX;
    ra_status const status = sharers > 0 ? share_of(&config.memory, sharers, &limit_bytes) : RA_OK;
    return status == RA_OK ? pool_make(config, limit_bytes, pool_out) : status;
}

/* Whatever became of a job, every byte has been given back. */
void ra_pool_destroy_with_ledger(ra_pool *pool)
{
    ra_ledger_snapshot last;
    if (pool == NULL)
        return;
    ra_ledger *const ledger = ra_pool_ledger(pool);
    ra_pool_destroy(pool);
    ra_ledger_read(ledger, &last);
    RA_ASSERT(last.reserved_bytes == 0);
    ra_ledger_destroy(ledger);
}

/* Make the pool that the configuration describes. A given limit includes the context. */
static ra_status kernel_pool_make(ra_job *job, ra_memory memory, int sharers)
{
    int64_t limit_bytes = job->config.limit_bytes, context_bytes = job->context_bytes;
    ra_status status = RA_OK;
    if (limit_bytes == 0) {
        status = share_of(&memory, sharers, &limit_bytes);
        limit_bytes += context_bytes; /* already taken, so not among what is available */
    }
    if (status == RA_OK && job->config.pool_log != NULL)
        status = ra_pool_log_create(&job->pool_log);
    if (status != RA_OK)
        return status;
    /* An input may have to be opened, with this pool, before ra_config_check sets base's mode. */
    bool const base = job->config.variant == RA_VARIANT_BASE;
    ra_pool_config const config = {.mode = base ? RA_POOL_OFF : job->config.pool_mode,
                                   .memory = memory,
                                   .trim_bytes = job->config.pool_trim_bytes,
                                   .measures_time = job->options->json,
                                   .log = job->pool_log};
    job->context_bytes = 0; /* until the pool has counted them */
    status = pool_make(config, limit_bytes, &job->pool);
    if (status == RA_OK && context_bytes > 0)
        status = ra_pool_charge(job->pool, RA_MEM_CONTEXT, context_bytes);
    if (status == RA_OK)
        job->context_bytes = context_bytes;
    return status;
}

ra_status ra_job_make_pools(ra_job *job)
{
    bool const on_device = job->backend == RA_BACKEND_CUDA;
    ra_memory const memory = on_device ? job->shards.memory : ra_memory_host();
    int const neighbours = ra_comm_local_size(job->comm);
    ra_status status = kernel_pool_make(job, memory, on_device ? job->gpu.sharers : neighbours);
    if (status == RA_OK && on_device)
        status = ra_host_pool_make(neighbours, &job->host_pool);
    if (status != RA_OK)
        return status;
    if (!on_device)
        job->host_pool = job->pool;
    job->shards = (ra_shard_memory){.memory = memory, .staging = job->host_pool};
    return RA_OK;
}

void ra_job_end_pools(ra_job *job)
{
    if (job->host_pool != job->pool)
        ra_pool_destroy_with_ledger(job->host_pool);
    if (job->pool != NULL)
        ra_pool_release(job->pool, RA_MEM_CONTEXT, job->context_bytes);
    ra_pool_destroy_with_ledger(job->pool);
    ra_pool_log_destroy(job->pool_log);
    job->pool = job->host_pool = NULL;
    job->pool_log = NULL;
    job->context_bytes = 0;
}

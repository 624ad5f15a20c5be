/* Tensors in, passes, and what is measured on the way. */
#include "console.h"
#include "internal.h"
#include "job.h"
#include "job_memory.h"
#include "job_phases.h"
#include "tensors.h"

#include <string.h>

static ra_status tensor_take(ra_job *job, int index, ra_category category, int64_t rows,
                             int64_t row_bytes, void **data_out)
{
    ra_status const status =
        ra_pool_alloc(job->pool, category, (size_t)(job->config.batch * rows * row_bytes),
                      job->kernel.stream, &job->blocks[index]);
    if (status == RA_OK)
        *data_out = job->blocks[index].data;
    return status;
}

bool ra_job_wants_lse(const ra_config *config)
{
    bool const has_lse = ra_config_linear(config) == RA_LINEAR_NONE;
    return has_lse && (config->backward || config->verify || config->output != NULL);
}

/* Take memory for this rank's shards; lse only if somebody reads it. */
static ra_status tensors_take(ra_job *job)
{
    const ra_config *config = &job->config;
    ra_ring_tensors *t = &job->tensors;
    int64_t const rows = ra_ring_rows(job->ring)->row_count;
    int64_t const q_bytes = ra_tensor_row_bytes(config, RA_TENSOR_Q);
    int64_t const k_bytes = ra_tensor_row_bytes(config, RA_TENSOR_K);
    bool const backward = config->backward;
    ra_ring_keys const keys = ra_ring_key_memory(job->ring);
    bool const wants_lse = ra_job_wants_lse(config);
    void *lse = NULL;
    t->k = keys.k;
    t->v = keys.v;
    struct {
        ra_category category;
        int64_t row_bytes;
        void **data;
        bool wanted;
    } const wanted[RA_JOB_BLOCKS] = {
        {RA_MEM_QKV, q_bytes, (void **)&t->q, true},
        {RA_MEM_QKV, k_bytes, (void **)&t->k, keys.k == NULL},
        {RA_MEM_QKV, k_bytes, (void **)&t->v, keys.v == NULL},
        {RA_MEM_OUTPUT, q_bytes, &t->out, true},
        {RA_MEM_LSE, config->heads * (int64_t)sizeof(float), &lse, wants_lse},
        {RA_MEM_QKV, q_bytes, (void **)&t->dout, backward},
        {RA_MEM_GRADS, q_bytes, &t->dq, backward},
        {RA_MEM_GRADS, k_bytes, &t->dk, backward},
        {RA_MEM_GRADS, k_bytes, &t->dv, backward},
    };
    ra_status status = RA_OK;
    for (int i = 0; i < RA_JOB_BLOCKS && status == RA_OK; i++) {
        ra_comm_beat(job->comm); /* pages are populated at about 1 GB/s */
        if (wanted[i].wanted)
            status =
                tensor_take(job, i, wanted[i].category, rows, wanted[i].row_bytes, wanted[i].data);
    }
    t->lse = lse;
    /* A job whose passes fit can be verified. */
    if (status == RA_OK && config->verify)
        status = ra_pool_alloc(job->host_pool, RA_MEM_IO, (size_t)ra_verify_bytes(config), NULL,
                               &job->verify_block);
    return status;
}

/*
 * Bring one of a rank's inputs, in the order in which they are drawn or read. Zeros are as good as
 * any value; between a rank's rows of two batches may be those of other ranks.
 */
static ra_status tensor_bring(ra_job *job, ra_tensor_name name, const void *data,
                              int64_t batch_rows)
{
    const ra_rowset *rows = ra_ring_rows(job->ring);
    char *to = (char *)(uintptr_t)data; /* passes only read it; here it is filled */
    if (!job->fills)
        return ra_tensor_source_read(job->source, &job->config, name, rows, batch_rows,
                                     &job->shards, to, &job->report.nonfinite);
    int64_t const row = ra_tensor_row_bytes(&job->config, name);
    ra_status status = RA_OK;
    if (rows->row_count == 0)
        return RA_OK;
    for (int64_t batch = 0; batch < job->config.batch && status == RA_OK; batch++)
        status = job->kernel.ops->zero(&job->kernel, to + batch * batch_rows * row,
                                       (size_t)(rows->row_count * row));
    return status;
}

static ra_status tensors_read(ra_job *job)
{
    const ra_ring_tensors *t = &job->tensors;
    int64_t const rows = ra_ring_rows(job->ring)->row_count;
    int64_t const key_rows = ra_ring_key_memory(job->ring).batch_rows;
    ra_status status = tensors_take(job);
    if (status == RA_OK)
        status = tensor_bring(job, RA_TENSOR_Q, t->q, rows);
    if (status == RA_OK)
        status = tensor_bring(job, RA_TENSOR_K, t->k, key_rows);
    if (status == RA_OK)
        status = tensor_bring(job, RA_TENSOR_V, t->v, key_rows);
    if (status == RA_OK && job->config.backward)
        status = tensor_bring(job, RA_TENSOR_DO, t->dout, rows);
    /* Unfinished work of the GPU would count as the first pass's time. */
    return status != RA_OK ? status : ra_kernel_finish(&job->kernel);
}

/* NaN and Inf are computed with, and reported once for all ranks. */
static ra_status nonfinite_say(ra_job *job)
{
    ra_nonfinite *const n = &job->report.nonfinite;
    ra_status const status = ra_nonfinite_sum(job->comm, "counting NaN", n);
    if (status == RA_OK && n->nan_count + n->inf_count > 0 && ra_comm_rank(job->comm) == 0)
        ra_log(RA_LOG_WARNING,
               "the inputs hold %lld NaN and %lld infinite elements: they are computed on",
               (long long)n->nan_count, (long long)n->inf_count);
    return status;
}

/* Time the passes; count what was sent and waited for, per repetition. */
static ra_status passes_time(ra_job *job)
{
    ra_report *report = &job->report;
    ra_comm_stats stats;
    ra_status const status = ra_job_time(job, &job->repeat, &report->forward, &report->backward);
    if (status != RA_OK)
        return status;
    ra_comm_read_stats(job->ring_comm, &stats);
    report->sent_bytes = stats.sent_bytes / report->forward.count;
    report->waiting_ms = stats.wait_ms / report->forward.count;
    return RA_OK;
}

/* What the fullest rank tells the others. */
typedef struct rank_memory {
    ra_ledger_snapshot memory, host; /* host: beside a GPU's; else the same */
    ra_pool_stats pool;
    int64_t alloc_count, rss_bytes, floor_bytes;
} rank_memory;

RA_STATIC_ASSERT(sizeof(rank_memory) % sizeof(int64_t) == 0, "it crosses between processes");

static rank_memory memory_read(const ra_job *job)
{
    rank_memory m = {.alloc_count = job->alloc_count,
                     .rss_bytes = ra_rss_peak_bytes(),
                     .floor_bytes =
                         ra_ring_rows(job->ring)->row_count * ra_floor_row_bytes(&job->config)};
    ra_ledger_read(ra_pool_ledger(job->pool), &m.memory);
    ra_ledger_read(ra_pool_ledger(job->host_pool), &m.host);
    ra_pool_read_stats(job->pool, &m.pool);
    bool const is_known = m.rss_bytes >= 0 && job->rss_before_bytes >= 0;
    m.rss_bytes = is_known ? m.rss_bytes - job->rss_before_bytes : -1;
    return m;
}

static void memory_report(const rank_memory *m, ra_report *report)
{
    memcpy(report->memory_bytes, m->memory.at_peak_bytes, sizeof(report->memory_bytes));
    memcpy(report->category_peak_bytes, m->memory.peak_bytes, sizeof(report->category_peak_bytes));
    report->peak_bytes = m->memory.reserved_peak_bytes;
    report->alloc_count = m->alloc_count;
    report->rss_peak_bytes = m->rss_bytes;
    report->floor_bytes = m->floor_bytes;
    report->pool = m->pool;
    if (report->gpu.device == NULL)
        return;
    memcpy(report->host_memory_bytes, m->host.at_peak_bytes, sizeof(report->host_memory_bytes));
    report->host_peak_bytes = m->host.reserved_peak_bytes;
}

/* Memory of the rank whose peak is highest, the first of them; and sums over all. */
static ra_status memory_gather(ra_job *job)
{
    static const char operation[] = "gathering memory";
    rank_memory m = memory_read(job);
    int64_t const own_bytes = m.memory.reserved_peak_bytes;
    int64_t sums[2] = {own_bytes, m.memory.limit_bytes};
    int const ranks = ra_comm_size(job->comm), last = ranks - 1;
    /* The greatest is the fullest rank's, of equally full ones the first's. Real memory times ranks
       fits. */
    int64_t best = own_bytes * ranks + last - ra_comm_rank(job->comm);
    ra_status status = ra_comm_reduce_i64(job->comm, operation, RA_MAX, &best, 1);
    if (status == RA_OK)
        status = ra_comm_reduce_i64(job->comm, operation, RA_SUM, sums, 2);
    int const fullest = last - (int)(best % ranks);
    if (status == RA_OK)
        status = ra_comm_broadcast(job->comm, operation, fullest, &m, sizeof(m));
    if (status != RA_OK)
        return status;
    memory_report(&m, &job->report);
    job->report.peak_bytes_sum = sums[0];
    job->report.limit_bytes_sum = sums[1];
    return ra_job_phases_gather(job, fullest);
}

static ra_status work_gather(ra_job *job)
{
    ra_report *report = &job->report;
    ra_ring_read_info(job->ring, &report->ring);
    ra_cache_counts *const maps = &report->pattern_cache;
    *maps = ra_job_cache_read(job->cache);
    enum { SUMS = 7 };
    int64_t sums[SUMS] = {report->ring.live_pairs, report->sent_bytes, maps->hits,   maps->misses,
                          maps->evictions,         maps->bytes,        maps->entries};
    int64_t most[2] = {report->ring.tilemap_bytes, job->kernel.threads};
    ra_status status = ra_comm_reduce_i64(job->comm, "gathering counts", RA_SUM, sums, SUMS);
    if (status == RA_OK)
        status = ra_comm_reduce_i64(job->comm, "gathering counts", RA_MAX, most, 2);
    if (status == RA_OK)
        status = ra_comm_reduce_f64(job->comm, "gathering times", RA_MAX, &report->waiting_ms, 1);
    report->live_pairs = sums[0];
    report->sent_bytes = sums[1];
    *maps = (ra_cache_counts){sums[2], sums[3], sums[4], sums[5], sums[6]};
    report->tilemap_bytes = most[0];
    report->threads = (int)most[1];
    return status;
}

ra_status ra_job_passes(ra_job *job)
{
    ra_report *report = &job->report;
    *report = (ra_report){.config = &job->config,
                          .ranks = ra_comm_size(job->comm),
                          .comm_name = ra_comm_name(job->ring_comm),
                          .kernel_name = job->kernel.ops->name,
                          .backend_note = job->backend_note[0] != '\0' ? job->backend_note : NULL,
                          .gpu = job->gpu};
    ra_job_warn_of_sharing(job);
    ra_progress_set(job->progress, "bringing tensors in", 0, 0);
    ra_console_hold();
    ra_status status = ra_job_phases_begin(job);
    if (status == RA_OK)
        status = tensors_read(job);
    status = ra_console_agree(job->comm, "agreeing on the tensors", status);
    if (status != RA_OK)
        return status;
    status = nonfinite_say(job);
    if (status == RA_OK)
        status = passes_time(job);
    if (status == RA_OK)
        status = memory_gather(job);
    if (status == RA_OK)
        status = work_gather(job);
    return status;
}

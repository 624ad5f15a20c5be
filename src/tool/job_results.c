/* What follows the passes of a job: results are verified and written. */
#include "console.h"
#include "job.h"

/* Collective. Take memory outside the job's own, if verification must not use that. */
static ra_status verify_memory(ra_job *job, ra_block *block)
{
    if (job->checks == NULL)
        return RA_OK;
    ra_console_hold();
    size_t const bytes = (size_t)ra_verify_bytes(&job->config);
    ra_status const status =
        ra_console_agree(job->comm, "agreeing on verification",
                         ra_pool_alloc(job->checks, RA_MEM_IO, bytes, NULL, block));
    if (status != RA_OK)
        ra_pool_free(job->checks, NULL, block);
    return status;
}

static ra_status verify(ra_job *job, const ra_result_tensors *results)
{
    ra_report *report = &job->report;
    ra_block own = {0};
    ra_status status = verify_memory(job, &own);
    if (status != RA_OK)
        return status;
    ra_progress_set(job->progress, "verifying", 0, 0);
    void *work = own.data != NULL ? own.data : job->verify_block.data;
    bool const inputs_finite = report->nonfinite.nan_count + report->nonfinite.inf_count == 0;
    status = ra_verify(&job->config, job->pattern, job->comm, job->source, inputs_finite,
                       ra_ring_rows(job->ring), results, work, &report->errors);
    if (job->checks != NULL)
        ra_pool_free(job->checks, NULL, &own);
    if (status != RA_OK)
        return status;
    report->verified = true;
    report->bounds = ra_error_bounds(job->config.dtype, job->config.head_dim);
    const ra_errors *e = &report->errors;
    if (ra_comm_rank(job->comm) != 0)
        return RA_OK;
    if (!ra_report_passes(report))
        ra_console_tell(RA_LOG_ERROR, "verification failed: an error is larger than allowed%s",
                        job->config.output != NULL ? "; no output was written" : "");
    else if (e->query_count + e->key_count == 0)
        ra_console_tell(RA_LOG_WARNING,
                        "verification compared nothing: every sampled row sees NaN or Inf, no key "
                        "at all, or scores of which float32 keeps no digit");
    return RA_OK;
}

/* If the inputs are not finite, that has been said. */
static void nonfinite_say(const ra_job *job, const ra_nonfinite *found)
{
    const ra_nonfinite *inputs = &job->report.nonfinite;
    if (found->nan_count + found->inf_count == 0 || inputs->nan_count + inputs->inf_count > 0)
        return;
    ra_console_tell(
        RA_LOG_WARNING,
        "%s: the results have %lld NaN and %lld infinite elements, though all inputs are "
        "finite: scores or sums pass what float32 or shape.dtype holds",
        job->config.output, (long long)found->nan_count, (long long)found->inf_count);
}

ra_status ra_job_results(ra_job *job)
{
    const ra_ring_tensors *t = &job->tensors;
    ra_result_tensors const results = {
        .o = t->out, .lse = t->lse, .dq = t->dq, .dk = t->dk, .dv = t->dv, .memory = &job->shards};
    ra_status status = RA_OK;
    if (job->config.verify)
        status = verify(job, &results);
    if (status != RA_OK || !ra_report_passes(&job->report) || job->config.output == NULL)
        return status;
    ra_progress_set(job->progress, "writing results", 0, 0);
    ra_nonfinite found;
    status = ra_result_write(&job->config, job->comm, ra_ring_rows(job->ring), &results, &found);
    if (status == RA_OK && ra_comm_rank(job->comm) == 0)
        nonfinite_say(job, &found);
    return status;
}

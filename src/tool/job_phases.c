/* Memory at each phase of the passes, if --phases asks for it. */
#include "job_phases.h"

#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* Passes of several groups and steps have as many phases each; the first ones are reported. */
enum { PHASES_MAX = 512 };

ra_status ra_job_phases_begin(ra_job *job)
{
    if (!job->options->phases)
        return RA_OK;
    if (job->phases == NULL)
        job->phases = calloc(PHASES_MAX, sizeof(*job->phases));
    if (job->phases == NULL)
        return ra_refuse_memory("the phases of the report");
    return ra_ledger_keep_marks(ra_pool_ledger(job->pool), PHASES_MAX);
}

void ra_job_phases_restart(ra_job *job)
{
    if (job->options->phases)
        ra_ledger_forget_marks(ra_pool_ledger(job->pool));
}

ra_status ra_job_phases_gather(ra_job *job, int fullest_rank)
{
    static const char operation[] = "gathering phases";
    const ra_ledger_mark *own;
    int64_t counts[2] = {0};
    if (!job->options->phases)
        return RA_OK;
    counts[0] = ra_ledger_read_marks(ra_pool_ledger(job->pool), &own, &counts[1]);
    size_t const own_bytes = (size_t)counts[0] * sizeof(*own);
    ra_status status =
        ra_comm_broadcast(job->comm, operation, fullest_rank, counts, sizeof(counts));
    if (status != RA_OK)
        return status;
    RA_ASSERT(counts[0] >= 0 && counts[0] <= PHASES_MAX);
    if (ra_comm_rank(job->comm) == fullest_rank)
        memcpy(job->phases, own, own_bytes);
    if (counts[0] > 0)
        status = ra_comm_broadcast(job->comm, operation, fullest_rank, job->phases,
                                   (size_t)counts[0] * sizeof(*own));
    if (status != RA_OK)
        return status;
    job->report.phases = job->phases;
    job->report.phase_count = (int)counts[0];
    job->report.phases_left_out = counts[1];
    return RA_OK;
}

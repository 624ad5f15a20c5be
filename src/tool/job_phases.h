/* Memory at each phase of a job's passes; without --phases nothing is done. */
#ifndef RINGATTN_TOOL_JOB_PHASES_H
#define RINGATTN_TOOL_JOB_PHASES_H

#include "job.h"

/** Let the ledger keep marks from now on, and take the room to report them.
    @return RA_ERR_NO_MEMORY */
RA_CHECKED ra_status ra_job_phases_begin(ra_job *job);
/** Forget the phases so far: only those of later passes are wanted. */
void ra_job_phases_restart(ra_job *job);
/** Collective. Copy the phases of the fullest rank into every rank's report. */
RA_CHECKED ra_status ra_job_phases_gather(ra_job *job, int fullest_rank);

#endif

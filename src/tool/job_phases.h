/* Memory at each phase of the passes of a job, where --phases asks for it; else nothing is done. */
#ifndef RINGATTN_TOOL_JOB_PHASES_H
#define RINGATTN_TOOL_JOB_PHASES_H

#include "job.h"

/** Let the ledger keep marks from now on, and take the room to report them.
    @return RA_ERR_NO_MEMORY */
RA_CHECKED ra_status ra_job_phases_begin(ra_job *job);
/** Those of the passes that follow are wanted, not those before. */
void ra_job_phases_restart(ra_job *job);
/** Collective. The phases of one rank, the fullest, into every rank's report. */
RA_CHECKED ra_status ra_job_phases_gather(ra_job *job, int fullest_rank);

#endif

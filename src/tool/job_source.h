/* What the command line and the configuration file say, from rank 0 to every rank. */
#ifndef RINGATTN_TOOL_JOB_SOURCE_H
#define RINGATTN_TOOL_JOB_SOURCE_H

#include "options.h"

/**
 * Collective (not where comm is NULL). Rank 0 reads the file of options->source; every rank parses
 * rank 0's text with rank 0's overrides, whatever its own command line says.
 */
RA_CHECKED ra_status ra_job_load_config(const ra_options *options, ra_comm *comm,
                                        ra_config *config_out);

#endif

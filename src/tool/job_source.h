/* What the command line and the configuration file say; the file goes from rank 0 to every rank. */
#ifndef RINGATTN_TOOL_JOB_SOURCE_H
#define RINGATTN_TOOL_JOB_SOURCE_H

#include "options.h"

/* Rank 0's configuration file, on every rank, and the command line, which all have alike. */
typedef struct ra_job_text {
    const ra_config_source *source; /* the command line's; borrowed */
    char *text;                     /* of the file, owned; NULL: there is none */
    int64_t bytes;
} ra_job_text;

/** Collective (unless comm is NULL). Rank 0 reads the file of options->source. */
RA_CHECKED ra_status ra_job_text_share(const ra_options *options, ra_comm *comm,
                                       ra_job_text *text_out);
/**
 * Collective (unless comm is NULL). Every rank parses the same text with the same overrides.
 * @param pick  the same on every rank; a variant that the command line names takes the place of its
 */
RA_CHECKED ra_status ra_job_text_parse(const ra_job_text *text, ra_comm *comm,
                                       const ra_config_pick *pick, ra_config *config_out);
void ra_job_text_fini(ra_job_text *text); /* a zeroed one is fine */

/** Collective (unless comm is NULL). Share and parse, without keeping the text. */
RA_CHECKED ra_status ra_job_load_config(const ra_options *options, ra_comm *comm,
                                        ra_config *config_out);

#endif

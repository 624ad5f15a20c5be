/* This machine and this build: `ringattn info`, and the "machine" of every JSON report. */
#ifndef RINGATTN_TOOL_TOOL_INFO_H
#define RINGATTN_TOOL_TOOL_INFO_H

#include "ringattn/kernel.h"

#include <jansson.h>

/**
 * This process's host: processors, memory, limits, backends, libraries. Unknown values are null.
 * NULL: no memory. The caller owns it.
 */
json_t *ra_machine_json(void);

/** Members about MPI, for ra_machine_json. */
json_t *ra_machine_mpi_json(void);

/**
 * Print `root` to `path` (temporary file, rename), or to standard output if that is NULL. Takes
 * root over; a NULL root means that there was no memory to build it.
 * @return RA_ERR_IO, RA_ERR_NO_MEMORY; one line was logged
 */
RA_CHECKED ra_status ra_json_write(json_t *root, const char *path);

/** The same for text that ends with a newline. @return RA_ERR_IO; one line was logged */
RA_CHECKED ra_status ra_text_write(const char *text, const char *path);

#endif

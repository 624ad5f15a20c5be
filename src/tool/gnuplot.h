/* Pictures by gnuplot, one process for each. */
#ifndef RINGATTN_TOOL_GNUPLOT_H
#define RINGATTN_TOOL_GNUPLOT_H

#include "ringattn/comm.h"

/**
 * Run gnuplot on a script that draws to standard output, and write what it drew to `path`
 * (temporary file, rename). It is given 60 s.
 *
 * @param comm  of a rank that draws while the others wait; NULL: none do
 * @return RA_ERR_UNSUPPORTED  gnuplot is not installed
 *         RA_ERR_IO           it failed, said nothing, took too long, or the file cannot be written
 *         RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_gnuplot_draw(const char *script, const char *path, ra_comm *comm);

#endif

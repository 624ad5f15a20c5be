/*
 * What this rank says on stderr. Every rank sees a mistake in the configuration or in a file, but
 * one rank reports it: while ranks do the same work, each holds its error line back, and
 * ra_console_agree prints that of the first rank that failed. There is one console per process, to
 * which ra_log goes from ra_console_open on.
 *
 * Neither kind of keeping nests in itself. ra_console_hold begins anew, and ra_console_agree ends
 * it, or ra_console_release; ra_console_forget, in between, does not. Holds may lie within
 * ra_console_defer and ra_console_take: then an agreement's line is kept instead of printed.
 */
#ifndef RINGATTN_TOOL_CONSOLE_H
#define RINGATTN_TOOL_CONSOLE_H

#include "ringattn/comm.h"

#include <stddef.h>

/** @param comm NULL: this process is alone. Only its rank, size and host are taken. */
void ra_console_open(const ra_comm *comm);
/** Silence information and progress. Warnings and errors are always printed. */
void ra_console_set_quiet(bool quiet);
bool ra_console_is_quiet(void);
/** Hold back the first error line; drop information and warnings of all ranks but 0. */
void ra_console_hold(void);
/**
 * Collective (unless comm is NULL). Ends ra_console_hold. Every rank returns RA_OK if all ranks
 * gave it; else the status of the first failed rank that has a line, which is printed, or, if none
 * has one, of the first failed rank.
 */
RA_CHECKED ra_status ra_console_agree(ra_comm *comm, const char *operation, ra_status status);

/** While ra_console_hold holds: forget the line of a failure that does not end the job.
    @return whether there was one; else "" is written */
bool ra_console_forget(char *line_out, size_t bytes);

/** Ends ra_console_hold if other ranks cannot be asked: this rank prints what it held back. */
void ra_console_release(void);

/* For failures that may be part of the work: their line is kept instead of printed. */
enum { RA_CONSOLE_LINE_MAX = 1024 };
/** From now on, keep the first line that would be printed as an error. */
void ra_console_defer(void);
/** Ends ra_console_defer. The line is one that a report may hold (ra_text_mend).
    @return whether a line was kept; else "" is written */
bool ra_console_take(char line[RA_CONSOLE_LINE_MAX]);

/** Print a line of the whole job: it names no rank. */
void ra_console_tell(ra_log_level level, const char *format, ...) RA_PRINTF(2, 3);

/** Show progress, on a terminal without a newline; "" wipes it away. Only rank 0 uses it. */
void ra_console_show(const char *line);
bool ra_console_is_terminal(void);

#endif

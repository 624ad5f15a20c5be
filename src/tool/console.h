/*
 * What this rank says on stderr. A mistake in the configuration or in a file is seen by every rank
 * but said by one: while ranks do the same thing, each holds its error line back, and
 * ra_console_agree lets the first rank that failed speak. There is one console per process: it is
 * where ra_log goes from ra_console_open on.
 */
#ifndef RINGATTN_TOOL_CONSOLE_H
#define RINGATTN_TOOL_CONSOLE_H

#include "ringattn/comm.h"

/** @param comm NULL: this process is alone. Only its rank, size and host are taken. */
void ra_console_open(const ra_comm *comm);
/** Silence information and progress. Warnings and errors are always said. */
void ra_console_set_quiet(bool quiet);
bool ra_console_is_quiet(void);
/** Keep the first error line back, and of information and warnings all but rank 0's. */
void ra_console_hold(void);
/**
 * Collective (not where comm is NULL). Ends ra_console_hold: every rank returns RA_OK where all
 * of them gave it, else the status of the first rank that failed and has a line, which is said, or
 * of the first that failed where none has.
 */
RA_CHECKED ra_status ra_console_agree(ra_comm *comm, const char *operation, ra_status status);

/** Ends ra_console_hold where other ranks cannot be asked: this one says what it held back. */
void ra_console_release(void);

/* Where a failure may be part of the work: its line is kept instead of said. */
enum { RA_CONSOLE_LINE_MAX = 1024 };
/** From now on, keep the first line that would have been said as an error. */
void ra_console_defer(void);
/** Ends ra_console_defer. @return whether a line was kept; "" is written where none was */
bool ra_console_take(char line[RA_CONSOLE_LINE_MAX]);

/** Say something as a warning of the whole job, not of this rank. */
void ra_console_warn(const char *line);

/**
 * Show what goes on, without a newline where stderr is a terminal; "" wipes it away. Used by
 * progress, which is rank 0's.
 */
void ra_console_show(const char *line);
bool ra_console_is_terminal(void);

#endif

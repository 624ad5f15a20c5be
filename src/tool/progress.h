/*
 * What rank 0 shows while a job runs: on a terminal one line that is rewritten, elsewhere a line
 * every few seconds, so that a log stays short. A separate thread, which only prints, shows it,
 * because a pass over a long sequence returns late.
 */
#ifndef RINGATTN_TOOL_PROGRESS_H
#define RINGATTN_TOOL_PROGRESS_H

#include "ringattn/status.h"

typedef struct ra_progress ra_progress;

/** NULL: there was no memory for it, and a warning says that nothing will be shown. */
ra_progress *ra_progress_create(void);
/** What is being done now: "forward", 3 of 10; count 0: not counted. `what` is static text. NULL is
 *  fine, here and below. */
void ra_progress_set(ra_progress *progress, const char *what, int index, int count);
/** What the work is for, shown first: copied, "" for nothing, cut to 80 bytes. */
void ra_progress_about(ra_progress *progress, const char *about);
/** Wipe the line away and end the thread. */
void ra_progress_destroy(ra_progress *progress);

#endif

/* Pipes and devices that are written in place. Neither opening nor writing waits for a reader
   without end: one that takes nothing for RA_PIPE_WAIT_MS is given up. */
#ifndef RINGATTN_TOOL_OUTPUT_PIPE_H
#define RINGATTN_TOOL_OUTPUT_PIPE_H

#include <stdio.h>

enum { RA_PIPE_WAIT_MS = 3600000 };

/** Open for writing. -1 and errno; ETIMEDOUT: a pipe without a reader. */
int ra_pipe_open(const char *path);
/**
 * A stream that writes to `fd`, which blocks, and closes it with itself.
 * A write that fails has errno, ETIMEDOUT if nobody took anything, and fails all that follow.
 * @return NULL and errno, with `fd` open
 */
FILE *ra_pipe_stream(int fd);

#endif

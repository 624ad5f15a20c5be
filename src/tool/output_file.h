/*
 * An output that one process writes: trace, report, table, picture, machine, log of a pool. It gets
 * its name when it is complete and on the disk; until then the old file stays. Devices, pipes, and
 * the files behind standard output and error are written in place, by a stream that does not wait
 * for a reader without end (output_pipe.h).
 */
#ifndef RINGATTN_TOOL_OUTPUT_FILE_H
#define RINGATTN_TOOL_OUTPUT_FILE_H

#include "ringattn/status.h"

#include <stdio.h>

enum { RA_OUTPUT_PATH_BYTES = 4096 }; /* PATH_MAX: no more is taken by a system call */

/* All zero: not open. */
typedef struct ra_output {
    const char *path;                     /* as it was given; borrowed, as the next two */
    const char *option;                   /* begins the line of a failure: "--trace: ", or "" */
    const char *complaint;                /* "cannot write the trace" */
    char target[RA_OUTPUT_PATH_BYTES];    /* where a symbolic link leads */
    char temporary[RA_OUTPUT_PATH_BYTES]; /* in the same folder */
    bool in_place;                        /* a device, a pipe, or a stream of this process */
    bool replaces;                        /* there is a file of that name */
    FILE *stream;                         /* NULL: not open */
    int cause; /* errno of the first failure; nothing is written after it */
} ra_output;

/**
 * An existing file keeps its permissions; a symbolic link stays one, and its target is written. One
 * output at a time: a signal that ends the process removes the temporary file (doomed_file.h).
 * @return RA_ERR_IO; one line was logged and nothing is left to close
 */
RA_CHECKED ra_status ra_output_open(ra_output *output, const char *path, const char *option,
                                    const char *complaint);

/** Whether a path is, or would be, a file that is replaced whole: nothing is written in place. */
bool ra_output_is_replaced(const char *path);

/**
 * The descriptor, STDOUT_FILENO or STDERR_FILENO, that a path leads to, as /dev/stdout does, or -1.
 * Replacing its file would lose what was written there before.
 */
int ra_output_own_stream(const char *path);

/** Write formatted text; ra_output_close reports a failure. */
void ra_output_put(ra_output *output, const char *format, ...) RA_PRINTF(2, 3);

/**
 * If `keep` is set and nothing has failed, flush the file and give it its name, else remove it.
 * Nothing happens if it is not open.
 * @return RA_ERR_IO  it was to be kept and is not there, and a file that was there before is as it
 *                    was; or only the folder could not be flushed: then it is there, but a crash
 *                    could undo that. One line was logged
 */
RA_CHECKED ra_status ra_output_close(ra_output *output, bool keep);

/** Open, write text, and close. */
RA_CHECKED ra_status ra_output_write(const char *path, const char *complaint, const char *text);

/** Flush standard output, so that what was printed is seen; ra_stdout_check tells a failure. */
void ra_stdout_flush(void);

/**
 * Flush standard output and tell what has failed, then or before. `what` is part of the line:
 * " the report", or "".
 * @return RA_ERR_IO; one line was logged
 */
RA_CHECKED ra_status ra_stdout_check(const char *what);

/** Write a report, text that ends with a newline, to `path`, or to standard output if that is NULL.
    @return RA_ERR_IO; one line was logged */
RA_CHECKED ra_status ra_text_write(const char *text, const char *path);

#endif

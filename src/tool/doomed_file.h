/*
 * A temporary file that must not survive this process: removed when a signal ends it. If a rank of
 * an MPI job dies, the launcher sends SIGTERM to the others; each of them knows the file.
 */
#ifndef RINGATTN_TOOL_DOOMED_FILE_H
#define RINGATTN_TOOL_DOOMED_FILE_H

/**
 * Remove `path` (copied) if a signal ends the process: SIGHUP, SIGINT, SIGQUIT, SIGALRM,
 * SIGTERM, SIGUSR1, SIGUSR2 or SIGXCPU, unless it is ignored or handled. One path at a time. The
 * same path again changes nothing, not even for a moment.
 */
void ra_doomed_file_set(const char *path);
/** Forget the path: the file has its final name now, or is gone. */
void ra_doomed_file_clear(void);

#endif

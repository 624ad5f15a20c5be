/* What makes a file and its name last. */
#ifndef RINGATTN_TOOL_DURABLE_H
#define RINGATTN_TOOL_DURABLE_H

#include <stddef.h>

/** fsync, also after an interruption. 0, or -1 and errno. */
int ra_flush(int fd);

/** The folder that the file is in, for ra_flush; -1 and errno: it cannot be opened. */
int ra_folder_open(const char *path);

enum { RA_TEMPORARY_NAME_BYTES = 64 }; /* more than a temporary name has */

/**
 * "folder/ringattn.tmp-ID" for "folder/name": a name beside a file until that one is complete, as
 * short whatever the file is called.
 * @return its length; `bytes` or more: it does not fit
 */
int ra_temporary_path(const char *path, const char *id, size_t bytes, char *temporary);

#endif

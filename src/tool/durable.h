/* What makes a file and its name last. */
#ifndef RINGATTN_TOOL_DURABLE_H
#define RINGATTN_TOOL_DURABLE_H

#include <stdbool.h>
#include <stddef.h>

/** fsync, also after an interruption. 0, or -1 and errno. */
int ra_flush(int fd);

/**
 * The folder that a path is in: "/a" of "/a/b", "/" of "/b", "." of "b".
 * @return its length; `bytes` or more: it does not fit
 */
int ra_folder_of(const char *path, size_t bytes, char *folder);

enum { RA_TEMPORARY_NAME_BYTES = 64 }; /* more than a temporary name has */

/**
 * "folder/ringattn.tmp-ID" for "folder/name": a name beside a file until that one is complete, as
 * short whatever the file is called.
 * @return its length; `bytes` or more: it does not fit
 */
int ra_temporary_path(const char *path, const char *id, size_t bytes, char *temporary);

/**
 * Give a flushed file its name and flush the folder. Some file systems cannot flush one and say
 * EINVAL, and a folder that may be written need not be one that may be read: nothing can be done
 * there.
 * @param named_out  whether it has its name; then a crash may undo it if there is a cause
 * @return 0, or the errno of what failed
 */
int ra_publish(const char *temporary, const char *path, bool *named_out);

#endif

/* What makes a file and its name last. */
#ifndef RINGATTN_TOOL_DURABLE_H
#define RINGATTN_TOOL_DURABLE_H

/** fsync, also after an interruption. 0, or -1 and errno. */
int ra_flush(int fd);

/** The folder that the file is in, for ra_flush; -1 and errno: it cannot be opened. */
int ra_folder_open(const char *path);

#endif

/* Files that somebody else writes. Opening and reading them waits for no writer without end. */
#ifndef RINGATTN_TOOL_INPUT_FILE_H
#define RINGATTN_TOOL_INPUT_FILE_H

#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/** Open a file for reading, at once, though it be a pipe without a writer. -1 and errno. */
int ra_input_open(const char *path, struct stat *info_out);
/** As read(2) of such a file. -1 and ETIMEDOUT: `until_ns` of ra_clock_ns has passed. */
ssize_t ra_input_read(int fd, void *data, size_t bytes, int64_t until_ns);

#endif

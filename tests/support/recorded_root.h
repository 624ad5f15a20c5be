/* A folder of recorded files, in place of this machine's "/". */
#ifndef RINGATTN_TESTS_RECORDED_ROOT_H
#define RINGATTN_TESTS_RECORDED_ROOT_H

#include <limits.h>

/** Its path, once it is made. */
extern char recorded_root[PATH_MAX];

/** Before and after a test. */
void recorded_root_make(void);
void recorded_root_remove(void);
/** Write a file in it, and the folders that lead there: record("/proc/meminfo", ...). */
void record(const char *path, const char *text);

#endif

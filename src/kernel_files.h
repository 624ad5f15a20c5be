/* What Linux says in files: values, and what control groups grant. */
#ifndef RINGATTN_SRC_KERNEL_FILES_H
#define RINGATTN_SRC_KERNEL_FILES_H

#include <stdbool.h>
#include <stdint.h>

/*
 * All paths lie under `root`: "" for the machine itself, a folder of recorded files in tests. A
 * file is `folder`/`name`.
 */

enum { RA_KERNEL_LINE_MAX = 4096 };

/** What follows `key` ("" for all) in the first line that begins with it. */
bool ra_kernel_line(const char *root, const char *folder, const char *name, const char *key,
                    char line_out[RA_KERNEL_LINE_MAX]);
/**
 * The number at the beginning of that, times `unit`; INT64_MAX if it does not fit. False: there is
 * none, as in "max".
 */
bool ra_kernel_value(const char *root, const char *folder, const char *name, const char *key,
                     int64_t unit, int64_t *value_out);

/** What one control group grants; INT64_MAX: it sets no limit. `version`: 1 or 2. */
typedef int64_t ra_cgroup_asked(const char *root, int version, const char *folder);

/**
 * The least of what the process's control groups grant, in whichever version has the `controller`
 * ("memory", "cpu"): a group is held by its own limit and by that of every group above it.
 * INT64_MAX: no limit, or no groups.
 */
int64_t ra_cgroups_least(const char *root, const char *controller, ra_cgroup_asked *asked);

#endif

/* The memory of this machine by the kernel's own files. */
#ifndef RINGATTN_POOL_HOST_AVAILABLE_H
#define RINGATTN_POOL_HOST_AVAILABLE_H

#include "ringattn/status.h"

/**
 * What this process may still take according to the kernel's files under `root` ("" for the
 * machine itself, a folder of recorded files in tests) and to its own resource limits.
 * @return RA_ERR_IO  the machine does not say; one line was logged
 */
RA_CHECKED ra_status ra_host_available(const char *root, int64_t *bytes_out);

/** ra_memory_host_limit, from files under `root`. */
int64_t ra_host_limit(const char *root);

#endif

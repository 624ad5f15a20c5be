#include "host_available.h"

#include "internal.h"
#include "kernel_files.h"

#include <sys/resource.h>

/* The files of one control group's memory, in the words of either version. */
typedef struct group_files {
    const char *limit, *usage, *cache_key;
} group_files;

static const group_files files_of[] = {
    [1] = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "},
    [2] = {"memory.max", "memory.current", "inactive_file "},
};

static int64_t group_limit(const char *root, int version, const char *folder)
{
    int64_t limit;
    const char *const name = files_of[version].limit;
    return ra_kernel_value(root, folder, name, "", 1, &limit) ? limit : INT64_MAX;
}

/* Limit less usage; file pages that nobody uses are given up before anyone starves. */
static int64_t group_headroom(const char *root, int version, const char *folder)
{
    const group_files *files = &files_of[version];
    int64_t const limit = group_limit(root, version, folder);
    int64_t usage, cache = 0;
    if (limit == INT64_MAX || !ra_kernel_value(root, folder, files->usage, "", 1, &usage))
        return INT64_MAX;
    if (ra_kernel_value(root, folder, "memory.stat", files->cache_key, 1, &cache))
        usage -= ra_min_i64(cache, usage);
    return ra_max_i64(limit - usage, 0);
}

static int64_t rlimit_headroom(const char *root, int resource, const char *used_key)
{
    struct rlimit limit;
    int64_t used;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur > INT64_MAX)
        return INT64_MAX;
    if (!ra_kernel_value(root, "/proc/self", "status", used_key, 1024, &used))
        return INT64_MAX;
    return ra_max_i64((int64_t)limit.rlim_cur - used, 0);
}

/* Version 1 says "no limit" by the largest whole number of pages. */
int64_t ra_host_limit(const char *root)
{
    int64_t const limit = ra_cgroups_least(root, "memory", group_limit);
    return limit < INT64_MAX / 2 ? limit : -1;
}

ra_status ra_host_available(const char *root, int64_t *bytes_out)
{
    int64_t least;
    if (!ra_kernel_value(root, "/proc", "meminfo", "MemAvailable:", 1024, &least)) {
        ra_log(RA_LOG_ERROR, "cannot read MemAvailable (%s/proc/meminfo): set memory.limit", root);
        return RA_ERR_IO;
    }
    least = ra_min_i64(least, ra_cgroups_least(root, "memory", group_headroom));
    least = ra_min_i64(least, rlimit_headroom(root, RLIMIT_AS, "VmSize:"));
    least = ra_min_i64(least, rlimit_headroom(root, RLIMIT_DATA, "VmData:"));
    *bytes_out = least;
    return RA_OK;
}

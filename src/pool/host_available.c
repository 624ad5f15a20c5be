#include "host_available.h"

#include "internal.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* A kernel file of "name value" lines, or of one value; all paths lie under a root. */
enum { LINE_MAX_BYTES = 4096 };

static FILE *open_under(const char *root, const char *folder, const char *name)
{
    char path[2 * PATH_MAX];
    int const length = snprintf(path, sizeof(path), "%s%s/%s", root, folder, name);
    if (length < 0 || (size_t)length >= sizeof(path))
        return NULL;
    return fopen(path, "re");
}

/* The value of the line that begins with `key` ("" for the first line), times `unit`. */
static bool read_value(const char *root, const char *folder, const char *name, const char *key,
                       int64_t unit, int64_t *value_out)
{
    char line[LINE_MAX_BYTES];
    size_t const key_length = strlen(key);
    bool found = false;
    FILE *const file = open_under(root, folder, name);
    if (file == NULL)
        return false;
    while (!found && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, key, key_length) != 0)
            continue;
        char *end;
        errno = 0;
        long long const value = strtoll(line + key_length, &end, 10);
        if (end == line + key_length)
            break; /* "max": no limit */
        /* Version 1 writes a number near 2^63 for "no limit"; it must not overflow. */
        bool const huge = errno == ERANGE || value > INT64_MAX / unit;
        *value_out = huge ? INT64_MAX : (int64_t)value * unit;
        found = true;
    }
    fclose(file);
    return found;
}

/* The files of one control group's memory, in the words of either version. */
typedef struct group_files {
    const char *mount, *limit, *usage, *cache_key;
} group_files;

static const group_files group_v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                     "memory.usage_in_bytes", "total_inactive_file "};
static const group_files group_v2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                     "inactive_file "};

/*
 * What is asked of every group: a group is held by its own limit and by that of every group above
 * it, so the least counts. INT64_MAX: none.
 */
typedef int64_t group_asked(const char *root, const group_files *files, const char *folder);

static int64_t group_limit(const char *root, const group_files *files, const char *folder)
{
    int64_t limit;
    return read_value(root, folder, files->limit, "", 1, &limit) ? limit : INT64_MAX;
}

/* Limit less usage; file pages that nobody uses are given up before anyone starves. */
static int64_t group_headroom(const char *root, const group_files *files, const char *folder)
{
    int64_t const limit = group_limit(root, files, folder);
    int64_t usage, cache = 0;
    if (limit == INT64_MAX || !read_value(root, folder, files->usage, "", 1, &usage))
        return INT64_MAX;
    if (read_value(root, folder, "memory.stat", files->cache_key, 1, &cache))
        usage -= ra_min_i64(cache, usage);
    return ra_max_i64(limit - usage, 0);
}

static int64_t group_chain(const char *root, const group_files *files, const char *group,
                           group_asked *asked)
{
    char folder[PATH_MAX];
    int64_t least = INT64_MAX;
    int const length = snprintf(folder, sizeof(folder), "%s%s", files->mount, group);
    if (length < 0 || (size_t)length >= sizeof(folder))
        return least;
    size_t const mount_length = strlen(files->mount);
    for (;;) {
        least = ra_min_i64(least, asked(root, files, folder));
        char *const slash = strrchr(folder + mount_length, '/');
        if (slash == NULL)
            return least;
        *slash = '\0';
    }
}

/* Whether the comma-separated list of controllers names `memory`. */
static bool names_memory(const char *controllers)
{
    static const char name[] = "memory";
    size_t const length = sizeof(name) - 1;
    for (const char *at = controllers; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

/* Lines are "number:controllers:/group"; version 2 is number 0 and has no controllers. */
static int64_t cgroups_least(const char *root, group_asked *asked)
{
    char line[LINE_MAX_BYTES];
    int64_t least = INT64_MAX;
    FILE *const file = open_under(root, "/proc/self", "cgroup");
    if (file == NULL)
        return least;
    while (fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *const controllers = strchr(line, ':');
        char *const group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL || group[1] != '/')
            continue;
        *group = '\0';
        const group_files *files = NULL;
        if (controllers[1] == '\0')
            files = &group_v2;
        else if (names_memory(controllers + 1))
            files = &group_v1;
        if (files != NULL)
            least = ra_min_i64(least, group_chain(root, files, group + 1, asked));
    }
    fclose(file);
    return least;
}

static int64_t rlimit_headroom(const char *root, int resource, const char *used_key)
{
    struct rlimit limit;
    int64_t used;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur > INT64_MAX)
        return INT64_MAX;
    if (!read_value(root, "/proc/self", "status", used_key, 1024, &used))
        return INT64_MAX;
    return ra_max_i64((int64_t)limit.rlim_cur - used, 0);
}

/* Version 1 says "no limit" by the largest whole number of pages. */
int64_t ra_host_limit(const char *root)
{
    int64_t const limit = cgroups_least(root, group_limit);
    return limit < INT64_MAX / 2 ? limit : -1;
}

ra_status ra_host_available(const char *root, int64_t *bytes_out)
{
    int64_t least;
    if (!read_value(root, "/proc", "meminfo", "MemAvailable:", 1024, &least)) {
        ra_log(RA_LOG_ERROR, "cannot read MemAvailable (%s/proc/meminfo): set memory.limit", root);
        return RA_ERR_IO;
    }
    least = ra_min_i64(least, cgroups_least(root, group_headroom));
    least = ra_min_i64(least, rlimit_headroom(root, RLIMIT_AS, "VmSize:"));
    least = ra_min_i64(least, rlimit_headroom(root, RLIMIT_DATA, "VmData:"));
    *bytes_out = least;
    return RA_OK;
}

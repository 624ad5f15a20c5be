#include "kernel_files.h"

#include "internal.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *open_under(const char *root, const char *folder, const char *name)
{
    char path[2 * PATH_MAX];
    int const length = snprintf(path, sizeof(path), "%s%s/%s", root, folder, name);
    if (length < 0 || (size_t)length >= sizeof(path))
        return NULL;
    return fopen(path, "re");
}

bool ra_kernel_line(const char *root, const char *folder, const char *name, const char *key,
                    char line_out[RA_KERNEL_LINE_MAX])
{
    size_t const key_length = strlen(key);
    bool found = false;
    FILE *const file = open_under(root, folder, name);
    if (file == NULL)
        return false;
    while (!found && fgets(line_out, RA_KERNEL_LINE_MAX, file) != NULL)
        found = strncmp(line_out, key, key_length) == 0;
    fclose(file);
    if (found)
        memmove(line_out, line_out + key_length, strlen(line_out + key_length) + 1);
    return found;
}

bool ra_kernel_value(const char *root, const char *folder, const char *name, const char *key,
                     int64_t unit, int64_t *value_out)
{
    char line[RA_KERNEL_LINE_MAX], *end;
    if (!ra_kernel_line(root, folder, name, key, line))
        return false;
    errno = 0;
    long long const value = strtoll(line, &end, 10);
    if (end == line)
        return false;
    /* Version 1 writes a number near 2^63 for "no limit"; it must not overflow. */
    bool const huge = errno == ERANGE || value > INT64_MAX / unit;
    *value_out = huge ? INT64_MAX : (int64_t)value * unit;
    return true;
}

/* ---- control groups -------------------------------------------------------------------------- */

/* From one group up to the root that the process sees. */
static int64_t chain_least(const char *root, int version, const char *mount, const char *group,
                           ra_cgroup_asked *asked)
{
    char folder[PATH_MAX];
    int64_t least = INT64_MAX;
    int const length = snprintf(folder, sizeof(folder), "%s%s", mount, group);
    if (length < 0 || (size_t)length >= sizeof(folder))
        return least;
    for (;;) {
        least = ra_min_i64(least, asked(root, version, folder));
        char *const slash = strrchr(folder + strlen(mount), '/');
        if (slash == NULL)
            return least;
        *slash = '\0';
    }
}

/* Whether a comma-separated list has a name. */
static bool has_name(const char *list, const char *name)
{
    size_t const length = strlen(name);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

/* Lines are "number:controllers:/group"; version 2 is number 0 and has no controllers. */
int64_t ra_cgroups_least(const char *root, const char *controller, ra_cgroup_asked *asked)
{
    char line[RA_KERNEL_LINE_MAX], mount[64];
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
        bool const second = controllers[1] == '\0';
        if (!second && !has_name(controllers + 1, controller))
            continue;
        snprintf(mount, sizeof(mount), "/sys/fs/cgroup%s%s", second ? "" : "/",
                 second ? "" : controller);
        least = ra_min_i64(least, chain_least(root, second ? 2 : 1, mount, group + 1, asked));
    }
    fclose(file);
    return least;
}

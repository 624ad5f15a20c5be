#include "durable.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int ra_flush(int fd)
{
    int result;
    do
        result = fsync(fd);
    while (result != 0 && errno == EINTR);
    return result;
}

int ra_folder_of(const char *path, size_t bytes, char *folder)
{
    const char *const slash = strrchr(path, '/');
    if (slash == NULL)
        return snprintf(folder, bytes, ".");
    return snprintf(folder, bytes, "%.*s", slash > path ? (int)(slash - path) : 1, path);
}

/* The folder that the file is in; -1 and errno: it cannot be opened. */
static int folder_open(const char *path)
{
    char folder[PATH_MAX];
    if (ra_folder_of(path, sizeof(folder), folder) < PATH_MAX)
        return open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    errno = ENAMETOOLONG;
    return -1;
}

int ra_publish(const char *temporary, const char *path, bool *named_out)
{
    *named_out = false;
    int const folder = folder_open(path);
    if (folder < 0 && errno != EACCES)
        return errno;
    int cause = rename(temporary, path) == 0 ? 0 : errno;
    *named_out = cause == 0;
    if (cause == 0 && folder >= 0 && ra_flush(folder) != 0 && errno != EINVAL)
        cause = errno;
    if (folder >= 0)
        close(folder);
    return cause;
}

int ra_temporary_path(const char *path, const char *id, size_t bytes, char *temporary)
{
    const char *const slash = strrchr(path, '/');
    int const folder = slash != NULL ? (int)(slash - path) + 1 : 0;
    return snprintf(temporary, bytes, "%.*sringattn.tmp-%s", folder, path, id);
}

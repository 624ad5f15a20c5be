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

int ra_folder_open(const char *path)
{
    char folder[PATH_MAX] = ".";
    const char *const slash = strrchr(path, '/');
    size_t const bytes = slash != NULL ? (size_t)(slash - path) + 1 : 0;
    if (bytes >= sizeof(folder)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    if (slash != NULL) {
        memcpy(folder, path, bytes);
        folder[bytes] = '\0';
    }
    return open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int ra_temporary_path(const char *path, const char *id, size_t bytes, char *temporary)
{
    const char *const slash = strrchr(path, '/');
    int const folder = slash != NULL ? (int)(slash - path) + 1 : 0;
    return snprintf(temporary, bytes, "%.*sringattn.tmp-%s", folder, path, id);
}

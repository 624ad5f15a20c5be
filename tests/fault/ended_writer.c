/*
 * A library to load into ranks before their program: the signal ENDED_WRITER_SIGNAL ends rank 0 at
 * its first write to a file that has a temporary name.
 */
#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void end_rank_0(int fd)
{
    char link[64], path[PATH_MAX];
    const char *const rank = getenv("OMPI_COMM_WORLD_RANK");
    const char *const number = getenv("ENDED_WRITER_SIGNAL");
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t const bytes = readlink(link, path, sizeof(path) - 1);
    if (bytes < 0 || rank == NULL || strcmp(rank, "0") != 0 || number == NULL)
        return;
    path[bytes] = '\0';
    if (strstr(path, ".tmp-") == NULL)
        return;
    fputs("ended_writer: rank 0 writes\n", stderr);
    raise((int)strtol(number, NULL, 10));
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    static ssize_t (*next)(int, const void *, size_t, off_t);
    end_rank_0(fd);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "pwrite");
    return next(fd, data, bytes, offset);
}

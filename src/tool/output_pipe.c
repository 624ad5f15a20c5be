#include "output_pipe.h"

#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int ra_pipe_open(const char *path)
{
    enum { TRY_MS = 50 };
    for (int waited_ms = 0;; waited_ms += TRY_MS) {
        struct stat info;
        int const fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0 && fcntl(fd, F_SETFL, 0) == 0) /* blocks from here on */
            return fd;
        int const cause = errno;
        if (fd >= 0)
            close(fd);
        bool const lacks_reader =
            fd < 0 && cause == ENXIO && stat(path, &info) == 0 && S_ISFIFO(info.st_mode);
        errno = lacks_reader ? ETIMEDOUT : cause;
        if (!lacks_reader || waited_ms >= RA_PIPE_WAIT_MS)
            return -1;
        (void)poll(NULL, 0, TRY_MS);
    }
}

typedef struct pipe_writer {
    int fd;
    int cause; /* errno of what failed */
} pipe_writer;

/* Wait until PIPE_BUF bytes fit. @return 0 or errno */
static int room_await(int fd)
{
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    int count;
    do
        count = poll(&room, 1, RA_PIPE_WAIT_MS);
    while (count < 0 && errno == EINTR);
    return count > 0 ? 0 : count == 0 ? ETIMEDOUT : errno;
}

/* 0: it failed, as streams have it. */
static ssize_t stream_write(void *cookie, const char *data, size_t bytes)
{
    pipe_writer *const writer = cookie;
    size_t done = 0;
    while (done < bytes && writer->cause == 0) {
        writer->cause = room_await(writer->fd);
        size_t const piece = bytes - done < PIPE_BUF ? bytes - done : PIPE_BUF;
        ssize_t const put = writer->cause == 0 ? write(writer->fd, data + done, piece) : 0;
        if (put > 0)
            done += (size_t)put;
        else if (put < 0 && errno != EINTR && errno != EAGAIN)
            writer->cause = errno;
    }
    errno = writer->cause;
    return writer->cause == 0 ? (ssize_t)bytes : 0;
}

static int stream_close(void *cookie)
{
    pipe_writer *const writer = cookie;
    int const result = close(writer->fd);
    int const cause = errno;
    free(writer);
    errno = cause;
    return result;
}

FILE *ra_pipe_stream(int fd)
{
    cookie_io_functions_t const calls = {.write = stream_write, .close = stream_close};
    pipe_writer *const writer = malloc(sizeof(*writer));
    if (writer == NULL)
        return NULL;
    *writer = (pipe_writer){.fd = fd};
    FILE *const stream = fopencookie(writer, "w", calls);
    if (stream == NULL) {
        int const cause = errno;
        free(writer);
        errno = cause;
    }
    return stream;
}

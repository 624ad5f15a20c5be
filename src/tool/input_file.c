#include "input_file.h"

#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

int ra_input_open(const char *path, struct stat *info_out)
{
    int const fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, info_out) == 0)
        return fd;
    int const cause = errno;
    close(fd);
    errno = cause;
    return -1;
}

ssize_t ra_input_read(int fd, void *data, size_t bytes, int64_t until_ns)
{
    for (;;) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int64_t const left_ms = ra_div_ceil(until_ns - ra_clock_ns(), 1000000);
        if (left_ms <= 0) {
            errno = ETIMEDOUT;
            return -1;
        }
        int const count = poll(&ready, 1, (int)ra_min_i64(left_ms, INT32_MAX));
        ssize_t const got = count > 0 ? read(fd, data, bytes) : -1;
        if (got >= 0 || (count != 0 && errno != EINTR && errno != EAGAIN))
            return got;
    }
}

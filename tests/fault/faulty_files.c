#include "fault/faulty_files.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

/* What fails: calls number [first, first + count) of `kind`, with `cause`. */
static struct {
    file_call kind;
    int first, count, cause;
    atomic_int seen;
} fault;

void fault_set(file_call kind, int first, int count, int cause)
{
    fault.kind = kind;
    fault.first = first;
    fault.count = count;
    fault.cause = cause;
    fault_count_anew();
}

void fault_count_anew(void)
{
    atomic_store(&fault.seen, 0);
}

static bool fault_hits(file_call kind)
{
    if (kind != fault.kind)
        return false;
    int const at = atomic_fetch_add(&fault.seen, 1);
    if (at < fault.first || at >= fault.first + fault.count)
        return false;
    errno = fault.cause > 0 ? fault.cause : 0;
    return true;
}

static atomic_uint created_mode;
static atomic_int created_flags;

unsigned fault_created_mode(void)
{
    return atomic_load(&created_mode);
}

int fault_created_flags(void)
{
    return atomic_load(&created_flags);
}

bool fault_was_hit(void)
{
    return atomic_load(&fault.seen) > fault.first;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __real_ftruncate(int fd, off_t bytes);
int __wrap_ftruncate(int fd, off_t bytes);
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset);
ssize_t __real_pread(int fd, void *data, size_t bytes, off_t offset);
ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t offset);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_sync_file_range(int fd, off_t offset, off_t bytes, unsigned flags);
int __wrap_sync_file_range(int fd, off_t offset, off_t bytes, unsigned flags);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __real_fclose(FILE *file);
int __wrap_fclose(FILE *file);
int __real_poll(struct pollfd *fds, nfds_t count, int wait_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int wait_ms);
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__real_realloc(void *data, size_t bytes);
void *__wrap_realloc(void *data, size_t bytes);
char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__real_strndup(const char *text, size_t bytes);
char *__wrap_strndup(const char *text, size_t bytes);

int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t const mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    if ((flags & O_CREAT) != 0) {
        atomic_store(&created_mode, mode);
        atomic_store(&created_flags, flags);
    }
    return fault_hits(OPEN) ? -1 : __real_open(path, flags, mode);
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    if (fault.kind == FTRUNCATE) { /* which comes where this is not supported */
        errno = EOPNOTSUPP;
        return -1;
    }
    return fault_hits(FALLOCATE) ? -1 : __real_fallocate(fd, mode, offset, bytes);
}

int __wrap_ftruncate(int fd, off_t bytes)
{
    return fault_hits(FTRUNCATE) ? -1 : __real_ftruncate(fd, bytes);
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    if (!fault_hits(PWRITE))
        return __real_pwrite(fd, data, bytes, offset);
    if (fault.cause == SHORT)
        return __real_pwrite(fd, data, (bytes + 1) / 2, offset);
    return fault.cause == ZERO ? 0 : -1;
}

ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t offset)
{
    if (!fault_hits(PREAD))
        return __real_pread(fd, data, bytes, offset);
    if (fault.cause == SHORT)
        return __real_pread(fd, data, (bytes + 1) / 2, offset);
    return fault.cause == ZERO ? 0 : -1;
}

int __wrap_fsync(int fd)
{
    return fault_hits(FSYNC) ? -1 : __real_fsync(fd);
}

int __wrap_sync_file_range(int fd, off_t offset, off_t bytes, unsigned flags)
{
    return fault_hits(SYNC_RANGE) ? -1 : __real_sync_file_range(fd, offset, bytes, flags);
}

int __wrap_rename(const char *from, const char *to)
{
    return fault_hits(RENAME) ? -1 : __real_rename(from, to);
}

int __wrap_fclose(FILE *file)
{
    bool const hit = fault_hits(FCLOSE);
    int const result = __real_fclose(file);
    if (!hit)
        return result;
    errno = fault.cause;
    return EOF;
}

int __wrap_poll(struct pollfd *fds, nfds_t count, int wait_ms)
{
    if (!fault_hits(POLL))
        return __real_poll(fds, count, wait_ms);
    return fault.cause == ZERO ? 0 : -1;
}

void *__wrap_malloc(size_t bytes)
{
    return fault_hits(MEMORY) ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fault_hits(MEMORY) ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *data, size_t bytes)
{
    return fault_hits(MEMORY) ? NULL : __real_realloc(data, bytes);
}

char *__wrap_strdup(const char *text)
{
    return fault_hits(MEMORY) ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t bytes)
{
    return fault_hits(MEMORY) ? NULL : __real_strndup(text, bytes);
}

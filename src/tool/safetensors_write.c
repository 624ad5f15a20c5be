/*
 * Writing a safetensors file from several processes: a temporary file of full length, rows put
 * where they belong, fsync, rename.
 */
#include "doomed_file.h"
#include "durable.h"
#include "safetensors_header.h"

#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WRITE_MAX_BYTES = 1 << 30 }; /* pwrite(2) moves at most 2 GiB at a time */

#define REMEDY_SPACE "check the disk's space, the quota, and the limit on file sizes (ulimit -f)"
#define REMEDY_NAME  "give a shorter name"

struct ra_tensor_writer {
    int fd;
    char *path;               /* where symbolic links lead */
    char temp_path[PATH_MAX]; /* in the same folder */
    int64_t file_bytes;
    bool created, published;
};

static ra_status fail(const char *path, const char *what, int reason, const char *remedy)
{
    return ra_file_refuse(path, NULL, remedy, "%s: %s", what, strerror(reason));
}

/* ---- the header ------------------------------------------------------------------------------ */

enum { ENTRY_MAX_BYTES = RA_TENSOR_NAME_MAX + RA_TENSOR_MAX_DIMS * 20 + 120 };

/* `"name":{...}`; our own names need no escapes. */
static size_t entry_text(const ra_tensor_info *tensor, int64_t begin, char *text)
{
    RA_ASSERT(strcspn(tensor->name, "\"\\") == strlen(tensor->name));
    int used = snprintf(text, ENTRY_MAX_BYTES, "\"%s\":{\"dtype\":\"%s\",\"shape\":[", tensor->name,
                        tensor->dtype);
    for (int i = 0; i < tensor->dims; ++i)
        used += snprintf(text + used, (size_t)(ENTRY_MAX_BYTES - used), "%s%" PRId64,
                         i > 0 ? "," : "", tensor->shape[i]);
    used += snprintf(text + used, (size_t)(ENTRY_MAX_BYTES - used),
                     "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", begin, begin + tensor->bytes);
    RA_ASSERT(used < ENTRY_MAX_BYTES);
    return (size_t)used;
}

/* Length prefix and header, padded to 8 bytes so that data are aligned; NULL: no memory. */
static char *head_text(const ra_tensor_info *tensors, int count, size_t *bytes_out)
{
    char *head = malloc(8 + 2 + (size_t)count * (ENTRY_MAX_BYTES + 1) + 8);
    if (head == NULL)
        return NULL;
    size_t bytes = 8;
    int64_t at = 0;
    head[bytes++] = '{';
    for (int i = 0; i < count; ++i) {
        if (i > 0)
            head[bytes++] = ',';
        bytes += entry_text(&tensors[i], at, head + bytes);
        at += tensors[i].bytes;
    }
    head[bytes++] = '}';
    while (bytes % 8 != 0)
        head[bytes++] = ' ';
    for (int i = 0; i < 8; ++i)
        head[i] = (char)((uint64_t)(bytes - 8) >> (8 * i) & 0xff);
    *bytes_out = bytes;
    return head;
}

/* Fills in bytes and offsets, and the file's length; *head_out is for the caller to free. */
static ra_status lay_out(ra_tensor_writer *writer, ra_tensor_info *tensors, int count,
                         char **head_out, size_t *head_bytes_out)
{
    int64_t total = 0;
    for (int i = 0; i < count; ++i) {
        RA_ASSERT(ra_tensor_dtype_bytes(tensors[i].dtype) != 0);
        if (!ra_tensor_bytes(&tensors[i], &tensors[i].bytes) ||
            __builtin_add_overflow(total, tensors[i].bytes, &total) || total > INT64_MAX / 2)
            return fail(writer->path, "cannot write", EFBIG, "write fewer tokens");
    }
    size_t head_bytes;
    char *head = head_text(tensors, count, &head_bytes);
    if (head == NULL)
        return ra_refuse_memory("the output's header");
    writer->file_bytes = (int64_t)head_bytes;
    for (int i = 0; i < count; ++i) {
        tensors[i].offset = writer->file_bytes;
        writer->file_bytes += tensors[i].bytes;
    }
    *head_out = head;
    *head_bytes_out = head_bytes;
    return RA_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

static ra_status write_all(const ra_tensor_writer *writer, const void *data, size_t bytes,
                           int64_t offset)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t const put = pwrite(
            writer->fd, from, bytes < WRITE_MAX_BYTES ? bytes : WRITE_MAX_BYTES, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return fail(writer->path, "cannot write", put == 0 ? ENOSPC : errno, REMEDY_SPACE);
        from += put;
        offset += put;
        bytes -= (size_t)put;
    }
    return RA_OK;
}

/* Give the file its length, and its blocks with it if the file system can. */
static ra_status reserve(const ra_tensor_writer *writer)
{
    int result;
    do
        result = fallocate(writer->fd, 0, 0, (off_t)writer->file_bytes);
    while (result != 0 && errno == EINTR);
    if (result == 0)
        return RA_OK;
    if (errno != EOPNOTSUPP && errno != ENOSYS)
        return fail(writer->path, "cannot reserve space", errno, REMEDY_SPACE);
    if (ftruncate(writer->fd, (off_t)writer->file_bytes) != 0)
        return fail(writer->path, "cannot reserve space", errno, REMEDY_SPACE);
    return RA_OK;
}

/* What is there already must be a file that we may replace; its permissions are kept. 0: nothing is
   there. */
static ra_status check_existing(const ra_tensor_writer *writer, mode_t *mode_out)
{
    struct stat info;
    *mode_out = 0;
    if (stat(writer->path, &info) != 0)
        return errno == ENOENT ? RA_OK
                               : fail(writer->path, "cannot write", errno,
                                      errno == ENAMETOOLONG ? REMEDY_NAME : "check the path");
    if (S_ISDIR(info.st_mode))
        return fail(writer->path, "cannot write", EISDIR, "give the name of a file");
    if (!S_ISREG(info.st_mode))
        return ra_file_refuse(writer->path, NULL, "give the name of a file",
                              "cannot write: it is not a regular file");
    if (access(writer->path, W_OK) != 0)
        return fail(writer->path, "cannot replace", errno, "check its permissions");
    *mode_out = info.st_mode; /* with its type, so not 0 */
    return RA_OK;
}

/* A file that replaces another is closed to others until it has that one's mode. */
static ra_status create_file(ra_tensor_writer *writer, const char *head, size_t head_bytes)
{
    mode_t mode;
    ra_status status = check_existing(writer, &mode);
    if (status != RA_OK)
        return status;
    int const flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    writer->fd = open(writer->temp_path, flags, mode != 0 ? 0600 : 0666);
    if (writer->fd < 0)
        return fail(writer->path, "cannot create", errno,
                    errno == ENAMETOOLONG ? REMEDY_NAME
                                          : "check that the folder is there and may be written");
    writer->created = true; /* from here on destroy removes it */
    if (mode != 0 && fchmod(writer->fd, mode & 07777) != 0)
        return fail(writer->path, "cannot keep its permissions", errno, "remove it first");
    status = reserve(writer);
    return status == RA_OK ? write_all(writer, head, head_bytes, 0) : status;
}

static ra_status join_file(ra_tensor_writer *writer)
{
    struct stat info;
    writer->fd = open(writer->temp_path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (writer->fd < 0 || fstat(writer->fd, &info) != 0)
        return fail(writer->path, "cannot open what another rank created", errno,
                    "the output's folder must be one that all ranks share");
    if (info.st_size != writer->file_bytes)
        return ra_file_refuse(writer->path, NULL,
                              "the output's folder must be one that all ranks share",
                              "another rank created it with a different length");
    return RA_OK;
}

/*
 * Find out where the file will be: a symbolic link is followed, so that it stays a link.
 * `real_path`: the caller's to free, on failure too. @return 0, or what errno would say
 */
static int resolve(const char *path, const char *job_id, char **real_path, char temp_path[PATH_MAX])
{
    struct stat info;
    bool const link = lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
    errno = ENOMEM;
    *real_path = link ? realpath(path, NULL) : strdup(path);
    if (*real_path == NULL)
        return errno;
    return ra_temporary_path(*real_path, job_id, PATH_MAX, temp_path) < PATH_MAX ? 0 : ENAMETOOLONG;
}

static ra_status refuse_path(const char *path, int cause)
{
    if (cause == ENOMEM)
        return ra_refuse_memory("the output's path");
    if (cause == ENAMETOOLONG)
        return fail(path, "cannot create", cause, REMEDY_NAME);
    return fail(path, "cannot follow the symbolic link", cause,
                "let it lead to a file, or remove it");
}

void ra_tensor_writer_doom(const char *path, const char *job_id)
{
    char *real_path = NULL;
    char temp_path[PATH_MAX];
    if (resolve(path, job_id, &real_path, temp_path) == 0) /* else opening says why not */
        ra_doomed_file_set(temp_path);
    free(real_path);
}

ra_status ra_tensor_writer_open(const char *path, const char *job_id, bool create,
                                ra_tensor_info *tensors, int count, ra_tensor_writer **writer_out)
{
    ra_tensor_writer *writer = calloc(1, sizeof(*writer));
    if (writer == NULL)
        return ra_refuse_memory("the output");
    writer->fd = -1;
    char *head = NULL;
    size_t head_bytes = 0;
    int const cause = resolve(path, job_id, &writer->path, writer->temp_path);
    ra_status status =
        cause == 0 ? lay_out(writer, tensors, count, &head, &head_bytes) : refuse_path(path, cause);
    if (status == RA_OK)
        status = create ? create_file(writer, head, head_bytes) : join_file(writer);
    free(head);
    if (status != RA_OK) {
        ra_tensor_writer_destroy(writer);
        return status;
    }
    *writer_out = writer;
    return RA_OK;
}

ra_status ra_tensor_writer_put(ra_tensor_writer *writer, const ra_tensor_info *tensor,
                               int64_t offset, const void *data, size_t bytes)
{
    RA_ASSERT(offset >= 0 && offset <= tensor->bytes);
    RA_ASSERT(bytes <= (uint64_t)(tensor->bytes - offset));
    return write_all(writer, data, bytes, tensor->offset + offset);
}

/*
 * Bring the file's pages to the disk piece by piece, so that the others hear of it. 0, or -1 and
 * errno: what fails here fsync does not report again. Where there is no such call, fsync does all.
 */
static int write_back(const ra_tensor_writer *writer, ra_comm *comm)
{
    unsigned const flags =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    for (int64_t at = 0; at < writer->file_bytes;) {
        int64_t const bytes = ra_min_i64(RA_TENSOR_PIECE_BYTES, writer->file_bytes - at);
        if (sync_file_range(writer->fd, (off_t)at, (off_t)bytes, flags) == 0) {
            ra_comm_beat(comm);
            at += bytes;
        } else if (errno != EINTR) {
            bool const has_none = errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL ||
                                  errno == ESPIPE || errno == EPERM;
            return has_none ? 0 : -1;
        }
    }
    return 0;
}

ra_status ra_tensor_writer_flush(ra_tensor_writer *writer, ra_comm *comm)
{
    if (write_back(writer, comm) != 0 || ra_flush(writer->fd) != 0)
        return fail(writer->path, "cannot flush to the disk", errno, REMEDY_SPACE);
    return RA_OK;
}

ra_status ra_tensor_writer_rename(ra_tensor_writer *writer)
{
    int const cause = ra_publish(writer->temp_path, writer->path, &writer->published);
    if (!writer->published)
        return fail(writer->path, "cannot give the file its name", cause,
                    cause == EACCES || cause == EPERM || cause == EROFS
                        ? "check the folder's permissions"
                        : "check its folder");
    if (cause != 0)
        return fail(writer->path, "cannot flush the folder", cause,
                    "the file is whole, but a crash may undo its name: check the disk");
    return RA_OK;
}

void ra_tensor_writer_destroy(ra_tensor_writer *writer)
{
    if (writer == NULL)
        return;
    if (writer->fd >= 0)
        close(writer->fd);
    if (writer->created && !writer->published)
        unlink(writer->temp_path);
    free(writer->path);
    free(writer);
}

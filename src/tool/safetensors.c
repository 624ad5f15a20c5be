/* Reading safetensors files; the header is checked in safetensors_header.c. */
#include "safetensors_header.h"

#include "input_file.h"
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { READ_MAX_BYTES = 1 << 30 }; /* pread(2) moves at most 2 GiB at a time */

/* Read [offset, offset + bytes); false with errno set, to 0 if the file ends too early. */
static bool read_all(int fd, void *data, size_t bytes, int64_t offset)
{
    char *to = data;
    while (bytes > 0) {
        ssize_t const got =
            pread(fd, to, bytes < READ_MAX_BYTES ? bytes : READ_MAX_BYTES, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            if (got == 0)
                errno = 0;
            return false;
        }
        to += got;
        offset += got;
        bytes -= (size_t)got;
    }
    return true;
}

/* After read_all has failed. */
static ra_status read_refuse(const char *path, const char *tensor)
{
    bool const shorter = errno == 0;
    return ra_file_refuse(
        path, tensor, shorter ? "write to it only when no job reads it" : "check the disk",
        "cannot read: %s", shorter ? "the file has become shorter" : strerror(errno));
}

/* Open a regular file. */
static ra_status open_regular(const char *path, int *fd_out, int64_t *bytes_out)
{
    struct stat info;
    int const fd = ra_input_open(path, &info);
    if (fd < 0)
        return ra_file_refuse(path, NULL, "check the path", "cannot open: %s", strerror(errno));
    if (!S_ISREG(info.st_mode)) {
        close(fd);
        return ra_file_refuse(path, NULL, "give a safetensors file",
                              "cannot open: not a regular file");
    }
    *fd_out = fd;
    *bytes_out = info.st_size;
    return RA_OK;
}

ra_status ra_tensor_file_open(const char *path, ra_tensor_file **file_out)
{
    int fd = -1;
    int64_t file_bytes = 0;
    ra_status status = open_regular(path, &fd, &file_bytes);
    if (status != RA_OK)
        return status;
    unsigned char prefix[8] = {0};
    size_t const prefix_bytes = file_bytes < 8 ? (size_t)file_bytes : 8;
    uint64_t length = 0;
    if (!read_all(fd, prefix, prefix_bytes, 0)) {
        status = read_refuse(path, NULL);
        goto err_close;
    }
    for (int i = 7; i >= 0; --i)
        length = length << 8 | prefix[i];
    /* An impossible length is refused by the parser, which needs only the prefix. */
    size_t head_bytes = prefix_bytes;
    if (file_bytes >= 8 && length <= RA_TENSOR_HEADER_MAX_BYTES &&
        (int64_t)length <= file_bytes - 8)
        head_bytes += (size_t)length;
    char *head = malloc(head_bytes + 1);
    if (head == NULL) {
        status = ra_refuse_memory(path);
        goto err_close;
    }
    if (!read_all(fd, head, head_bytes, 0)) {
        status = read_refuse(path, NULL);
        goto err_free;
    }
    ra_tensor_file *file;
    status = ra_tensor_header_parse(path, head, head_bytes, file_bytes, &file);
    if (status != RA_OK)
        goto err_free;
    free(head);
    file->fd = fd;
    *file_out = file;
    return RA_OK;

err_free:
    free(head);
err_close:
    close(fd);
    return status;
}

static int compare_name(const void *name, const void *tensor)
{
    return strcmp(name, ((const ra_tensor_info *)tensor)->name);
}

const ra_tensor_info *ra_tensor_file_find(const ra_tensor_file *file, const char *name)
{
    if (file->count == 0)
        return NULL;
    return bsearch(name, file->tensors, file->count, sizeof(file->tensors[0]), compare_name);
}

const char *ra_tensor_file_path(const ra_tensor_file *file)
{
    return file->path;
}

ra_status ra_tensor_read(const ra_tensor_file *file, const ra_tensor_info *tensor, int64_t offset,
                         void *data, size_t bytes)
{
    RA_ASSERT(file->fd >= 0);
    RA_ASSERT(offset >= 0 && offset <= tensor->bytes);
    RA_ASSERT(bytes <= (uint64_t)(tensor->bytes - offset));
    if (!read_all(file->fd, data, bytes, tensor->offset + offset))
        return read_refuse(file->path, tensor->name);
    return RA_OK;
}

void ra_tensor_file_close(ra_tensor_file *file)
{
    if (file == NULL)
        return;
    if (file->fd >= 0)
        close(file->fd);
    free(file->tensors);
    free(file->path);
    free(file);
}

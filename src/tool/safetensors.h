/*
 * The safetensors format: u64 LE header length, JSON header, tensor data. Headers are hostile
 * input: every length and offset is checked before it is used. Errors are one logged line that
 * names the file and the tensor, and RA_ERR_IO.
 */
#ifndef RINGATTN_TOOL_SAFETENSORS_H
#define RINGATTN_TOOL_SAFETENSORS_H

#include "ringattn/status.h"

#include <stddef.h>

enum { RA_TENSOR_MAX_DIMS = 8, RA_TENSOR_NAME_MAX = 128 };

/* What `info` calls a dtype; "F32", "F16", "BF16", "I32", … */
typedef struct ra_tensor_info {
    char name[RA_TENSOR_NAME_MAX];
    char dtype[8];
    int dims;
    int64_t shape[RA_TENSOR_MAX_DIMS];
    int64_t offset; /* of the first byte, from the start of the file */
    int64_t bytes;
} ra_tensor_info;

typedef struct ra_tensor_file ra_tensor_file;

/* ---- reading --------------------------------------------------------------------------------- */

/** Open, read and check the header, and that the file is exactly as long as it says. */
RA_CHECKED ra_status ra_tensor_file_open(const char *path, ra_tensor_file **file_out);
/** Check a header in memory: `bytes` of the file's beginning, `file_bytes` its length; for fuzzing.
 */
RA_CHECKED ra_status ra_tensor_header_parse(const char *name, const void *data, size_t bytes,
                                            int64_t file_bytes, ra_tensor_file **file_out);
/** The tensor of that name, borrowed; NULL when there is none (not logged). */
const ra_tensor_info *ra_tensor_file_find(const ra_tensor_file *file, const char *name);
const char *ra_tensor_file_path(const ra_tensor_file *file);
/** Read `bytes` at `offset` from the tensor's first byte. Short reads are errors. */
RA_CHECKED ra_status ra_tensor_read(const ra_tensor_file *file, const ra_tensor_info *tensor,
                                    int64_t offset, void *data, size_t bytes);
void ra_tensor_file_close(ra_tensor_file *file); /* NULL is fine */

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct ra_tensor_writer ra_tensor_writer;

/**
 * Begin a file that will be called `path`. One process creates it: header and full length under a
 * temporary name in the same folder (`path` + ".tmp-" + `job_id`), space reserved, so that a full
 * disk is found here. tensors[].offset and .bytes are filled in.
 */
RA_CHECKED ra_status ra_tensor_writer_create(const char *path, const char *job_id,
                                             ra_tensor_info *tensors, int count,
                                             ra_tensor_writer **writer_out);
/** Join in writing a file that another process has created with the same arguments. */
RA_CHECKED ra_status ra_tensor_writer_join(const char *path, const char *job_id,
                                           ra_tensor_info *tensors, int count,
                                           ra_tensor_writer **writer_out);
/** Write `bytes` at `offset` from the tensor's first byte. */
RA_CHECKED ra_status ra_tensor_write(ra_tensor_writer *writer, const ra_tensor_info *tensor,
                                     int64_t offset, const void *data, size_t bytes);
/** fsync what this process wrote. Every process calls it before anyone publishes. */
RA_CHECKED ra_status ra_tensor_writer_sync(ra_tensor_writer *writer);
/**
 * Give the file its name (rename) and fsync the folder: one process, after all have synced. Where
 * only the folder cannot be flushed, which is RA_ERR_IO, the file has its name and stays.
 */
RA_CHECKED ra_status ra_tensor_writer_publish(ra_tensor_writer *writer);
/** Close; the temporary file is removed if this process created it and it was not published. */
void ra_tensor_writer_destroy(ra_tensor_writer *writer); /* NULL is fine */

#endif

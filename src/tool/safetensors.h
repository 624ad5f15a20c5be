/*
 * The safetensors format: u64 LE header length, JSON header, tensor data. Headers are hostile
 * input: every length and offset is checked before it is used. Errors are one logged line that
 * names the file and the tensor, and RA_ERR_IO.
 */
#ifndef RINGATTN_TOOL_SAFETENSORS_H
#define RINGATTN_TOOL_SAFETENSORS_H

#include "ringattn/comm.h"

#include <stddef.h>

enum { RA_TENSOR_MAX_DIMS = 8, RA_TENSOR_NAME_MAX = 128 };

/* Most that is read, written or flushed without a heartbeat to ranks that wait. */
enum { RA_TENSOR_PIECE_BYTES = 32 << 20 };

/* A tensor as the header has it. */
typedef struct ra_tensor_info {
    char name[RA_TENSOR_NAME_MAX];
    char dtype[8]; /* "F32", "F16", "BF16", "I32", … */
    int dims;
    int64_t shape[RA_TENSOR_MAX_DIMS];
    int64_t offset; /* of the first byte, from the start of the file */
    int64_t bytes;
} ra_tensor_info;

typedef struct ra_tensor_file ra_tensor_file;

/* ---- reading --------------------------------------------------------------------------------- */

/** Open, read and check the header, and that the file is exactly as long as it says. */
RA_CHECKED ra_status ra_tensor_file_open(const char *path, ra_tensor_file **file_out);
/** Check a header in memory, for fuzzing: `bytes` of the file's beginning, `file_bytes` long. */
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
 * From here on a signal that ends this process removes the temporary file of such a writer, which
 * another process may be about to create, until ra_doomed_file_clear.
 */
void ra_tensor_writer_doom(const char *path, const char *job_id);

/**
 * Begin a file that will be called `path`. One process creates it: header and full length under a
 * temporary name in the same folder (of ra_temporary_path and `job_id`), space reserved, so that a
 * full disk is found here. Others join in with the same arguments. tensors[].offset and .bytes are
 * filled in.
 */
RA_CHECKED ra_status ra_tensor_writer_open(const char *path, const char *job_id, bool create,
                                           ra_tensor_info *tensors, int count,
                                           ra_tensor_writer **writer_out);
/** Write `bytes` at `offset` from the tensor's first byte. */
RA_CHECKED ra_status ra_tensor_writer_put(ra_tensor_writer *writer, const ra_tensor_info *tensor,
                                          int64_t offset, const void *data, size_t bytes);
/**
 * fsync what this process wrote. Every process calls it before anyone renames. The ranks of `comm`
 * (NULL: there are none) hear of each piece that is on the disk; the fsync after all of them, one
 * call, has only what describes the file to write.
 */
RA_CHECKED ra_status ra_tensor_writer_flush(ra_tensor_writer *writer, ra_comm *comm);
/**
 * Give the file its name and fsync the folder: one process, after all have flushed. If only the
 * folder cannot be flushed, which is RA_ERR_IO, the file has its name and stays.
 */
RA_CHECKED ra_status ra_tensor_writer_rename(ra_tensor_writer *writer);
/** Close; the temporary file is removed if this process created it and it was not renamed. */
void ra_tensor_writer_destroy(ra_tensor_writer *writer); /* NULL is fine */

#endif

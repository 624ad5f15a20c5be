/* Private to the safetensors reader and writer: dtypes, the open file, one-line errors. */
#ifndef RINGATTN_SAFETENSORS_HEADER_H
#define RINGATTN_SAFETENSORS_HEADER_H

#include "safetensors.h"

/* The reference implementation's limit on a header's length. */
#define RA_TENSOR_HEADER_MAX_BYTES 100000000
/* What a header may make us hold in memory, whatever its length. */
#define RA_TENSOR_MAX_COUNT          100000
#define RA_TENSOR_MEMBER_MAX_BYTES   4096
#define RA_TENSOR_METADATA_MAX_BYTES (4 << 20)

struct ra_tensor_file {
    int fd; /* -1: parsed from memory */
    char *path;
    ra_tensor_info *tensors; /* sorted by name */
    size_t count, capacity;
};

/** Bytes of one element of a dtype; 0 for an unknown one. */
int64_t ra_tensor_dtype_bytes(const char *dtype);
/** Bytes of a tensor of that dtype and shape; false when they pass INT64_MAX. */
bool ra_tensor_bytes(const ra_tensor_info *info, int64_t *bytes_out);

/**
 * Log "<what> (file 'path', tensor 'name'): <remedy>". Bytes that are not printable ASCII come out
 * as '?', so that names from a hostile header cannot break the line. Always RA_ERR_IO.
 * @param tensor  NULL: none is named
 */
ra_status ra_file_refuse(const char *path, const char *tensor, const char *remedy,
                         const char *format, ...) RA_PRINTF(4, 5);

#endif

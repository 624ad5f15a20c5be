/* What an error of the CUDA runtime means here. */
#ifndef RINGATTN_POOL_CUDA_ERROR_H
#define RINGATTN_POOL_CUDA_ERROR_H

#include "ringattn/status.h"

#include <cuda_runtime_api.h>
#include <stddef.h>

/** Whether an error says that there is no GPU to work on: no driver, one too old, no device. */
bool ra_cuda_is_absent(cudaError_t error);

/** One sentence for ra_cuda_is_absent, with the versions of driver and runtime. */
void ra_cuda_explain_absent(cudaError_t error, char *text, size_t bytes);

/**
 * The status for an error, in the one place that decides it: device memory that is not there is
 * RA_ERR_NO_MEMORY, of which nothing is logged because callers know what it was for; no GPU is
 * RA_ERR_UNSUPPORTED and all else RA_ERR_CUDA, with one line that names `what` failed.
 */
RA_CHECKED ra_status ra_cuda_status(cudaError_t error, const char *what);
/** The same for calls that are for nothing that has a size: no memory is said too. */
RA_CHECKED ra_status ra_cuda_status_said(cudaError_t error, const char *what);

#endif

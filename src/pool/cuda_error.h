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
 * Whether an error is that of every later call, too, as CUDA's documentation says of those that
 * leave a process in an inconsistent state: an illegal address, a failed launch and the like. It
 * does not say so of what memory or NVLink could not correct, after which no result can be trusted.
 */
bool ra_cuda_is_sticky(cudaError_t error);

/**
 * The status for an error, in the one place that decides it: memory that is not there is
 * RA_ERR_NO_MEMORY, no GPU is RA_ERR_UNSUPPORTED and all else RA_ERR_CUDA, with one line that names
 * `what` failed. A launch may want memory too, where its kernel is loaded late, and so do streams
 * and events. A sticky error loses the GPU (ra_device_lose); whatever fails on one that is lost is
 * RA_ERR_CUDA, of which nothing is logged.
 */
RA_CHECKED ra_status ra_cuda_status(cudaError_t error, const char *what);
/** The same for requests of memory: that there is none is said by callers, who know what for. */
RA_CHECKED ra_status ra_cuda_status_of_request(cudaError_t error, const char *what);

/**
 * One warning where what failed is no failure of the job, as where something could not be given
 * back. Of a sticky error nothing: it is left to the next call that can fail, which meets it too.
 */
void ra_cuda_warn(cudaError_t error, const char *format, ...) RA_PRINTF(2, 3);

/**
 * Whether a library that works on a stream has failed because the GPU is lost, which has then been
 * said. A library meets a sticky error as well as we do, and has another name for it. `what` NULL:
 * for a warning, as ra_cuda_warn has it; nothing is said.
 */
bool ra_cuda_has_lost(cudaStream_t stream, const char *what);

#endif

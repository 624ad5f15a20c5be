/* What an error of the CUDA runtime means here. */
#ifndef RINGATTN_POOL_CUDA_ERROR_H
#define RINGATTN_POOL_CUDA_ERROR_H

#include "ringattn/pool.h"

#include <cuda_runtime_api.h>
#include <stddef.h>

/** Whether an error says that there is no GPU to work on: no driver, one too old, no device. */
bool ra_cuda_is_absent(cudaError_t error);

/** One sentence for ra_cuda_is_absent, with the versions of driver and runtime. */
void ra_cuda_explain_absent(cudaError_t error, char *text, size_t bytes);

/**
 * Whether every later call returns this error too. CUDA's documentation says so of errors that
 * leave a process in an inconsistent state: an illegal address, a failed launch and the like. It
 * does not say so of uncorrectable memory or NVLink errors, but no later result can be trusted; nor
 * of cudaErrorUnknown, which all calls return once a GPU in use has fallen off its bus. Before one
 * is in use, that only means that the driver has none to offer.
 */
bool ra_cuda_is_sticky(cudaError_t error);
/** From now on this process uses a GPU: it has made its memory. */
void ra_cuda_note_use(void);

/**
 * The only place that decides the status of an error: out of memory is RA_ERR_NO_MEMORY, no GPU is
 * RA_ERR_UNSUPPORTED and all else RA_ERR_CUDA, with one line that names `what` failed. Launches may
 * need memory too, if a kernel is loaded late, and so do streams and events. A sticky error loses
 * the GPU (ra_device_lose); any failure on a lost GPU is RA_ERR_CUDA and not logged.
 */
RA_CHECKED ra_status ra_cuda_status(cudaError_t error, const char *what);
/** The same for requests of memory: callers, who know the purpose, log that there is none. */
RA_CHECKED ra_status ra_cuda_status_of_request(cudaError_t error, const char *what);
/** The same for work on a GPU's memory whose bytes are on `ledger`: where there is none for what
   CUDA needs itself (category context), the line says what is held. */
RA_CHECKED ra_status ra_cuda_status_of_work(const ra_ledger *ledger, cudaError_t error,
                                            const char *what);

/**
 * Returns `error`, and forgets it: for questions whose answer is "not yet", and for errors of which
 * nothing follows. The runtime keeps each until the thread asks for its last error, as after its
 * next launch, which would be taken to have failed.
 */
cudaError_t ra_cuda_forget(cudaError_t error);

/**
 * One warning for an error that does not fail the job, such as memory that could not be returned. A
 * sticky error is not logged: the next call that can fail meets it too.
 */
void ra_cuda_warn(cudaError_t error, const char *format, ...) RA_PRINTF(2, 3);

/** Whether there is a GPU of that index: RA_ERR_UNSUPPORTED, logged, where there is none. */
RA_CHECKED ra_status ra_cuda_check_index(int index);

/**
 * Whether a library that works on a stream failed because the GPU is lost; if so, that has been
 * logged. Libraries return sticky errors under their own codes. `what` NULL: for a warning, as in
 * ra_cuda_warn; nothing is logged.
 */
bool ra_cuda_has_lost(cudaStream_t stream, const char *what);

#endif

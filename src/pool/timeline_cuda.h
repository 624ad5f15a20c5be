/* Timelines of the CUDA runtime's events. */
#ifndef RINGATTN_POOL_TIMELINE_CUDA_H
#define RINGATTN_POOL_TIMELINE_CUDA_H

#include "ringattn/timeline.h"

#include <cuda_runtime_api.h>

/**
 * A timeline of the GPU of ra_device_used, with room for `capacity` (>= 1) spans: two events each.
 * @return NULL where they cannot be made; one warning says why
 */
ra_timeline *ra_timeline_create_cuda(int32_t capacity);

/**
 * Wait until an event is over, or a second has passed: for what only the runtime can delay.
 * @return cudaErrorNotReady  it was not over by then
 */
cudaError_t ra_cuda_wait_briefly(cudaEvent_t event);

#endif

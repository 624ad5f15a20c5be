/* The boundary between host code in C and kernels in CUDA. */
#ifndef RINGATTN_CUDA_BACKWARD_LAUNCH_H
#define RINGATTN_CUDA_BACKWARD_LAUNCH_H

#include "sparse/cuda/backward_args.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Enqueue one backward step on the current device, which has so many multiprocessors, by the dtype
 * of q: one kernel for dk and dv, one for dq. Both f->tickets must be 0 when it begins. Rows of
 * gradients are added to by one thread block each, in an order that the map fixes: results repeat
 * bit for bit.
 */
cudaError_t ra_cuda_backward_bf16(const ra_cuda_backward *f, int multiprocessors,
                                  cudaStream_t stream);
cudaError_t ra_cuda_backward_f16(const ra_cuda_backward *f, int multiprocessors,
                                 cudaStream_t stream);
cudaError_t ra_cuda_backward_f32(const ra_cuda_backward *f, int multiprocessors,
                                 cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif

/* The boundary between host code in C and kernels in CUDA, for linear attention. */
#ifndef RINGATTN_CUDA_LINEAR_LAUNCH_H
#define RINGATTN_CUDA_LINEAR_LAUNCH_H

#include "sparse/cuda/linear_args.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Enqueue, on `blocks` thread blocks of the current device. One thread computes each sum, in an
 * order that rows and segments fix: results repeat bit for bit.
 */
cudaError_t ra_cuda_linear_launch(ra_cuda_linear_work work, const ra_cuda_linear *f, int blocks,
                                  cudaStream_t stream);
cudaError_t ra_cuda_segments_launch(const ra_cuda_segments *f, int blocks, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif

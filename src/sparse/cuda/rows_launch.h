/* The boundary between host code in C and kernels in CUDA, for rows. */
#ifndef RINGATTN_CUDA_ROWS_LAUNCH_H
#define RINGATTN_CUDA_ROWS_LAUNCH_H

#include "sparse/cuda/rows_args.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueue, on `blocks` thread blocks of the current device. */
cudaError_t ra_cuda_rows_launch(const ra_cuda_rows *r, int blocks, cudaStream_t stream);
cudaError_t ra_cuda_delta_launch(const ra_cuda_delta *d, int blocks, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif

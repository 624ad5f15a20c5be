/* The boundary between host code in C and kernels in CUDA, for the table `standard`. */
#ifndef RINGATTN_CUDA_SOFTMAX_LAUNCH_H
#define RINGATTN_CUDA_SOFTMAX_LAUNCH_H

#include "sparse/cuda/softmax_args.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueue, on `blocks` thread blocks of the current device. */
cudaError_t ra_cuda_softmax_launch(const ra_cuda_softmax *f, int blocks, cudaStream_t stream);
cudaError_t ra_cuda_softgrad_launch(const ra_cuda_softgrad *f, int blocks, cudaStream_t stream);
cudaError_t ra_cuda_outputs_launch(const ra_cuda_outputs *f, int blocks, cudaStream_t stream);
cudaError_t ra_cuda_widen_launch(const ra_cuda_widen *f, int blocks, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif

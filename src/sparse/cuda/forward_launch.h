/* The boundary between host code in C and kernels in CUDA. */
#ifndef RINGATTN_CUDA_FORWARD_LAUNCH_H
#define RINGATTN_CUDA_FORWARD_LAUNCH_H

#include "sparse/cuda/forward_args.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Enqueue one forward step on `blocks` thread blocks of the current device, by the dtype of q;
 * f->ticket must be 0 when it begins.
 */
cudaError_t ra_cuda_forward_bf16(const ra_cuda_forward *f, int blocks, cudaStream_t stream);
cudaError_t ra_cuda_forward_f16(const ra_cuda_forward *f, int blocks, cudaStream_t stream);
cudaError_t ra_cuda_forward_f32(const ra_cuda_forward *f, int blocks, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif

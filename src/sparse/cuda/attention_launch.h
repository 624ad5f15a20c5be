/*
 * The boundary between host code in C and the attention kernels in CUDA: one function per kernel
 * and dtype, and two that choose among these.
 */
#ifndef RINGATTN_CUDA_ATTENTION_LAUNCH_H
#define RINGATTN_CUDA_ATTENTION_LAUNCH_H

#include "sparse/cuda/backward_args.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Where a launch goes, and what came of it. A launch has min(what the device holds, what
 * tile_table.h allows, tasks) thread blocks; one that yields has one per task. A device with less
 * shared memory or registers, which holds fewer than the table assumes, computes the same, slower.
 */
typedef struct ra_cuda_grid {
    int multiprocessors; /* of the current device */
    cudaStream_t stream;
    int held, assumed; /* out: thread blocks per multiprocessor, if they differ; else untouched */
} ra_cuda_grid;

/** Enqueue one forward step; f->ticket must be 0 when it begins. */
cudaError_t ra_cuda_launch_forward(const ra_cuda_forward *f, ra_cuda_grid *grid);

/**
 * Enqueue one backward step: a kernel for dk and dv, then one for dq, unless f->single. Both
 * f->tickets must be 0 when it begins. One thread block adds to a row of gradients, in an order
 * that the map fixes, so results repeat bit for bit. The exception is dq of f->single, to which
 * many add in any order.
 */
cudaError_t ra_cuda_launch_backward(const ra_cuda_backward *f, ra_cuda_grid *grid);

typedef cudaError_t ra_cuda_forward_launch(const ra_cuda_forward *f, ra_cuda_grid *grid);
typedef cudaError_t ra_cuda_backward_launch(const ra_cuda_backward *f, ra_cuda_grid *grid);

ra_cuda_forward_launch ra_cuda_forward_f32, ra_cuda_forward_f16, ra_cuda_forward_bf16;
ra_cuda_forward_launch ra_cuda_forward_warpgroups; /* of both 16-bit dtypes; on sm_90a alone */
ra_cuda_backward_launch ra_cuda_queries_f32, ra_cuda_queries_f16, ra_cuda_queries_bf16;
ra_cuda_backward_launch ra_cuda_keys_f32, ra_cuda_keys_f16, ra_cuda_keys_bf16;
ra_cuda_backward_launch ra_cuda_single_bf16;
ra_cuda_backward_launch ra_cuda_single_warpgroups; /* on sm_90a alone */

#ifdef __cplusplus
}
#endif
#endif

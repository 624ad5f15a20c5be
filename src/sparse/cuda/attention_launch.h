/*
 * The boundary between host code in C and the attention kernels in CUDA: a function per kernel and
 * dtype, and two that choose among them.
 */
#ifndef RINGATTN_CUDA_ATTENTION_LAUNCH_H
#define RINGATTN_CUDA_ATTENTION_LAUNCH_H

#include "sparse/cuda/backward_args.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Where a launch goes, and what came of it. A launch has as many thread blocks as the device holds,
 * at most those that tile_table.h has and the launch has tasks; one that yields has as many as
 * tasks. A device that holds fewer than the table assumes, because its shared memory or registers
 * are less, computes the same, slower.
 */
typedef struct ra_cuda_grid {
    int multiprocessors; /* of the current device */
    cudaStream_t stream;
    int held,
        assumed; /* out: thread blocks per multiprocessor, where they differ; else untouched */
} ra_cuda_grid;

/** Enqueue one forward step; f->ticket must be 0 when it begins. */
cudaError_t ra_cuda_launch_forward(const ra_cuda_forward *f, ra_cuda_grid *grid);

/**
 * Enqueue one backward step: a kernel for dk and dv, then one for dq, unless f->single. Both
 * f->tickets must be 0 when it begins. Rows of gradients are added to by one thread block each, in
 * an order that the map fixes, so that results repeat bit for bit; but for dq of f->single, which
 * many add to as they come.
 */
cudaError_t ra_cuda_launch_backward(const ra_cuda_backward *f, ra_cuda_grid *grid);

typedef cudaError_t ra_cuda_forward_launch(const ra_cuda_forward *f, ra_cuda_grid *grid);
typedef cudaError_t ra_cuda_backward_launch(const ra_cuda_backward *f, ra_cuda_grid *grid);

ra_cuda_forward_launch ra_cuda_forward_f32, ra_cuda_forward_f16, ra_cuda_forward_bf16;
ra_cuda_backward_launch ra_cuda_queries_f32, ra_cuda_queries_f16, ra_cuda_queries_bf16;
ra_cuda_backward_launch ra_cuda_keys_f32, ra_cuda_keys_f16, ra_cuda_keys_bf16;
ra_cuda_backward_launch ra_cuda_single_bf16;

#ifdef __cplusplus
}
#endif
#endif

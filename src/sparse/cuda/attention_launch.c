/* Which kernels compute a step: those of the dtype of its q. Without RA_CUDA_SM90A none were
   compiled for warpgroups. */
#include "sparse/cuda/attention_launch.h"

cudaError_t ra_cuda_launch_forward(const ra_cuda_forward *f, ra_cuda_grid *grid)
{
#ifdef RA_CUDA_SM90A
    if (f->warpgroups)
        return ra_cuda_forward_warpgroups(f, grid);
#endif
    switch (f->q.dtype) {
    case RA_F32:
        return ra_cuda_forward_f32(f, grid);
    case RA_F16:
        return ra_cuda_forward_f16(f, grid);
    case RA_BF16:
        return ra_cuda_forward_bf16(f, grid);
    }
    return cudaErrorInvalidValue;
}

static cudaError_t launch_both(const ra_cuda_backward *f, ra_cuda_grid *grid,
                               ra_cuda_backward_launch *keys, ra_cuda_backward_launch *queries)
{
    cudaError_t const error = keys(f, grid);
    return error != cudaSuccess ? error : queries(f, grid);
}

cudaError_t ra_cuda_launch_backward(const ra_cuda_backward *f, ra_cuda_grid *grid)
{
#ifdef RA_CUDA_SM90A
    if (f->warpgroups)
        return ra_cuda_single_warpgroups(f, grid);
#endif
    if (f->single)
        return ra_cuda_single_bf16(f, grid);
    switch (f->q.dtype) {
    case RA_F32:
        return launch_both(f, grid, ra_cuda_keys_f32, ra_cuda_queries_f32);
    case RA_F16:
        return launch_both(f, grid, ra_cuda_keys_f16, ra_cuda_queries_f16);
    case RA_BF16:
        return launch_both(f, grid, ra_cuda_keys_bf16, ra_cuda_queries_bf16);
    }
    return cudaErrorInvalidValue;
}

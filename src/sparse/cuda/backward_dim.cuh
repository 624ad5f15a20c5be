/* The backward kernels as a GPU runs them, and their launcher: included once per element type. */
#ifndef RINGATTN_CUDA_BACKWARD_DIM_CUH
#define RINGATTN_CUDA_BACKWARD_DIM_CUH

#include "sparse/cuda/backward_launch.h"
#include "sparse/cuda/lanes.cuh"

#include "sparse/cuda/backward_keys.cuh"

template <class Block>
__global__ void __launch_bounds__(Block::THREADS, Block::TILE.blocks_per_sm)
    backward_queries_kernel(const __grid_constant__ ra_cuda_backward f)
{
    extern __shared__ __align__(128) char shared[];
    backward_queries_all<Block>(f, shared);
}

template <class Block>
__global__ void __launch_bounds__(Block::THREADS, Block::TILE.blocks_per_sm)
    backward_keys_kernel(const __grid_constant__ ra_cuda_backward f)
{
    extern __shared__ __align__(128) char shared[];
    backward_keys_all<Block>(f, shared);
}

typedef void backward_kernel(const ra_cuda_backward f);

static cudaError_t launch(backward_kernel *kernel, const ra_cuda_tile &tile,
                          const ra_cuda_backward &f, int multiprocessors, cudaStream_t stream)
{
    /* More than 48 KiB of shared memory must be asked for. */
    cudaError_t const error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, tile.shared_bytes);
    if (error != cudaSuccess)
        return error;
    kernel<<<multiprocessors * tile.blocks_per_sm, 32 * tile.warps, tile.shared_bytes, stream>>>(f);
    return cudaGetLastError();
}

template <class Queries, class Keys>
static cudaError_t launch_both(const ra_cuda_backward &f, int multiprocessors, cudaStream_t stream)
{
    cudaError_t const error =
        launch(backward_keys_kernel<Keys>, Keys::TILE, f, multiprocessors, stream);
    if (error != cudaSuccess)
        return error;
    return launch(backward_queries_kernel<Queries>, Queries::TILE, f, multiprocessors, stream);
}

template <template <int> class Queries, template <int> class Keys>
static cudaError_t launch_dim(const ra_cuda_backward &f, int multiprocessors, cudaStream_t stream)
{
    switch (ra_cuda_tile_of(f.q.dtype, f.dim).dim) {
    case 64:
        return launch_both<Queries<64>, Keys<64>>(f, multiprocessors, stream);
    case 128:
        return launch_both<Queries<128>, Keys<128>>(f, multiprocessors, stream);
    default:
        return launch_both<Queries<256>, Keys<256>>(f, multiprocessors, stream);
    }
}

#endif

/* The forward kernel as a GPU runs it, and its launcher: included once per element type. */
#ifndef RINGATTN_CUDA_FORWARD_DIM_CUH
#define RINGATTN_CUDA_FORWARD_DIM_CUH

#include "sparse/cuda/forward_launch.h"
#include "sparse/cuda/lanes.cuh"

#include "sparse/cuda/forward_chunk.cuh"

template <class Block>
__global__ void __launch_bounds__(Block::THREADS, Block::TILE.blocks_per_sm)
    forward_kernel(const __grid_constant__ ra_cuda_forward f)
{
    extern __shared__ __align__(128) char shared[];
    forward_all<Block>(f, shared);
}

template <class Block>
static cudaError_t launch(const ra_cuda_forward &f, int blocks, cudaStream_t stream)
{
    /* More than 48 KiB of shared memory must be asked for. */
    cudaError_t const error =
        cudaFuncSetAttribute(forward_kernel<Block>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             Block::TILE.shared_bytes);
    if (error != cudaSuccess)
        return error;
    forward_kernel<Block><<<blocks, Block::THREADS, Block::TILE.shared_bytes, stream>>>(f);
    return cudaGetLastError();
}

template <template <int> class Block>
static cudaError_t launch_dim(const ra_cuda_forward &f, int blocks, cudaStream_t stream)
{
    switch (ra_cuda_tile_of(f.q.dtype, f.dim).dim) {
    case 64:
        return launch<Block<64>>(f, blocks, stream);
    case 128:
        return launch<Block<128>>(f, blocks, stream);
    default:
        return launch<Block<256>>(f, blocks, stream);
    }
}

#endif

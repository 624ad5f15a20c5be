/* The forward kernel as a GPU runs it, for every head_dim: included once per element type. */
#ifndef RINGATTN_CUDA_FORWARD_DIM_CUH
#define RINGATTN_CUDA_FORWARD_DIM_CUH

#include "sparse/cuda/launch.cuh"

#include "sparse/cuda/forward_chunk.cuh"

template <class Block>
__global__ void __launch_bounds__(Block::THREADS, Block::TILE.blocks_per_sm)
    forward_kernel(const __grid_constant__ ra_cuda_forward f)
{
    extern __shared__ __align__(128) char shared[];
    forward_all<Block>(f, shared);
}

template <template <int> class Block>
static cudaError_t launch_forward(const ra_cuda_forward &f, ra_cuda_grid *grid)
{
    switch (ra_cuda_dim_of(f.dim)) {
#define RA_LAUNCH(DIM)                                                                             \
    case DIM:                                                                                      \
        return launch(forward_kernel<Block<DIM>>, Block<DIM>::TILE, f, f.tasks, grid);
        RA_CUDA_DIMS(RA_LAUNCH)
#undef RA_LAUNCH
    }
    return cudaErrorInvalidValue;
}

#endif

/* The kernel for dq as a GPU runs it, for every head_dim: included once per element type. */
#ifndef RINGATTN_CUDA_QUERIES_DIM_CUH
#define RINGATTN_CUDA_QUERIES_DIM_CUH

#include "sparse/cuda/launch.cuh"

#include "sparse/cuda/backward_queries.cuh"

template <class Block>
__global__ void __launch_bounds__(Block::THREADS, Block::TILE.blocks_per_sm)
    backward_queries_kernel(const __grid_constant__ ra_cuda_backward f)
{
    extern __shared__ __align__(128) char shared[];
    backward_queries_all<Block>(f, shared);
}

template <template <int> class Block>
static cudaError_t launch_queries(const ra_cuda_backward &f, ra_cuda_grid *grid)
{
    switch (ra_cuda_dim_of(f.dim)) {
#define RA_LAUNCH(DIM)                                                                             \
    case DIM:                                                                                      \
        return launch(backward_queries_kernel<Block<DIM>>, Block<DIM>::TILE, f, f.q_tasks, grid);
        RA_CUDA_DIMS(RA_LAUNCH)
#undef RA_LAUNCH
    }
    return cudaErrorInvalidValue;
}

#endif

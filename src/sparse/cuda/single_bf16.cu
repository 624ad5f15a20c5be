#include "sparse/cuda/launch.cuh"

#include "sparse/cuda/backward_single_16.cuh"

template <class Block>
__global__ void __launch_bounds__(Block::THREADS, Block::TILE.blocks_per_sm)
    backward_single_kernel(const __grid_constant__ ra_cuda_backward f)
{
    extern __shared__ __align__(128) char shared[];
    backward_keys_all<Block>(f, shared);
}

cudaError_t ra_cuda_single_bf16(const ra_cuda_backward *f, ra_cuda_grid *grid)
{
    switch (ra_cuda_dim_of(f->dim)) {
#define RA_LAUNCH(DIM)                                                                             \
    case DIM: {                                                                                    \
        typedef backward_single_16<element_bf16, DIM> block;                                       \
        return launch(backward_single_kernel<block>, block::TILE, *f, f->k_tasks, grid);           \
    }
        RA_CUDA_SINGLE_DIMS(RA_LAUNCH)
#undef RA_LAUNCH
    }
    return cudaErrorInvalidValue;
}

#include "sparse/cuda/forward_dim.cuh"

#include "sparse/cuda/forward_32.cuh"

cudaError_t ra_cuda_forward_f32(const ra_cuda_forward *f, ra_cuda_grid *grid)
{
    return launch_forward<forward_32>(*f, grid);
}

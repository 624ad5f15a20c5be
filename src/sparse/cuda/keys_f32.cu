#include "sparse/cuda/keys_dim.cuh"

#include "sparse/cuda/backward_32.cuh"

cudaError_t ra_cuda_keys_f32(const ra_cuda_backward *f, ra_cuda_grid *grid)
{
    return launch_keys<backward_keys_32>(*f, grid);
}

#include "sparse/cuda/queries_dim.cuh"

#include "sparse/cuda/backward_32.cuh"

cudaError_t ra_cuda_queries_f32(const ra_cuda_backward *f, ra_cuda_grid *grid)
{
    return launch_queries<backward_queries_32>(*f, grid);
}

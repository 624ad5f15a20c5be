#include "sparse/cuda/queries_dim.cuh"

#include "sparse/cuda/backward_queries_16.cuh"

template <int DIM> using queries_bf16 = backward_queries_16<element_bf16, DIM>;

cudaError_t ra_cuda_queries_bf16(const ra_cuda_backward *f, ra_cuda_grid *grid)
{
    return launch_queries<queries_bf16>(*f, grid);
}

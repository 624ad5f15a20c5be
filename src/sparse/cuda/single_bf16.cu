#include "sparse/cuda/launch.cuh"

#include "sparse/cuda/backward_single_16.cuh"

template <int DIM> using single_bf16 = keys_pass<backward_single_16<element_bf16, DIM>>;

cudaError_t ra_cuda_single_bf16(const ra_cuda_backward *f, ra_cuda_grid *grid)
{
    return launch<single_bf16, ra_cuda_is_single_dim>(*f, f->k_tasks, grid);
}

#include "sparse/cuda/launch.cuh"

#include "sparse/cuda/backward_keys_16.cuh"

template <int DIM> using keys_bf16 = keys_pass<backward_keys_16<element_bf16, DIM>>;

cudaError_t ra_cuda_keys_bf16(const ra_cuda_backward *f, ra_cuda_grid *grid)
{
    return launch<keys_bf16>(*f, f->k_tasks, grid);
}

#include "sparse/cuda/launch.cuh"

#include "sparse/cuda/backward_keys_16.cuh"

template <int DIM> using keys_f16 = keys_pass<backward_keys_16<element_f16, DIM>>;

cudaError_t ra_cuda_keys_f16(const ra_cuda_backward *f, ra_cuda_grid *grid)
{
    return launch<keys_f16>(*f, f->k_tasks, grid);
}

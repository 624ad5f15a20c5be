#include "sparse/cuda/launch.cuh"

#include "sparse/cuda/backward_32.cuh"

template <int DIM> using keys_f32 = keys_pass<backward_keys_32<DIM>>;

cudaError_t ra_cuda_keys_f32(const ra_cuda_backward *f, ra_cuda_grid *grid)
{
    return launch<keys_f32>(*f, f->k_tasks, grid);
}

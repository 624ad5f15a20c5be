#include "sparse/cuda/keys_dim.cuh"

#include "sparse/cuda/backward_keys_16.cuh"

template <int DIM> using keys_f16 = backward_keys_16<element_f16, DIM>;

cudaError_t ra_cuda_keys_f16(const ra_cuda_backward *f, ra_cuda_grid *grid)
{
    return launch_keys<keys_f16>(*f, grid);
}

#include "sparse/cuda/forward_dim.cuh"

#include "sparse/cuda/forward_16.cuh"

template <int DIM> using forward_f16 = forward_16<element_f16, DIM>;

cudaError_t ra_cuda_forward_f16(const ra_cuda_forward *f, ra_cuda_grid *grid)
{
    return launch_forward<forward_f16>(*f, grid);
}

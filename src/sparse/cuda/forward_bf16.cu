#include "sparse/cuda/launch.cuh"

#include "sparse/cuda/forward_16.cuh"

template <int DIM> using forward_bf16 = forward_pass<forward_16<element_bf16, DIM>>;

cudaError_t ra_cuda_forward_bf16(const ra_cuda_forward *f, ra_cuda_grid *grid)
{
    return launch<forward_bf16>(*f, f->tasks, grid);
}

#include "sparse/cuda/launch.cuh"

#include "sparse/cuda/forward_32.cuh"

template <int DIM> using forward_f32 = forward_pass<forward_32<DIM>>;

cudaError_t ra_cuda_forward_f32(const ra_cuda_forward *f, ra_cuda_grid *grid)
{
    return launch<forward_f32>(*f, f->tasks, grid);
}

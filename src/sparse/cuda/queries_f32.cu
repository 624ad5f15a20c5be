#include "sparse/cuda/launch.cuh"

#include "sparse/cuda/backward_32.cuh"

template <int DIM> using queries_f32 = queries_pass<backward_queries_32<DIM>>;

cudaError_t ra_cuda_queries_f32(const ra_cuda_backward *f, ra_cuda_grid *grid)
{
    return launch<queries_f32>(*f, f->q_tasks, grid);
}

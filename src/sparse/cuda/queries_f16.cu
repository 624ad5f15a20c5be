#include "sparse/cuda/launch.cuh"

#include "sparse/cuda/backward_queries_16.cuh"

template <int DIM> using queries_f16 = queries_pass<backward_queries_16<element_f16, DIM>>;

cudaError_t ra_cuda_queries_f16(const ra_cuda_backward *f, ra_cuda_grid *grid)
{
    return launch<queries_f16>(*f, f->q_tasks, grid);
}

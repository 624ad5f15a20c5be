#include "sparse/cuda/launch.cuh"
#include "sparse/cuda/warpgroup.cuh"

#include "sparse/cuda/forward_wgmma.cuh"

template <int DIM> using wgmma_bf16 = forward_wgmma<element_bf16, DIM>;
template <int DIM> using wgmma_f16 = forward_wgmma<element_f16, DIM>;

cudaError_t ra_cuda_forward_warpgroups(const ra_cuda_forward *f, ra_cuda_grid *grid)
{
    int64_t const tasks = f->tasks + f->cuts.tasks;
    return f->q.dtype == RA_BF16 ? launch<wgmma_bf16, ra_cuda_is_warpgroup_dim>(*f, tasks, grid)
                                 : launch<wgmma_f16, ra_cuda_is_warpgroup_dim>(*f, tasks, grid);
}

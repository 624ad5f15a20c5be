#include "sparse/cuda/launch.cuh"
#include "sparse/cuda/warpgroup.cuh"

#include "sparse/cuda/backward_single_wgmma.cuh"

template <int DIM> using single_wgmma = keys_pass<backward_single_wgmma<element_bf16, DIM>>;

cudaError_t ra_cuda_single_warpgroups(const ra_cuda_backward *f, ra_cuda_grid *grid)
{
    return launch<single_wgmma, ra_cuda_is_warpgroup_dim>(*f, f->k_tasks, grid);
}

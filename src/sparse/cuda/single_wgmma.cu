#include "sparse/cuda/launch.cuh"
#include "sparse/cuda/warpgroup.cuh"

#include "sparse/cuda/backward_single_wgmma.cuh"

cudaError_t ra_cuda_single_warpgroups(const ra_cuda_backward *f, ra_cuda_grid *grid)
{
    switch (ra_cuda_dim_of(f->dim)) {
#define RA_LAUNCH(DIM)                                                                             \
    case DIM: {                                                                                    \
        typedef keys_pass<backward_single_wgmma<element_bf16, DIM>> pass;                          \
        return launch_kernel(attention_kernel<pass, ra_cuda_backward>, pass::TILE, *f, f->k_tasks, \
                             grid);                                                                \
    }
        RA_CUDA_WARPGROUP_DIMS(RA_LAUNCH)
#undef RA_LAUNCH
    }
    return cudaErrorInvalidValue;
}

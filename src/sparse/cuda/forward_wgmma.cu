#include "sparse/cuda/launch.cuh"
#include "sparse/cuda/warpgroup.cuh"

#include "sparse/cuda/forward_wgmma.cuh"

template <class Element>
static cudaError_t launch_warpgroups(const ra_cuda_forward &f, ra_cuda_grid *grid)
{
    switch (ra_cuda_dim_of(f.dim)) {
#define RA_LAUNCH(DIM)                                                                             \
    case DIM: {                                                                                    \
        typedef forward_wgmma<Element, DIM> pass;                                                  \
        return launch_kernel(attention_kernel<pass, ra_cuda_forward>, pass::TILE, f,               \
                             f.tasks + f.cuts.tasks, grid);                                        \
    }
        RA_CUDA_WARPGROUP_DIMS(RA_LAUNCH)
#undef RA_LAUNCH
    }
    return cudaErrorInvalidValue;
}

cudaError_t ra_cuda_forward_warpgroups(const ra_cuda_forward *f, ra_cuda_grid *grid)
{
    return f->q.dtype == RA_BF16 ? launch_warpgroups<element_bf16>(*f, grid)
                                 : launch_warpgroups<element_f16>(*f, grid);
}

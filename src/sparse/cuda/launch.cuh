/* The attention kernels for a GPU, and their launch: included once per pass and dtype. */
#ifndef RINGATTN_CUDA_LAUNCH_CUH
#define RINGATTN_CUDA_LAUNCH_CUH

#include "sparse/cuda/attention_launch.h"
#include "sparse/cuda/lanes.cuh"
#include "sparse/cuda/launch_shared.cuh"

template <class Pass, class Args>
__global__ void __launch_bounds__(Pass::THREADS, Pass::TILE.blocks_per_sm)
    attention_kernel(const __grid_constant__ Args f)
{
    extern __shared__ __align__(1024) char shared[];
    Pass::all(f, shared);
}

template <class Args>
static cudaError_t launch_kernel(void (*kernel)(Args), const ra_cuda_tile &tile, const Args &args,
                                 int64_t tasks, ra_cuda_grid *grid)
{
    int const threads = 32 * tile.warps;
    int held = 0;
    cudaError_t error = launch_shared(kernel, tile);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&held, kernel, threads,
                                                              (size_t)tile.shared_bytes);
    if (error == cudaSuccess && held < 1)
        error = cudaErrorLaunchOutOfResources;
    if (error != cudaSuccess)
        return error;
    if (held < tile.blocks_per_sm) {
        grid->held = held;
        grid->assumed = tile.blocks_per_sm;
    }
    int64_t const most = (int64_t)grid->multiprocessors * ra_hd_min(held, tile.blocks_per_sm);
    int64_t const blocks = args.yields || tasks < most ? tasks : most;
    kernel<<<(unsigned)blocks, threads, tile.shared_bytes, grid->stream>>>(args);
    return cudaGetLastError();
}

/* Launch the instance for the head_dim, of dims that HAS says. */
template <template <int> class Pass, bool (*HAS)(int32_t) = ra_cuda_is_dim, class Args>
static cudaError_t launch(const Args &args, int64_t tasks, ra_cuda_grid *grid)
{
    switch (ra_cuda_dim_of(args.dim)) {
#define RA_LAUNCH(DIM)                                                                             \
    case DIM:                                                                                      \
        if constexpr (HAS(DIM))                                                                    \
            return launch_kernel(attention_kernel<Pass<DIM>, Args>, Pass<DIM>::TILE, args, tasks,  \
                                 grid);                                                            \
        break;
        RA_CUDA_DIMS(RA_LAUNCH)
#undef RA_LAUNCH
    }
    return cudaErrorInvalidValue;
}

#endif

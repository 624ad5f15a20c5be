/* A kernel's launch, for each dtype's file. */
#ifndef RINGATTN_CUDA_LAUNCH_CUH
#define RINGATTN_CUDA_LAUNCH_CUH

#include "sparse/cuda/attention_launch.h"
#include "sparse/cuda/lanes.cuh"

template <class Args>
static cudaError_t launch(void (*kernel)(Args), const ra_cuda_tile &tile, const Args &args,
                          int64_t tasks, ra_cuda_grid *grid)
{
    int const threads = 32 * tile.warps;
    int held = 0;
    /* More than 48 KiB of shared memory must be asked for. */
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             tile.shared_bytes);
    /* Thread blocks stay until all is done: those that a multiprocessor has no memory for when the
       launch begins come too late. */
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared);
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
    kernel<<<(unsigned)(tasks < most ? tasks : most), threads, tile.shared_bytes, grid->stream>>>(
        args);
    return cudaGetLastError();
}

#endif

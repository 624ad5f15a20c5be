/* Dynamic shared memory of a kernel that is launched next. */
#ifndef RINGATTN_CUDA_LAUNCH_SHARED_CUH
#define RINGATTN_CUDA_LAUNCH_SHARED_CUH

#include "sparse/cuda/tile_table.h"

#include <cuda_runtime_api.h>

/* More than 48 KiB must be asked for; and with the largest carve-out a multiprocessor holds as many
   thread blocks as the tile has in mind. */
template <class Kernel> static cudaError_t launch_shared(Kernel *kernel, const ra_cuda_tile &tile)
{
    cudaError_t const error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, tile.shared_bytes);
    return error != cudaSuccess
               ? error
               : cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared);
}

#endif

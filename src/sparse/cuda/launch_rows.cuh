/* Launches of kernels that take no shared memory, and which of them is a dtype's. */
#ifndef RINGATTN_CUDA_LAUNCH_ROWS_CUH
#define RINGATTN_CUDA_LAUNCH_ROWS_CUH

#include "ringattn/kernel.h"

#include <cuda_runtime_api.h>

template <class Kernel>
static Kernel *kernel_for(ra_dtype dtype, Kernel *f32, Kernel *f16, Kernel *bf16)
{
    return dtype == RA_F32 ? f32 : dtype == RA_F16 ? f16 : bf16;
}

template <class Args>
static cudaError_t enqueue(void (*kernel)(Args), const Args &args, int blocks, int threads,
                           cudaStream_t stream)
{
    kernel<<<blocks, threads, 0, stream>>>(args);
    return cudaGetLastError();
}

#endif

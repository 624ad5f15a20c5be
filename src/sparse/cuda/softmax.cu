#include "sparse/cuda/softmax_launch.h"

#include "sparse/cuda/lanes.cuh"

#include "sparse/cuda/softmax.cuh"

__global__ void __launch_bounds__(RA_CUDA_SOFTMAX_THREADS, RA_CUDA_SOFTMAX_BLOCKS)
    softmax_kernel(const __grid_constant__ ra_cuda_softmax f)
{
    softmax_all(f);
}

__global__ void __launch_bounds__(RA_CUDA_SOFTMAX_THREADS, RA_CUDA_SOFTMAX_BLOCKS)
    softgrad_kernel(const __grid_constant__ ra_cuda_softgrad f)
{
    softgrad_all(f);
}

template <class Element>
__global__ void __launch_bounds__(RA_CUDA_SOFTMAX_THREADS, RA_CUDA_SOFTMAX_BLOCKS)
    outputs_kernel(const __grid_constant__ ra_cuda_outputs f)
{
    outputs_all<Element>(f);
}

template <class Element>
__global__ void __launch_bounds__(RA_CUDA_SOFTMAX_THREADS, RA_CUDA_SOFTMAX_BLOCKS)
    widen_kernel(const __grid_constant__ ra_cuda_widen f)
{
    widen_all<Element>(f);
}

extern "C" cudaError_t ra_cuda_softmax_launch(const ra_cuda_softmax *f, int blocks,
                                              cudaStream_t stream)
{
    softmax_kernel<<<blocks, RA_CUDA_SOFTMAX_THREADS, 0, stream>>>(*f);
    return cudaGetLastError();
}

extern "C" cudaError_t ra_cuda_softgrad_launch(const ra_cuda_softgrad *f, int blocks,
                                               cudaStream_t stream)
{
    softgrad_kernel<<<blocks, RA_CUDA_SOFTMAX_THREADS, 0, stream>>>(*f);
    return cudaGetLastError();
}

extern "C" cudaError_t ra_cuda_outputs_launch(const ra_cuda_outputs *f, int blocks,
                                              cudaStream_t stream)
{
    if (f->out.dtype == RA_F32)
        outputs_kernel<element_f32><<<blocks, RA_CUDA_SOFTMAX_THREADS, 0, stream>>>(*f);
    else if (f->out.dtype == RA_F16)
        outputs_kernel<element_f16><<<blocks, RA_CUDA_SOFTMAX_THREADS, 0, stream>>>(*f);
    else
        outputs_kernel<element_bf16><<<blocks, RA_CUDA_SOFTMAX_THREADS, 0, stream>>>(*f);
    return cudaGetLastError();
}

extern "C" cudaError_t ra_cuda_widen_launch(const ra_cuda_widen *f, int blocks, cudaStream_t stream)
{
    if (f->from.dtype == RA_F16)
        widen_kernel<element_f16><<<blocks, RA_CUDA_SOFTMAX_THREADS, 0, stream>>>(*f);
    else
        widen_kernel<element_bf16><<<blocks, RA_CUDA_SOFTMAX_THREADS, 0, stream>>>(*f);
    return cudaGetLastError();
}

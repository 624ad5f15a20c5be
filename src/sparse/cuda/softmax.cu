#include "sparse/cuda/softmax_launch.h"

#include "sparse/cuda/lanes.cuh"
#include "sparse/cuda/launch_rows.cuh"

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
    return enqueue(softmax_kernel, *f, blocks, RA_CUDA_SOFTMAX_THREADS, stream);
}

extern "C" cudaError_t ra_cuda_softgrad_launch(const ra_cuda_softgrad *f, int blocks,
                                               cudaStream_t stream)
{
    return enqueue(softgrad_kernel, *f, blocks, RA_CUDA_SOFTMAX_THREADS, stream);
}

extern "C" cudaError_t ra_cuda_outputs_launch(const ra_cuda_outputs *f, int blocks,
                                              cudaStream_t stream)
{
    auto const kernel = kernel_for(f->out.dtype, outputs_kernel<element_f32>,
                                   outputs_kernel<element_f16>, outputs_kernel<element_bf16>);
    return enqueue(kernel, *f, blocks, RA_CUDA_SOFTMAX_THREADS, stream);
}

extern "C" cudaError_t ra_cuda_widen_launch(const ra_cuda_widen *f, int blocks, cudaStream_t stream)
{
    return enqueue(f->from.dtype == RA_F16 ? widen_kernel<element_f16> : widen_kernel<element_bf16>,
                   *f, blocks, RA_CUDA_SOFTMAX_THREADS, stream);
}

#include "sparse/cuda/rows_launch.h"

#include "sparse/cuda/lanes.cuh"
#include "sparse/cuda/launch_rows.cuh"

#include "sparse/cuda/rows.cuh"

template <class Move>
__global__ void __launch_bounds__(RA_CUDA_ROW_THREADS)
    rows_kernel(const __grid_constant__ ra_cuda_rows r)
{
    rows_all<Move>(r);
}

template <class Element>
__global__ void __launch_bounds__(RA_CUDA_ROW_THREADS)
    delta_kernel(const __grid_constant__ ra_cuda_delta d)
{
    delta_all<Element>(d);
}

extern "C" cudaError_t ra_cuda_rows_launch(const ra_cuda_rows *r, int blocks, cudaStream_t stream)
{
    ra_dtype const dtype = r->to.dtype;
    auto const kernel = r->move == RA_CUDA_ADD ? rows_kernel<rows_add>
                        : r->move == RA_CUDA_COPY
                            ? kernel_for(dtype, rows_kernel<rows_copy<4>>,
                                         rows_kernel<rows_copy<2>>, rows_kernel<rows_copy<2>>)
                            : kernel_for(dtype, rows_kernel<rows_store<element_f32>>,
                                         rows_kernel<rows_store<element_f16>>,
                                         rows_kernel<rows_store<element_bf16>>);
    return enqueue(kernel, *r, blocks, RA_CUDA_ROW_THREADS, stream);
}

extern "C" cudaError_t ra_cuda_delta_launch(const ra_cuda_delta *d, int blocks, cudaStream_t stream)
{
    auto const kernel = kernel_for(d->out.dtype, delta_kernel<element_f32>,
                                   delta_kernel<element_f16>, delta_kernel<element_bf16>);
    return enqueue(kernel, *d, blocks, RA_CUDA_ROW_THREADS, stream);
}

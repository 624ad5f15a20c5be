#include "sparse/cuda/rows_launch.h"

#include "sparse/cuda/lanes.cuh"

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

template <class Move>
static cudaError_t launch(const ra_cuda_rows &r, int blocks, cudaStream_t stream)
{
    rows_kernel<Move><<<blocks, RA_CUDA_ROW_THREADS, 0, stream>>>(r);
    return cudaGetLastError();
}

template <class Element>
static cudaError_t launch_delta(const ra_cuda_delta &d, int blocks, cudaStream_t stream)
{
    delta_kernel<Element><<<blocks, RA_CUDA_ROW_THREADS, 0, stream>>>(d);
    return cudaGetLastError();
}

extern "C" cudaError_t ra_cuda_rows_launch(const ra_cuda_rows *r, int blocks, cudaStream_t stream)
{
    if (r->move == RA_CUDA_ADD)
        return launch<rows_add>(*r, blocks, stream);
    if (r->move == RA_CUDA_COPY)
        return r->to.dtype == RA_F32 ? launch<rows_copy<4>>(*r, blocks, stream)
                                     : launch<rows_copy<2>>(*r, blocks, stream);
    switch (r->to.dtype) {
    case RA_F32:
        return launch<rows_store<element_f32>>(*r, blocks, stream);
    case RA_F16:
        return launch<rows_store<element_f16>>(*r, blocks, stream);
    default:
        return launch<rows_store<element_bf16>>(*r, blocks, stream);
    }
}

extern "C" cudaError_t ra_cuda_delta_launch(const ra_cuda_delta *d, int blocks, cudaStream_t stream)
{
    switch (d->out.dtype) {
    case RA_F32:
        return launch_delta<element_f32>(*d, blocks, stream);
    case RA_F16:
        return launch_delta<element_f16>(*d, blocks, stream);
    default:
        return launch_delta<element_bf16>(*d, blocks, stream);
    }
}

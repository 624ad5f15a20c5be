#include "sparse/cuda/linear_launch.h"

#include "sparse/cuda/lanes.cuh"
#include "sparse/cuda/launch_rows.cuh"
#include "sparse/cuda/launch_shared.cuh"

#include "sparse/cuda/linear_backward.cuh"
#include "sparse/cuda/linear_forward.cuh"
#include "sparse/cuda/linear_rowwise.cuh"
#include "sparse/cuda/linear_segments.cuh"

template <class Work>
__global__ void __launch_bounds__(Work::THREADS, Work::TILE.blocks_per_sm)
    linear_kernel(const __grid_constant__ ra_cuda_linear f)
{
    extern __shared__ __align__(128) char shared[];
    linear_all<Work>(f, shared);
}

__global__ void __launch_bounds__(RA_CUDA_LINEAR_FLAT_THREADS, RA_CUDA_LINEAR_FLAT_BLOCKS)
    segments_kernel(const __grid_constant__ ra_cuda_segments f)
{
    segments_all(f);
}

typedef void kernel_function(const ra_cuda_linear f);

template <int DIM> static kernel_function *kernel_of(ra_cuda_linear_work work)
{
    switch (work) {
    case RA_CUDA_LINEAR_SUM:
        return linear_kernel<linear_sum<DIM>>;
    case RA_CUDA_LINEAR_FORWARD:
        return linear_kernel<linear_forward<DIM>>;
    case RA_CUDA_LINEAR_QUERIES:
        return linear_kernel<linear_queries<DIM>>;
    case RA_CUDA_LINEAR_KEYS:
        return linear_kernel<linear_keys<DIM>>;
    default:
        return linear_kernel<linear_rowwise>;
    }
}

extern "C" cudaError_t ra_cuda_linear_launch(ra_cuda_linear_work work, const ra_cuda_linear *f,
                                             int blocks, cudaStream_t stream)
{
    ra_cuda_tile const tile = ra_cuda_linear_tile_of(work, f->dim);
    kernel_function *const kernel = f->dim <= 64    ? kernel_of<64>(work)
                                    : f->dim <= 128 ? kernel_of<128>(work)
                                                    : kernel_of<256>(work);
    cudaError_t const error = launch_shared(kernel, tile);
    if (error != cudaSuccess)
        return error;
    kernel<<<blocks, 32 * tile.warps, tile.shared_bytes, stream>>>(*f);
    return cudaGetLastError();
}

extern "C" cudaError_t ra_cuda_segments_launch(const ra_cuda_segments *f, int blocks,
                                               cudaStream_t stream)
{
    return enqueue(segments_kernel, *f, blocks, RA_CUDA_LINEAR_FLAT_THREADS, stream);
}

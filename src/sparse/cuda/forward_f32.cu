#include "sparse/cuda/forward_dim.cuh"

#include "sparse/cuda/forward_32.cuh"

extern "C" cudaError_t ra_cuda_forward_f32(const ra_cuda_forward *f, int blocks,
                                           cudaStream_t stream)
{
    return launch_dim<forward_32>(*f, blocks, stream);
}

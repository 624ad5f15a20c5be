#include "sparse/cuda/forward_dim.cuh"

#include "sparse/cuda/forward_16.cuh"

template <int DIM> using forward_f16 = forward_16<element_f16, DIM>;

extern "C" cudaError_t ra_cuda_forward_f16(const ra_cuda_forward *f, int blocks,
                                           cudaStream_t stream)
{
    return launch_dim<forward_f16>(*f, blocks, stream);
}

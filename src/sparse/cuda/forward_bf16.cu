#include "sparse/cuda/forward_dim.cuh"

#include "sparse/cuda/forward_16.cuh"

template <int DIM> using forward_bf16 = forward_16<element_bf16, DIM>;

extern "C" cudaError_t ra_cuda_forward_bf16(const ra_cuda_forward *f, int blocks,
                                            cudaStream_t stream)
{
    return launch_dim<forward_bf16>(*f, blocks, stream);
}

#include "sparse/cuda/backward_dim.cuh"

#include "sparse/cuda/backward_keys_16.cuh"
#include "sparse/cuda/backward_queries_16.cuh"

template <int DIM> using queries_bf16 = backward_queries_16<element_bf16, DIM>;
template <int DIM> using keys_bf16 = backward_keys_16<element_bf16, DIM>;

extern "C" cudaError_t ra_cuda_backward_bf16(const ra_cuda_backward *f, int multiprocessors,
                                             cudaStream_t stream)
{
    return launch_dim<queries_bf16, keys_bf16>(*f, multiprocessors, stream);
}

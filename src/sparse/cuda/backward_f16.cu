#include "sparse/cuda/backward_dim.cuh"

#include "sparse/cuda/backward_keys_16.cuh"
#include "sparse/cuda/backward_queries_16.cuh"

template <int DIM> using queries_f16 = backward_queries_16<element_f16, DIM>;
template <int DIM> using keys_f16 = backward_keys_16<element_f16, DIM>;

extern "C" cudaError_t ra_cuda_backward_f16(const ra_cuda_backward *f, int multiprocessors,
                                            cudaStream_t stream)
{
    return launch_dim<queries_f16, keys_f16>(*f, multiprocessors, stream);
}

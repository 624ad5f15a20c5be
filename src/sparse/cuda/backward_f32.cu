#include "sparse/cuda/backward_dim.cuh"

#include "sparse/cuda/backward_32.cuh"

extern "C" cudaError_t ra_cuda_backward_f32(const ra_cuda_backward *f, int multiprocessors,
                                            cudaStream_t stream)
{
    return launch_dim<backward_queries_32, backward_keys_32>(*f, multiprocessors, stream);
}

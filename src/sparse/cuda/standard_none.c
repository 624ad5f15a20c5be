/* For a build with GPU kernels but without cuBLAS's header, which says so when asked. */
#include "ringattn/kernel.h"

#include <stdio.h>

const ra_kernel_ops *ra_kernel_cuda_standard(void)
{
    return NULL;
}

bool ra_cublas_describe(char *text, size_t bytes)
{
    snprintf(text, bytes,
             "this build has no cuBLAS: build where cublas_v2.h is with the CUDA toolkit");
    return false;
}

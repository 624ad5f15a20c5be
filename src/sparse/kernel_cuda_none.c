/* A build without kernels for GPUs. */
#include "ringattn/kernel.h"

#include <stdio.h>

const ra_kernel_ops *ra_kernel_cuda(void)
{
    return NULL;
}

const ra_kernel_ops *ra_kernel_cuda_sm90a(void)
{
    return NULL;
}

const ra_kernel_ops *ra_kernel_cuda_sm90a_backward(void)
{
    return NULL;
}

const ra_kernel_ops *ra_kernel_cuda_standard(void)
{
    return NULL;
}

bool ra_cublas_describe(char *text, size_t bytes)
{
    snprintf(text, bytes, "this build has no kernels for GPUs");
    return false;
}

/* A build without kernels for GPUs. */
#include "ringattn/kernel.h"

#include <stdio.h>

const ra_kernel_ops *ra_kernel_cuda(void)
{
    return NULL;
}

const ra_kernel_ops *ra_kernel_cuda_standard(char *why_not, size_t bytes)
{
    snprintf(why_not, bytes, "this build has no kernels for GPUs");
    return NULL;
}

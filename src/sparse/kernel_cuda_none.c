/* A build without kernels for GPUs. */
#include "ringattn/kernel.h"

const ra_kernel_ops *ra_kernel_cuda(void)
{
    return NULL;
}

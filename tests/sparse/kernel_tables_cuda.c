/* The tables that a suite runs over: that for GPUs alone. */
#include "sparse/kernel_case.h"

const ra_kernel_ops *kernel_table(int i)
{
    return i == 0 ? ra_kernel_cuda() : NULL;
}

const char *kernel_table_lacks(void)
{
    return NULL;
}

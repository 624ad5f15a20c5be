/* The table that a suite runs over, for GPUs whose steps are by warpgroups: it is RA_KERNEL_SM90A.
   That of ra_kernel_cuda_sm90a_backward is the other's forward. */
#include "sparse/kernel_case.h"

const ra_kernel_ops *kernel_table(int i)
{
    return i == 0 ? RA_KERNEL_SM90A() : NULL;
}

const char *kernel_table_lacks(void)
{
    static char text[240];
    ra_kernel_use const use = {.dtype = RA_BF16, .dim = 128, .threads = 1};
    const ra_kernel_ops *const ops = RA_KERNEL_SM90A();
    if (ops == NULL)
        return "this build has no code for sm_90a";
    return ops->serves(&use, text, sizeof(text)) ? NULL : text;
}

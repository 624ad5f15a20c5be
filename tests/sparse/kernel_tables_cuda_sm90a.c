/* The tables that a suite runs over: that for GPUs whose steps are by warpgroups, forward as in
   ra_kernel_cuda_sm90a, and backward. */
#include "sparse/kernel_case.h"

const ra_kernel_ops *kernel_table(int i)
{
    return i == 0 ? ra_kernel_cuda_sm90a_backward() : NULL;
}

const char *kernel_table_lacks(void)
{
    static char text[240];
    ra_kernel_use const use = {.dtype = RA_BF16, .dim = 128, .threads = 1};
    const ra_kernel_ops *const ops = ra_kernel_cuda_sm90a_backward();
    if (ops == NULL)
        return "this build has no code for sm_90a";
    return ops->serves(&use, text, sizeof(text)) ? NULL : text;
}

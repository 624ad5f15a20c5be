/* The tables that a suite runs over: that for GPUs which materialises its scores alone. */
#include "sparse/kernel_case.h"

#include <criterion/criterion.h>

const ra_kernel_ops *kernel_table(int i)
{
    char why_not[240];
    const ra_kernel_ops *const ops = ra_kernel_cuda_standard(why_not, sizeof(why_not));
    cr_assert_not_null(ops, "%s", why_not);
    return i == 0 ? ops : NULL;
}

const char *kernel_table_lacks(void)
{
    static char why_not[240];
    return ra_kernel_cuda_standard(why_not, sizeof(why_not)) == NULL ? why_not : NULL;
}

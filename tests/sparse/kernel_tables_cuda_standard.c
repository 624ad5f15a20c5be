/* The tables that a suite runs over: that for GPUs which materialises its scores alone. */
#include "sparse/kernel_case.h"

#include <criterion/criterion.h>

const ra_kernel_ops *kernel_table(int i)
{
    char why_not[240];
    cr_assert(ra_cublas_describe(why_not, sizeof(why_not)), "%s", why_not);
    return i == 0 ? ra_kernel_cuda_standard() : NULL;
}

const char *kernel_table_lacks(void)
{
    static char text[240];
    return ra_cublas_describe(text, sizeof(text)) ? NULL : text;
}

/*
 * Linked into the command: with RA_WRONG=results no error is within its bound; with
 * RA_WRONG=kernels no kernel agrees with the one it is compared with.
 */
#include "verify.h"

#include <ringattn/kernel_check.h>
#include <stdlib.h>
#include <string.h>

ra_errors __real_ra_error_bounds(ra_dtype dtype, int32_t head_dim);
ra_errors __wrap_ra_error_bounds(ra_dtype dtype, int32_t head_dim);
ra_status __real_ra_kernel_check(const ra_kernel_ops *ops, const ra_kernel_ops *plain,
                                 const ra_kernel_use *use, ra_kernel_poll *poll, void *poll_context,
                                 ra_kernel_verdict *verdict_out);
ra_status __wrap_ra_kernel_check(const ra_kernel_ops *ops, const ra_kernel_ops *plain,
                                 const ra_kernel_use *use, ra_kernel_poll *poll, void *poll_context,
                                 ra_kernel_verdict *verdict_out);

static bool is_wrong(const char *what)
{
    const char *wanted = getenv("RA_WRONG");
    return wanted != NULL && strcmp(wanted, what) == 0;
}

ra_errors __wrap_ra_error_bounds(ra_dtype dtype, int32_t head_dim)
{
    return is_wrong("results") ? (ra_errors){0} : __real_ra_error_bounds(dtype, head_dim);
}

ra_status __wrap_ra_kernel_check(const ra_kernel_ops *ops, const ra_kernel_ops *plain,
                                 const ra_kernel_use *use, ra_kernel_poll *poll, void *poll_context,
                                 ra_kernel_verdict *verdict_out)
{
    if (!is_wrong("kernels"))
        return __real_ra_kernel_check(ops, plain, use, poll, poll_context, verdict_out);
    *verdict_out = (ra_kernel_verdict){.agrees = false, .tensor = "o", .error = 1, .allowed = 1e-3};
    return RA_OK;
}

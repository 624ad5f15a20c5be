/* The check at start, of linear attention: agrees with every table, and catches broken ones. */
#include "ringattn/kernel_check.h"

#include <criterion/criterion.h>
#include <math.h>

TestSuite(kernel_check_linear, .timeout = 600);

static ra_kernel_verdict check_linear(const ra_kernel_ops *ops, ra_dtype dtype, int32_t dim,
                                      ra_linear_kind kind, ra_linear_method method)
{
    ra_kernel_verdict verdict = {0};
    ra_kernel_use const use = {.dtype = dtype,
                               .dim = dim,
                               .backward = method == RA_LINEAR_CHUNKED,
                               .threads = 1,
                               .linear = kind,
                               .method = method};
    cr_assert_eq(ra_kernel_check(ops, ra_kernel_cpu(RA_ISA_PORTABLE), &use, NULL, NULL, &verdict),
                 RA_OK);
    return verdict;
}

static void expect_linear_agreement(const ra_kernel_ops *ops, ra_dtype dtype, int32_t dim)
{
    for (int i = 0; i <= 3; ++i) {
        ra_linear_kind const kind = i == 3 ? RA_LINEAR_BIDIRECTIONAL : RA_LINEAR_CAUSAL;
        ra_linear_method const method = i == 3 ? RA_LINEAR_CHUNKED : (ra_linear_method)i;
        ra_kernel_verdict const v = check_linear(ops, dtype, dim, kind, method);
        cr_expect(v.agrees, "%s %s %d, case %d: %s is off by %g of %g", ops->name,
                  ra_dtype_name(dtype), dim, i, v.tensor, v.error, v.allowed);
    }
}

Test(kernel_check_linear, agrees_with_linear_attention_of_this_machine)
{
    static const int32_t dims[] = {1, 7, 40, 64, 256};
    for (int isa = RA_ISA_PORTABLE; isa <= RA_ISA_NEON; ++isa) {
        const ra_kernel_ops *ops = ra_kernel_cpu((ra_isa)isa);
        for (int dtype = RA_F32; ops != NULL && dtype <= RA_BF16; ++dtype)
            for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); ++d)
                expect_linear_agreement(ops, (ra_dtype)dtype, dims[d]);
    }
}

/* What the plain kernel is asked for, and what the other one. */
static ra_linear_method tried_method;
static int tried_passes, plain_passes;

static ra_status tried_forward(ra_kernel *kernel, const ra_linear_pass *pass)
{
    cr_assert_eq(pass->method, tried_method);
    tried_passes++;
    return ra_kernel_cpu(RA_ISA_AUTO)->linear->forward(kernel, pass);
}

static ra_status plain_forward(ra_kernel *kernel, const ra_linear_pass *pass)
{
    cr_assert_eq(pass->method, RA_LINEAR_CHUNKED);
    cr_assert_eq(pass->segments, 1);
    cr_assert_eq(pass->shape.kv_heads, 1);
    cr_assert_eq(kernel->threads, 1, "there is one task");
    plain_passes++;
    return ra_kernel_cpu(RA_ISA_AUTO)->linear->forward(kernel, pass);
}

Test(kernel_check_linear, compares_every_method_with_the_chunked_one)
{
    ra_linear_ops tried_ops = *ra_kernel_cpu(RA_ISA_AUTO)->linear, plain_ops = tried_ops;
    ra_kernel_ops tried = *ra_kernel_cpu(RA_ISA_AUTO), plain = tried;
    tried_ops.forward = tried_forward;
    plain_ops.forward = plain_forward;
    tried.linear = &tried_ops;
    plain.linear = &plain_ops;
    for (int i = 0; i < 3; ++i) {
        ra_kernel_use const use = {.dtype = RA_F32,
                                   .dim = 40,
                                   .threads = 3,
                                   .linear = RA_LINEAR_CAUSAL,
                                   .method = (ra_linear_method)i};
        ra_kernel_verdict v = {0};
        tried_method = use.method;
        tried_passes = plain_passes = 0;
        cr_assert_eq(ra_kernel_check(&tried, &plain, &use, NULL, NULL, &v), RA_OK);
        cr_expect(v.agrees, "method %d: %s is off by %g of %g", i, v.tensor, v.error, v.allowed);
        cr_expect_eq(tried_passes, 4, "two problems, in one segment and in two");
        cr_expect_eq(plain_passes, 2);
    }
}

/* Each operation of a table does what it should, and then one number of its result is off. */
static int wrong_operation;

static const ra_linear_ops *good_linear(void)
{
    return ra_kernel_cpu(RA_ISA_AUTO)->linear;
}

static void spoil(int operation, const ra_view *view, const ra_linear_pass *pass)
{
    int64_t const last = (pass->rows - 1) * view->row_stride;
    if (wrong_operation == operation)
        ra_dtype_store(view->dtype, view->data, last,
                       1 + ra_dtype_load(view->dtype, view->data, last));
}

static ra_status wrong_sum(ra_kernel *kernel, const ra_linear_pass *pass)
{
    ra_status const status = good_linear()->sum(kernel, pass);
    if (wrong_operation == 0)
        pass->states[0] += 1e4f;
    return status;
}

static ra_status wrong_forward(ra_kernel *kernel, const ra_linear_pass *pass)
{
    ra_status const status = good_linear()->forward(kernel, pass);
    spoil(1, &pass->out, pass);
    return status;
}

static ra_status wrong_queries(ra_kernel *kernel, const ra_linear_pass *pass)
{
    ra_status const status = good_linear()->backward_queries(kernel, pass);
    spoil(2, &pass->dq, pass);
    return status;
}

static ra_status wrong_keys(ra_kernel *kernel, const ra_linear_pass *pass)
{
    ra_status const status = good_linear()->backward_keys(kernel, pass);
    spoil(3, &pass->dk, pass);
    spoil(4, &pass->dv, pass);
    return status;
}

static ra_status wrong_spread(ra_kernel *kernel, const ra_linear_pass *pass, ra_linear_reach reach,
                              const float *before, const float *after, float *states)
{
    return wrong_operation == 5 ? RA_OK /* each segment keeps its own */
                                : good_linear()->spread(kernel, pass, reach, before, after, states);
}

Test(kernel_check_linear, catches_broken_linear_attention)
{
    ra_linear_ops const broken = {.sum = wrong_sum,
                                  .forward = wrong_forward,
                                  .backward_queries = wrong_queries,
                                  .backward_keys = wrong_keys,
                                  .total = good_linear()->total,
                                  .spread = wrong_spread};
    ra_kernel_ops ops = *ra_kernel_cpu(RA_ISA_AUTO);
    ops.linear = &broken;
    for (int dtype = RA_F32; dtype <= RA_BF16; ++dtype) {
        for (wrong_operation = 0; wrong_operation <= 5; ++wrong_operation)
            cr_expect_not(
                check_linear(&ops, (ra_dtype)dtype, 64, RA_LINEAR_CAUSAL, RA_LINEAR_CHUNKED).agrees,
                "%s: operation %d", ra_dtype_name((ra_dtype)dtype), wrong_operation);
        cr_expect(
            check_linear(&ops, (ra_dtype)dtype, 64, RA_LINEAR_CAUSAL, RA_LINEAR_CHUNKED).agrees,
            "%s: none is wrong", ra_dtype_name((ra_dtype)dtype));
    }
}

/* The exponential of the kernels: in the vectors of any machine, and in those of AVX-512. */
#ifndef RA_VEC_LANES
#define RA_VEC_LANES 4
#endif
#include "sparse/cpu/exp2.h"

#include <criterion/criterion.h>
#include <math.h>

static void skip_without_the_instructions(void)
{
#if RA_VEC_LANES == 16
    if (ra_kernel_cpu(RA_ISA_AVX512) == NULL)
        cr_skip_test("this machine lacks AVX-512");
#endif
}

TestSuite(exp2, .init = skip_without_the_instructions);

static float exp2_of(float x)
{
    vec const y = vec_exp2(vec_splat(x));
    cr_assert(y[0] == y[LANES - 1] || isnan(y[0]));
    return y[0];
}

/* Distance in units of the last place of the exact value. */
static double ulps(float got, double want)
{
    return fabs((double)got - want) / ldexp(1, ilogb(want) - 23);
}

Test(exp2, is_within_2_ulp_where_results_are_normal)
{
    double worst = 0;
    for (int32_t i = 0; i < 2000000; ++i) {
        float const x = -126.0f + 253.5f * (float)i / 2000000.0f;
        double const error = ulps(exp2_of(x), exp2((double)x));
        cr_assert_not(isnan(error));
        worst = error > worst ? error : worst;
    }
    for (int32_t i = 0; i < 500000; ++i) { /* close to 0, where most weights are */
        float const x = -(float)i / 500000.0f;
        double const error = ulps(exp2_of(x), exp2((double)x));
        worst = error > worst ? error : worst;
    }
    cr_assert(worst < 2, "%g ulp", worst);
}

Test(exp2, is_exact_at_integers)
{
    for (int i = -126; i <= 127; ++i)
        cr_assert_eq(exp2_of((float)i), ldexpf(1, i));
}

Test(exp2, is_zero_infinite_or_nan_where_it_must_be)
{
    cr_assert_eq(exp2_of(-INFINITY), 0);
    cr_assert_eq(exp2_of(-1e30f), 0);
    cr_assert_eq(exp2_of(-151), 0);
    cr_assert_eq(exp2_of(129), INFINITY);
    cr_assert_eq(exp2_of(INFINITY), INFINITY);
    cr_assert(isnan(exp2_of(NAN)));
    cr_assert(isnan(exp2_of(-NAN)));
    for (float x = -130; x < -126; x += 0.001f) { /* never more than it should be, never negative */
        float const y = exp2_of(x);
        cr_assert(y >= 0 && (double)y <= exp2((double)x) * 1.000001);
    }
}

#if RA_VEC_LANES == 16
Test(exp2, for_bf16_is_exact_at_integers_and_close_elsewhere)
{
    for (int i = -126; i <= 127; ++i)
        cr_assert_eq(vec_exp2_short(vec_splat((float)i))[0], ldexpf(1, i));
    double worst = 0;
    for (int32_t i = 0; i < 1000000; ++i) {
        float const x = -126.0f + 253.5f * (float)i / 1000000.0f;
        double const want = exp2((double)x);
        double const error = fabs((double)vec_exp2_short(vec_splat(x))[0] - want) / want;
        cr_assert_not(isnan(error));
        worst = error > worst ? error : worst;
    }
    cr_assert(worst < 1.05e-4, "%g", worst);
    cr_assert_eq(vec_exp2_short(vec_splat(-INFINITY))[0], 0);
    cr_assert(isnan(vec_exp2_short(vec_splat(NAN))[0]));
}
#endif

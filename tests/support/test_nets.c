/* The nets of other tests: what they are to catch must be caught. */
#include "support/oracle.h"
#include "support/poison_memory.h"

#include <criterion/criterion.h>
#include <math.h>

enum { COUNT = 64 };

typedef double error_function(const float *got, const double *want);

static double relative_error(const float *got, const double *want)
{
    return oracle_relative_error(RA_F32, got, want, COUNT);
}

static double stored_error(const float *got, const double *want)
{
    return oracle_stored_error(RA_F32, got, want, COUNT, NULL, 0);
}

static double floored_error(const float *got, const double *want)
{
    return oracle_floored_error(RA_F32, got, want, COUNT, 1e-3);
}

static double max_error(const float *got, const double *want)
{
    return oracle_max_error(RA_F32, got, want, COUNT);
}

static error_function *const errors[] = {relative_error, stored_error, floored_error, max_error};

/* One element that is wrong, wherever it is. */
Test(nets, every_error_sees_one_wrong_element)
{
    static const float wrong[] = {1.5F, 0, -1, NAN, INFINITY, -INFINITY};
    float got[COUNT];
    double want[COUNT];
    for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++) {
        for (int i = 0; i < COUNT; i++)
            want[i] = got[i] = 1;
        cr_expect_eq(errors[e](got, want), 0, "error %zu", e);
        for (int i = 0; i < COUNT; i += COUNT - 1)
            for (size_t w = 0; w < sizeof(wrong) / sizeof(wrong[0]); w++) {
                got[i] = wrong[w];
                cr_expect_gt(errors[e](got, want), 0.05, "error %zu of %g at %d", e,
                             (double)wrong[w], i);
                got[i] = 1;
            }
    }
}

Test(nets, every_error_sees_results_that_are_all_zeros_and_wanted_ones_that_are)
{
    float got[COUNT] = {0};
    double want[COUNT];
    for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++) {
        for (int i = 0; i < COUNT; i++)
            want[i] = 1;
        cr_expect_geq(errors[e](got, want), 0.999, "error %zu", e);
        for (int i = 0; i < COUNT; i++)
            want[i] = 0;
        got[COUNT - 1] = 1;
        cr_expect_geq(errors[e](got, want), 0.999, "error %zu", e);
        got[COUNT - 1] = 0;
    }
}

/* NaN and infinities are right where they are wanted, and only there. */
Test(nets, every_error_compares_what_is_no_number)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    float got[COUNT];
    double want[COUNT];
    for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++)
        for (size_t o = 0; o < sizeof(odd) / sizeof(odd[0]); o++) {
            for (int i = 0; i < COUNT; i++)
                want[i] = got[i] = 1;
            want[7] = (double)odd[o];
            cr_expect_gt(errors[e](got, want), 0.05, "error %zu of 1 for %g", e, (double)odd[o]);
            got[7] = -odd[o];
            cr_expect(isnan(odd[o]) || errors[e](got, want) > 0.05, "error %zu of a sign", e);
            got[7] = odd[o];
            cr_expect(!(errors[e](got, want) > 0) || isnan(odd[o]), "error %zu of %g", e,
                      (double)odd[o]);
        }
}

Test(nets, poison_is_no_number_anywhere)
{
    ra_memory const memory = ra_memory_poison();
    size_t const bytes = memory.ops->round(&memory, 1000);
    void *data = NULL;
    cr_assert_eq(memory.ops->alloc(&memory, bytes, &data), RA_OK);
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        cr_expect(isnan(((const float *)data)[i]), "float %zu", i);
    memory.ops->free(&memory, data, bytes);
}

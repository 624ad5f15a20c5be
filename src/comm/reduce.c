/* Reductions: what two ranks bring becomes one, element by element. */
#include "comm_internal.h"

#include <math.h>

static void fold_i64(ra_reduce reduce, int64_t *values, const int64_t *more, int count)
{
    for (int i = 0; i < count; i++) {
        switch (reduce) {
        case RA_SUM: /* wraps, as MPI's would */
            values[i] = (int64_t)((uint64_t)values[i] + (uint64_t)more[i]);
            break;
        case RA_MIN:
            values[i] = ra_min_i64(values[i], more[i]);
            break;
        case RA_MAX:
            values[i] = ra_max_i64(values[i], more[i]);
            break;
        }
    }
}

static void fold_f64(ra_reduce reduce, double *values, const double *more, int count)
{
    for (int i = 0; i < count; i++) {
        double const a = values[i], b = more[i];
        switch (reduce) {
        case RA_SUM:
            values[i] = a + b;
            break;
        case RA_MIN: /* a NaN on either side must not vanish in a comparison */
            values[i] = isnan(a) || !(a > b || isnan(b)) ? a : b;
            break;
        case RA_MAX:
            values[i] = isnan(a) || !(a < b || isnan(b)) ? a : b;
            break;
        }
    }
}

void ra_reduce_fold(ra_number number, ra_reduce reduce, void *values, const void *more, int count)
{
    if (number == RA_NUMBER_I64)
        fold_i64(reduce, values, more, count);
    else
        fold_f64(reduce, values, more, count);
}

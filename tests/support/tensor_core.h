/* How tensor cores round, for emulations of them. */
#ifndef RINGATTN_TESTS_TENSOR_CORE_H
#define RINGATTN_TESTS_TENSOR_CORE_H

#include <math.h>

/*
 * A sum of products as float32: the one next to it on the side of zero. Where PTX leaves rounding
 * open, tensor cores were measured to round towards zero, which adds up: of the two readings this
 * is the pessimistic one. Some also cut products before they add them (sparse/sum_error.c).
 */
static inline float tensor_core_cut(double sum)
{
    float const nearest = (float)sum;
    return fabs((double)nearest) > fabs(sum) ? nextafterf(nearest, 0) : nearest;
}

#endif

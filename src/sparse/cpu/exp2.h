/*
 * 2^x: x = n + f with n the nearest integer, 2^f by a polynomial, 2^n by its exponent bits.
 *
 * The polynomial is the minimax one of degree 6 for the relative error on [-1/2, 1/2], refitted
 * to float32 coefficients: 1.6e-8. Error of the whole: below 2 ulp for -126 <= x <= 127.5.
 * Below -126 results fall towards zero faster than 2^x does, from -127.5 on they are zero; -Inf
 * gives 0, NaN gives NaN, and x above 128 gives Inf.
 */
#ifndef RINGATTN_CPU_EXP2_H
#define RINGATTN_CPU_EXP2_H

#include "sparse/cpu/vec.h"

RA_INLINE vec vec_exp2(vec x)
{
    /* Adding 1.5 * 2^23 rounds to an integer; the bias of 127 makes its low bits the exponent. */
    float const round = 0x1.8p23f + 127.0f;
    x = vec_min(vec_splat(128.0f), vec_max(vec_splat(-127.0f), x));
    vec const shifted = x + round;
    vec const f = x - (shifted - round);
    vec p = vec_splat(0x1.41d332p-13f);
    p = p * f + 0x1.5f456ap-10f;
    p = p * f + 0x1.3b2dbcp-7f;
    p = p * f + 0x1.c6aed4p-5f;
    p = p * f + 0x1.ebfbdap-3f;
    p = p * f + 0x1.62e430p-1f;
    p = p * f + 1.0f;
    return p * (vec)((vecu)shifted << 23);
}

#endif

/*
 * 2^x = 2^n 2^f by a polynomial of degree 6 in f, with float32 coefficients fitted to the least
 * relative error. Error of the whole: below 2 ulp for -126 <= x <= 127.5. -Inf gives 0, NaN gives
 * NaN, and x above 128 gives Inf. Below -126 results fall towards zero, never below it.
 */
#ifndef RINGATTN_CPU_EXP2_H
#define RINGATTN_CPU_EXP2_H

#include "sparse/cpu/vec.h"

#if RA_VEC_LANES == 16

/* x less its floor, in [0, 1], without raising the inexact flag; 0 for infinite x. */
RA_INLINE vec vec_fraction(vec x)
{
    return (vec)_mm512_reduce_ps((__m512)x, 0x09);
}

/* p * 2^floor(x) */
RA_INLINE vec vec_scale(vec p, vec x)
{
    return (vec)_mm512_scalef_ps((__m512)p, (__m512)x);
}

/* n is the floor: the polynomial is off by 2.1e-9 on [0, 1]. Subnormal results are right, too. */
RA_INLINE vec vec_exp2(vec x)
{
    vec const f = vec_fraction(x);
    vec p = vec_splat(0x1.c4456ep-13f);
    p = p * f + 0x1.47373ap-10f;
    p = p * f + 0x1.3cfd82p-7f;
    p = p * f + 0x1.c68af6p-5f;
    p = p * f + 0x1.ebfd3ap-3f;
    p = p * f + 0x1.62e42cp-1f;
    p = p * f + 1.0f;
    return vec_scale(p, x);
}

/* For weights that become bf16, 2^-9 apart: of degree 3, off by 1.04e-4, exact at integers. */
RA_INLINE vec vec_exp2_short(vec x)
{
    vec const f = vec_fraction(x);
    vec p = vec_splat(0x1.4095eap-4f);
    p = p * f + 0x1.cf7a68p-3f;
    p = p * f + 0x1.640ea8p-1f;
    p = p * f + 1.0f;
    return vec_scale(p, x);
}

#else

/* n is the nearest integer: the polynomial is off by 1.6e-8 on [-1/2, 1/2]. Zero from -127.5 on. */
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
#endif

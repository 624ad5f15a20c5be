/*
 * Matrix products of OpenBLAS, where it is installed.
 *
 * The library is looked for when it is first asked for, not linked: a program that does not ask
 * has neither its threads nor its start. It runs on the calling thread only, so that callers which
 * are threads themselves can call it at the same time; what it packs matrices in (some MiB per
 * calling thread) is its own and in no ledger.
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_BLAS_H
#define RINGATTN_BLAS_H

#include "ringattn/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * What the library says of itself ("OpenBLAS 0.3.21, kernels for SkylakeX"); NULL where there is
 * none. Static. Thread-safe; the first call loads it.
 */
const char *ra_blas_name(void);

/*
 * c[m][n] = factor * op(a) op(b) + keep * c, all float32 and row-major, rows `stride` floats apart.
 * op(a) is [m][k]: a itself, or the transpose of a [k][m]; likewise op(b), [k][n]. keep is 0 (c is
 * written, whatever it held) or 1.
 */
typedef struct ra_blas_product {
    int32_t m, n, k; /* at least 1 */
    bool a_transposed, b_transposed;
    float factor, keep;
    const float *a, *b;
    int32_t a_stride, b_stride, c_stride;
    float *c; /* overlaps neither a nor b */
} ra_blas_product;

/** Only where ra_blas_name is not NULL. Any number of threads may call it at the same time. */
void ra_blas_multiply(const ra_blas_product *product);

/**
 * c = a * b, all [n][n], on `threads` threads of the library's own; only where ra_blas_name is not
 * NULL, and while nobody else computes with it.
 */
void ra_blas_multiply_square(int threads, int32_t n, const float *a, const float *b, float *c);

#ifdef __cplusplus
}
#endif
#endif

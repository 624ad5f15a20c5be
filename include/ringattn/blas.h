/*
 * Matrix products of OpenBLAS, where it is installed.
 *
 * The library is loaded on first use, not linked: a program that never uses it starts none of its
 * threads. It computes on the calling thread only, so several threads may call it at once. Its
 * packing buffers (some MiB per calling thread) are its own and in no ledger.
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_BLAS_H
#define RINGATTN_BLAS_H

#include "ringattn/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The library's name and version ("OpenBLAS 0.3.21, kernels for SkylakeX"); NULL: there is none.
 * Static. Thread-safe; the first call loads it, for which it changes the environment
 * (OPENBLAS_CORETYPE, where that is not set, and OPENBLAS_NUM_THREADS, for the time being): no
 * other thread may read or write that meanwhile.
 */
const char *ra_blas_name(void);

enum { RA_BLAS_ROOM_MIB = 256 }; /* free address space, without which it is not loaded */
/** Whether there is none because the system refuses it that room. Thread-safe, as ra_blas_name. */
bool ra_blas_is_refused(void);

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

/**
 * Have the library make its buffers: for `callers` threads that call ra_blas_multiply at the same
 * time, 128 MiB of address space each, and `helpers` of its own, 272 MiB each, which start now. The
 * library keeps them until the process ends, so later there are fewer to make. Only if ra_blas_name
 * is not NULL. Thread-safe.
 * @return whether the system gave them, and had 128 MiB to spare; if not, a product might never
 * return
 */
RA_CHECKED bool ra_blas_reserve(int callers, int helpers);

/** Only if ra_blas_name is not NULL. Any number of threads may call it at the same time; reserve
   for them first. */
void ra_blas_multiply(const ra_blas_product *product);

/**
 * c = a * b, all [n][n], on the calling thread and `threads` - 1 of the library's own; only if
 * ra_blas_name is not NULL, and while nobody else computes with it.
 */
void ra_blas_multiply_square(int threads, int32_t n, const float *a, const float *b, float *c);

#ifdef __cplusplus
}
#endif
#endif

/*
 * The one inner loop of every matrix product: a register tile of PRODUCT_ROWS x (vecs * LANES)
 * sums of outer products,
 *
 *     sums[r][lane] = sum over x in [0, n) of a[r * a_row + x * a_step] * b[x * b_step + lane]
 *
 * with one of a_row and a_step equal to 1. Sums begin at zero: a longer sum gets a block's own sum
 * added, which keeps the error of long sequences down.
 */
#ifndef RINGATTN_CPU_PRODUCT_H
#define RINGATTN_CPU_PRODUCT_H

#include "sparse/cpu/vec.h"

enum {
    PRODUCT_ROWS = RA_PRODUCT_ROWS,
    PRODUCT_VECS = 2,
    PANEL = PRODUCT_VECS * LANES /* lanes of a panel: the queries that are computed side by side */
};

/* vecs is a constant, 1 or 2, once inlined. */
RA_INLINE void product(int vecs, int32_t n, const float *restrict a, int64_t a_row, int64_t a_step,
                       const float *restrict b, int64_t b_step,
                       vec sums[PRODUCT_ROWS][PRODUCT_VECS])
{
    vec s[PRODUCT_ROWS][PRODUCT_VECS];
#pragma GCC unroll 8
    for (int r = 0; r < PRODUCT_ROWS; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < vecs; ++v)
            s[r][v] = sums[r][v];
    }
    for (int32_t x = 0; x < n; ++x) {
        vec column[PRODUCT_VECS];
#pragma GCC unroll 2
        for (int v = 0; v < vecs; ++v)
            column[v] = vec_load(b + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < PRODUCT_ROWS; ++r) {
            vec const factor = vec_splat(a[r * a_row]);
#pragma GCC unroll 2
            for (int v = 0; v < vecs; ++v)
                s[r][v] += factor * column[v];
        }
        a += a_step;
        b += b_step;
    }
#pragma GCC unroll 8
    for (int r = 0; r < PRODUCT_ROWS; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < vecs; ++v)
            sums[r][v] = s[r][v];
    }
}

#endif

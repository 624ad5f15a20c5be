/*
 * Products of pairs by vdpbf16ps, in register tiles as those of float32. Pairs of rows lie row by
 * row: a dword of one is broadcast.
 */
#ifndef RINGATTN_CPU_PAIRS_DOT_H
#define RINGATTN_CPU_PAIRS_DOT_H

#include "sparse/cpu/pairs.h"

/* As product(), of pairs. */
RA_INLINE void product_pairs(int vecs, int32_t n, const pair_mem *restrict a, int64_t a_row,
                             int64_t a_step, const pair_mem *restrict b, int64_t b_step,
                             vec sums[PRODUCT_ROWS][PRODUCT_VECS])
{
    __m512 s[PRODUCT_ROWS][PRODUCT_VECS];
#pragma GCC unroll 8
    for (int r = 0; r < PRODUCT_ROWS; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < vecs; ++v)
            s[r][v] = (__m512)sums[r][v];
    }
    for (int32_t x = 0; x < n; ++x) {
        __m512i column[PRODUCT_VECS];
#pragma GCC unroll 2
        for (int v = 0; v < vecs; ++v)
            column[v] = (__m512i)vecu_load(b + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < PRODUCT_ROWS; ++r) {
            __m512i const factor = _mm512_set1_epi32((int)a[r * a_row]);
#pragma GCC unroll 2
            for (int v = 0; v < vecs; ++v)
                s[r][v] = _mm512_dpbf16_ps(s[r][v], (__m512bh)factor, (__m512bh)column[v]);
        }
        a += a_step;
        b += b_step;
    }
#pragma GCC unroll 8
    for (int r = 0; r < PRODUCT_ROWS; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < vecs; ++v)
            sums[r][v] = (vec)s[r][v];
    }
}

/* Where the pairs of rows of key k of a block begin: [RA_KEY_BLOCK / 2][dim_pad]. */
static inline int64_t pair_rows_offset(int32_t k, int32_t dim_pad)
{
    return (int64_t)(k / 2) * dim_pad;
}

/* Load keys [begin, end) of a run as pairs of rows. */
static inline bool load_key_pairs(head_view view, const ra_run *run, int32_t begin, int32_t end,
                                  int32_t dim, pair_mem *restrict to)
{
    pair_check check = pair_check_begin();
    for (int32_t b = begin; b < end; b += 2, to += padded(dim))
        load_row_pair(run_row(view, run, b), b + 1 < end ? run_row(view, run, b + 1) : NULL, dim,
                      to, &check);
    return pair_check_passes(&check);
}

/* scores[key][lane] = sum over dim of rows[key][d] * panel[d][lane], for n keys. */
RA_INLINE void score_pairs(int vecs, int32_t n, int32_t dim, const pair_mem *restrict rows,
                           const pair_mem *restrict panel, float *restrict scores)
{
    int32_t const pitch = pair_pitch(dim);
    for (int32_t k = 0; k < n; k += PRODUCT_ROWS) {
        vec sums[PRODUCT_ROWS][PRODUCT_VECS] = {0};
        product_pairs(vecs, (dim + 1) / 2, rows + (int64_t)k * pitch, pitch, 1, panel, PANEL, sums);
#pragma GCC unroll 8
        for (int r = 0; r < PRODUCT_ROWS; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < vecs; ++v)
                vec_store(scores + (k + r) * PANEL + v * LANES, sums[r][v]);
        }
    }
}

/* acc[d][lane] = acc[d][lane] * alpha[lane] + sum over n pairs of keys of rows * weight. */
RA_INLINE void weigh_pairs(int vecs, int32_t n, int32_t dim, const pair_mem *restrict rows,
                           const pair_mem *restrict weight, const vec *alpha, float *restrict acc)
{
    int32_t const dim_pad = padded(dim);
    for (int32_t d = 0; d < dim; d += PRODUCT_ROWS) {
        vec sums[PRODUCT_ROWS][PRODUCT_VECS] = {0};
        product_pairs(vecs, n, rows + d, 1, dim_pad, weight, PANEL, sums);
#pragma GCC unroll 8
        for (int r = 0; r < PRODUCT_ROWS; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < vecs; ++v) {
                float *at = acc + (int64_t)(d + r) * PANEL + v * LANES;
                vec_store(at, vec_load(at) * alpha[v] + sums[r][v]);
            }
        }
    }
}

#endif

/*
 * Products of pairs by AMX, block by block of sums. Pairs of rows lie as tiles want them: dims are
 * rows, pairs of keys their columns.
 */
#ifndef RINGATTN_CPU_PAIRS_AMX_H
#define RINGATTN_CPU_PAIRS_AMX_H

#include "sparse/cpu/pairs.h"

/* Where the pairs of rows of key k of a block begin: dims are rows, [dim_pad][RA_KEY_BLOCK / 2]. */
static inline int64_t pair_rows_offset(int32_t k, int32_t dim_pad)
{
    (void)dim_pad;
    return k / 2;
}

RA_INLINE __m512i load_wide(const uint16_t *row, int32_t d, int32_t count)
{
    if (row == NULL)
        return _mm512_setzero_si512();
    __mmask16 const mask = (__mmask16)(0xffffu >> (LANES - count));
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row + d));
}

/* Dims [d, d + LANES) of two bf16 rows; those that are NULL, and dims that are not there, are 0. */
RA_INLINE __m512i load_pairs(const void *even, const void *odd, int32_t d, int32_t dim,
                             pair_check *check)
{
    int32_t const count = ra_hd_min(LANES, dim - d);
    __m512i const high = _mm512_slli_epi32(load_wide(odd, d, count), 16);
    __m512i const pairs = _mm512_or_si512(load_wide(even, d, count), high);
    pair_check_add(check, pairs);
    return pairs;
}

/* Load keys [begin, end) of a run as pairs of rows, which become columns. */
static inline bool load_key_pairs(head_view view, const ra_run *run, int32_t begin, int32_t end,
                                  int32_t dim, pair_mem *restrict to)
{
    pair_check check = pair_check_begin();
    for (int32_t b = begin; b < end; b += PAIR_KEYS, to += AMX_PAIRS) {
        const void *rows[PAIR_KEYS];
        for (int32_t i = 0; i < PAIR_KEYS; ++i)
            rows[i] = b + i < end ? run_row(view, run, b + i) : NULL;
        for (int32_t d = 0; d < dim; d += LANES) {
            vec block[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i)
                block[i] = (vec)load_pairs(rows[2 * i], rows[2 * i + 1], d, dim, &check);
            vec_transpose(block);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i)
                vecu_store(to + (int64_t)(d + i) * (RA_KEY_BLOCK / 2), (vecu)block[i]);
        }
    }
    return pair_check_passes(&check);
}

/* scores[key][lane] = sum over dim of rows[key][d] * panel[d][lane], for n keys. */
RA_INLINE void score_pairs(int vecs, int32_t n, int32_t dim, const pair_mem *restrict rows,
                           const pair_mem *restrict panel, float *restrict scores)
{
    int32_t const pitch = pair_pitch(dim);
    (void)vecs;
    for (int32_t k = 0; k < n; k += AMX_SIDE) {
        amx_clear();
        for (int32_t x = 0; x < pitch; x += AMX_PAIRS)
            amx_add(rows + (int64_t)k * pitch + x, pitch, panel + (int64_t)x * PANEL, PANEL);
        amx_store(scores + (int64_t)k * PANEL);
    }
}

/* acc[d][lane] = acc[d][lane] * alpha[lane] + sum over n pairs of keys of rows * weight. */
RA_INLINE void weigh_pairs(int vecs, int32_t n, int32_t dim, const pair_mem *restrict rows,
                           const pair_mem *restrict weight, const vec *alpha, float *restrict acc)
{
    enum { ROW = RA_KEY_BLOCK / 2 };
    for (int32_t d = 0; d < dim; d += AMX_SIDE) {
        float sums[AMX_SIDE * PANEL] __attribute__((aligned(64)));
        amx_clear();
        for (int32_t x = 0; x < n; x += AMX_PAIRS)
            amx_add(rows + (int64_t)d * ROW + x, ROW, weight + (int64_t)x * PANEL, PANEL);
        amx_store(sums);
        for (int32_t r = 0, count = ra_hd_min(AMX_SIDE, dim - d); r < count; ++r) {
            for (int v = 0; v < vecs; ++v) {
                float *at = acc + (int64_t)(d + r) * PANEL + v * LANES;
                vec_store(at, vec_load(at) * alpha[v] + vec_load(sums + r * PANEL + v * LANES));
            }
        }
    }
}

#endif

/*
 * bf16 by dot products of pairs: a dword holds two bf16, and one instruction adds the products of
 * both to a float32 sum. Scores take pairs along dim, as rows lie in memory; sums over keys or
 * queries take pairs of rows: dword d of a pair of rows is {row 2x [d], row 2x + 1 [d]}.
 *
 * The instruction takes subnormals for zero, and weights of zero turn values that are not finite
 * into NaN. So only blocks and tiles without either come here; others use float32.
 */
#ifndef RINGATTN_CPU_PAIRS_H
#define RINGATTN_CPU_PAIRS_H

#include "sparse/cpu/exp2.h"
#include "sparse/cpu/panel_cpu.h"

#ifdef RA_PAIRS
#ifdef RA_AMX
#include "sparse/cpu/amx.h"

/* Keys and queries come in multiples of these, as zeros where there are no more. */
enum { PAIR_KEYS = AMX_SIDE, PAIR_QUERIES = PANEL };

/* Before a thread multiplies pairs of a block of keys; and after all of its blocks. */
static inline void pairs_begin(void)
{
    amx_configure();
}

static inline void pairs_end(void)
{
    amx_release();
}
#else
enum { PAIR_KEYS = 2, PAIR_QUERIES = LANES };
#endif

enum { PAIRS = 1, PAIR_ROW = 2 * LANES };

/* As many as `count`, and what is missing to a multiple. */
static inline int32_t pair_pad(int32_t count, int32_t multiple)
{
    return (count + multiple - 1) / multiple * multiple;
}

/* Dwords of a bf16 row in scratch, the rest of which is zero. */
static inline int32_t pair_pitch(int32_t dim)
{
    return (dim + PAIR_ROW - 1) / PAIR_ROW * LANES;
}

/* A dword at any address in memory, whatever type was stored there. */
typedef uint32_t pair_mem __attribute__((may_alias));
typedef uint32_t vecu_mem __attribute__((vector_size(4 * RA_VEC_LANES), aligned(4), may_alias));

RA_INLINE vecu vecu_load(const void *from)
{
    return *(const vecu_mem *)from;
}

RA_INLINE void vecu_store(void *to, vecu value)
{
    *(vecu_mem *)to = value;
}

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

/* ---- packing --------------------------------------------------------------------------------- */

/* Whether rows hold only zeros and normal values: magnitudes less 1, least and greatest. */
typedef struct pair_check {
    __m512i least, most;
} pair_check;

RA_INLINE pair_check pair_check_begin(void)
{
    return (pair_check){_mm512_set1_epi16(-1), _mm512_setzero_si512()};
}

RA_INLINE void pair_check_add(pair_check *check, __m512i pairs)
{
    __m512i const magnitude = _mm512_and_si512(pairs, _mm512_set1_epi16(0x7fff));
    __m512i const less_one = _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1));
    check->most = _mm512_max_epu16(check->most, magnitude);
    check->least = _mm512_min_epu16(check->least, less_one); /* of zero: the greatest */
}

RA_INLINE bool pair_check_passes(const pair_check *check)
{
    return (_mm512_cmpge_epu16_mask(check->most, _mm512_set1_epi16(0x7f80)) |
            _mm512_cmplt_epu16_mask(check->least, _mm512_set1_epi16(0x7f))) == 0;
}

/* One bf16 row of a tensor, padded with zeros to pair_pitch. */
RA_INLINE void load_pair_row(const void *row, int32_t dim, pair_mem *restrict to, pair_check *check)
{
    const uint16_t *from = row;
    for (int32_t d = 0; d < dim; d += PAIR_ROW) {
        int32_t const count = ra_hd_min(PAIR_ROW, dim - d);
        __m512i const pairs = _mm512_maskz_loadu_epi16(0xffffffffu >> (PAIR_ROW - count), from + d);
        pair_check_add(check, pairs);
        _mm512_storeu_si512((void *)(to + d / 2), pairs);
    }
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

/* Two bf16 rows to dwords [0, pad_dim(dim)). */
RA_INLINE void load_row_pair(const void *even, const void *odd, int32_t dim, pair_mem *restrict to,
                             pair_check *check)
{
    for (int32_t d = 0, pad = pad_dim(dim); d < pad; d += LANES)
        _mm512_storeu_si512((void *)(to + d), load_pairs(even, odd, d, dim, check));
}

/* Load keys [begin, end) of a run as rows, and rows of zeros up to a multiple of PAIR_KEYS. */
static bool load_key_rows(head_view view, const ra_run *run, int32_t begin, int32_t end,
                          int32_t dim, pair_mem *restrict to)
{
    int32_t const pitch = pair_pitch(dim);
    pair_check check = pair_check_begin();
    for (int32_t b = begin; b < end; ++b, to += pitch)
        load_pair_row(run_row(view, run, b), dim, to, &check);
    int32_t const count = end - begin, missing = pair_pad(count, PAIR_KEYS) - count;
    memset(to, 0, sizeof(*to) * (size_t)(missing * pitch));
    return pair_check_passes(&check);
}

#ifdef RA_AMX
/* Where the pairs of rows of key k of a block begin: dims are rows, [dim_pad][RA_KEY_BLOCK / 2]. */
static inline int64_t pair_rows_offset(int32_t k, int32_t dim_pad)
{
    (void)dim_pad;
    return k / 2;
}

/* Load keys [begin, end) of a run as pairs of rows, which become columns. */
static bool load_key_pairs(head_view view, const ra_run *run, int32_t begin, int32_t end,
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
#else
/* Where the pairs of rows of key k of a block begin: [RA_KEY_BLOCK / 2][dim_pad]. */
static inline int64_t pair_rows_offset(int32_t k, int32_t dim_pad)
{
    return (int64_t)(k / 2) * dim_pad;
}

/* Load keys [begin, end) of a run as pairs of rows. */
static bool load_key_pairs(head_view view, const ra_run *run, int32_t begin, int32_t end,
                           int32_t dim, pair_mem *restrict to)
{
    pair_check check = pair_check_begin();
    for (int32_t b = begin; b < end; b += 2, to += pad_dim(dim))
        load_row_pair(run_row(view, run, b), b + 1 < end ? run_row(view, run, b + 1) : NULL, dim,
                      to, &check);
    return pair_check_passes(&check);
}
#endif

/* Where the lanes of query `a` of a tile begin in a buffer of its panels of pairs. */
static inline int64_t pair_panel_offset(int32_t a, int32_t dim)
{
    return (int64_t)(a / PANEL) * PANEL * pair_pitch(dim) + a % PANEL;
}

/* Columns [0, LANES) of a panel of pairs from LANES rows. */
static inline void pair_rows_to_panel(const pair_mem *restrict rows, int32_t pitch,
                                      pair_mem *restrict panel)
{
    for (int32_t d = 0; d < pitch; d += LANES) {
        vec block[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i)
            block[i] = (vec)vecu_load(rows + (int64_t)i * pitch + d);
        vec_transpose(block);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i)
            vecu_store(panel + (int64_t)(d + i) * PANEL, (vecu)block[i]);
    }
}

/* ---- panels ---------------------------------------------------------------------------------- */

/* Two lanes of float32 to a pair, rounded; halfway goes up. Not for NaN with a full payload. */
RA_INLINE vecu vec_pair(vec even, vec odd)
{
    vecu const low = (vecu)even + 0x8000u, high = (vecu)odd + 0x8000u;
    return (vecu)_mm512_mask_blend_epi16(0xaaaaaaaau, (__m512i)(low >> 16), (__m512i)high);
}

/* LANES values rounded to bf16 in a row; halfway goes up. */
RA_INLINE void store_halves(void *to, vec value)
{
    __m512i const rounded = (__m512i)(((vecu)value + 0x8000u) >> 16);
    _mm256_storeu_si256(to, _mm512_cvtepi32_epi16(rounded));
}

/* Extend a panel's keys to multiples of PAIR_KEYS of the block; the added keys are masked. */
static inline panel_block panel_of_pairs(const key_block *block, int32_t a0, int32_t q_count)
{
    panel_block panel = panel_of(block, a0, q_count);
    if (panel.seen.begin >= panel.seen.end)
        return panel;
    int32_t const end = panel.seen.end - block->begin;
    int32_t const before = (panel.seen.begin - block->begin) % PAIR_KEYS;
    int32_t const after = pair_pad(end, PAIR_KEYS) - end;
    panel.seen.begin -= before;
    panel.seen.end += after;
    panel.masked = panel.masked || before + after > 0;
    return panel;
}

/* As mask_panel, also for rows that follow the last key of a block. */
RA_INLINE void mask_pairs(int vecs, const panel_block *panel, const key_block *block, float dead,
                          float *restrict scores)
{
    mask_panel(vecs, panel, block->band, dead, scores);
    for (int32_t b = block->end; b < panel->seen.end; ++b) {
        float *at = scores + (int64_t)(b - panel->seen.begin) * PANEL;
        for (int v = 0; v < vecs; ++v)
            vec_store(at + v * LANES, vec_splat(dead));
    }
}

#ifdef RA_AMX
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
#else

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
    int32_t const dim_pad = pad_dim(dim);
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

#else
enum { PAIRS = 0 };
#endif

#ifndef RA_AMX
static inline void pairs_begin(void) {}

static inline void pairs_end(void) {}
#endif
#endif

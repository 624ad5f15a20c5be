/*
 * bf16 by products of pairs: a dword holds two bf16, and one instruction adds the products of both
 * to a float32 sum: vdpbf16ps (pairs_dot.h), or that of AMX (pairs_amx.h). Scores take pairs along
 * dim, as rows lie in memory; sums over keys or queries take pairs of rows: dword d of a pair of
 * rows is {row 2x [d], row 2x + 1 [d]}.
 *
 * The instructions take subnormals for zero, and weights of zero turn values that are not finite
 * into NaN. So only blocks and tiles without either come here; others use float32.
 */
#ifndef RINGATTN_CPU_PAIRS_H
#define RINGATTN_CPU_PAIRS_H

#include "sparse/cpu/exp2.h"
#include "sparse/cpu/panel_cpu.h"

#ifdef RA_PAIRS
#ifdef RA_AMX
#include "sparse/cpu/amx.h"

/* Keys and queries come in multiples of these, as zeros where there are no more. So runs of few
   keys are quicker by float32. */
enum { PAIR_KEYS = AMX_SIDE, PAIR_QUERIES = PANEL, PAIR_RUN_MIN = AMX_SIDE / 2 + 1 };

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
enum { PAIR_KEYS = 2, PAIR_QUERIES = LANES, PAIR_RUN_MIN = 1 };
#endif

enum { PAIRS = 1, PAIR_ROW = 2 * LANES };

/* `count` rounded up. */
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

/* Dims [d, d + PAIR_ROW) of a bf16 row; those that are not there, and all of NULL, are 0. */
RA_INLINE __m512i load_dims(const uint16_t *row, int32_t d, int32_t dim, pair_check *check)
{
    if (row == NULL)
        return _mm512_setzero_si512();
    __m512i const dims =
        dim - d >= PAIR_ROW
            ? _mm512_loadu_si512(row + d)
            : _mm512_maskz_loadu_epi16(0xffffffffu >> (PAIR_ROW - (dim - d)), row + d);
    pair_check_add(check, dims);
    return dims;
}

/* One bf16 row of a tensor, padded with zeros to pair_pitch. */
RA_INLINE void load_pair_row(const void *row, int32_t dim, pair_mem *restrict to, pair_check *check)
{
    for (int32_t d = 0; d < dim; d += PAIR_ROW)
        _mm512_storeu_si512((void *)(to + d / 2), load_dims(row, d, dim, check));
}

/* Two bf16 rows, or NULL, to dwords [0, padded(dim)). */
RA_INLINE void load_row_pair(const void *even, const void *odd, int32_t dim, pair_mem *restrict to,
                             pair_check *check)
{
    __m512i const zip = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    __m512i const zip_high = _mm512_add_epi16(zip, _mm512_set1_epi16(LANES));
    for (int32_t d = 0; d < dim; d += PAIR_ROW) {
        __m512i const a = load_dims(even, d, dim, check), b = load_dims(odd, d, dim, check);
        _mm512_storeu_si512((void *)(to + d), _mm512_permutex2var_epi16(a, zip, b));
        if (dim - d > LANES)
            _mm512_storeu_si512((void *)(to + d + LANES),
                                _mm512_permutex2var_epi16(a, zip_high, b));
    }
}

/* Load keys [begin, end) of a run as rows, and rows of zeros up to a multiple of PAIR_KEYS. */
static inline bool load_key_rows(head_view view, const ra_run *run, int32_t begin, int32_t end,
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

/* Extend a panel's rows to multiples of PAIR_KEYS of the block; those that are added are masked. */
static inline panel_block panel_of_pairs(const key_block *block, int32_t a0, int32_t q_count)
{
    panel_block panel = panel_of(block, a0, q_count);
    if (panel.count <= 0)
        return panel;
    int32_t const end = panel.from + panel.count;
    int32_t const before = panel.from % PAIR_KEYS, after = pair_pad(end, PAIR_KEYS) - end;
    panel.from -= before;
    panel.count += before + after;
    panel.masked = panel.masked || before + after > 0;
    return panel;
}

RA_INLINE void fill_rows(int vecs, int32_t begin, int32_t end, float value, float *restrict scores)
{
    for (int32_t k = begin; k < end; ++k)
        for (int v = 0; v < vecs; ++v)
            vec_store(scores + (int64_t)k * PANEL + v * LANES, vec_splat(value));
}

/* As mask_panel, where rows were added to a panel's keys; those of `scores` begin at panel->from.
 */
RA_INLINE void mask_pairs(int vecs, const panel_block *panel, const key_block *block, float dead,
                          float *restrict scores)
{
    int32_t const first = panel->seen.begin - block->begin - panel->from;
    int32_t const last = first + (panel->seen.end - panel->seen.begin);
    fill_rows(vecs, 0, first, dead, scores);
    mask_panel(vecs, panel, block->band, dead, scores + (int64_t)first * PANEL);
    fill_rows(vecs, last, panel->count, dead, scores);
}

#ifdef RA_AMX
#include "sparse/cpu/pairs_amx.h"
#else
#include "sparse/cpu/pairs_dot.h"
#endif

#else
enum { PAIRS = 0, PAIR_RUN_MIN = 1 };
#endif

#ifndef RA_AMX
static inline void pairs_begin(void) {}

static inline void pairs_end(void) {}
#endif

/* Whether some run is long enough. */
static inline bool pairs_suit(const ra_run *run, const ra_run *end)
{
    while (run < end && run->k_count < PAIR_RUN_MIN)
        ++run;
    return run < end;
}

#endif

/*
 * Common to forward and backward, for a block of keys against a panel of queries: packing, scores,
 * and the products whose lanes are queries.
 */
#ifndef RINGATTN_CPU_PANEL_H
#define RINGATTN_CPU_PANEL_H

#include "sparse/cpu/cpu_internal.h"
#include "sparse/cpu/pack.h"
#include "sparse/cpu/prefetch.h"

/* Rows of scratch for a key block: register tiles may read, and never use, a few rows more. */
enum { KEY_BLOCK_ROWS = RA_KEY_BLOCK + PRODUCT_ROWS };

/* Keys [begin, end) of a run, packed in the scratch of a thread. */
typedef struct key_block {
    int32_t begin, end;
    ra_run_band band;
    run_keys ahead; /* backward: at most a block, that comes next */
    bool finite;    /* no Inf or NaN in what weights multiply */
    bool pairs;     /* packed as pairs, as are the weights: see pairs.h */
} key_block;

/* A panel of a tile against a key block. */
typedef struct panel_block {
    int32_t a0, rows;    /* queries [a0, a0 + rows) of the tile, rows <= PANEL */
    ra_run_keys seen;    /* keys that some query sees */
    ra_run_keys full;    /* those that all queries see */
    int32_t from, count; /* the rows of the packed block that are computed: `seen` are among them */
    bool masked;         /* some of these rows and the panel are a pair that is not live */
} panel_block;

static inline panel_block panel_of(const key_block *block, int32_t a0, int32_t q_count)
{
    int32_t const rows = ra_hd_min(PANEL, q_count - a0);
    panel_block panel = {.a0 = a0, .rows = rows};
    panel.seen = ra_run_band_seen(block->band, a0, a0 + rows, block->begin, block->end);
    panel.full = ra_run_band_full(block->band, a0, a0 + rows, panel.seen.begin, panel.seen.end);
    panel.from = panel.seen.begin - block->begin;
    panel.count = panel.seen.end - panel.seen.begin;
    panel.masked = panel.full.begin > panel.seen.begin || panel.full.end < panel.seen.end;
    return panel;
}

/* Where dims [d, d + PRODUCT_ROWS) of row k begin in columns. */
static inline int64_t column_offset(int32_t k, int32_t d)
{
    return (int64_t)d * KEY_BLOCK_ROWS + k * PRODUCT_ROWS;
}

static inline void row_to_columns(const float *restrict row, int32_t k, int32_t dim_pad,
                                  float *restrict columns)
{
    for (int32_t d = 0; d < dim_pad; d += PRODUCT_ROWS)
        memcpy(columns + column_offset(k, d), row + d, sizeof(float) * PRODUCT_ROWS);
}

/* Convert keys [begin, end) of a run; returns whether all are finite. */
static inline bool load_keys(head_view view, const ra_run *run, int32_t begin, int32_t end,
                             int32_t dim, float *restrict to)
{
    int32_t const dim_pad = padded(dim);
    veci check = {0};
    for (int32_t b = begin; b < end; ++b, to += dim_pad) {
        load_row(view.dtype, run_row(view, run, b), dim, to);
        check = check_row(check, to, dim_pad);
    }
    return check_is_finite(check);
}

/* The same, cut into columns of PRODUCT_ROWS dims: the operand of a register tile is contiguous,
   and does not compete for a few cache sets as rows do. `row`: scratch of dim_pad floats. */
static inline bool load_key_columns(head_view view, const ra_run *run, int32_t begin, int32_t end,
                                    int32_t dim, float *restrict row, float *restrict columns)
{
    int32_t const dim_pad = padded(dim);
    veci check = {0};
    for (int32_t b = begin; b < end; ++b) {
        load_row(view.dtype, run_row(view, run, b), dim, row);
        check = check_row(check, row, dim_pad);
        row_to_columns(row, b - begin, dim_pad, columns);
    }
    return check_is_finite(check);
}

/* scores[key][lane] = sum over dim of rows[key][d] * panel[d][lane], for n keys. */
RA_INLINE void score_panel(int vecs, int32_t n, int32_t dim, const float *restrict rows,
                           const float *restrict panel, float *restrict scores)
{
    int32_t const dim_pad = padded(dim);
    for (int32_t k = 0; k < n; k += PRODUCT_ROWS) {
        vec sums[PRODUCT_ROWS][PRODUCT_VECS] = {0};
        product(vecs, dim, rows + (int64_t)k * dim_pad, dim_pad, 1, panel, PANEL, sums);
#pragma GCC unroll 8
        for (int r = 0; r < PRODUCT_ROWS; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < vecs; ++v)
                vec_store(scores + (k + r) * PANEL + v * LANES, sums[r][v]);
        }
    }
}

/* Lanes of vector v that see key b. As in run_band.h, nothing overflows for any key of any run. */
RA_INLINE veci live_lanes(ra_run_band band, int32_t a0, int v, int32_t b)
{
    veci const distance = b - vec_iota(a0 + v * LANES);
    return (distance >= band.lo) & (distance <= band.hi);
}

/* Write `dead` for pairs of the panel that are not live; rows of `scores` begin at seen.begin. */
RA_INLINE void mask_panel(int vecs, const panel_block *panel, ra_run_band band, float dead,
                          float *restrict scores)
{
    for (int32_t b = panel->seen.begin; b < panel->seen.end; ++b, scores += PANEL) {
        if (b >= panel->full.begin && b < panel->full.end)
            continue;
        for (int v = 0; v < vecs; ++v) {
            float *at = scores + v * LANES;
            veci const live = live_lanes(band, panel->a0, v, b);
            vec_store(at, vec_select(live, vec_load(at), vec_splat(dead)));
        }
    }
}

/* acc[d][lane] = acc[d][lane] * alpha[lane] + sum over n keys of key[d] * weight[key][lane], keys
   in columns. */
RA_INLINE void weigh_panel(int vecs, int32_t n, int32_t dim, const float *restrict columns,
                           const float *restrict weight, const vec *alpha, float *restrict acc)
{
    for (int32_t d = 0; d < dim; d += PRODUCT_ROWS) {
        vec sums[PRODUCT_ROWS][PRODUCT_VECS] = {0};
        product(vecs, n, columns + column_offset(0, d), 1, PRODUCT_ROWS, weight, PANEL, sums);
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

/*
 * The same for masked panels in which a key has an Inf or NaN: a weight of zero would turn rows
 * that do not see it into NaN, so pairs that are not live are skipped one by one.
 */
static void weigh_panel_live(const panel_block *panel, ra_run_band band, int32_t dim,
                             const float *restrict columns, const float *restrict weight,
                             const vec *alpha, float *restrict acc)
{
    for (int32_t d = 0; d < dim; ++d) {
        const float *column = columns + column_offset(0, d - d % PRODUCT_ROWS) + d % PRODUCT_ROWS;
        for (int v = 0; v < PRODUCT_VECS; ++v) {
            vec sum = {0};
            for (int32_t b = panel->seen.begin; b < panel->seen.end; ++b) {
                int64_t const k = b - panel->seen.begin;
                vec const term =
                    vec_load(weight + k * PANEL + v * LANES) * column[k * PRODUCT_ROWS];
                sum = vec_select(live_lanes(band, panel->a0, v, b), sum + term, sum);
            }
            float *at = acc + (int64_t)d * PANEL + v * LANES;
            vec_store(at, vec_load(at) * alpha[v] + sum);
        }
    }
}

/* Every few key blocks. */
static inline void poll_sometimes(const ra_kernel *kernel, uint32_t *ticks)
{
    if (++*ticks % 8 == 0)
        poll_now(kernel);
}

/* Hands out pieces of one thread's workspace; counts them if `base` is NULL. */
typedef struct scratch_cursor {
    float *base;
    size_t used; /* floats; each piece is a multiple of 64 bytes */
} scratch_cursor;

static inline float *scratch_take(scratch_cursor *cursor, int64_t count)
{
    float *piece = cursor->base == NULL ? NULL : cursor->base + cursor->used;
    cursor->used += ((size_t)count + 15) / 16 * 16;
    return piece;
}

#endif

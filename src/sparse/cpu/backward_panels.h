/* Backward over the panels of one tile and one key block: the five products of backward_cpu.h. */
#ifndef RINGATTN_CPU_BACKWARD_PANELS_H
#define RINGATTN_CPU_BACKWARD_PANELS_H

#include "sparse/cpu/balance_cpu.h"
#include "sparse/cpu/forward_cpu.h"

enum { TILE_PANELS = RA_TILE_ROWS_MAX / PANEL, WEIGHT_PANEL = KEY_BLOCK_ROWS * PANEL };

/* Scratch of one thread. */
typedef struct backward_scratch {
    float *query, *dout;            /* panels of a tile, scaled */
    float *query_rows, *dout_rows;  /* as they are, in slices: [dims / PANEL][tile rows][PANEL] */
    float *dq;                      /* panels of a tile */
    float *lse, *delta;             /* [tile rows]: log2, and times scale */
    float *key, *value;             /* [KEY_BLOCK_ROWS][dim_pad] */
    float *key_columns;             /* [dim_pad / PRODUCT_ROWS][KEY_BLOCK_ROWS][PRODUCT_ROWS] */
    float *weight, *dscore;         /* [TILE_PANELS][KEY_BLOCK_ROWS][PANEL] */
    float *rows;                    /* [LANES][dim_pad] */
    void *query_pairs, *dout_pairs; /* panels of pairs along dim */
    void *query_row_pairs, *dout_row_pairs; /* in slices: [dims / PANEL][tile rows / 2][PANEL] */
    void *dscore_pairs;                     /* [KEY_BLOCK_ROWS / 2][PANEL], of one panel */
} backward_scratch;

/* One thread's view of one query head of one batch against some key rows. */
typedef struct backward_head {
    ra_kernel *kernel;
    const ra_backward_step *step;
    backward_scratch scratch;
    int32_t dim, dim_pad;
    uint32_t ticks;
    float factor; /* of scores: scale * log2(e) */
    head_view q, k, v, dout, dq, dk, dv;
    const float *lse, *delta; /* [q_rows] */
    ra_cpu_shares shares;
    int32_t key_share; /* of the round at hand */
    const ra_tile *tile;
    bool pairs_wanted;          /* bf16, in a table that takes pairs */
    bool has_floats, has_pairs; /* how the tile's queries and dout are packed */
    bool tile_finite;           /* no Inf or NaN in them; valid if has_floats */
} backward_head;

/* Where dims [d, d + PANEL), with d a multiple of it, of tile row a begin in slices. */
static inline int64_t slice_offset(int32_t a, int64_t d)
{
    return (d / PANEL * RA_TILE_ROWS_MAX + a) * PANEL;
}

static size_t backward_scratch_carve(float *base, int32_t dim, backward_scratch *scratch)
{
    scratch_cursor cursor = {.base = base};
    int64_t const dim_pad = pad_dim(dim);
    int64_t const tile = RA_TILE_ROWS_MAX * dim_pad;
    scratch->query = scratch_take(&cursor, tile);
    scratch->dout = scratch_take(&cursor, tile);
    scratch->query_rows = scratch_take(&cursor, slice_offset(0, dim_pad + PANEL - 1));
    scratch->dout_rows = scratch_take(&cursor, slice_offset(0, dim_pad + PANEL - 1));
    scratch->dq = scratch_take(&cursor, tile);
    scratch->lse = scratch_take(&cursor, RA_TILE_ROWS_MAX);
    scratch->delta = scratch_take(&cursor, RA_TILE_ROWS_MAX);
    scratch->key = scratch_take(&cursor, KEY_BLOCK_ROWS * dim_pad);
    scratch->value = scratch_take(&cursor, KEY_BLOCK_ROWS * dim_pad);
    scratch->key_columns = scratch_take(&cursor, KEY_BLOCK_ROWS * dim_pad);
    scratch->weight = scratch_take(&cursor, TILE_PANELS * WEIGHT_PANEL);
    scratch->dscore = scratch_take(&cursor, TILE_PANELS * WEIGHT_PANEL);
    scratch->rows = scratch_take(&cursor, LANES * dim_pad);
    scratch->query_pairs = scratch_take(&cursor, PAIRS * tile);
    scratch->dout_pairs = scratch_take(&cursor, PAIRS * tile);
    int64_t const slices = slice_offset(0, dim_pad + PANEL - 1) / 2;
    scratch->query_row_pairs = scratch_take(&cursor, PAIRS * slices);
    scratch->dout_row_pairs = scratch_take(&cursor, PAIRS * slices);
    scratch->dscore_pairs = scratch_take(&cursor, PAIRS * WEIGHT_PANEL / 2);
    return cursor.used;
}

/* ---- lanes are queries ----------------------------------------------------------------------- */

/* Clear the rows beside the block's that products over whole register tiles may read. */
static void clear_around(const key_block *block, const panel_block *panel, float *restrict weight)
{
    int32_t const first = panel->seen.begin - block->begin, last = panel->seen.end - block->begin;
    int32_t const before = first % PRODUCT_ROWS;
    int32_t const after = (PRODUCT_ROWS - last % PRODUCT_ROWS) % PRODUCT_ROWS;
    memset(weight + (first - before) * PANEL, 0, sizeof(float) * (size_t)(before * PANEL));
    memset(weight + last * PANEL, 0, sizeof(float) * (size_t)(after * PANEL));
}

/* weight: scores to p. dscore: dp to ds. */
RA_INLINE void gradient_of_scores(int vecs, int32_t n, const float *restrict lse,
                                  const float *restrict delta, float *restrict weight,
                                  float *restrict dscore)
{
    for (int v = 0; v < vecs; ++v) {
        vec const row_lse2 = vec_load(lse + v * LANES), row_delta = vec_load(delta + v * LANES);
        for (int32_t k = 0; k < n; ++k) {
            float *const p_at = weight + (int64_t)k * PANEL + v * LANES;
            float *const ds_at = dscore + (int64_t)k * PANEL + v * LANES;
            vec const p = vec_exp2(vec_load(p_at) - row_lse2);
            vec_store(p_at, p);
            vec_store(ds_at, p * (vec_load(ds_at) - row_delta));
        }
    }
}

/* Zero rows without weight (lse +Inf) against keys with an Inf or NaN: 0 times these is NaN. */
static void silence_rows(int32_t n, const float *restrict lse, float *restrict weight,
                         float *restrict dscore)
{
    for (int v = 0; v < PRODUCT_VECS; ++v) {
        veci const dead = vec_load(lse + v * LANES) == INFINITY;
        for (int32_t k = 0; k < n; ++k) {
            float *const p_at = weight + (int64_t)k * PANEL + v * LANES;
            float *const ds_at = dscore + (int64_t)k * PANEL + v * LANES;
            vec_store(p_at, vec_select(dead, (vec){0}, vec_load(p_at)));
            vec_store(ds_at, vec_select(dead, (vec){0}, vec_load(ds_at)));
        }
    }
}

RA_INLINE void backward_panel(int vecs, const backward_head *f, const key_block *block,
                              const panel_block *panel)
{
    const backward_scratch *s = &f->scratch;
    int32_t const from = panel->seen.begin - block->begin;
    int32_t const n = panel->seen.end - panel->seen.begin;
    int64_t const skip = (int64_t)from * f->dim_pad;
    const float *key_columns = block->key_columns + column_offset(from, 0);
    int64_t const at = panel_offset(panel->a0, f->dim_pad);
    int64_t const buffer = (int64_t)(panel->a0 / PANEL) * WEIGHT_PANEL;
    float *weight = s->weight + buffer + from * PANEL, *dscore = s->dscore + buffer + from * PANEL;
    vec const one[PRODUCT_VECS] = {vec_splat(1.0f), vec_splat(1.0f)};
    score_panel(vecs, n, f->dim, block->key + skip, s->query + at, weight);
    score_panel(vecs, n, f->dim, block->value + skip, s->dout + at, dscore);
    gradient_of_scores(vecs, n, s->lse + panel->a0, s->delta + panel->a0, weight, dscore);
    if (!block->finite)
        silence_rows(n, s->lse + panel->a0, weight, dscore);
    if (panel->masked) { /* afterwards: an lse of NaN leaves no score of -Inf a weight of 0 */
        mask_panel(vecs, panel, block->band, 0, weight);
        mask_panel(vecs, panel, block->band, 0, dscore);
    }
    if (panel->masked && !block->finite)
        weigh_panel_live(panel, block->band, f->dim, key_columns, dscore, one, s->dq + at);
    else
        weigh_panel(vecs, n, f->dim, key_columns, dscore, one, s->dq + at);
    clear_around(block, panel, s->weight + buffer);
    clear_around(block, panel, s->dscore + buffer);
}

/* ---- lanes are dims -------------------------------------------------------------------------- */

/* Key rows [k, k + PRODUCT_ROWS) of a block, over the queries of one panel that see them. */
static void fold_panel_live(int vecs, const panel_block *panel, const key_block *block, int32_t k,
                            const float *weight, const float *rows,
                            vec sums[PRODUCT_ROWS][PRODUCT_VECS])
{
    for (int r = 0; r < PRODUCT_ROWS; ++r) {
        int32_t const b = block->begin + k + r;
        for (int32_t i = 0; i < panel->rows; ++i) {
            if (!ra_run_band_has(block->band, panel->a0 + i, b))
                continue;
            for (int v = 0; v < vecs; ++v)
                sums[r][v] += weight[r * PANEL + i] * vec_load(rows + i * PANEL + v * LANES);
        }
    }
}

#ifdef RA_PAIRS
/* Where pairs of tile rows begin in slices. */
static inline int64_t pair_slice_offset(int32_t a, int64_t d)
{
    return (d / PANEL * (RA_TILE_ROWS_MAX / 2) + a / 2) * PANEL;
}
#endif

/* Sums over the queries of one panel, for key rows [k, k + PRODUCT_ROWS) of a block. */
RA_INLINE void fold_panel(int vecs, const backward_head *f, const panel_block *panel,
                          const key_block *block, int32_t k, int32_t d, const float *weight,
                          const void *rows, vec sums[PRODUCT_ROWS][PRODUCT_VECS])
{
    const float *column = weight + (int64_t)(panel->a0 / PANEL) * WEIGHT_PANEL + k * PANEL;
#ifdef RA_PAIRS
    if (block->pairs) {
        const pair_mem *pairs = (const pair_mem *)rows + pair_slice_offset(panel->a0, d);
        product_pairs(vecs, (panel->rows + 1) / 2, (const pair_mem *)column, PANEL, 1, pairs, PANEL,
                      sums);
        return;
    }
#endif
    const float *row = (const float *)rows + slice_offset(panel->a0, d);
    if (panel->masked && !f->tile_finite)
        fold_panel_live(vecs, panel, block, k, column, row, sums);
    else
        product(vecs, panel->rows, column, PANEL, 1, row, PANEL, sums);
}

/* Dims [d, d + vecs * LANES) of the gradient of PRODUCT_ROWS keys, summed over the tile. */
RA_INLINE void fold_keys(int vecs, const backward_head *f, const key_block *block, int32_t k,
                         int32_t q_count, int32_t d, const float *weight, const void *rows,
                         head_view gradient, const ra_run *run)
{
    vec sums[PRODUCT_ROWS][PRODUCT_VECS] = {0};
    for (int32_t a0 = 0; a0 < q_count; a0 += PANEL) {
        panel_block const panel = panel_of(block, a0, q_count);
        int32_t const first = panel.seen.begin - block->begin - k;
        int32_t const end = panel.seen.end - block->begin - k;
        if (first >= end || first >= PRODUCT_ROWS || end <= 0)
            continue;
        fold_panel(vecs, f, &panel, block, k, d, weight, rows, sums);
    }
    int32_t const dims = ra_hd_min(vecs * LANES, f->dim - d);
    int32_t const keys = ra_hd_min(PRODUCT_ROWS, block->end - block->begin - k);
    for (int32_t r = 0; r < keys; ++r) {
        int64_t const b = block->begin + k + r;
        float values[PANEL];
        for (int v = 0; v < vecs; ++v)
            vec_store(values + v * LANES, sums[r][v]);
        float *to = head_row(gradient, run->k_begin + run->k_stride * b);
        add_row(values, dims, to + d);
    }
}

static void fold_block(const backward_head *f, const key_block *block, int32_t q_count,
                       const float *weight, const void *rows, head_view gradient, const ra_run *run)
{
    for (int32_t d = 0; d < f->dim; d += PANEL) { /* a slice of rows stays in the first cache */
        for (int32_t k = 0; k < block->end - block->begin; k += PRODUCT_ROWS) {
            if (f->dim - d > LANES)
                fold_keys(2, f, block, k, q_count, d, weight, rows, gradient, run);
            else
                fold_keys(1, f, block, k, q_count, d, weight, rows, gradient, run);
        }
    }
}

#ifdef RA_PAIRS
/* ---- pairs ----------------------------------------------------------------------------------- */

/* Pack rows of the tile as panels of pairs, and as pairs of rows in slices; rows without weight
   become 0. False: a value does not fit pairs. */
static bool load_tile_pairs(const backward_head *f, head_view view, pair_mem *restrict panels,
                            pair_mem *restrict slices)
{
    const backward_scratch *s = &f->scratch;
    int32_t const pitch = pair_pitch(f->dim);
    pair_mem *rows = (pair_mem *)s->rows;
    pair_check check = pair_check_begin();
    for (int32_t a = 0; a < f->tile->q_count; a += LANES) {
        const void *from[LANES];
        for (int32_t i = 0; i < LANES; ++i) {
            bool const dead = s->lse[a + i] == INFINITY;
            from[i] = dead ? NULL : head_row(view, tile_row(f->tile, a + i));
            if (dead)
                memset(rows + (int64_t)i * pitch, 0, sizeof(*rows) * (size_t)pitch);
            else
                load_pair_row(from[i], f->dim, rows + (int64_t)i * pitch, &check);
        }
        pair_rows_to_panel(rows, pitch, panels + pair_panel_offset(a, f->dim));
        for (int32_t i = 0; i < LANES; i += 2) {
            load_row_pair(from[i], from[i + 1], f->dim, rows, &check);
            for (int32_t d = 0; d < f->dim_pad; d += LANES)
                vecu_store(slices + pair_slice_offset(a + i, d) + d % PANEL, vecu_load(rows + d));
        }
    }
    return pair_check_passes(&check);
}

/* As gradient_of_scores, from products without their factors; for values that become bf16. */
RA_INLINE void gradient_of_products(int vecs, int32_t n, const backward_head *f, int32_t a0,
                                    float *restrict weight, float *restrict dscore)
{
    float const scale = f->step->shape.scale, factor = f->factor;
    for (int v = 0; v < vecs; ++v) {
        vec const row_lse2 = vec_load(f->scratch.lse + a0 + v * LANES);
        vec const row_delta = vec_load(f->scratch.delta + a0 + v * LANES);
        for (int32_t k = 0; k < n; ++k) {
            float *const p_at = weight + (int64_t)k * PANEL + v * LANES;
            float *const ds_at = dscore + (int64_t)k * PANEL + v * LANES;
            vec const p = vec_exp2_short(vec_load(p_at) * factor - row_lse2);
            vec_store(p_at, p);
            vec_store(ds_at, p * (vec_load(ds_at) * scale - row_delta));
        }
    }
}

/* Convert float32 rows of a panel to bf16 in place, and to pairs of rows if wanted. */
RA_INLINE void narrow_panel(int vecs, int32_t n, float *rows, pair_mem *pairs)
{
    for (int32_t k = 0; k < n; k += 2, rows += 2 * PANEL) {
        vec even[PRODUCT_VECS], odd[PRODUCT_VECS];
        for (int v = 0; v < vecs; ++v) {
            even[v] = vec_load(rows + v * LANES);
            odd[v] = vec_load(rows + PANEL + v * LANES);
        }
        for (int v = 0; v < vecs; ++v) {
            store_halves(rows + v * LANES / 2, even[v]);
            store_halves(rows + PANEL + v * LANES / 2, odd[v]);
            if (pairs != NULL)
                vecu_store(pairs + (int64_t)(k / 2) * PANEL + v * LANES, vec_pair(even[v], odd[v]));
        }
    }
}

RA_INLINE void backward_panel_pairs(int vecs, const backward_head *f, const key_block *block,
                                    const panel_block *panel)
{
    const backward_scratch *s = &f->scratch;
    int32_t const from = panel->seen.begin - block->begin;
    int32_t const n = panel->seen.end - panel->seen.begin;
    int64_t const skip = (int64_t)from * pair_pitch(f->dim);
    int64_t const at = pair_panel_offset(panel->a0, f->dim);
    int64_t const buffer = (int64_t)(panel->a0 / PANEL) * WEIGHT_PANEL;
    float *weight = s->weight + buffer + from * PANEL, *dscore = s->dscore + buffer + from * PANEL;
    vec const one[PRODUCT_VECS] = {vec_splat(1.0f), vec_splat(1.0f)};
    score_pairs(vecs, n, f->dim, (const pair_mem *)block->key + skip,
                (const pair_mem *)s->query_pairs + at, weight);
    score_pairs(vecs, n, f->dim, (const pair_mem *)block->value + skip,
                (const pair_mem *)s->dout_pairs + at, dscore);
    gradient_of_products(vecs, n, f, panel->a0, weight, dscore);
    if (panel->masked) {
        mask_pairs(vecs, panel, block, 0, weight);
        mask_pairs(vecs, panel, block, 0, dscore);
    }
    narrow_panel(vecs, n, weight, NULL);
    narrow_panel(vecs, n, dscore, s->dscore_pairs);
    weigh_pairs(vecs, n / 2, f->dim,
                (const pair_mem *)block->key_columns + (int64_t)(from / 2) * f->dim_pad,
                s->dscore_pairs, one, s->dq + panel_offset(panel->a0, f->dim_pad));
    clear_around(block, panel, s->weight + buffer);
    clear_around(block, panel, s->dscore + buffer);
}

/* Pack the block as pairs and compute it; false: a value does not fit pairs. */
static bool backward_by_pairs(const backward_head *f, const ra_run *run, key_block *block)
{
    const backward_scratch *s = &f->scratch;
    int32_t const begin = block->begin, end = block->end, q_count = f->tile->q_count;
    if (!load_key_rows(f->k, run, begin, end, f->dim, (pair_mem *)s->key) ||
        !load_key_rows(f->v, run, begin, end, f->dim, (pair_mem *)s->value) ||
        !load_key_pairs(f->k, run, begin, end, f->dim, (pair_mem *)s->key_columns))
        return false;
    block->pairs = true;
    for (int32_t a0 = 0; a0 < q_count; a0 += PANEL) {
        panel_block const panel = panel_of_pairs(block, a0, q_count);
        if (panel.seen.begin >= panel.seen.end)
            continue;
        if (panel.rows > LANES)
            backward_panel_pairs(2, f, block, &panel);
        else
            backward_panel_pairs(1, f, block, &panel);
    }
    fold_block(f, block, q_count, s->dscore, s->query_row_pairs, f->dk, run);
    fold_block(f, block, q_count, s->weight, s->dout_row_pairs, f->dv, run);
    return true;
}
#endif

#endif

/* Backward over the panels of one tile and one key block: the five products of backward_cpu.h. */
#ifndef RINGATTN_CPU_BACKWARD_PANELS_H
#define RINGATTN_CPU_BACKWARD_PANELS_H

#include "sparse/cpu/balance_cpu.h"
#include "sparse/cpu/forward_cpu.h"

enum { TILE_PANELS = RA_TILE_ROWS_MAX / PANEL, WEIGHT_PANEL = KEY_BLOCK_ROWS * PANEL };

/* Scratch of one thread. */
typedef struct backward_scratch {
    float *query, *dout;            /* panels of a tile; queries are scaled */
    float *query_rows, *dout_rows;  /* as they are, in slices: [dims / PANEL][tile rows][PANEL] */
    float *dq;                      /* panels of a tile */
    float *lse, *delta;             /* [tile rows]; lse: log2 */
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
    int64_t const dim_pad = padded(dim);
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
static void clear_around(const panel_block *panel, float *restrict weight)
{
    int32_t const first = panel->from, last = panel->from + panel->count;
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
    int32_t const from = panel->from, n = panel->count;
    int64_t const skip = (int64_t)from * f->dim_pad;
    const float *key_columns = s->key_columns + column_offset(from, 0);
    int64_t const at = panel_offset(panel->a0, f->dim_pad);
    int64_t const buffer = (int64_t)(panel->a0 / PANEL) * WEIGHT_PANEL;
    float *weight = s->weight + buffer + from * PANEL, *dscore = s->dscore + buffer + from * PANEL;
    vec const one[PRODUCT_VECS] = {vec_splat(1.0f), vec_splat(1.0f)};
    score_panel(vecs, n, f->dim, s->key + skip, s->query + at, weight);
    score_panel(vecs, n, f->dim, s->value + skip, s->dout + at, dscore);
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
    clear_around(panel, s->weight + buffer);
    clear_around(panel, s->dscore + buffer);
}

/* ---- lanes are dims -------------------------------------------------------------------------- */

/* A sum over the queries of a tile. */
typedef struct fold_sum {
    const float *weight; /* p or ds: [TILE_PANELS][KEY_BLOCK_ROWS][PANEL], or bf16 in their place */
    const void *rows;    /* dout or queries, in slices */
    float factor;        /* of the sum */
    head_view gradient;  /* gets it: dv or dk */
    head_view ahead;     /* values or keys, read for the next block */
} fold_sum;

#ifdef RA_PAIRS
/* Where pairs of tile rows begin in slices. */
static inline int64_t pair_slice_offset(int32_t a, int64_t d)
{
    return (d / PANEL * (RA_TILE_ROWS_MAX / 2) + a / 2) * PANEL;
}
#endif

/* The first `dims` floats of vectors, times a factor, are added to a row. */
RA_INLINE void add_vecs(int vecs, const vec *from, float factor, int32_t dims, float *restrict to)
{
    if (dims == vecs * LANES) {
#pragma GCC unroll 2
        for (int v = 0; v < vecs; ++v)
            vec_store(to + v * LANES, vec_load(to + v * LANES) + from[v] * factor);
        return;
    }
    float values[PANEL];
#pragma GCC unroll 2
    for (int v = 0; v < vecs; ++v)
        vec_store(values + v * LANES, from[v] * factor);
    add_row(values, dims, to);
}

/* Dims [d, d + dims) of the gradient of key k of a block, over the queries that see it. */
static void fold_key_live(const backward_head *f, const ra_run *run, const key_block *block,
                          const fold_sum *fold, int32_t k, int32_t d)
{
    int32_t const b = block->begin + k, dims = ra_hd_min(PANEL, f->dim - d);
    ra_run_queries const seeing = ra_run_band_seeing(block->band, f->tile->q_count, b, b + 1);
    const float *weight = fold->weight + (int64_t)k * PANEL;
    float sums[PANEL] = {0};
    for (int32_t a = seeing.begin; a < seeing.end; ++a) {
        const float *row = (const float *)fold->rows + slice_offset(a, d);
        float const w = weight[(int64_t)(a / PANEL) * WEIGHT_PANEL + a % PANEL];
        for (int32_t i = 0; i < dims; ++i)
            sums[i] += w * row[i];
    }
    for (int32_t i = 0; i < dims; ++i)
        sums[i] *= fold->factor;
    add_row(sums, dims, (float *)run_row(fold->gradient, run, b) + d);
}

/* Sums over `count` queries of the panel that begins with a0, for key rows [k, k + PRODUCT_ROWS) of
   a block. */
RA_INLINE void fold_panel(int vecs, bool pairs, const fold_sum *fold, int32_t a0, int32_t count,
                          int32_t k, int32_t d, vec sums[PRODUCT_ROWS][PRODUCT_VECS])
{
    const float *weight = fold->weight + (int64_t)(a0 / PANEL) * WEIGHT_PANEL + k * PANEL;
#if defined(RA_PAIRS) && !defined(RA_AMX)
    if (pairs) {
        const pair_mem *rows = (const pair_mem *)fold->rows + pair_slice_offset(a0, d);
        product_pairs(vecs, (count + 1) / 2, (const pair_mem *)weight, PANEL, 1, rows, PANEL, sums);
        return;
    }
#endif
    (void)pairs;
    const float *rows = (const float *)fold->rows + slice_offset(a0, d);
    product(vecs, count, weight, PANEL, 1, rows, PANEL, sums);
}

/* Dims [d, d + vecs * LANES) of the gradient of PRODUCT_ROWS keys. */
RA_INLINE void fold_keys(int vecs, bool pairs, const backward_head *f, const ra_run *run,
                         const key_block *block, const fold_sum *fold, int32_t k, int32_t d)
{
    int32_t const b = block->begin + k, keys = ra_hd_min(PRODUCT_ROWS, block->end - b);
    int32_t const dims = ra_hd_min(vecs * LANES, f->dim - d), q_count = f->tile->q_count;
    ra_run_queries const seeing = ra_run_band_seeing(block->band, q_count, b, b + keys);
    vec sums[PRODUCT_ROWS][PRODUCT_VECS] = {0};
    /* What a block reads and adds to has left the caches since the last tile. */
    prefetch_keys(f->kernel, fold->gradient, (run_keys){run, b, b + keys}, d, dims);
    prefetch_keys(f->kernel, fold->ahead, keys_part(block->ahead, k, PRODUCT_ROWS), d, dims);
    for (int32_t a0 = seeing.begin / PANEL * PANEL; a0 < seeing.end; a0 += PANEL)
        fold_panel(vecs, pairs, fold, a0, ra_hd_min(PANEL, q_count - a0), k, d, sums);
#pragma GCC unroll 8
    for (int r = 0; r < PRODUCT_ROWS; ++r) {
        if (r < keys)
            add_vecs(vecs, sums[r], fold->factor, dims,
                     (float *)run_row(fold->gradient, run, b + r) + d);
    }
}

#ifdef RA_AMX
/* Dims [d, d + PANEL) of the gradient of AMX_SIDE keys, by pairs: panels of the tile have as many
   queries as a step of tiles has pairs of. */
static void fold_keys_amx(const backward_head *f, const ra_run *run, const key_block *block,
                          const fold_sum *fold, int32_t k, int32_t d)
{
    int32_t const b = block->begin + k, keys = ra_hd_min(AMX_SIDE, block->end - b);
    int32_t const dims = ra_hd_min(PANEL, f->dim - d), q_count = f->tile->q_count;
    ra_run_queries const seeing = ra_run_band_seeing(block->band, q_count, b, b + keys);
    float sums[AMX_SIDE * PANEL] __attribute__((aligned(64)));
    prefetch_keys(f->kernel, fold->gradient, (run_keys){run, b, b + keys}, d, dims);
    prefetch_keys(f->kernel, fold->ahead, keys_part(block->ahead, k, AMX_SIDE), d, dims);
    amx_clear();
    for (int32_t a0 = seeing.begin / PANEL * PANEL; a0 < seeing.end; a0 += PANEL)
        amx_add(fold->weight + (int64_t)(a0 / PANEL) * WEIGHT_PANEL + k * PANEL, PANEL,
                (const pair_mem *)fold->rows + pair_slice_offset(a0, d), PANEL);
    amx_store(sums);
    for (int32_t r = 0; r < keys; ++r) {
        const float *const from = sums + r * PANEL;
        vec const row[PRODUCT_VECS] = {vec_load(from), vec_load(from + LANES)};
        add_vecs(PRODUCT_VECS, row, fold->factor, dims,
                 (float *)run_row(fold->gradient, run, b + r) + d);
    }
}
#endif

/*
 * A weight of zero times a query or dout that is not finite is NaN: in such tiles, where a mask
 * leaves pairs out, each key takes the queries that see it.
 */
static bool folds_live(const backward_head *f, const key_block *block)
{
    int32_t const begin = block->begin, end = block->end;
    ra_run_keys const full = ra_run_band_full(block->band, 0, f->tile->q_count, begin, end);
    return !block->pairs && !f->tile_finite && (full.begin > begin || full.end < end);
}

static void fold_block(const backward_head *f, const ra_run *run, const key_block *block,
                       const fold_sum *fold)
{
    bool const pairs = PAIRS && block->pairs, live = folds_live(f, block);
    int32_t const count = block->end - block->begin;
    for (int32_t d = 0; d < f->dim; d += PANEL) { /* a slice of rows stays in the first cache */
        bool const wide = f->dim - d > LANES;
        for (int32_t k = 0; k < count && live; ++k)
            fold_key_live(f, run, block, fold, k, d);
#ifdef RA_AMX
        if (pairs) {
            for (int32_t k = 0; k < count; k += AMX_SIDE)
                fold_keys_amx(f, run, block, fold, k, d);
            continue;
        }
#endif
        for (int32_t k = 0; k < count && !live; k += PRODUCT_ROWS) {
            if (pairs && wide)
                fold_keys(2, true, f, run, block, fold, k, d);
            else if (pairs)
                fold_keys(1, true, f, run, block, fold, k, d);
            else if (wide)
                fold_keys(2, false, f, run, block, fold, k, d);
            else
                fold_keys(1, false, f, run, block, fold, k, d);
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
    for (int32_t a = 0; a < pair_pad(f->tile->q_count, PAIR_QUERIES); a += LANES) {
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

/* As gradient_of_scores, from scores without their factor; for values that become bf16. */
RA_INLINE void gradient_of_products(int vecs, int32_t n, const backward_head *f, int32_t a0,
                                    float *restrict weight, float *restrict dscore)
{
    float const factor = f->factor;
    for (int v = 0; v < vecs; ++v) {
        vec const row_lse2 = vec_load(f->scratch.lse + a0 + v * LANES);
        vec const row_delta = vec_load(f->scratch.delta + a0 + v * LANES);
        for (int32_t k = 0; k < n; ++k) {
            float *const p_at = weight + (int64_t)k * PANEL + v * LANES;
            float *const ds_at = dscore + (int64_t)k * PANEL + v * LANES;
            vec const p = vec_exp2_short(vec_load(p_at) * factor - row_lse2);
            vec_store(p_at, p);
            vec_store(ds_at, p * (vec_load(ds_at) - row_delta));
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
    int32_t const from = panel->from, n = panel->count;
    int64_t const skip = (int64_t)from * pair_pitch(f->dim);
    int64_t const at = pair_panel_offset(panel->a0, f->dim);
    int64_t const buffer = (int64_t)(panel->a0 / PANEL) * WEIGHT_PANEL;
    float *weight = s->weight + buffer + from * PANEL, *dscore = s->dscore + buffer + from * PANEL;
    vec const one[PRODUCT_VECS] = {vec_splat(1.0f), vec_splat(1.0f)};
    score_pairs(vecs, n, f->dim, (const pair_mem *)s->key + skip,
                (const pair_mem *)s->query_pairs + at, weight);
    score_pairs(vecs, n, f->dim, (const pair_mem *)s->value + skip,
                (const pair_mem *)s->dout_pairs + at, dscore);
    gradient_of_products(vecs, n, f, panel->a0, weight, dscore);
    if (panel->masked) {
        mask_pairs(vecs, panel, block, 0, weight);
        mask_pairs(vecs, panel, block, 0, dscore);
    }
    narrow_panel(vecs, n, weight, NULL);
    narrow_panel(vecs, n, dscore, s->dscore_pairs);
    weigh_pairs(vecs, n / 2, f->dim,
                (const pair_mem *)s->key_columns + pair_rows_offset(from, f->dim_pad),
                s->dscore_pairs, one, s->dq + panel_offset(panel->a0, f->dim_pad));
    clear_around(panel, s->weight + buffer);
    clear_around(panel, s->dscore + buffer);
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
    pairs_begin();
    for (int32_t a0 = 0; a0 < q_count; a0 += PANEL) {
        panel_block const panel = panel_of_pairs(block, a0, q_count);
        if (panel.count <= 0)
            continue;
        if (pair_pad(panel.rows, PAIR_QUERIES) > LANES)
            backward_panel_pairs(2, f, block, &panel);
        else
            backward_panel_pairs(1, f, block, &panel);
    }
    fold_block(f, run, block,
               &(fold_sum){s->dscore, s->query_row_pairs, f->step->shape.scale, f->dk, f->k});
    fold_block(f, run, block, &(fold_sum){s->weight, s->dout_row_pairs, 1, f->dv, f->v});
    return true;
}
#endif

#endif

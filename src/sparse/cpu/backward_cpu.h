/*
 * Backward: five products per tile and key block. Lanes are queries in the first three,
 *
 *     s  = k . q        dp = v . dout        p = 2^(s - lse)       ds = p (dp - delta)
 *     dq += ds k
 *
 * and dims in the two that sum over the queries of the tile: dk += ds q, dv += p dout. The factors
 * scale and log2(e) ride on packed copies: q times both in s; dout and delta times scale in ds.
 *
 * Threads form teams. A team works on one kv head of one batch at a time, in as many rounds as it
 * has members: in round r member m takes the query chunks c with c % size == m against the key
 * rows of class (m + r) % size. So rows of dq, dk and dv are each written by one thread at a time,
 * and for a given number of threads always in the same order.
 */
#ifndef RINGATTN_CPU_BACKWARD_H
#define RINGATTN_CPU_BACKWARD_H

#include "sparse/cpu/forward_cpu.h"

enum { TILE_PANELS = RA_TILE_ROWS_MAX / PANEL, WEIGHT_PANEL = KEY_BLOCK_ROWS * PANEL };

/* Scratch of one thread. */
typedef struct backward_scratch {
    float *query, *dout;           /* panels of a tile, scaled */
    float *query_rows, *dout_rows; /* as they are, in slices: [dims / PANEL][tile rows][PANEL] */
    float *dq;                     /* panels of a tile */
    float *lse, *delta;            /* [tile rows]: log2, and times scale */
    float *key, *value;            /* [KEY_BLOCK_ROWS][dim_pad] */
    float *key_columns;            /* [dim_pad / PRODUCT_ROWS][KEY_BLOCK_ROWS][PRODUCT_ROWS] */
    float *weight, *dscore;        /* [TILE_PANELS][KEY_BLOCK_ROWS][PANEL] */
    float *rows;                   /* [LANES][dim_pad] */
} backward_scratch;

/* One query head of one batch against some key rows, as one thread sees it. */
typedef struct backward_head {
    ra_kernel *kernel;
    const ra_backward_step *step;
    backward_scratch scratch;
    int32_t dim, dim_pad, ticks;
    head_view q, k, v, dout, dq, dk, dv;
    const float *lse, *delta; /* [q_rows] */
    int32_t class_index, class_count;
    int64_t class_rows; /* key row k is of class k / class_rows % class_count */
    bool tile_finite;   /* no Inf or NaN in the tile's queries and dout */
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
    return cursor.used;
}

/* ---- lanes are queries ------------------------------------------------------------------------
 */

/* Rows [0, KEY_BLOCK_ROWS) of a weight panel that products over whole register tiles may read. */
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

/* Rows without weight (lse +Inf here) against keys with an Inf or NaN, which 0 times is NaN. */
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
    if (panel->masked)
        mask_panel(vecs, panel, block->band, -INFINITY, weight);
    gradient_of_scores(vecs, n, s->lse + panel->a0, s->delta + panel->a0, weight, dscore);
    if (!block->finite)
        silence_rows(n, s->lse + panel->a0, weight, dscore);
    if (panel->masked) /* p is 0 there, but 0 * dp need not be */
        mask_panel(vecs, panel, block->band, 0, dscore);
    if (panel->masked && !block->finite)
        weigh_panel_live(panel, block->band, f->dim, key_columns, dscore, one, s->dq + at);
    else
        weigh_panel(vecs, n, f->dim, key_columns, dscore, one, s->dq + at);
    clear_around(block, panel, s->weight + buffer);
    clear_around(block, panel, s->dscore + buffer);
}

/* ---- lanes are dims ---------------------------------------------------------------------------
 */

/* Key rows [k, k + PRODUCT_ROWS) of a block, over the queries of one panel that see them. */
static void fold_panel_live(int vecs, const panel_block *panel, const key_block *block, int32_t k,
                            const float *weight, const float *rows,
                            vec sums[PRODUCT_ROWS][PRODUCT_VECS])
{
    for (int r = 0; r < PRODUCT_ROWS; ++r) {
        int32_t const b = block->begin + k + r;
        for (int32_t i = 0; i < panel->rows; ++i) {
            int32_t const distance = b - (panel->a0 + i);
            if (distance < block->band.lo || distance > block->band.hi)
                continue;
            for (int v = 0; v < vecs; ++v)
                sums[r][v] += weight[r * PANEL + i] * vec_load(rows + i * PANEL + v * LANES);
        }
    }
}

/* Dims [d, d + vecs * LANES) of the gradient of PRODUCT_ROWS keys, summed over the tile. */
RA_INLINE void fold_keys(int vecs, const backward_head *f, const key_block *block, int32_t k,
                         int32_t q_count, int32_t d, const float *weight, const float *rows,
                         head_view gradient, const ra_run *run)
{
    vec sums[PRODUCT_ROWS][PRODUCT_VECS] = {0};
    for (int32_t a0 = 0; a0 < q_count; a0 += PANEL) {
        panel_block const panel = panel_of(block, a0, q_count);
        int32_t const group = block->begin + k;
        if (panel.seen.begin >= min_i32(panel.seen.end, group + PRODUCT_ROWS) ||
            panel.seen.end <= group)
            continue;
        const float *column = weight + (int64_t)(a0 / PANEL) * WEIGHT_PANEL + k * PANEL;
        const float *row = rows + slice_offset(a0, d);
        if (panel.masked && !f->tile_finite)
            fold_panel_live(vecs, &panel, block, k, column, row, sums);
        else
            product(vecs, panel.rows, column, PANEL, 1, row, PANEL, sums);
    }
    int32_t const dims = min_i32(vecs * LANES, f->dim - d);
    int32_t const keys = min_i32(PRODUCT_ROWS, block->end - block->begin - k);
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
                       const float *weight, const float *rows, head_view gradient,
                       const ra_run *run)
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

/* ---- tiles ------------------------------------------------------------------------------------
 */

/* Rows of the tile as panels, times `factor`, and in slices; rows without weight become 0. Tells
   whether all are finite. */
static bool load_tile_rows(const backward_head *f, const ra_tile *tile, head_view view,
                           double factor, float *restrict panels, float *restrict slices)
{
    const backward_scratch *s = &f->scratch;
    veci check = {0};
    for (int32_t a = 0; a < tile->q_count; a += LANES) {
        for (int32_t i = 0; i < LANES; ++i) {
            float *row = s->rows + (int64_t)i * f->dim_pad;
            if (s->lse[a + i] == INFINITY)
                memset(row, 0, sizeof(float) * (size_t)f->dim_pad);
            else
                load_row(view.dtype, head_row(view, tile_row(tile, a + i)), f->dim, row);
            check = check_row(check, row, f->dim_pad);
            for (int32_t d = 0; d < f->dim_pad; d += LANES)
                vec_store(slices + slice_offset(a + i, d) + d % PANEL, vec_load(row + d));
        }
        rows_to_panel(s->rows, f->dim_pad, (float)factor, panels + panel_offset(a, f->dim_pad));
    }
    return check_is_finite(check);
}

static void load_backward_tile(backward_head *f, const ra_tile *tile)
{
    const backward_scratch *s = &f->scratch;
    double const scale = (double)f->step->shape.scale;
    memset(s->dq, 0, sizeof(float) * (size_t)(RA_TILE_ROWS_MAX * f->dim_pad));
    for (int32_t a = 0; a < RA_TILE_ROWS_MAX; ++a) {
        int64_t const row = a < tile->q_count ? tile_row(tile, a) : -1;
        bool const dead = row < 0 || f->lse[row] == -INFINITY; /* weight 0, whatever it holds */
        s->lse[a] = dead ? INFINITY : (float)((double)f->lse[row] * LOG2_E);
        s->delta[a] = dead ? 0 : (float)((double)f->delta[row] * scale);
    }
    bool const queries = load_tile_rows(f, tile, f->q, scale * LOG2_E, s->query, s->query_rows);
    bool const douts = load_tile_rows(f, tile, f->dout, scale, s->dout, s->dout_rows);
    f->tile_finite = queries && douts;
}

static void add_tile_dq(const backward_head *f, const ra_tile *tile)
{
    const backward_scratch *s = &f->scratch;
    for (int32_t a = 0; a < tile->q_count; a += LANES) {
        int32_t const rows = min_i32(LANES, tile->q_count - a);
        panel_to_rows(s->dq + panel_offset(a, f->dim_pad), f->dim_pad, vec_splat(1.0f), s->rows);
        for (int32_t i = 0; i < rows; ++i) {
            if (s->lse[a + i] != INFINITY) /* no weight: no gradient */
                add_row(s->rows + (int64_t)i * f->dim_pad, f->dim,
                        head_row(f->dq, tile_row(tile, a + i)));
        }
    }
}

static void backward_block(backward_head *f, const ra_run *run, key_block *block, int32_t q_count)
{
    const backward_scratch *s = &f->scratch;
    block->key = s->key;
    block->value = s->value;
    block->key_columns = s->key_columns;
    bool const keys_finite = load_keys(f->k, run, block->begin, block->end, f->dim, s->key);
    bool const values_finite = load_keys(f->v, run, block->begin, block->end, f->dim, s->value);
    block->finite = keys_finite && values_finite;
    for (int32_t k = 0; k < block->end - block->begin; ++k)
        row_to_columns(s->key + (int64_t)k * f->dim_pad, k, f->dim_pad, s->key_columns);
    for (int32_t a0 = 0; a0 < q_count; a0 += PANEL) {
        panel_block const panel = panel_of(block, a0, q_count);
        if (panel.seen.begin >= panel.seen.end)
            continue;
        if (panel.rows > LANES)
            backward_panel(2, f, block, &panel);
        else
            backward_panel(1, f, block, &panel);
    }
    fold_block(f, block, q_count, s->dscore, s->query_rows, f->dk, run);
    fold_block(f, block, q_count, s->weight, s->dout_rows, f->dv, run);
    poll_sometimes(f->kernel, &f->ticks);
}

/* First key of the run, from b on, that lies in the next group of class rows. */
static int32_t class_end(const backward_head *f, const ra_run *run, int32_t b)
{
    int64_t const row = run->k_begin + (int64_t)run->k_stride * b;
    int64_t const next = (row / f->class_rows + 1) * f->class_rows - run->k_begin;
    int64_t const end = (next + run->k_stride - 1) / run->k_stride;
    return end < run->k_count ? (int32_t)end : run->k_count;
}

static bool in_class(const backward_head *f, const ra_run *run, int32_t b)
{
    int64_t const row = run->k_begin + (int64_t)run->k_stride * b;
    return row / f->class_rows % f->class_count == f->class_index;
}

static void backward_tile(backward_head *f, const ra_tilemap *map, uint32_t index)
{
    const ra_tile *tile = &map->tiles[index];
    bool loaded = false; /* packed for the first keys of the class, if there are any */
    for (uint32_t r = tile->run_begin; r < map->tiles[index + 1].run_begin; ++r) {
        const ra_run *run = &map->runs[r];
        key_band const band = run_band(run, tile->q_count);
        key_span const seen = band_seen(band, 0, tile->q_count, 0, run->k_count);
        for (int32_t b = seen.begin, end; b < seen.end; b = end) {
            end = seen.end;
            if (f->class_count > 1)
                end = min_i32(end, class_end(f, run, b));
            if (f->class_count > 1 && !in_class(f, run, b))
                continue;
            end = min_i32(end, b + RA_KEY_BLOCK);
            if (!loaded)
                load_backward_tile(f, tile);
            loaded = true;
            key_block block = {.begin = b, .end = end, .band = band};
            backward_block(f, run, &block, tile->q_count);
        }
    }
    if (loaded)
        add_tile_dq(f, tile);
}

/* ---- teams ------------------------------------------------------------------------------------
 */

/* Members of a team: the divisor of `threads` that leaves the fewest idle over `lanes` kv heads;
   small teams win ties, as they pack less. */
static int backward_team_size(int threads, int64_t lanes)
{
    int best = 1;
    double best_rounds = 0;
    for (int size = 1; size <= threads; ++size) {
        if (threads % size != 0)
            continue;
        int64_t const teams = threads / size;
        int64_t const slots = (lanes + teams - 1) / teams;
        double const rounds = (double)slots / size;
        if (size == 1 || rounds < best_rounds * 0.99) {
            best = size;
            best_rounds = rounds;
        }
    }
    return best;
}

/* Key rows per class group: several groups per member, and blocks that are worth packing. */
static int64_t backward_class_rows(int64_t k_rows, int team_size)
{
    int64_t const groups = 4 * (int64_t)team_size;
    int64_t const blocks = (k_rows / groups + RA_KEY_BLOCK - 1) / RA_KEY_BLOCK;
    return RA_KEY_BLOCK * (blocks < 1 ? 1 : blocks > 8 ? 8 : blocks);
}

static void backward_head_begin(backward_head *f, int64_t batch, int32_t head, int32_t kv_head)
{
    const ra_backward_step *step = f->step;
    int64_t const rows = step->map->q_rows;
    f->q = view_head(&step->q, batch, head);
    f->dout = view_head(&step->dout, batch, head);
    f->dq = view_head(&step->dq, batch, head);
    f->k = view_head(&step->k, batch, kv_head);
    f->v = view_head(&step->v, batch, kv_head);
    f->dk = view_head(&step->dk, batch, kv_head);
    f->dv = view_head(&step->dv, batch, kv_head);
    f->lse = step->lse + batch * step->lse_batch_stride + head * rows;
    f->delta = step->delta + (batch * step->shape.q_heads + head) * rows;
}

static void backward_lane(backward_head *f, int64_t lane, int member, int size)
{
    const ra_kernel_shape *shape = &f->step->shape;
    const ra_tilemap *map = f->step->map;
    int32_t const group = shape->q_heads / shape->kv_heads;
    int32_t const kv_head = (int32_t)(lane % shape->kv_heads);
    for (int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        backward_head_begin(f, lane / shape->kv_heads, head, kv_head);
        for (int32_t chunk = member; chunk < map->chunk_count; chunk += size) {
            for (int32_t i = 0; i < map->layer_count; ++i) {
                const ra_tile_layer *layer = &map->layers[i];
                if (!ra_heads_contain(layer->heads, shape->q_head_begin + head))
                    continue;
                for (uint32_t t = layer->chunk_tile[chunk]; t < layer->chunk_tile[chunk + 1]; ++t)
                    backward_tile(f, map, t);
            }
        }
    }
}

static void backward_thread(ra_kernel *kernel, const ra_backward_step *step, float *workspace)
{
    const ra_kernel_shape *shape = &step->shape;
    int64_t const lanes = shape->batch * shape->kv_heads;
    int const size = backward_team_size(thread_count(), lanes);
    int const teams = thread_count() / size, team = thread_index() / size;
    int const member = thread_index() % size;
    backward_head f = {.kernel = kernel,
                       .step = step,
                       .dim = shape->dim,
                       .dim_pad = pad_dim(shape->dim),
                       .class_count = size,
                       .class_rows = backward_class_rows(step->map->k_rows, size)};
    backward_scratch_carve(workspace, shape->dim, &f.scratch);
    for (int64_t first = 0; first < lanes; first += teams) {
        for (int round = 0; round < size; ++round) {
            f.class_index = (member + round) % size;
            if (first + team < lanes)
                backward_lane(&f, first + team, member, size);
            if (size > 1) {
                /* Key rows change hands: the next round writes what this one wrote. */
                RA_OMP(omp barrier)
            }
        }
    }
}

#endif

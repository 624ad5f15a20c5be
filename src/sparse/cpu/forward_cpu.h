/*
 * Forward: online softmax over key blocks.
 *
 * A task is a chunk of queries of one head of one batch. Of each tile, the queries are packed once
 * as panels [dim][PANEL] times scale * log2(e), so that the exponentials are powers of two. Per key
 * block and panel: scores [key][PANEL], mask where the band cuts, new top, weights, and the block's
 * own sum of weighted values, added to what was there times 2^(old top - new top).
 */
#ifndef RINGATTN_CPU_FORWARD_H
#define RINGATTN_CPU_FORWARD_H

#include "sparse/cpu/exp2.h"
#include "sparse/cpu/panel_cpu.h"

#include <math.h>

static double const LOG2_E = 1.44269504088896340736;
static double const LN_2 = 0.69314718055994530942;

/* Scratch of one thread. */
typedef struct forward_scratch {
    float *query, *acc;                       /* panels of a tile */
    float *top, *sum;                         /* [tile rows] */
    float *key, *value;                       /* [KEY_BLOCK_ROWS][dim_pad] */
    float *weight;                            /* [KEY_BLOCK_ROWS][PANEL] */
    float *rows;                              /* [LANES][dim_pad] */
    float *chunk_acc, *chunk_top, *chunk_sum; /* state of a chunk whose rows are shared */
} forward_scratch;

/* One head of one batch, as one thread sees it. */
typedef struct forward_head {
    ra_kernel *kernel;
    const ra_forward_step *step;
    forward_scratch scratch;
    int32_t dim, dim_pad, ticks;
    bool tiles_begin, tiles_end; /* tiles begin the state, end in output: no row is shared */
    head_view q, k, v, out;
    float *lse;             /* [q_rows] or NULL */
    float *acc, *top, *sum; /* state of rows state_row and on; NULL where none is carried */
    int64_t state_row;
} forward_head;

static size_t forward_scratch_carve(float *base, int32_t dim, forward_scratch *scratch)
{
    scratch_cursor cursor = {.base = base};
    int64_t const dim_pad = pad_dim(dim);
    scratch->query = scratch_take(&cursor, RA_TILE_ROWS_MAX * dim_pad);
    scratch->acc = scratch_take(&cursor, RA_TILE_ROWS_MAX * dim_pad);
    scratch->top = scratch_take(&cursor, RA_TILE_ROWS_MAX);
    scratch->sum = scratch_take(&cursor, RA_TILE_ROWS_MAX);
    scratch->key = scratch_take(&cursor, KEY_BLOCK_ROWS * dim_pad);
    scratch->value = scratch_take(&cursor, KEY_BLOCK_ROWS * dim_pad);
    scratch->weight = scratch_take(&cursor, KEY_BLOCK_ROWS * PANEL);
    scratch->rows = scratch_take(&cursor, LANES * dim_pad);
    scratch->chunk_acc = scratch_take(&cursor, (int64_t)RA_CHUNK_ROWS_MAX * dim);
    scratch->chunk_top = scratch_take(&cursor, RA_CHUNK_ROWS_MAX);
    scratch->chunk_sum = scratch_take(&cursor, RA_CHUNK_ROWS_MAX);
    return cursor.used;
}

/* Scores become weights 2^(score - top); *alpha is what sums so far are worth under the new top. */
RA_INLINE void soften_panel(int vecs, int32_t n, float *restrict weight, float *restrict top,
                            float *restrict sum, vec *alpha)
{
    for (int v = 0; v < vecs; ++v) {
        float *column = weight + v * LANES;
        vec const old_top = vec_load(top + v * LANES);
        vec new_top = old_top;
        for (int32_t k = 0; k < n; ++k)
            new_top = vec_max(new_top, vec_load(column + (int64_t)k * PANEL));
        /* A lane that has seen nothing yet has top -Inf; -Inf - -Inf must not become NaN. */
        vec const base = vec_select(new_top == -INFINITY, (vec){0}, new_top);
        vec block_sum = {0};
        for (int32_t k = 0; k < n; ++k) {
            vec const p = vec_exp2(vec_load(column + (int64_t)k * PANEL) - base);
            vec_store(column + (int64_t)k * PANEL, p);
            block_sum += p;
        }
        alpha[v] = vec_exp2(old_top - base);
        vec_store(top + v * LANES, new_top);
        vec_store(sum + v * LANES, vec_load(sum + v * LANES) * alpha[v] + block_sum);
    }
}

RA_INLINE void forward_panel(int vecs, const forward_head *f, const key_block *block,
                             const panel_block *panel)
{
    const forward_scratch *s = &f->scratch;
    int32_t const n = panel->seen.end - panel->seen.begin;
    int64_t const skip = (int64_t)(panel->seen.begin - block->begin) * f->dim_pad;
    int64_t const at = panel_offset(panel->a0, f->dim_pad);
    vec alpha[PRODUCT_VECS] = {0};
    score_panel(vecs, n, f->dim, block->key + skip, s->query + at, s->weight);
    if (panel->masked)
        mask_panel(vecs, panel, block->band, -INFINITY, s->weight);
    soften_panel(vecs, n, s->weight, s->top + panel->a0, s->sum + panel->a0, alpha);
    if (panel->masked && !block->finite)
        weigh_panel_live(panel, block->band, f->dim, block->value + skip, s->weight, alpha,
                         s->acc + at);
    else
        weigh_panel(vecs, n, f->dim, block->value + skip, s->weight, alpha, s->acc + at);
}

static void forward_block(const forward_head *f, const key_block *block, int32_t q_count)
{
    for (int32_t a0 = 0; a0 < q_count; a0 += PANEL) {
        panel_block const panel = panel_of(block, a0, q_count);
        if (panel.seen.begin >= panel.seen.end)
            continue;
        if (panel.rows > LANES)
            forward_panel(2, f, block, &panel);
        else
            forward_panel(1, f, block, &panel);
    }
}

static void forward_run(forward_head *f, const ra_run *run, int32_t q_count)
{
    const forward_scratch *s = &f->scratch;
    key_band const band = run_band(run, q_count);
    key_span const seen = band_seen(band, 0, q_count, 0, run->k_count);
    for (int32_t b = seen.begin; b < seen.end; b += RA_KEY_BLOCK) {
        key_block block = {.begin = b,
                           .end = min_i32(b + RA_KEY_BLOCK, seen.end),
                           .band = band,
                           .key = s->key,
                           .value = s->value};
        (void)load_keys(f->k, run, block.begin, block.end, f->dim, s->key);
        block.finite = load_keys(f->v, run, block.begin, block.end, f->dim, s->value);
        forward_block(f, &block, q_count);
        poll_sometimes(f->kernel, &f->ticks);
    }
}

/* ---- rows of a tile, into and out of scratch --------------------------------------------------
 */

static int64_t tile_row(const ra_tile *tile, int32_t a)
{
    return tile->q_begin + (int64_t)tile->q_stride * a;
}

static void load_tile_queries(const forward_head *f, const ra_tile *tile)
{
    const forward_scratch *s = &f->scratch;
    float const factor = (float)((double)f->step->shape.scale * LOG2_E);
    for (int32_t a = 0; a < tile->q_count; a += LANES) {
        int32_t const rows = min_i32(LANES, tile->q_count - a);
        memset(s->rows, 0, sizeof(float) * (size_t)(LANES * f->dim_pad));
        for (int32_t i = 0; i < rows; ++i)
            load_row(f->q.dtype, head_row(f->q, tile_row(tile, a + i)), f->dim,
                     s->rows + (int64_t)i * f->dim_pad);
        rows_to_panel(s->rows, f->dim_pad, factor, s->query + panel_offset(a, f->dim_pad));
    }
}

static void begin_tile_state(const forward_head *f)
{
    const forward_scratch *s = &f->scratch;
    memset(s->acc, 0, sizeof(float) * (size_t)(RA_TILE_ROWS_MAX * f->dim_pad));
    for (int32_t a = 0; a < RA_TILE_ROWS_MAX; ++a) {
        s->top[a] = -INFINITY;
        s->sum[a] = 0;
    }
}

static void load_tile_state(const forward_head *f, const ra_tile *tile)
{
    const forward_scratch *s = &f->scratch;
    begin_tile_state(f);
    for (int32_t a = 0; a < tile->q_count; a += LANES) {
        int32_t const rows = min_i32(LANES, tile->q_count - a);
        memset(s->rows, 0, sizeof(float) * (size_t)(LANES * f->dim_pad));
        for (int32_t i = 0; i < rows; ++i) {
            int64_t const row = tile_row(tile, a + i) - f->state_row;
            load_row(RA_F32, f->acc + row * f->dim, f->dim, s->rows + (int64_t)i * f->dim_pad);
            s->top[a + i] = f->top[row];
            s->sum[a + i] = f->sum[row];
        }
        rows_to_panel(s->rows, f->dim_pad, 1.0f, s->acc + panel_offset(a, f->dim_pad));
    }
}

static void store_tile_state(const forward_head *f, const ra_tile *tile)
{
    const forward_scratch *s = &f->scratch;
    for (int32_t a = 0; a < tile->q_count; a += LANES) {
        int32_t const rows = min_i32(LANES, tile->q_count - a);
        panel_to_rows(s->acc + panel_offset(a, f->dim_pad), f->dim_pad, vec_splat(1.0f), s->rows);
        for (int32_t i = 0; i < rows; ++i) {
            int64_t const row = tile_row(tile, a + i) - f->state_row;
            memcpy(f->acc + row * f->dim, s->rows + (int64_t)i * f->dim_pad,
                   sizeof(float) * (size_t)f->dim);
            f->top[row] = s->top[a + i];
            f->sum[row] = s->sum[a + i];
        }
    }
}

static float row_lse(float top, float sum)
{
    return sum == 0 ? -INFINITY : (float)(((double)top + log2((double)sum)) * LN_2);
}

/* A row that has seen no key has sum 0, and becomes 0. */
static float row_factor(float sum)
{
    return sum == 0 ? 0 : 1.0f / sum;
}

static void store_tile_output(const forward_head *f, const ra_tile *tile)
{
    const forward_scratch *s = &f->scratch;
    for (int32_t a = 0; a < tile->q_count; a += LANES) {
        int32_t const rows = min_i32(LANES, tile->q_count - a);
        vec factors = {0};
        for (int32_t i = 0; i < LANES; ++i)
            factors[i] = row_factor(s->sum[a + i]);
        panel_to_rows(s->acc + panel_offset(a, f->dim_pad), f->dim_pad, factors, s->rows);
        for (int32_t i = 0; i < rows; ++i) {
            int64_t const row = tile_row(tile, a + i);
            store_row(f->out.dtype, s->rows + (int64_t)i * f->dim_pad, f->dim,
                      head_row(f->out, row));
            if (f->lse != NULL)
                f->lse[row] = row_lse(s->top[a + i], s->sum[a + i]);
        }
    }
}

static void forward_tile(forward_head *f, const ra_tilemap *map, uint32_t index)
{
    const ra_tile *tile = &map->tiles[index];
    load_tile_queries(f, tile);
    if (f->tiles_begin)
        begin_tile_state(f);
    else
        load_tile_state(f, tile);
    for (uint32_t r = tile->run_begin; r < map->tiles[index + 1].run_begin; ++r)
        forward_run(f, &map->runs[r], tile->q_count);
    if (f->tiles_end)
        store_tile_output(f, tile);
    else
        store_tile_state(f, tile);
}

/* ---- chunks -----------------------------------------------------------------------------------
 */

static void begin_state_rows(const forward_head *f, int64_t begin, int64_t end)
{
    for (int64_t row = begin - f->state_row; row < end - f->state_row; ++row) {
        memset(f->acc + row * f->dim, 0, sizeof(float) * (size_t)f->dim);
        f->top[row] = -INFINITY;
        f->sum[row] = 0;
    }
}

/* Output of rows from their state, or of rows without a key where there is no state. */
static void store_rows_output(const forward_head *f, int64_t begin, int64_t end)
{
    float *values = f->scratch.rows;
    memset(values, 0, sizeof(float) * (size_t)f->dim);
    for (int64_t row = begin; row < end; ++row) {
        float top = -INFINITY, sum = 0;
        if (f->acc != NULL) {
            int64_t const at = row - f->state_row;
            top = f->top[at];
            sum = f->sum[at];
            float const factor = row_factor(sum);
            for (int32_t d = 0; d < f->dim; ++d)
                values[d] = f->acc[at * f->dim + d] * factor;
        }
        store_row(f->out.dtype, values, f->dim, head_row(f->out, row));
        if (f->lse != NULL)
            f->lse[row] = row_lse(top, sum);
    }
}

/* Rows of the chunk that tiles of this head reach, each counted as often as it is reached. */
static int64_t chunk_tile_rows(const ra_tilemap *map, int32_t head, int32_t chunk)
{
    int64_t rows = 0;
    for (int32_t i = 0; i < map->layer_count; ++i) {
        const ra_tile_layer *layer = &map->layers[i];
        if (!ra_heads_contain(layer->heads, head))
            continue;
        for (uint32_t t = layer->chunk_tile[chunk]; t < layer->chunk_tile[chunk + 1]; ++t)
            rows += map->tiles[t].q_count;
    }
    return rows;
}

static void forward_chunk(forward_head *f, int32_t head, int32_t chunk)
{
    const ra_forward_step *step = f->step;
    const ra_tilemap *map = step->map;
    int64_t const begin = (int64_t)chunk * map->chunk_rows;
    int64_t const end =
        begin + map->chunk_rows < map->q_rows ? begin + map->chunk_rows : map->q_rows;
    if (map->shared_rows && step->first && step->last)
        f->state_row = begin; /* the state is this thread's, of one chunk at a time */
    /* Rows that no tile reaches; tiles overwrite theirs. */
    bool const missed = map->shared_rows || chunk_tile_rows(map, head, chunk) < end - begin;
    if (missed && step->first && f->acc != NULL)
        begin_state_rows(f, begin, end);
    if (missed && step->last && !map->shared_rows)
        store_rows_output(f, begin, end);
    for (int32_t i = 0; i < map->layer_count; ++i) {
        const ra_tile_layer *layer = &map->layers[i];
        if (!ra_heads_contain(layer->heads, head))
            continue;
        for (uint32_t t = layer->chunk_tile[chunk]; t < layer->chunk_tile[chunk + 1]; ++t)
            forward_tile(f, map, t);
    }
    if (step->last && map->shared_rows)
        store_rows_output(f, begin, end);
}

static void forward_head_begin(forward_head *f, int64_t batch, int32_t head)
{
    const ra_forward_step *step = f->step;
    const ra_kernel_shape *shape = &step->shape;
    int64_t const rows = step->map->q_rows;
    int32_t const kv_head = head / (shape->q_heads / shape->kv_heads);
    f->q = view_head(&step->q, batch, head);
    f->k = view_head(&step->k, batch, kv_head);
    f->v = view_head(&step->v, batch, kv_head);
    if (step->last)
        f->out = view_head(&step->out, batch, head);
    f->lse = step->last && step->lse != NULL
                 ? step->lse + batch * step->lse_batch_stride + head * rows
                 : NULL;
    if (!(step->first && step->last)) {
        int64_t const at = (batch * shape->q_heads + head) * rows;
        f->acc = step->state.acc + at * f->dim;
        f->top = step->state.top + at;
        f->sum = step->state.sum + at;
    } else if (step->map->shared_rows) {
        f->acc = f->scratch.chunk_acc;
        f->top = f->scratch.chunk_top;
        f->sum = f->scratch.chunk_sum;
    }
}

static void forward_thread(ra_kernel *kernel, const ra_forward_step *step, float *workspace)
{
    const ra_kernel_shape *shape = &step->shape;
    forward_head f = {.kernel = kernel,
                      .step = step,
                      .dim = shape->dim,
                      .dim_pad = pad_dim(shape->dim),
                      .tiles_begin = step->first && !step->map->shared_rows,
                      .tiles_end = step->last && !step->map->shared_rows};
    forward_scratch_carve(workspace, shape->dim, &f.scratch);
    int64_t const chunks = step->map->chunk_count;
    int64_t const tasks = shape->batch * shape->q_heads * chunks;
    RA_OMP(omp for schedule(dynamic))
    for (int64_t task = 0; task < tasks; ++task) {
        int64_t const lane = task / chunks; /* of batch and head */
        int32_t const head = (int32_t)(lane % shape->q_heads);
        /* Last chunks first: under a causal mask these are the long ones. */
        int32_t const chunk = (int32_t)(chunks - 1 - task % chunks);
        forward_head_begin(&f, lane / shape->q_heads, head);
        forward_chunk(&f, shape->q_head_begin + head, chunk);
    }
}

#endif

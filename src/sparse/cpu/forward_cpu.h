/*
 * Forward: online softmax over key blocks.
 *
 * A task is some chunks of queries of some heads that share a key head: see blocking_cpu.h. Their
 * tiles go over the keys side by side. Of each tile, the queries are packed once
 * as panels [dim][PANEL] times scale * log2(e), so that the exponentials are powers of two. Per key
 * block and panel: scores [key][PANEL], mask where the band cuts, new top, weights, and the block's
 * own sum of weighted values, added to what was there times 2^(old top - new top).
 */
#ifndef RINGATTN_CPU_FORWARD_H
#define RINGATTN_CPU_FORWARD_H

#include "sparse/cpu/forward_panels.h"

#include <float.h>

/* ---- rows of a tile, into and out of scratch --------------------------------------------------
 */

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

/* What is left of a row when it is done: out, lse, and delta while out is still unrounded. */
static void store_row_output(const forward_head *f, int64_t row, const float *values, float top,
                             float sum)
{
    store_row(f->out.dtype, values, f->dim, head_row(f->out, row));
    if (f->lse != NULL)
        f->lse[row] = row_lse(top, sum);
    if (f->delta != NULL)
        f->delta[row] = dot_row(RA_F32, values, f->dout.dtype, head_row(f->dout, row), f->dim,
                                f->scratch.weight);
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
        for (int32_t i = 0; i < rows; ++i)
            store_row_output(f, tile_row(tile, a + i), s->rows + (int64_t)i * f->dim_pad,
                             s->top[a + i], s->sum[a + i]);
    }
}

/* Have a tile stand before its first key. */
static void forward_tile_place(forward_head *f, uint32_t index)
{
    const ra_tilemap *map = f->step->map;
    f->tile = &map->tiles[index];
    f->run = map->runs + f->tile->run_begin;
    f->run_end = map->runs + map->tiles[index + 1].run_begin;
    forward_seek(f);
}

static void forward_tile_load(forward_head *f)
{
    f->has_floats = false;
    f->has_pairs = f->pairs_wanted && load_query_pairs(f);
    if (f->tiles_begin)
        begin_tile_state(f);
    else
        load_tile_state(f, f->tile);
}

static void forward_tile_end(const forward_head *f)
{
    if (f->tiles_end)
        store_tile_output(f, f->tile);
    else
        store_tile_state(f, f->tile);
}

/* The tile whose next keys come first; NULL where no tile has any. */
static forward_head *first_in_line(forward_head *tiles, int32_t count)
{
    forward_head *first = NULL;
    int64_t first_row = 0;
    for (int32_t i = 0; i < count; ++i) {
        if (!forward_has_keys(&tiles[i]))
            continue;
        int64_t const row = forward_next(&tiles[i]).row;
        if (first == NULL || row < first_row) {
            first = &tiles[i];
            first_row = row;
        }
    }
    return first;
}

/* All keys of tiles that were begun. Each takes its own in its own order; what several take at the
   same time is packed once. */
static void forward_tiles(forward_head *tiles, int32_t count)
{
    for (forward_head *first; (first = first_in_line(tiles, count)) != NULL;) {
        packed_keys packed = forward_next(first);
        for (int32_t i = 0; i < count; ++i) {
            if (!forward_has_keys(&tiles[i]))
                continue;
            packed_keys const next = forward_next(&tiles[i]);
            if (!same_keys(&next, &packed))
                continue;
            forward_step_keys(&tiles[i], &packed);
            poll_sometimes(tiles[0].kernel, &tiles[0].ticks);
        }
    }
    for (int32_t i = 0; i < count; ++i)
        forward_tile_end(&tiles[i]);
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
        store_row_output(f, row, values, top, sum);
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
    f->delta = NULL;
    if (step->last && step->delta != NULL) {
        f->delta = step->delta + batch * step->lse_batch_stride + head * rows;
        f->dout = view_head(&step->dout, batch, head);
    }
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

/* Tiles of one thread that go side by side. */
typedef struct forward_file {
    forward_head tiles[RA_TILES_AT_ONCE_MAX];
    int32_t most, count;
    forward_head rows; /* of the head at hand: for rows outside of tiles */
} forward_file;

static void flush_tiles(forward_file *file)
{
    forward_tiles(file->tiles, file->count);
    file->count = 0;
}

static bool start_together(const forward_head *a, const forward_head *b)
{
    if (!forward_has_keys(a) || !forward_has_keys(b))
        return false;
    packed_keys const a_keys = forward_next(a), b_keys = forward_next(b);
    return same_keys(&a_keys, &b_keys);
}

/* Only tiles that begin with the same keys go together: others have too few in common to pay for
   the cache that they take from each other. */
static void add_tile(forward_file *file, int64_t batch, int32_t head, uint32_t index)
{
    forward_head *tile = &file->tiles[file->count];
    forward_head_begin(tile, batch, head);
    forward_tile_place(tile, index);
    if (file->count > 0 && !start_together(&file->tiles[0], tile)) {
        flush_tiles(file);
        tile = &file->tiles[0];
        forward_head_begin(tile, batch, head);
        forward_tile_place(tile, index);
    }
    tile->state_row = file->rows.state_row;
    forward_tile_load(tile);
    if (++file->count == file->most)
        flush_tiles(file);
}

/* All tiles of a chunk, of those of heads [begin, end) that a layer holds. */
static void add_chunk(forward_file *file, int64_t batch, int32_t begin, int32_t end, int32_t chunk)
{
    const ra_forward_step *step = file->rows.step;
    for (int32_t i = 0; i < step->map->layer_count; ++i) {
        const ra_tile_layer *layer = &step->map->layers[i];
        for (uint32_t t = layer->chunk_tile[chunk]; t < layer->chunk_tile[chunk + 1]; ++t) {
            for (int32_t head = begin; head < end; ++head) {
                if (ra_heads_contain(layer->heads, step->shape.q_head_begin + head))
                    add_tile(file, batch, head, t);
            }
        }
    }
}

typedef struct row_span {
    int64_t begin, end;
} row_span;

static row_span chunk_rows_of(const ra_tilemap *map, int32_t chunk)
{
    int64_t const begin = (int64_t)chunk * map->chunk_rows, end = begin + map->chunk_rows;
    return (row_span){begin, end < map->q_rows ? end : map->q_rows};
}

/* Rows that no tile reaches; tiles overwrite theirs. */
static void begin_missed_rows(forward_file *file, int64_t batch, int32_t head, int32_t chunk)
{
    const ra_forward_step *step = file->rows.step;
    row_span const rows = chunk_rows_of(step->map, chunk);
    int64_t const reached = chunk_tile_rows(step->map, step->shape.q_head_begin + head, chunk);
    if (reached == rows.end - rows.begin)
        return;
    forward_head_begin(&file->rows, batch, head);
    if (step->first && file->rows.acc != NULL)
        begin_state_rows(&file->rows, rows.begin, rows.end);
    if (step->last)
        store_rows_output(&file->rows, rows.begin, rows.end);
}

/* A chunk of one head whose tiles share rows: each takes up the state that the one before left. */
static void forward_shared_chunk(forward_file *file, int64_t batch, int32_t head, int32_t chunk)
{
    const ra_forward_step *step = file->rows.step;
    row_span const rows = chunk_rows_of(step->map, chunk);
    forward_head_begin(&file->rows, batch, head);
    if (step->first && step->last)
        file->rows.state_row = rows.begin; /* the state is this thread's, of one chunk at a time */
    if (step->first)
        begin_state_rows(&file->rows, rows.begin, rows.end);
    add_chunk(file, batch, head, head + 1, chunk);
    if (step->last)
        store_rows_output(&file->rows, rows.begin, rows.end);
}

/* Heads [head, head_end) of chunks [chunk, chunk_end), or of those of them at the map's ends. */
static void forward_part(forward_file *file, int64_t batch, int32_t head, int32_t head_end,
                         int32_t chunk, int32_t chunk_end)
{
    const ra_forward_step *step = file->rows.step;
    bool const shared = step->map->shared_rows;
    for (; chunk < chunk_end; ++chunk) {
        if (step->ends_only && chunk != 0 && chunk != step->map->chunk_count - 1)
            continue;
        for (int32_t h = head; h < head_end; ++h) {
            if (shared)
                forward_shared_chunk(file, batch, h, chunk);
            else
                begin_missed_rows(file, batch, h, chunk);
        }
        if (!shared)
            add_chunk(file, batch, head, head_end, chunk);
    }
    flush_tiles(file);
}

static void forward_file_begin(ra_kernel *kernel, const ra_forward_step *step, float *workspace,
                               forward_file *file)
{
    const ra_kernel_shape *shape = &step->shape;
    bool const shared = step->map->shared_rows;
    forward_scratch scratch[RA_TILES_AT_ONCE_MAX];
    forward_head f = {.kernel = kernel,
                      .step = step,
                      .dim = shape->dim,
                      .dim_pad = pad_dim(shape->dim),
                      .factor = (float)((double)shape->scale * LOG2_E),
                      .tiles_begin = step->first && !shared,
                      .tiles_end = step->last && !shared};
    f.pairs_wanted = PAIRS && step->q.dtype == RA_BF16 && step->k.dtype == RA_BF16 &&
                     step->v.dtype == RA_BF16 && f.factor >= FLT_MIN && f.factor <= FLT_MAX;
    forward_scratch_carve(workspace, shape->dim, scratch);
    for (int32_t i = 0; i < RA_TILES_AT_ONCE_MAX; ++i) {
        f.scratch = scratch[i];
        file->tiles[i] = f;
    }
    file->rows = file->tiles[0];
    file->count = 0;
    file->most = shared ? 1 : ra_cpu_tiles_at_once(kernel->cache_bytes, f.dim, f.pairs_wanted);
}

static void forward_thread(ra_kernel *kernel, const ra_forward_step *step, float *workspace)
{
    const ra_kernel_shape *shape = &step->shape;
    forward_file file;
    forward_file_begin(kernel, step, workspace, &file);
    int32_t const group = shape->q_heads / shape->kv_heads, chunks = step->map->chunk_count;
    ra_cpu_tasks const tasks =
        ra_cpu_cut_tasks(shape->batch * shape->kv_heads, group, chunks, file.most, thread_count());
    RA_OMP(omp for schedule(dynamic))
    for (int64_t task = 0; task < tasks.count; ++task) {
        /* Last chunks first: under a causal mask these are the long ones. */
        int64_t const part = tasks.chunk_parts - 1 - task % tasks.chunk_parts;
        int64_t const heads = task / tasks.chunk_parts, lane = heads / tasks.head_parts;
        int32_t const first = (int32_t)(heads % tasks.head_parts) * tasks.heads;
        int32_t const kv_begin = (int32_t)(lane % shape->kv_heads) * group;
        int32_t const chunk = (int32_t)part * tasks.chunks;
        forward_part(&file, lane / shape->kv_heads, kv_begin + first,
                     kv_begin + min_i32(group, first + tasks.heads), chunk,
                     min_i32(chunks, chunk + tasks.chunks));
    }
}

#endif

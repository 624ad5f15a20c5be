/*
 * Forward: online softmax over key blocks.
 *
 * A task is some chunks of queries of some heads that share a key head: see blocking_cpu.h. Their
 * tiles go over the keys side by side. The queries of a tile are packed once as panels [dim][PANEL]
 * times scale * log2(e), so that the exponentials are powers of two (pairs of bf16 as they are:
 * their scores are multiplied). Per key block and panel: scores [key][PANEL], mask if the band
 * cuts, new top, weights, and the block's own sum of weighted values, added to what was there times
 * 2^(old top - new top).
 */
#ifndef RINGATTN_CPU_FORWARD_H
#define RINGATTN_CPU_FORWARD_H

#include "sparse/cpu/forward_panels.h"

/* ---- rows of a tile, into and out of scratch ------------------------------------------------- */

static void begin_tile_state(const forward_head *f)
{
    const forward_scratch *s = &f->scratch;
    int32_t const rows = panel_rows(f->tile->q_count);
    memset(s->acc, 0, sizeof(float) * (size_t)(rows * f->dim_pad));
    for (int32_t a = 0; a < rows; ++a) {
        s->top[a] = -INFINITY;
        s->sum[a] = 0;
    }
}

static void load_tile_state(const forward_head *f)
{
    const ra_tile *tile = f->tile;
    const forward_scratch *s = &f->scratch;
    begin_tile_state(f);
    for (int32_t a = 0; a < tile->q_count; a += LANES) {
        int32_t const rows = ra_hd_min(LANES, tile->q_count - a);
        memset(s->rows, 0, sizeof(float) * (size_t)(LANES * f->dim_pad));
        for (int32_t i = 0; i < rows; ++i) {
            int64_t const row = tile_row(tile, a + i) - f->turn.state_row;
            load_row(RA_F32, f->acc + row * f->dim, f->dim, s->rows + (int64_t)i * f->dim_pad);
            s->top[a + i] = f->top[row];
            s->sum[a + i] = f->sum[row];
        }
        rows_to_panel(s->rows, f->dim_pad, 1.0f, s->acc + panel_offset(a, f->dim_pad));
    }
}

static void store_tile_state(const forward_head *f)
{
    const ra_tile *tile = f->tile;
    const forward_scratch *s = &f->scratch;
    for (int32_t a = 0; a < tile->q_count; a += LANES) {
        int32_t const rows = ra_hd_min(LANES, tile->q_count - a);
        panel_to_rows(s->acc + panel_offset(a, f->dim_pad), f->dim_pad, vec_splat(1.0f), s->rows);
        for (int32_t i = 0; i < rows; ++i) {
            int64_t const row = tile_row(tile, a + i) - f->turn.state_row;
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

/* Store a finished row: out, lse, and delta from the unrounded out, 0 without a key. */
static void store_row_output(const forward_head *f, int64_t row, const float *values, float top,
                             float sum)
{
    store_row(f->out.dtype, values, f->dim, head_row(f->out, row));
    if (f->lse != NULL)
        f->lse[row] = row_lse(top, sum);
    if (f->delta != NULL)
        f->delta[row] = sum == 0 ? 0
                                 : dot_row(RA_F32, values, f->dout.dtype, head_row(f->dout, row),
                                           f->dim, f->scratch.weight);
}

static void store_tile_output(const forward_head *f)
{
    const ra_tile *tile = f->tile;
    const forward_scratch *s = &f->scratch;
    prefetch_tile(f->kernel, f->out, tile, f->dim);
    if (f->delta != NULL)
        prefetch_tile(f->kernel, f->dout, tile, f->dim);
    for (int32_t a = 0; a < tile->q_count; a += LANES) {
        int32_t const rows = ra_hd_min(LANES, tile->q_count - a);
        vec factors = {0};
        for (int32_t i = 0; i < LANES; ++i)
            factors[i] = row_factor(s->sum[a + i]);
        panel_to_rows(s->acc + panel_offset(a, f->dim_pad), f->dim_pad, factors, s->rows);
        for (int32_t i = 0; i < rows; ++i)
            store_row_output(f, tile_row(tile, a + i), s->rows + (int64_t)i * f->dim_pad,
                             s->top[a + i], s->sum[a + i]);
    }
}

/* Place a tile before its first key. */
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
    prefetch_tile(f->kernel, f->q, f->tile, f->dim);
    f->has_floats = false;
    f->has_pairs = f->pairs_wanted && pairs_suit(f->run, f->run_end) && load_query_pairs(f);
    if (f->turn.begins && !f->step->map->shared_rows)
        begin_tile_state(f);
    else
        load_tile_state(f);
}

static void forward_tile_end(const forward_head *f)
{
    if (f->turn.ends && !f->step->map->shared_rows)
        store_tile_output(f);
    else
        store_tile_state(f);
}

/* The tile whose next keys come first; NULL: no tile has any. */
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

/* Go through all keys of the begun tiles. Each takes its keys in its own order; keys that several
   take at the same time are packed once. */
static void forward_tiles(forward_head *tiles, int32_t count)
{
    for (forward_head *first; (first = first_in_line(tiles, count)) != NULL;) {
        packed_keys packed = forward_next(first);
        forward_look_ahead(first, count, &packed);
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

/* ---- chunks ---------------------------------------------------------------------------------- */

static void begin_state_rows(const forward_head *f, int64_t begin, int64_t end)
{
    for (int64_t row = begin - f->turn.state_row; row < end - f->turn.state_row; ++row) {
        memset(f->acc + row * f->dim, 0, sizeof(float) * (size_t)f->dim);
        f->top[row] = -INFINITY;
        f->sum[row] = 0;
    }
}

/* Write the output of rows from their state. */
static void store_state_output(const forward_head *f, int64_t begin, int64_t end)
{
    float *values = f->scratch.rows;
    for (int64_t row = begin; row < end; ++row) {
        int64_t const at = row - f->turn.state_row;
        float const factor = row_factor(f->sum[at]);
        for (int32_t d = 0; d < f->dim; ++d)
            values[d] = f->acc[at * f->dim + d] * factor;
        store_row_output(f, row, values, f->top[at], f->sum[at]);
    }
}

/* Rows without state have no key, and become 0, whose bits are 0 in every dtype. In dilated
   patterns these are most. */
static void store_rows_output(const forward_head *f, int64_t begin, int64_t end)
{
    size_t const bytes = (size_t)f->dim * ra_dtype_bytes(f->out.dtype);
    if (f->acc != NULL) {
        store_state_output(f, begin, end);
        return;
    }
    for (int64_t row = begin; row < end; ++row) {
        memset(head_row(f->out, row), 0, bytes);
        if (f->lse != NULL)
            f->lse[row] = -INFINITY;
        if (f->delta != NULL)
            f->delta[row] = 0;
    }
}

/* How many rows of the chunk tiles of this head reach; a row counts once per tile. */
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
    f->lse = f->delta = f->acc = f->top = f->sum = NULL;
    if (f->turn.ends) {
        f->out = view_head(&step->out, batch, head);
        if (step->lse != NULL)
            f->lse = step->lse + batch * step->lse_batch_stride + head * rows;
        if (step->delta != NULL) {
            f->delta = step->delta + batch * step->lse_batch_stride + head * rows;
            f->dout = view_head(&step->dout, batch, head);
        }
    }
    if (f->turn.carried) {
        int64_t const at = (batch * shape->q_heads + head) * step->state.rows;
        f->acc = step->state.acc + at * f->dim;
        f->top = step->state.top + at;
        f->sum = step->state.sum + at;
    } else if (step->map->shared_rows) { /* of one chunk at a time, this thread's */
        f->acc = f->scratch.chunk_acc;
        f->top = f->scratch.chunk_top;
        f->sum = f->scratch.chunk_sum;
    }
}

#endif

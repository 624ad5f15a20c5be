/*
 * Backward: five products per tile and key block. Lanes are queries in the first three,
 *
 *     s  = k . q        dp = v . dout        p = 2^(s - lse)       ds = p (dp - delta)
 *     dq += ds k
 *
 * and dims in the two that sum over the queries of the tile: dk += ds q, dv += p dout. Panels of q
 * contain the factors scale and log2(e), for s (pairs of bf16 are packed as they are, and their
 * products multiplied). The scale of dq and dk multiplies sums of a tile, as on GPUs: dout times
 * scale may leave float32's range where gradients do not. So ds k and ds q must fit.
 *
 * Threads form teams. A team works on one kv head of one batch at a time, in as many rounds as it
 * has members: in round r member m takes its share of the query chunks against share (m + r) % size
 * of the key rows; balance_cpu.h deals the shares. So one thread at a time writes a row of dq, dk
 * or dv, and for a given number of threads always in the same order.
 */
#ifndef RINGATTN_CPU_BACKWARD_H
#define RINGATTN_CPU_BACKWARD_H

#include "sparse/cpu/backward_panels.h"

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Pack rows of the tile as panels, times `factor`, and in slices; rows without weight become 0.
   Returns whether all are finite. */
static bool load_tile_rows(const backward_head *f, head_view view, float factor,
                           float *restrict panels, float *restrict slices)
{
    const backward_scratch *s = &f->scratch;
    veci check = {0};
    for (int32_t a = 0; a < f->tile->q_count; a += LANES) {
        for (int32_t i = 0; i < LANES; ++i) {
            float *row = s->rows + (int64_t)i * f->dim_pad;
            if (s->lse[a + i] == INFINITY)
                memset(row, 0, sizeof(float) * (size_t)f->dim_pad);
            else
                load_row(view.dtype, head_row(view, tile_row(f->tile, a + i)), f->dim, row);
            check = check_row(check, row, f->dim_pad);
            for (int32_t d = 0; d < f->dim_pad; d += LANES)
                vec_store(slices + slice_offset(a + i, d) + d % PANEL, vec_load(row + d));
        }
        rows_to_panel(s->rows, f->dim_pad, factor, panels + panel_offset(a, f->dim_pad));
    }
    return check_is_finite(check);
}

/* Pack the tile as float32, when the first block that needs it comes. */
static void load_tile_floats(backward_head *f)
{
    const backward_scratch *s = &f->scratch;
    bool const queries = load_tile_rows(f, f->q, f->factor, s->query, s->query_rows);
    bool const douts = load_tile_rows(f, f->dout, 1, s->dout, s->dout_rows);
    f->tile_finite = queries && douts;
    f->has_floats = true;
}

static void load_backward_tile(backward_head *f, const ra_tile *tile)
{
    const backward_scratch *s = &f->scratch;
    int32_t const rows = panel_rows(tile->q_count);
    prefetch_tile(f->kernel, f->q, tile, f->dim);
    prefetch_tile(f->kernel, f->dout, tile, f->dim);
    memset(s->dq, 0, sizeof(float) * (size_t)(rows * f->dim_pad));
    for (int32_t a = 0; a < rows; ++a) {
        int64_t const row = a < tile->q_count ? tile_row(tile, a) : -1;
        bool const dead = row < 0 || f->lse[row] == -INFINITY; /* weight 0, whatever it holds */
        s->lse[a] = dead ? INFINITY : (float)((double)f->lse[row] * LOG2_E);
        s->delta[a] = dead ? 0 : f->delta[row];
    }
    f->tile = tile;
    f->has_floats = f->has_pairs = false;
#ifdef RA_PAIRS
    const ra_run *const runs = f->step->map->runs;
    f->has_pairs = f->pairs_wanted &&
                   pairs_suit(runs + tile[0].run_begin, runs + tile[1].run_begin) &&
                   load_tile_pairs(f, f->q, s->query_pairs, s->query_row_pairs) &&
                   load_tile_pairs(f, f->dout, s->dout_pairs, s->dout_row_pairs);
#endif
}

static void add_tile_dq(const backward_head *f)
{
    const ra_tile *tile = f->tile;
    const backward_scratch *s = &f->scratch;
    vec const scale = vec_splat(f->step->shape.scale);
    prefetch_tile(f->kernel, f->dq, tile, f->dim);
    for (int32_t a = 0; a < tile->q_count; a += LANES) {
        int32_t const rows = ra_hd_min(LANES, tile->q_count - a);
        panel_to_rows(s->dq + panel_offset(a, f->dim_pad), f->dim_pad, scale, s->rows);
        for (int32_t i = 0; i < rows; ++i) {
            if (s->lse[a + i] != INFINITY) /* no weight: no gradient */
                add_row(s->rows + (int64_t)i * f->dim_pad, f->dim,
                        head_row(f->dq, tile_row(tile, a + i)));
        }
    }
}

static void backward_by_floats(const backward_head *f, const ra_run *run, key_block *block)
{
    const backward_scratch *s = &f->scratch;
    int32_t const q_count = f->tile->q_count;
    bool const keys_finite = load_keys(f->k, run, block->begin, block->end, f->dim, s->key);
    bool const values_finite = load_keys(f->v, run, block->begin, block->end, f->dim, s->value);
    block->finite = keys_finite && values_finite;
    for (int32_t k = 0; k < block->end - block->begin; ++k)
        row_to_columns(s->key + (int64_t)k * f->dim_pad, k, f->dim_pad, s->key_columns);
    for (int32_t a0 = 0; a0 < q_count; a0 += PANEL) {
        panel_block const panel = panel_of(block, a0, q_count);
        if (panel.count <= 0)
            continue;
        if (panel.rows > LANES)
            backward_panel(2, f, block, &panel);
        else
            backward_panel(1, f, block, &panel);
    }
    fold_block(f, run, block,
               &(fold_sum){s->dscore, s->query_rows, f->step->shape.scale, f->dk, f->k});
    fold_block(f, run, block, &(fold_sum){s->weight, s->dout_rows, 1, f->dv, f->v});
}

static void backward_block(backward_head *f, const ra_run *run, key_block *block)
{
    bool done = false;
#ifdef RA_PAIRS
    done = f->has_pairs && run->k_count >= PAIR_RUN_MIN && backward_by_pairs(f, run, block);
#endif
    if (!done) {
        if (!f->has_floats)
            load_tile_floats(f);
        backward_by_floats(f, run, block);
    }
    poll_sometimes(f->kernel, &f->ticks);
}

/* First key of the run, from b on, that lies in the next group of key rows. */
static int32_t group_end(const backward_head *f, const ra_run *run, int32_t b)
{
    int64_t const row = run->k_begin + (int64_t)run->k_stride * b, rows = f->shares.key_rows;
    int64_t const next = (row / rows + 1) * rows - run->k_begin;
    int64_t const end = (next + run->k_stride - 1) / run->k_stride;
    return end < run->k_count ? (int32_t)end : run->k_count;
}

static bool in_share(const backward_head *f, const ra_run *run, int32_t b)
{
    int64_t const row = run->k_begin + (int64_t)run->k_stride * b;
    return ra_cpu_share_of(&f->shares, row / f->shares.key_rows) == f->key_share;
}

static void backward_tile(backward_head *f, const ra_tilemap *map, uint32_t index)
{
    const ra_tile *tile = &map->tiles[index];
    const ra_run *const run_end = map->runs + tile[1].run_begin;
    bool loaded = false; /* packed at the first keys of the share, if there are any */
    for (const ra_run *run = map->runs + tile->run_begin; run < run_end; ++run) {
        ra_run_band const band = ra_run_band_of(run, tile->q_count);
        ra_run_keys const seen = ra_run_band_seen(band, 0, tile->q_count, 0, run->k_count);
        for (int32_t b = seen.begin, end; b < seen.end; b = end) {
            end = seen.end;
            if (f->shares.members > 1)
                end = ra_hd_min(end, group_end(f, run, b));
            if (f->shares.members > 1 && !in_share(f, run, b))
                continue;
            end = b + ra_hd_min(end - b, RA_KEY_BLOCK);
            if (!loaded)
                load_backward_tile(f, tile);
            loaded = true;
            /* Keys of other threads' shares are not left out of what is asked for. */
            run_keys const ahead = keys_after(run, run_end, end, seen.end, tile->q_count);
            key_block block = {
                .begin = b, .end = end, .band = band, .ahead = keys_part(ahead, 0, RA_KEY_BLOCK)};
            backward_block(f, run, &block);
        }
    }
    if (loaded)
        add_tile_dq(f);
}

/* ---- teams ----------------------------------------------------------------------------------- */

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
    f->delta = step->delta + batch * step->lse_batch_stride + head * rows;
}

static void backward_lane(backward_head *f, int64_t lane, int member)
{
    const ra_kernel_shape *shape = &f->step->shape;
    const ra_tilemap *map = f->step->map;
    int32_t const group = shape->q_heads / shape->kv_heads;
    int32_t const kv_head = (int32_t)(lane % shape->kv_heads);
    for (int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        backward_head_begin(f, lane / shape->kv_heads, head, kv_head);
        for (int32_t chunk = 0; chunk < map->chunk_count; ++chunk) {
            if (ra_cpu_share_of(&f->shares, chunk) != member)
                continue;
            if (f->step->ends_only && chunk != 0 && chunk != map->chunk_count - 1)
                continue;
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
                       .dim_pad = padded(shape->dim),
                       .factor = (float)((double)shape->scale * LOG2_E),
                       .shares = ra_cpu_share_backward(step->map, shape->q_head_begin,
                                                       shape->q_head_begin + shape->q_heads, size)};
    f.pairs_wanted = PAIRS && step->q.dtype == RA_BF16 && step->k.dtype == RA_BF16 &&
                     step->v.dtype == RA_BF16 && step->dout.dtype == RA_BF16;
    backward_scratch_carve(workspace, shape->dim, &f.scratch);
    for (int64_t first = 0; first < lanes; first += teams) {
        for (int round = 0; round < size; ++round) {
            f.key_share = (member + round) % size;
            if (first + team < lanes)
                backward_lane(&f, first + team, member);
            if (size > 1) {
                /* The next round's threads write the key rows that this one wrote. */
                RA_OMP(omp barrier)
            }
        }
    }
    pairs_end();
}

#endif

/*
 * Forward over the panels of one tile: queries packed as panels, key blocks packed as they come,
 * scores, mask, new top, weights, and weighted values.
 */
#ifndef RINGATTN_CPU_FORWARD_PANELS_H
#define RINGATTN_CPU_FORWARD_PANELS_H

#include "sparse/cpu/blocking_cpu.h"
#include "sparse/cpu/exp2.h"
#include "sparse/cpu/pairs.h"

#include "sparse/chunk_turn.h"

#include <math.h>

static double const LOG2_E = 1.44269504088896340736;
static double const LN_2 = 0.69314718055994530942;

/* One tile's view of its thread's scratch. */
typedef struct forward_scratch {
    float *query, *acc;                       /* the tile's own: panels */
    void *query_pairs;                        /* the same queries as panels of pairs */
    float *top, *sum;                         /* [tile rows] */
    float *key, *value;                       /* of all tiles: [KEY_BLOCK_ROWS][dim_pad] */
    float *weight;                            /* [KEY_BLOCK_ROWS][PANEL] */
    float *rows;                              /* [LANES][dim_pad] */
    float *chunk_acc, *chunk_top, *chunk_sum; /* state of a chunk whose rows are shared */
} forward_scratch;

/* Which keys lie packed in a thread's scratch, in which form, and what is asked for meanwhile. */
typedef struct packed_keys {
    int64_t row;           /* the first one */
    int32_t stride, count; /* of rows */
    bool floats, pairs;    /* packed as; at most one */
    bool unfit;            /* for pairs */
    bool finite;           /* where floats */
    run_keys ahead;        /* what comes after them, yet to be asked for, */
    int32_t ahead_count;   /* so many keys with each panel */
} packed_keys;

/* One tile of one head of one batch, on its way over its keys. */
typedef struct forward_head {
    ra_kernel *kernel;
    const ra_forward_step *step;
    forward_scratch scratch;
    int32_t dim, dim_pad;
    uint32_t ticks;
    float factor;               /* of scores: scale * log2(e) */
    bool pairs_wanted;          /* bf16, in a table that takes pairs */
    const ra_tile *tile;        /* the one at hand, and */
    bool has_floats, has_pairs; /* the panels that hold its queries */
    ra_chunk_turn turn;         /* of its chunk */
    head_view q, k, v, out, dout;
    float *lse, *delta;          /* [q_rows] or NULL */
    float *acc, *top, *sum;      /* state of rows turn.state_row and on; NULL: there is none */
    const ra_run *run, *run_end; /* the run at hand, and the end of the tile's */
    ra_run_band band;            /* of that run */
    ra_run_keys left;            /* keys of it that are still to come; empty: no key is left */
} forward_head;

static void scratch_take_tile(scratch_cursor *cursor, int64_t dim_pad, forward_scratch *scratch)
{
    scratch->query = scratch_take(cursor, RA_TILE_ROWS_MAX * dim_pad);
    scratch->query_pairs = scratch_take(cursor, PAIRS * RA_TILE_ROWS_MAX * dim_pad);
    scratch->acc = scratch_take(cursor, RA_TILE_ROWS_MAX * dim_pad);
    scratch->top = scratch_take(cursor, RA_TILE_ROWS_MAX);
    scratch->sum = scratch_take(cursor, RA_TILE_ROWS_MAX);
}

/* The first tile's scratch, and room for the others. If a chunk keeps a state, there is one tile,
   and the state lies in that room. */
static size_t forward_scratch_carve(float *base, int32_t dim,
                                    forward_scratch scratch[RA_TILES_AT_ONCE_MAX])
{
    scratch_cursor cursor = {.base = base};
    int64_t const dim_pad = padded(dim);
    forward_scratch first = {0};
    first.key = scratch_take(&cursor, KEY_BLOCK_ROWS * dim_pad);
    first.value = scratch_take(&cursor, KEY_BLOCK_ROWS * dim_pad);
    first.weight = scratch_take(&cursor, KEY_BLOCK_ROWS * PANEL);
    first.rows = scratch_take(&cursor, LANES * dim_pad);
    scratch_take_tile(&cursor, dim_pad, &first);
    scratch_cursor chunk = cursor;
    first.chunk_acc = scratch_take(&chunk, (int64_t)RA_SHARED_CHUNK_ROWS_MAX * dim);
    first.chunk_top = scratch_take(&chunk, RA_SHARED_CHUNK_ROWS_MAX);
    first.chunk_sum = scratch_take(&chunk, RA_SHARED_CHUNK_ROWS_MAX);
    scratch[0] = first;
    for (int32_t i = 1; i < RA_TILES_AT_ONCE_MAX; ++i) {
        scratch[i] = first;
        scratch_take_tile(&cursor, dim_pad, &scratch[i]);
    }
    return chunk.used > cursor.used ? chunk.used : cursor.used;
}

/* Pack queries as float32 panels, when the first block that needs them comes. */
static void load_query_floats(forward_head *f)
{
    const forward_scratch *s = &f->scratch;
    const ra_tile *tile = f->tile;
    for (int32_t a = 0; a < tile->q_count; a += LANES) {
        int32_t const rows = ra_hd_min(LANES, tile->q_count - a);
        memset(s->rows, 0, sizeof(float) * (size_t)(LANES * f->dim_pad));
        for (int32_t i = 0; i < rows; ++i)
            load_row(f->q.dtype, head_row(f->q, tile_row(tile, a + i)), f->dim,
                     s->rows + (int64_t)i * f->dim_pad);
        rows_to_panel(s->rows, f->dim_pad, f->factor, s->query + panel_offset(a, f->dim_pad));
    }
    f->has_floats = true;
}

/* Lane by lane, over n rows of a panel, as four independent maxima: one would wait for itself. */
RA_INLINE vec greatest_score(int32_t n, const float *column)
{
    vec most[4] = {vec_splat(-INFINITY), vec_splat(-INFINITY), vec_splat(-INFINITY),
                   vec_splat(-INFINITY)};
    int32_t k = 0;
    for (; k + 4 <= n; k += 4) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
            most[i] = vec_max(most[i], vec_load(column + (int64_t)(k + i) * PANEL));
    }
    for (; k < n; ++k)
        most[0] = vec_max(most[0], vec_load(column + (int64_t)k * PANEL));
    return vec_max(vec_max(most[0], most[1]), vec_max(most[2], most[3]));
}

/* Scores become weights 2^(score - top); *alpha rescales the sums so far to the new top. */
RA_INLINE void soften_panel(int vecs, int32_t n, float *restrict weight, float *restrict top,
                            float *restrict sum, vec *alpha)
{
    for (int v = 0; v < vecs; ++v) {
        float *column = weight + v * LANES;
        vec const old_top = vec_load(top + v * LANES);
        vec const new_top = vec_max(old_top, greatest_score(n, column));
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

/* Ask for some of the keys that come next. */
RA_INLINE void prefetch_ahead(const forward_head *f, packed_keys *packed)
{
    run_keys const some = keys_part(packed->ahead, 0, packed->ahead_count);
    prefetch_keys(f->kernel, f->k, some, 0, f->dim);
    prefetch_keys(f->kernel, f->v, some, 0, f->dim);
    packed->ahead.begin = some.end;
}

RA_INLINE void forward_panel(int vecs, const forward_head *f, const key_block *block,
                             const panel_block *panel)
{
    const forward_scratch *s = &f->scratch;
    int32_t const from = panel->from, n = panel->count;
    const float *value = s->value + column_offset(from, 0);
    int64_t const at = panel_offset(panel->a0, f->dim_pad);
    vec alpha[PRODUCT_VECS] = {0};
    score_panel(vecs, n, f->dim, s->key + (int64_t)from * f->dim_pad, s->query + at, s->weight);
    if (panel->masked)
        mask_panel(vecs, panel, block->band, -INFINITY, s->weight);
    soften_panel(vecs, n, s->weight, s->top + panel->a0, s->sum + panel->a0, alpha);
    if (panel->masked && !block->finite)
        weigh_panel_live(panel, block->band, f->dim, value, s->weight, alpha, s->acc + at);
    else
        weigh_panel(vecs, n, f->dim, value, s->weight, alpha, s->acc + at);
}

static void forward_block(const forward_head *f, const key_block *block, packed_keys *packed)
{
    int32_t const q_count = f->tile->q_count;
    for (int32_t a0 = 0; a0 < q_count; a0 += PANEL) {
        panel_block const panel = panel_of(block, a0, q_count);
        if (panel.count <= 0)
            continue;
        prefetch_ahead(f, packed);
        if (panel.rows > LANES)
            forward_panel(2, f, block, &panel);
        else
            forward_panel(1, f, block, &panel);
    }
}

#ifdef RA_PAIRS
/* Pack queries as panels of pairs; false: a value does not fit pairs. */
static bool load_query_pairs(forward_head *f)
{
    const forward_scratch *s = &f->scratch;
    int32_t const pitch = pair_pitch(f->dim);
    pair_mem *rows = (pair_mem *)s->rows;
    pair_check check = pair_check_begin();
    for (int32_t a = 0; a < pair_pad(f->tile->q_count, PAIR_QUERIES); a += LANES) {
        int32_t const count = ra_hd_max(0, ra_hd_min(LANES, f->tile->q_count - a));
        for (int32_t i = 0; i < count; ++i)
            load_pair_row(head_row(f->q, tile_row(f->tile, a + i)), f->dim,
                          rows + (int64_t)i * pitch, &check);
        memset(rows + (int64_t)count * pitch, 0, sizeof(*rows) * (size_t)((LANES - count) * pitch));
        pair_rows_to_panel(rows, pitch, (pair_mem *)s->query_pairs + pair_panel_offset(a, f->dim));
    }
    return pair_check_passes(&check);
}

/*
 * Multiply the scores of lanes with a large top in place, and return what is left to multiply by.
 * Fused with the subtraction of the top, which was rounded, the product leaves the top's own score
 * a weight other than 1, further from it the larger the top: its logarithm is off by up to 2^-25 of
 * it.
 */
RA_INLINE vec multiply_large(int32_t n, float factor, vec top, float *restrict column)
{
    float const large = 16;
    veci const far = (top > large) | (top < -large);
    if (_mm512_movepi32_mask((__m512i)far) == 0)
        return vec_splat(factor);
    vec const one = vec_splat(1.0f), now = vec_select(far, vec_splat(factor), one);
    for (int32_t k = 0; k < n; ++k) {
        float *const at = column + (int64_t)k * PANEL;
        vec_store(at, vec_load(at) * now);
    }
    return vec_select(far, one, vec_splat(factor));
}

/* As soften_panel, for scores yet to be multiplied by `factor`; pairs of weights replace the
   scores. */
RA_INLINE void soften_pairs(int vecs, int32_t n, float factor, float *restrict weight,
                            float *restrict top, float *restrict sum, vec *alpha)
{
    for (int v = 0; v < vecs; ++v) {
        float *column = weight + v * LANES;
        vec const old_top = vec_load(top + v * LANES);
        vec const new_top = vec_max(old_top, greatest_score(n, column) * factor);
        vec const base = vec_select(new_top == -INFINITY, (vec){0}, new_top);
        vec const rest = multiply_large(n, factor, base, column);
        vec sums[2] = {0};
        for (int32_t k = 0; k < n; k += 2) {
            vec const even = vec_load(column + (int64_t)k * PANEL);
            vec const odd = vec_load(column + (int64_t)(k + 1) * PANEL);
            vec const p = vec_exp2_short(even * rest - base);
            vec const q = vec_exp2_short(odd * rest - base);
            vecu_store(column + (int64_t)(k / 2) * PANEL, vec_pair(p, q));
            sums[0] += p;
            sums[1] += q;
        }
        alpha[v] = vec_exp2(old_top - base);
        vec_store(top + v * LANES, new_top);
        vec_store(sum + v * LANES, vec_load(sum + v * LANES) * alpha[v] + (sums[0] + sums[1]));
    }
}

RA_INLINE void forward_panel_pairs(int vecs, const forward_head *f, const key_block *block,
                                   const panel_block *panel)
{
    const forward_scratch *s = &f->scratch;
    int32_t const from = panel->from, n = panel->count;
    const pair_mem *query = (const pair_mem *)s->query_pairs + pair_panel_offset(panel->a0, f->dim);
    const pair_mem *key = (const pair_mem *)s->key + (int64_t)from * pair_pitch(f->dim);
    const pair_mem *value = (const pair_mem *)s->value + pair_rows_offset(from, f->dim_pad);
    vec alpha[PRODUCT_VECS] = {0};
    score_pairs(vecs, n, f->dim, key, query, s->weight);
    if (panel->masked)
        mask_pairs(vecs, panel, block, -INFINITY, s->weight);
    soften_pairs(vecs, n, f->factor, s->weight, s->top + panel->a0, s->sum + panel->a0, alpha);
    weigh_pairs(vecs, n / 2, f->dim, value, (const pair_mem *)s->weight, alpha,
                s->acc + panel_offset(panel->a0, f->dim_pad));
}

static void forward_block_pairs(const forward_head *f, const key_block *block, packed_keys *packed)
{
    int32_t const q_count = f->tile->q_count;
    pairs_begin();
    for (int32_t a0 = 0; a0 < q_count; a0 += PANEL) {
        panel_block const panel = panel_of_pairs(block, a0, q_count);
        if (panel.count <= 0)
            continue;
        prefetch_ahead(f, packed);
        if (pair_pad(panel.rows, PAIR_QUERIES) > LANES)
            forward_panel_pairs(2, f, block, &panel);
        else
            forward_panel_pairs(1, f, block, &panel);
    }
}

/* Pack keys [begin, end) of a run as pairs; false: a value does not fit pairs. */
static bool pack_pairs(const forward_head *f, int32_t begin, int32_t end)
{
    const forward_scratch *s = &f->scratch;
    return load_key_rows(f->k, f->run, begin, end, f->dim, (pair_mem *)s->key) &&
           load_key_pairs(f->v, f->run, begin, end, f->dim, (pair_mem *)s->value);
}
#else
static bool load_query_pairs(const forward_head *f)
{
    (void)f;
    return false;
}

static void forward_block_pairs(const forward_head *f, const key_block *block, packed_keys *packed)
{
    (void)f, (void)block, (void)packed;
}

static bool pack_pairs(const forward_head *f, int32_t begin, int32_t end)
{
    (void)f, (void)begin, (void)end;
    return false;
}
#endif

/* ---- key blocks of a tile, one after the other ----------------------------------------------- */

/* The next run with a key that some query sees, from f->run on. */
static void forward_seek(forward_head *f)
{
    int32_t const q_count = f->tile->q_count;
    for (; f->run < f->run_end; ++f->run) {
        f->band = ra_run_band_of(f->run, q_count);
        f->left = ra_run_band_seen(f->band, 0, q_count, 0, f->run->k_count);
        if (f->left.begin < f->left.end)
            return;
    }
    f->left = (ra_run_keys){0, 0};
}

static bool forward_has_keys(const forward_head *f)
{
    return f->left.begin < f->left.end;
}

/* The keys that come next: long runs are cut where other tiles cut them too. */
static packed_keys forward_next(const forward_head *f)
{
    const ra_run *run = f->run;
    int64_t const row = run->k_begin + (int64_t)run->k_stride * f->left.begin;
    int32_t count = RA_KEY_BLOCK;
    if (run->k_count > 2 * RA_KEY_BLOCK)
        count -= (int32_t)(row / run->k_stride % RA_KEY_BLOCK);
    count = ra_hd_min(count, f->left.end - f->left.begin);
    return (packed_keys){.row = row, .stride = run->k_stride, .count = count};
}

/*
 * What to ask for while the keys at hand are computed: what comes next, a share with each panel, as
 * if all `count` tiles took these keys; what is not reached is not asked for. Not within a long
 * run, where it gave little on one processor and took more on another (docs/performance.md).
 */
static void forward_look_ahead(const forward_head *f, int32_t count, packed_keys *packed)
{
    enum { LONG_RUN = 16 * RA_KEY_BLOCK };
    int32_t const panels = (int32_t)ra_div_ceil(f->tile->q_count, PANEL) * count;
    run_keys const next = keys_after(f->run, f->run_end, f->left.begin + packed->count, f->left.end,
                                     f->tile->q_count);
    if (next.run == NULL || (next.run == f->run && next.run->k_count > LONG_RUN))
        return;
    packed->ahead = keys_part(next, 0, RA_KEY_BLOCK);
    packed->ahead_count = (int32_t)ra_div_ceil(packed->ahead.end - packed->ahead.begin, panels);
}

static bool same_keys(const packed_keys *a, const packed_keys *b)
{
    return a->row == b->row && a->stride == b->stride && a->count == b->count;
}

/* Pack the next keys in the form that the tile needs, unless they are so packed already. */
static void pack_keys(forward_head *f, packed_keys *packed)
{
    const forward_scratch *s = &f->scratch;
    int32_t const begin = f->left.begin, end = begin + packed->count;
    if (f->has_pairs && !packed->unfit && f->run->k_count >= PAIR_RUN_MIN) {
        if (packed->pairs)
            return;
        packed->floats = false;
        packed->pairs = pack_pairs(f, begin, end);
        packed->unfit = !packed->pairs;
        if (packed->pairs)
            return;
    }
    if (!f->has_floats)
        load_query_floats(f);
    if (packed->floats)
        return;
    packed->pairs = false;
    packed->floats = true;
    (void)load_keys(f->k, f->run, begin, end, f->dim, s->key);
    packed->finite = load_key_columns(f->v, f->run, begin, end, f->dim, s->rows, s->value);
}

/* Compute the tile's next keys, given by `packed`. */
static void forward_step_keys(forward_head *f, packed_keys *packed)
{
    pack_keys(f, packed);
    key_block const block = {.begin = f->left.begin,
                             .end = f->left.begin + packed->count,
                             .band = f->band,
                             .finite = packed->finite};
    if (packed->pairs)
        forward_block_pairs(f, &block, packed);
    else
        forward_block(f, &block, packed);
    f->left.begin = block.end;
    if (!forward_has_keys(f)) {
        ++f->run;
        forward_seek(f);
    }
}

#endif

/*
 * Enumerating a pattern: segments of a branch, documents, rows of blocks and runs of key blocks are
 * intervals; a query interval and a key interval share at most three bands (the window, and the
 * sinks before and after it). Each is one slice at the branch's stride.
 */
#include "internal.h"
#include "sparse/sparse_internal.h"

typedef struct interval {
    int64_t begin, end;
} interval;

/* Live if lo <= j - i <= hi, in tokens. */
typedef struct token_band {
    int64_t lo, hi;
} token_band;

typedef struct visit_state {
    const ra_pattern *pattern;
    const ra_layer *layer;
    ra_slice_visitor *visit;
    void *context;
} visit_state;

static interval meet(interval a, interval b)
{
    return (interval){ra_max_i64(a.begin, b.begin), ra_min_i64(a.end, b.end)};
}

/* The rows `origin` + stride * x of an interval; most strides are 1, and need no division. */
static ra_range rows_of(interval rows, int64_t origin, int64_t stride)
{
    if (stride == 1)
        return (ra_range){rows.begin, 1, ra_max_i64(0, rows.end - rows.begin)};
    int64_t const begin = origin + ra_div_ceil(rows.begin - origin, stride) * stride;
    return (ra_range){begin, stride, rows.end > begin ? (rows.end - begin - 1) / stride + 1 : 0};
}

static ra_status emit(const visit_state *state, interval queries, interval keys, int64_t origin,
                      token_band band)
{
    int64_t const stride = state->layer->stride;
    ra_range const q = rows_of(queries, origin, stride), k = rows_of(keys, origin, stride);
    int64_t const offset = k.begin - q.begin;
    ra_slice slice = {q.begin, q.count, k.begin, k.count, stride, RA_BAND_NONE_LO, RA_BAND_NONE_HI};
    if (band.lo > RA_BAND_NONE_LO)
        slice.lo = ra_div_ceil(band.lo - offset, stride);
    if (band.hi < RA_BAND_NONE_HI)
        slice.hi = ra_div_floor(band.hi - offset, stride);
    return ra_slice_trim(&slice) ? state->visit(state->context, &slice) : RA_OK;
}

/* The bands of one document, for queries and keys within it. */
static ra_status visit_bands(const visit_state *state, interval queries, interval keys,
                             int64_t document_begin, int64_t origin)
{
    const ra_pattern_config *c = &state->pattern->config;
    bool const left = c->window_left >= 0, right = c->window_right >= 0;
    token_band const window = {left ? -c->window_left : RA_BAND_NONE_LO,
                               c->causal ? 0 : (right ? c->window_right : RA_BAND_NONE_HI)};
    ra_status status = emit(state, queries, keys, origin, window);
    if (c->sinks == 0 || status != RA_OK)
        return status;
    /* Sinks that the window hides: before it, and (never under causality) after it. */
    interval const sinks = meet(keys, (interval){0, document_begin + c->sinks});
    if (left && sinks.begin < sinks.end)
        status =
            emit(state, queries, sinks, origin, (token_band){RA_BAND_NONE_LO, -c->window_left - 1});
    if (right && !c->causal && sinks.begin < sinks.end && status == RA_OK)
        status =
            emit(state, queries, sinks, origin, (token_band){c->window_right + 1, RA_BAND_NONE_HI});
    return status;
}

/* Tokens outside of which queries see no key, whatever the blocks. */
static interval reach_of(const ra_pattern_config *c, interval queries, int64_t document_begin)
{
    interval reach = {0, INT64_MAX};
    if (c->window_left >= 0 && c->sinks == 0)
        reach.begin = queries.begin - c->window_left;
    if (c->causal)
        reach.end = queries.end;
    else if (c->window_right >= 0)
        reach.end = ra_max_i64(queries.end + c->window_right, document_begin + c->sinks);
    return reach;
}

static ra_status visit_blocks(const visit_state *state, interval queries, interval keys,
                              int64_t document_begin, int64_t origin)
{
    const ra_pattern *p = state->pattern;
    int64_t const size = p->config.block_size;
    if (p->config.blocks_kind == RA_BLOCKS_NONE)
        return visit_bands(state, queries, keys, document_begin, origin);
    for (int64_t bi = queries.begin / size; bi * size < queries.end; ++bi) {
        interval const rows = meet(queries, (interval){bi * size, (bi + 1) * size});
        interval const near = meet(keys, reach_of(&p->config, rows, document_begin));
        int64_t cursor = ra_block_run_from(p, bi, near.begin / size);
        ra_block_run run;
        while (ra_block_run_next(p, bi, &cursor, &run) && run.begin * size < near.end) {
            interval const columns =
                meet(near, (interval){run.begin * size, ((int64_t)run.begin + run.count) * size});
            if (columns.begin >= columns.end)
                continue;
            ra_status const status = visit_bands(state, rows, columns, document_begin, origin);
            if (status != RA_OK)
                return status;
        }
    }
    return RA_OK;
}

/* The document that holds row i. */
static int64_t document_at(const ra_pattern *p, int64_t i)
{
    int64_t low = 0, high = p->document_count;
    while (high - low > 1) {
        int64_t const middle = low + (high - low) / 2;
        if (p->document_starts[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Queries of one segment against the keys of that segment, document by document. */
static ra_status visit_segment(const visit_state *state, interval queries, interval segment)
{
    const ra_pattern *p = state->pattern;
    int64_t const origin = segment.begin + state->layer->offset;
    for (int64_t d = document_at(p, queries.begin);
         d < p->document_count && p->document_starts[d] < queries.end; ++d) {
        interval const document = {p->document_starts[d], p->document_starts[d + 1]};
        interval const rows = meet(queries, document);
        if (rows.begin >= rows.end)
            continue;
        ra_status const status =
            visit_blocks(state, rows, meet(segment, document), document.begin, origin);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

ra_status ra_pattern_visit(const ra_pattern *pattern, int32_t layer, int64_t q_begin,
                           int64_t q_count, ra_slice_visitor *visit, void *context)
{
    RA_ASSERT(layer >= 0 && layer < pattern->layer_count);
    visit_state const state = {pattern, &pattern->layers[layer], visit, context};
    int64_t const length = state.layer->segment;
    interval const queries =
        meet((interval){q_begin, q_begin + q_count}, (interval){0, pattern->seq});
    for (int64_t at = queries.begin; at < queries.end;) {
        int64_t const begin = at / length * length;
        interval const segment = {begin, ra_min_i64(begin + length, pattern->seq)};
        ra_status const status = visit_segment(&state, meet(queries, segment), segment);
        if (status != RA_OK)
            return status;
        at = segment.end;
    }
    return RA_OK;
}

typedef struct area_state {
    ra_range queries;
    int64_t area;
} area_state;

static ra_status add_area(void *context, const ra_slice *slice)
{
    area_state *state = context;
    state->area +=
        state->queries.stride == 1 ? ra_slice_area(slice) : ra_slice_area_of(slice, state->queries);
    return RA_OK;
}

int64_t ra_pattern_area(const ra_pattern *pattern, ra_range queries)
{
    int64_t total = 0;
    for (int32_t i = 0; i < pattern->layer_count && queries.count > 0; ++i) {
        area_state state = {queries, 0};
        ra_status const status =
            ra_pattern_visit(pattern, i, queries.begin, ra_range_span(queries), add_area, &state);
        RA_ASSERT(status == RA_OK); /* add_area has no way to fail */
        total += state.area * pattern->layers[i].heads.count;
    }
    return total;
}

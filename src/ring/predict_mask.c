/*
 * What a block mask would take, and the strips of a tile map made from it. Equal consecutive blocks
 * are counted as one span, so a long row of them costs no more than a short one.
 */
#include "internal.h"
#include "ring/predict_strips.h"
#include "ringattn/block_mask.h"

#include <math.h>
#include <stdlib.h>

/* From this block of keys on, so many more live pairs per block. */
struct ra_block_event {
    int64_t block, area;
};

int64_t ra_predict_mask_bytes(int32_t layers, int64_t q_rows, int64_t k_rows)
{
    double const most = 1e15; /* exceeds any memory, yet can be added up over all steps */
    double const q = (double)ra_div_ceil(q_rows, RA_MASK_BLOCK);
    double const k = (double)ra_div_ceil(k_rows, RA_MASK_BLOCK);
    double const numbers = 4 * q * k + 2 * (q + k); /* full and partial, in both directions */
    double const each = (double)sizeof(ra_block_mask_layer) + sizeof(int32_t) * numbers;
    return (int64_t)fmin(most, layers * each);
}

double ra_predict_mask_looks(const ra_predict_job *job)
{
    int64_t widest = 1;
    for (int32_t i = 0; i < ra_pattern_layer_count(job->pattern); ++i)
        widest = ra_max_i64(widest, ra_pattern_layer_stride(job->pattern, i));
    return (double)ra_div_ceil(widest * job->request->tile_rows, RA_MASK_BLOCK);
}

/* ---- how much of each block of keys is live -------------------------------------------------- */

/* A strip's keys in blocks [begin, end); false: none of them is live. */
static bool cut_keys(const ra_strip *s, int64_t begin, int64_t end, ra_strip *out)
{
    int64_t const first =
        ra_max_i64(0, ra_div_ceil(begin * RA_MASK_BLOCK - s->k_begin, s->k_stride));
    int64_t const last =
        ra_min_i64(s->k_count - 1, ra_div_floor(end * RA_MASK_BLOCK - 1 - s->k_begin, s->k_stride));
    if (first > last)
        return false;
    *out = *s;
    out->k_begin += first * s->k_stride;
    out->k_count = last - first + 1;
    out->keys.begin += first * s->keys.stride;
    out->keys.count = out->k_count;
    ra_band_shift(-first, &out->lo, &out->hi);
    return ra_strip_area(out) > 0;
}

static ra_status add_events(ra_strip_mapper *m, int64_t begin, int64_t end, int64_t area)
{
    ra_block_event const events[2] = {{begin, area}, {end, -area}};
    ra_status status = RA_OK;
    for (int i = 0; i < 2 && status == RA_OK; ++i)
        status = ra_predict_push(&m->events, &m->event_count, &m->event_room, &events[i],
                                 sizeof(events[i]));
    return status;
}

/*
 * Blocks [*begin, *end) in which all queries of a strip see all its keys, if the stride divides a
 * block, so that each has equally many, or if their number does not matter. The last block, which
 * may be short, is left out.
 */
static void find_whole(const ra_strip_mapper *m, const ra_strip *s, int64_t *begin, int64_t *end)
{
    bool const below = s->lo > RA_BAND_NONE_LO, above = s->hi < RA_BAND_NONE_HI;
    int64_t const first = below ? ra_max_i64(0, s->lo + s->count - 1) : 0;
    int64_t const last = above ? ra_min_i64(s->k_count - 1, s->hi) : s->k_count - 1;
    bool const even = RA_MASK_BLOCK % s->k_stride == 0;
    *begin = *end = 0;
    if (first > last || s->k_stride > RA_MASK_BLOCK || (!even && !m->none_full))
        return;
    int64_t const first_key = s->k_begin + s->k_stride * first;
    int64_t const last_key = s->k_begin + s->k_stride * last;
    *begin = ra_div_floor(first_key - s->k_stride, RA_MASK_BLOCK) + 1;
    *end = ra_min_i64((last_key + s->k_stride) / RA_MASK_BLOCK, m->keys->row_count / RA_MASK_BLOCK);
}

/* The block of a strip's first key behind a block. */
static int64_t block_behind(const ra_strip *s, int64_t block)
{
    int64_t const index =
        ra_max_i64(0, ra_div_ceil((block + 1) * RA_MASK_BLOCK - s->k_begin, s->k_stride));
    return (s->k_begin + index * s->k_stride) / RA_MASK_BLOCK;
}

static ra_status add_strip(ra_strip_mapper *m, const ra_strip *s)
{
    int64_t first, keys = s->k_count, lo = s->lo, hi = s->hi, begin, end;
    if (!ra_band_cut(0, s->count, &first, &keys, &lo, &hi))
        return RA_OK;
    int64_t const last_block = (s->k_begin + s->k_stride * (first + keys - 1)) / RA_MASK_BLOCK;
    int64_t block = (s->k_begin + s->k_stride * first) / RA_MASK_BLOCK;
    ra_status status = RA_OK;
    find_whole(m, s, &begin, &end);
    if (begin < end)
        status = add_events(m, begin, end, s->count * (RA_MASK_BLOCK / s->k_stride));
    while (block <= last_block && status == RA_OK) {
        ra_strip part;
        if (begin <= block && block < end)
            block = end - 1;
        else if (cut_keys(s, block, block + 1, &part))
            status = add_events(m, block, block + 1, ra_strip_area(&part));
        block = block_behind(s, block);
    }
    return status;
}

/* Whether no block can be full even if all strips meet in it, as in a dilated pattern. */
static bool cannot_be_full(const ra_strip_mapper *m, int64_t queries)
{
    int64_t most = 0;
    for (int64_t i = 0; i < m->bands.count; ++i)
        most += m->bands.items[i].count * ra_div_ceil(RA_MASK_BLOCK, m->bands.items[i].k_stride);
    return most < queries * RA_MASK_BLOCK;
}

/* Events of one strip are mostly in order. */
static void sort_events(ra_strip_mapper *m)
{
    for (int64_t i = 1; i < m->event_count; ++i)
        if (m->events[i - 1].block > m->events[i].block) {
            qsort(m->events, (size_t)m->event_count, sizeof(*m->events),
                  ra_compare_i64); /* by block, in front */
            return;
        }
}

static ra_status add_span(ra_strip_mapper *m, int64_t begin, int64_t end, bool full)
{
    ra_block_span *last = m->span_count > 0 ? &m->spans[m->span_count - 1] : NULL;
    if (last != NULL && last->end == begin && last->full == full) {
        last->end = end;
        return RA_OK;
    }
    ra_block_span const span = {begin, end, full};
    return ra_predict_push(&m->spans, &m->span_count, &m->span_room, &span, sizeof(span));
}

/* Spans of the blocks that mapper->bands meet, for one block of so many queries. */
static ra_status find_spans(ra_strip_mapper *m, int64_t queries)
{
    ra_status status = RA_OK;
    int64_t area = 0;
    m->event_count = m->span_count = 0;
    m->none_full = cannot_be_full(m, queries);
    for (int64_t i = 0; i < m->bands.count && status == RA_OK; ++i)
        status = add_strip(m, &m->bands.items[i]);
    sort_events(m);
    for (int64_t i = 0; i + 1 < m->event_count && status == RA_OK; ++i) {
        int64_t const begin = m->events[i].block, end = m->events[i + 1].block;
        int64_t const keys = ra_min_i64(RA_MASK_BLOCK, m->keys->row_count - begin * RA_MASK_BLOCK);
        area += m->events[i].area;
        if (begin < end && area > 0)
            status = add_span(m, begin, end, area == queries * keys);
    }
    return status;
}

/* ---- strips of the map ----------------------------------------------------------------------- */

static ra_status push_full(ra_strip_mapper *m, int64_t row, int64_t count)
{
    ra_status status = RA_OK;
    for (int64_t i = 0; i < m->span_count && status == RA_OK; ++i) {
        int64_t const begin = m->spans[i].begin * RA_MASK_BLOCK;
        int64_t const end = ra_min_i64(m->spans[i].end * RA_MASK_BLOCK, m->keys->row_count);
        ra_strip const strip = {.stride = 1,
                                .begin = row,
                                .count = count,
                                .k_begin = begin,
                                .k_stride = 1,
                                .k_count = end - begin,
                                .lo = RA_BAND_NONE_LO,
                                .hi = RA_BAND_NONE_HI,
                                .chance = 1};
        if (m->spans[i].full)
            status = ra_strips_push(&m->strips, &strip);
    }
    return status;
}

/* The first span that does not end before a block. */
static int64_t span_at(const ra_strip_mapper *m, int64_t block)
{
    int64_t low = 0, high = m->span_count;
    while (low < high) {
        int64_t const middle = low + (high - low) / 2;
        if (m->spans[middle].end <= block)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static ra_status push_partial(ra_strip_mapper *m)
{
    ra_status status = RA_OK;
    for (int64_t i = 0; i < m->bands.count; ++i) {
        const ra_strip *band = &m->bands.items[i];
        int64_t const last = (band->k_begin + band->k_stride * (band->k_count - 1)) / RA_MASK_BLOCK;
        for (int64_t at = span_at(m, band->k_begin / RA_MASK_BLOCK);
             at < m->span_count && m->spans[at].begin <= last && status == RA_OK; ++at) {
            ra_strip part;
            if (!m->spans[at].full && cut_keys(band, m->spans[at].begin, m->spans[at].end, &part))
                status = ra_strips_push(&m->strips, &part);
        }
    }
    return status;
}

/* Local queries [begin, end), which lie in one block. */
static ra_status gather_block(ra_strip_mapper *m, int32_t layer, int64_t begin, int64_t end)
{
    int64_t const first = begin / RA_MASK_BLOCK * RA_MASK_BLOCK;
    int64_t const after = ra_min_i64(first + RA_MASK_BLOCK, m->queries->row_count);
    m->bands.count = 0;
    ra_status status = ra_strips_gather(m, layer, first, after, &m->bands);
    if (status == RA_OK)
        status = find_spans(m, after - first);
    if (status == RA_OK)
        status = push_full(m, begin, end - begin);
    if (status == RA_OK && end - begin < after - first) { /* a chunk that ends within it */
        m->bands.count = 0;
        status = ra_strips_gather(m, layer, begin, end, &m->bands);
    }
    return status == RA_OK ? push_partial(m) : status;
}

ra_status ra_strips_gather_masked(ra_strip_mapper *m, int32_t layer, int64_t begin, int64_t end)
{
    ra_status status = RA_OK;
    for (int64_t row = begin, next; row < end && status == RA_OK; row = next) {
        next = ra_min_i64(end, (row / RA_MASK_BLOCK + 1) * RA_MASK_BLOCK);
        status = gather_block(m, layer, row, next);
    }
    return status;
}

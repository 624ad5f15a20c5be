/* Tiles and runs that the strips of a chunk of queries would become. */
#include "internal.h"
#include "ring/predict_strips.h"

#include <math.h>
#include <stdlib.h>

static int compare_strips(const void *x, const void *y)
{
    const ra_strip *a = x, *b = y;
    int64_t const difference = a->stride != b->stride     ? a->stride - b->stride
                               : a->residue != b->residue ? a->residue - b->residue
                               : a->k_begin != b->k_begin ? a->k_begin - b->k_begin
                               : a->begin != b->begin     ? a->begin - b->begin
                                                          : a->k_stride - b->k_stride;
    return (difference > 0) - (difference < 0);
}

/* Blocks that `count` keys of a strip lie in; 1 if nothing is left to chance. */
static int64_t blocks_of(const ra_strip_mapper *m, const ra_strip *s, int64_t first, int64_t count)
{
    int64_t const size = m->job->request->pattern->block_size;
    if (s->chance >= 1)
        return 1;
    int64_t const begin = s->keys.begin + s->keys.stride * first;
    int64_t const last = begin + s->keys.stride * (count - 1);
    return ra_min_i64(count, last / size - begin / size + 1);
}

/* Count runs of `count` queries from x = at on, of the strips that have them. Adjacent full runs
   are one; `end`: the end of the last full run, -1 after any other. */
static void count_tile(ra_strip_mapper *m, const ra_strip *group, int64_t at, int64_t count)
{
    int64_t end = -1, end_stride = 0;
    double end_chance = 1, runs = 0, none = 1;
    for (int64_t i = 0; i < m->open_count; ++i) {
        const ra_strip *s = &group[m->open[i]];
        int64_t first, keys = s->k_count, lo = s->lo, hi = s->hi;
        if (!ra_band_cut(at - s->begin, count, &first, &keys, &lo, &hi))
            continue;
        bool const full = lo <= -(count - 1) && hi >= keys - 1;
        int64_t const begin = s->k_begin + first * s->k_stride, stride = keys > 1 ? s->k_stride : 1;
        int64_t const blocks = blocks_of(m, s, first, keys);
        m->pairs += s->chance * (double)ra_band_area(count, keys, lo, hi);
        m->run_keys += s->chance * (double)keys;
        none *= s->chance < 1 ? pow(1 - s->chance, (double)blocks) : 0;
        runs += s->chance * (double)blocks - ra_predict_joined_runs(s->chance, m->share, blocks);
        if (full && end == begin && end_stride == stride)
            runs -= s->chance * end_chance >= 1 ? 1 : s->chance * end_chance / m->share;
        end = full ? begin + keys * stride : -1;
        end_stride = stride;
        end_chance = s->chance;
    }
    m->tiles += 1 - none;
    m->runs += runs;
}

static int64_t end_of(const ra_strip *s)
{
    return s->begin + s->count;
}

/* Strips in the order in which they begin; of equals, in the group's order. */
static int compare_begins(const void *x, const void *y)
{
    const ra_strip_begin *a = x, *b = y;
    int const order = ra_compare_i64(&a->at, &b->at);
    return order != 0 ? order : ra_compare_i64(&a->strip, &b->strip);
}

static ra_status make_room(ra_strip_mapper *m, int64_t strips)
{
    ra_status status = RA_OK;
    while (m->begin_room < strips && status == RA_OK)
        status = ra_predict_grow(&m->begins, &m->begin_room, sizeof(*m->begins));
    while (m->open_room < strips && status == RA_OK)
        status = ra_predict_grow(&m->open, &m->open_room, sizeof(*m->open));
    return status;
}

/* Drop the strips that end at x = at, and merge those that begin there, `begun` of them, into the
   open ones, which are in the group's order. */
static void open_at(ra_strip_mapper *m, const ra_strip *group, int64_t at,
                    const ra_strip_begin *begins, int64_t begun)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < m->open_count; ++i)
        if (at < end_of(&group[m->open[i]]))
            m->open[kept++] = m->open[i];
    m->open_count = kept + begun;
    for (int64_t to = m->open_count; begun > 0;) { /* from behind, where there is room */
        bool const old = kept > 0 && m->open[kept - 1] > begins[begun - 1].strip;
        m->open[--to] = old ? m->open[--kept] : begins[--begun].strip;
    }
}

/* Up to where the same strips are open: the next beginning, or the first end. */
static int64_t next_edge(const ra_strip_mapper *m, const ra_strip *group, int64_t next_begin)
{
    int64_t edge = next_begin;
    for (int64_t i = 0; i < m->open_count; ++i)
        edge = ra_min_i64(edge, end_of(&group[m->open[i]]));
    return edge;
}

static ra_status count_group(ra_strip_mapper *m, const ra_strip *group, int64_t group_count)
{
    ra_status const status = make_room(m, group_count);
    if (status != RA_OK)
        return status;
    for (int64_t i = 0; i < group_count; ++i)
        m->begins[i] = (ra_strip_begin){group[i].begin, i};
    qsort(m->begins, (size_t)group_count, sizeof(*m->begins), compare_begins);
    m->open_count = 0;
    for (int64_t next = 0, at = m->begins[0].at, edge; at < INT64_MAX; at = edge) {
        int64_t const first = next;
        while (next < group_count && m->begins[next].at == at)
            ++next;
        open_at(m, group, at, &m->begins[first], next - first);
        edge = next_edge(m, group, next < group_count ? m->begins[next].at : INT64_MAX);
        for (; m->open_count > 0 && at < edge; at += m->tile_rows) {
            ra_predict_beat(m->job); /* a tile may have millions of strips */
            count_tile(m, group, at, ra_min_i64(m->tile_rows, edge - at));
        }
    }
    return RA_OK;
}

ra_status ra_strips_count(ra_strip_mapper *m)
{
    ra_strip *all = m->strips.items;
    int64_t const count = m->strips.count;
    if (count > 0)
        qsort(all, (size_t)count, sizeof(*all), compare_strips);
    for (int64_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && all[end].stride == all[begin].stride &&
                              all[end].residue == all[begin].residue;)
            ++end;
        for (int64_t i = end; i < count && !m->shared; ++i) {
            int64_t const gcd = ra_gcd_i64(all[begin].stride, all[i].stride);
            m->shared = (all[begin].residue - all[i].residue) % gcd == 0;
        }
        ra_status const status = count_group(m, &all[begin], end - begin);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

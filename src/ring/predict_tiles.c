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

/* Count runs of `count` queries from x = at on. Adjacent full runs are one; `end`: the end of the
   last full run, -1 after any other. */
static void count_tile(ra_strip_mapper *m, const ra_strip *group, int64_t group_count, int64_t at,
                       int64_t count)
{
    int64_t end = -1, end_stride = 0;
    double end_chance = 1, runs = 0, none = 1;
    for (int64_t i = 0; i < group_count; ++i) {
        const ra_strip *s = &group[i];
        int64_t const skip = at - s->begin;
        if (skip < 0 || skip >= s->count)
            continue;
        int64_t first, keys = s->k_count, lo = s->lo, hi = s->hi;
        if (!ra_band_cut(skip, count, &first, &keys, &lo, &hi))
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

static ra_status count_group(ra_strip_mapper *m, const ra_strip *group, int64_t group_count)
{
    while (m->edge_room < 2 * group_count) {
        ra_status const status = ra_predict_grow(&m->edges, &m->edge_room, sizeof(int64_t));
        if (status != RA_OK)
            return status;
    }
    for (int64_t i = 0; i < group_count; ++i) {
        m->edges[2 * i] = group[i].begin;
        m->edges[2 * i + 1] = group[i].begin + group[i].count;
    }
    qsort(m->edges, (size_t)(2 * group_count), sizeof(*m->edges), ra_compare_i64);
    for (int64_t i = 0; i + 1 < 2 * group_count; ++i)
        for (int64_t at = m->edges[i]; at < m->edges[i + 1]; at += m->tile_rows) {
            ra_predict_beat(m->job); /* a tile may have millions of strips */
            count_tile(m, group, group_count, at, ra_min_i64(m->tile_rows, m->edges[i + 1] - at));
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
            int64_t const common = ra_lcm_i64(all[begin].stride, all[i].stride);
            int64_t const gcd = all[begin].stride * all[i].stride / common;
            m->shared = (all[begin].residue - all[i].residue) % gcd == 0;
        }
        ra_status const status = count_group(m, &all[begin], end - begin);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

/* Slices of a pattern cut to pieces of queries and keys, in local numbers. */
#include "ring/predict_strips.h"
#include "internal.h"

#include <stdlib.h>

int64_t ra_strip_area(const ra_strip *s)
{
    return ra_band_area(s->count, s->k_count, s->lo, s->hi);
}

/* Queries without a key in the band stay in: tiles are cut at the ends of ranges. */
static bool make(const ra_strip_mapper *m, const ra_slice *s, const ra_row_piece *keys,
                 int64_t phase, ra_strip *out)
{
    ra_range const rows = keys->rows;
    ra_local_slice part;
    if (!ra_slice_restrict_loose(s, m->q_rows, rows, phase, &part))
        return false;
    int64_t const first = m->q_first + part.q_begin;
    *out = (ra_strip){.stride = part.q_stride,
                      .residue = first % part.q_stride,
                      .begin = first / part.q_stride,
                      .count = part.q_count,
                      .k_begin = keys->first + part.k_begin,
                      .k_stride = part.k_stride,
                      .k_count = part.k_count,
                      .lo = part.lo,
                      .hi = part.hi,
                      .keys = {rows.begin + rows.stride * part.k_begin, rows.stride * part.k_stride,
                               part.k_count},
                      .chance = m->chance};
    return ra_strip_area(out) > 0;
}

ra_status ra_strips_push(ra_strip_list *list, const ra_strip *strip)
{
    ra_status const status =
        ra_predict_push(&list->items, &list->count, &list->room, strip, sizeof(*strip));
    list->most = ra_max_i64(list->most, list->count);
    return status;
}

static ra_status gather(void *context, const ra_slice *slice)
{
    ra_strip_mapper *m = context;
    ra_piece_walk walk = ra_rowset_walk(m->keys, ra_slice_keys(slice));
    for (const ra_row_piece *keys; (keys = ra_piece_walk_next(&walk)) != NULL;) {
        int64_t const phases = ra_slice_phases(slice, m->q_rows, keys->rows);
        for (int64_t phase = 0; phase < phases; ++phase) {
            ra_strip strip;
            if (!make(m, slice, keys, phase, &strip))
                continue;
            ra_status const status = ra_strips_push(m->to, &strip);
            if (status != RA_OK)
                return status;
        }
    }
    return RA_OK;
}

ra_status ra_strips_gather(ra_strip_mapper *m, int32_t layer, int64_t begin, int64_t end,
                           ra_strip_list *list)
{
    const ra_rowset *queries = m->queries;
    m->to = list;
    int64_t i = ra_rowset_piece_of(queries, begin);
    for (; i < queries->piece_count && queries->pieces[i].first < end; ++i) {
        ra_row_piece const cut = ra_row_piece_cut(&queries->pieces[i], begin, end);
        m->q_first = cut.first;
        m->q_rows = cut.rows;
        ra_status const status = ra_predict_visit(m->job, layer, m->q_rows.begin,
                                                  ra_range_span(m->q_rows), gather, m, &m->chance);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

void ra_strips_free(ra_strip_mapper *m)
{
    free(m->strips.items);
    free(m->bands.items);
    free(m->begins);
    free(m->open);
    free(m->events);
    free(m->spans);
}

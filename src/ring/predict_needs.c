/*
 * Which rows of other ranks a rank's queries touch: ranges in each owner's local numbers that grow
 * as slices are visited, brought into the order in which the ring would list them. Where a rank's
 * rows are too many to visit, every n-th chunk is, and its keys are stretched to the next: patterns
 * move along with their queries.
 */
#include "internal.h"
#include "ring/predict_job.h"

#include <stdlib.h>

enum {
    STRIDES_MAX = 64, /* as the ring: strides above come out as single rows */
    TRIES_MAX = 64,   /* ranges tried for one to grow before a new one is begun */
    BITMAP_ROWS_MAX = 1 << 22,
    LOOK_ROWS = 256,     /* queries of a chunk that stands for others */
    VISITS_MAX = 1 << 20 /* slices of one reader that are visited one by one */
};

typedef struct touching {
    ra_predict_job *job;
    ra_need *needs;
    int reader, skip_begin, skip_end; /* owners that are not asked: the readers themselves */
    ra_range q_rows;                  /* global */
    int64_t stretch;                  /* rows by which what is touched moves until the next chunk */
    int64_t visited;                  /* counting only: needs == NULL */
} touching;

static ra_status push(ra_need *need, ra_range range)
{
    if (need->count == need->room) {
        int64_t const room = need->room > 0 ? 2 * need->room : 16;
        ra_range *larger = realloc(need->items, (size_t)room * sizeof(*larger));
        if (larger == NULL) {
            ra_log(RA_LOG_ERROR, "out of memory while predicting");
            return RA_ERR_NO_MEMORY;
        }
        need->items = larger;
        need->room = room;
    }
    need->last = need->count;
    need->items[need->count++] = range;
    return RA_OK;
}

/* Slices of neighbouring queries touch nearly the same keys, in the same order. */
static ra_status add_range(ra_need *need, ra_range range)
{
    int64_t const end = range.begin + range.stride * range.count;
    int64_t const tries = ra_min_i64(need->count, TRIES_MAX);
    for (int64_t i = 0; i < tries; ++i) {
        int64_t const at = (need->last + i) % need->count;
        ra_range *old = &need->items[at];
        int64_t const old_end = old->begin + old->stride * old->count;
        if (old->stride != range.stride || (old->begin - range.begin) % range.stride != 0 ||
            range.begin > old_end || end < old->begin)
            continue;
        int64_t const begin = ra_min_i64(old->begin, range.begin);
        old->count = (ra_max_i64(old_end, end) - begin) / range.stride;
        old->begin = begin;
        need->last = (at + 1) % need->count;
        return RA_OK;
    }
    return push(need, range);
}

/* Rows that a slice touches in one piece of an owner; with several phases, phase by phase. */
static ra_status touch_piece(touching *t, const ra_slice *slice, const ra_row_piece *keys,
                             ra_need *need)
{
    int64_t const phases = ra_slice_phases(slice, t->q_rows, keys->rows);
    for (int64_t phase = 0; phase < phases; ++phase) {
        ra_local_slice local;
        if (!ra_slice_restrict(slice, t->q_rows, keys->rows, phase, &local))
            continue;
        ra_range range = {keys->first + local.k_begin, local.k_stride, local.k_count};
        if (range.count > 1 && need->common != 0)
            need->common = ra_predict_lcm(need->common, range.stride);
        if (need->common > STRIDES_MAX)
            need->common = 0;
        if (range.count == 1)
            range.stride = 1;
        int64_t const left = keys->first + keys->rows.count - range.begin;
        range.count = ra_min_i64((left - 1) / range.stride + 1,
                                 range.count + t->stretch / (keys->rows.stride * range.stride));
        ra_status const status = add_range(need, range);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

/* Pieces in the order of rows, where a layout has them in closed form: one or two per rank. */
static int ordered_pieces(const ra_predict_job *job)
{
    return job->layout == RA_LAYOUT_CONTIGUOUS ? job->ranks
           : job->layout == RA_LAYOUT_ZIGZAG   ? 2 * job->ranks
                                               : 0;
}

static ra_status touch_owner(touching *t, const ra_slice *slice, int owner, int64_t piece)
{
    const ra_rowset *keys = &t->job->rows[owner];
    int64_t const last = slice->k_begin + slice->stride * (slice->k_count - 1);
    bool const skipped = (owner >= t->skip_begin && owner < t->skip_end) || t->needs[owner].full;
    if (skipped || piece < 0 || piece >= keys->piece_count)
        return RA_OK;
    const ra_range *rows = &keys->pieces[piece].rows;
    if (rows->begin > last || rows->begin + rows->stride * rows->count <= slice->k_begin)
        return RA_OK;
    return touch_piece(t, slice, &keys->pieces[piece], &t->needs[owner]);
}

static ra_status touch_ordered(touching *t, const ra_slice *slice, int pieces)
{
    const ra_predict_job *job = t->job;
    int64_t const n = job->request->ring.seq;
    int64_t const last = slice->k_begin + slice->stride * (slice->k_count - 1);
    int const first = (int)((double)slice->k_begin / (double)n * pieces) - 1;
    ra_status status = RA_OK;
    for (int p = first > 0 ? first : 0; p < pieces && status == RA_OK; ++p) {
        int const owner = p < job->ranks ? p : 2 * job->ranks - 1 - p;
        if (n * p / pieces > last)
            break;
        status =
            touch_owner(t, slice, owner, p < job->ranks ? 0 : job->rows[owner].piece_count - 1);
    }
    return status;
}

static ra_status touch(void *context, const ra_slice *slice)
{
    touching *t = context;
    const ra_predict_job *job = t->job;
    int const pieces = ordered_pieces(job);
    ra_range seen;
    ra_status status = RA_OK;
    ++t->visited;
    if (t->needs == NULL ||
        !ra_range_intersect((ra_range){slice->q_begin, slice->stride, slice->q_count}, t->q_rows,
                            &seen))
        return RA_OK;
    if (pieces > 0)
        return touch_ordered(t, slice, pieces);
    for (int owner = 0; owner < job->ranks; ++owner)
        for (int64_t i = 0; i < job->rows[owner].piece_count && status == RA_OK; ++i)
            status = touch_owner(t, slice, owner, i);
    return status;
}

static ra_status visit(touching *t, int32_t layer, ra_range rows)
{
    t->q_rows = rows;
    return ra_pattern_visit(t->job->pattern, layer, rows.begin, rows.stride * (rows.count - 1) + 1,
                            touch, t);
}

/* Queries that stand for `rows.count / looks` rows each; all rows at once where they are few. */
static ra_status visit_piece(touching *t, int32_t layer, ra_range rows)
{
    int64_t const span = ra_max_i64(1, LOOK_ROWS / rows.stride); /* a look spans few rows */
    int64_t const look = ra_min_i64(span, rows.count), chunks = rows.count / look;
    ra_need *const needs = t->needs;
    t->needs = NULL;
    t->visited = 0;
    ra_status status = visit(t, layer,
                             (ra_range){rows.begin + rows.stride * (rows.count / 2 / look * look),
                                        rows.stride, ra_min_i64(look, rows.count)});
    t->needs = needs;
    t->stretch = 0;
    int64_t const owners = ordered_pieces(t->job) > 0 ? 1 : t->job->ranks;
    int64_t const looks = VISITS_MAX / (ra_max_i64(t->visited, 1) * owners);
    if (status != RA_OK || chunks <= looks || t->visited <= 1)
        return status != RA_OK ? status : visit(t, layer, rows);
    t->job->sampled = true;
    int64_t const parts = ra_max_i64(looks, 1);
    for (int64_t i = 0; i < parts && status == RA_OK; ++i) {
        int64_t const begin = rows.count * i / parts, end = rows.count * (i + 1) / parts;
        t->stretch = rows.stride * ra_max_i64(0, end - begin - look);
        status = visit(t, layer,
                       (ra_range){rows.begin + rows.stride * begin, rows.stride,
                                  ra_min_i64(look, end - begin)});
    }
    t->stretch = 0;
    return status;
}

static bool is_set(const uint8_t *bits, int64_t at)
{
    return bits[at / 8] >> (at % 8) & 1;
}

static void flip(uint8_t *bits, int64_t at)
{
    bits[at / 8] = (uint8_t)(bits[at / 8] ^ 1u << (at % 8));
}

/* Marks all ranges; how many rows that are. */
static int64_t mark(const ra_need *need, uint8_t *bits)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < need->count; ++i)
        for (int64_t n = 0; n < need->items[i].count; ++n) {
            int64_t const at = need->items[i].begin + need->items[i].stride * n;
            rows += !is_set(bits, at);
            bits[at / 8] = (uint8_t)(bits[at / 8] | 1u << (at % 8));
        }
    return rows;
}

/* The ring stops at an owner whose rows are all marked, so strides that come later do not count.
   That shows only where a piece is shorter than what is looked for at stride 1. */
static ra_status look_for_full(const ra_predict_job *job, int owner, ra_need *need)
{
    const ra_rowset *rows = &job->rows[owner];
    uint8_t *bits;
    if (need->full || need->count == 0 || rows->piece_count == 0 ||
        rows->row_count / rows->piece_count >= 8 * STRIDES_MAX)
        return RA_OK;
    ra_status const status = ra_predict_take(&bits, rows->row_count / 8 + 1, 1);
    if (status != RA_OK)
        return status;
    need->full = mark(need, bits) == rows->row_count;
    free(bits);
    return RA_OK;
}

/* After piece `index` of the readers' (with all of them: counted without the owner's own), the ring
   looks now and then. */
static ra_status look_at_owners(const touching *t, int64_t index, bool all)
{
    ra_predict_job *job = t->job;
    for (int owner = 0; owner < job->ranks; ++owner) {
        int64_t const own = all && owner < t->reader ? job->rows[owner].piece_count : 0;
        if ((owner >= t->skip_begin && owner < t->skip_end) || (index - own) % 16 != 0)
            continue;
        ra_status const status = look_for_full(job, owner, &t->needs[owner]);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

/* The late rows first, as the ring. `first`: pieces of the readers before this one. */
static ra_status visit_reader(touching *t, int32_t layer, int64_t first, bool all)
{
    const ra_rowset *rows = &t->job->rows[t->reader];
    ra_status status = RA_OK;
    for (int64_t i = rows->piece_count - 1; i >= 0 && status == RA_OK; --i) {
        status = visit_piece(t, layer, rows->pieces[i].rows);
        if (status == RA_OK)
            status = look_at_owners(t, first + i, all);
    }
    return status;
}

static ra_status visit_readers(touching *t, int32_t layer, int reader, int count)
{
    bool const all = count == 0;
    int const begin = all ? 0 : reader, end = all ? t->job->ranks : reader + count;
    int64_t first = 0;
    ra_status status = RA_OK;
    for (int r = begin; r < end; ++r)
        first += t->job->rows[r].piece_count;
    for (int r = end - 1; r >= begin && status == RA_OK; --r) {
        first -= t->job->rows[r].piece_count;
        t->reader = r;
        t->skip_begin = all ? r : begin;
        t->skip_end = all ? r + 1 : end;
        status = visit_reader(t, layer, first, all);
    }
    return status;
}

ra_status ra_predict_touch(ra_predict_job *job, ra_heads heads, int reader, int count,
                           ra_need *needs)
{
    touching t = {.job = job, .needs = needs};
    for (int owner = 0; owner < job->ranks; ++owner)
        needs[owner].common = 1;
    for (int32_t layer = 0; layer < ra_pattern_layer_count(job->pattern); ++layer) {
        if (!ra_predict_heads_meet(ra_pattern_layer_heads(job->pattern, layer), heads))
            continue;
        ra_status const status = visit_readers(&t, layer, reader, count);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

static int compare_ranges(const void *a, const void *b)
{
    const ra_range *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Unit strides: sorted, merged, and cut where the owner's pieces end. */
static ra_status list_unit(ra_need *need, const ra_rowset *owner)
{
    ra_range *old = need->items;
    int64_t const count = need->count;
    int64_t piece = 0;
    *need = (ra_need){.common = 1};
    qsort(old, (size_t)count, sizeof(*old), compare_ranges);
    ra_status status = RA_OK;
    for (int64_t i = 0, next; i < count && status == RA_OK; i = next) {
        int64_t begin = old[i].begin, end = begin + old[i].count;
        for (next = i + 1; next < count && old[next].begin <= end; ++next)
            end = ra_max_i64(end, old[next].begin + old[next].count);
        while (begin < end && status == RA_OK) {
            while (owner->pieces[piece].first + owner->pieces[piece].rows.count <= begin)
                ++piece;
            int64_t const edge = owner->pieces[piece].first + owner->pieces[piece].rows.count;
            int64_t const stop = ra_min_i64(end, edge);
            need->row_count += stop - begin;
            status = push(need, (ra_range){begin, 1, stop - begin});
            begin = stop;
        }
    }
    free(old);
    return status;
}

/* Stretches of set bits at one stride that are at least `least` long leave the map. */
static ra_status lift(ra_need *need, uint8_t *bits, int64_t begin, int64_t end, int64_t stride,
                      int64_t least)
{
    for (int64_t at = begin; at < end; at += stride) {
        int64_t const first = at;
        while (at < end && is_set(bits, at))
            at += stride;
        if (at == first || (at - first) / stride < least)
            continue;
        for (int64_t i = first; i < at; i += stride)
            flip(bits, i);
        need->row_count += (at - first) / stride;
        ra_status const status = push(need, (ra_range){first, stride, (at - first) / stride});
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

/* Several strides: long ranges at small strides first, the rest at the common one. */
static ra_status list_strided(ra_need *need, const ra_rowset *owner)
{
    ra_range *old = need->items;
    int64_t const count = need->count, common = need->common != 0 ? need->common : 1;
    uint8_t *bits = NULL;
    ra_status status = ra_predict_take(&bits, owner->row_count / 8 + 1, 1);
    *need = (ra_need){.common = need->common};
    if (status == RA_OK)
        mark(&(ra_need){.items = old, .count = count}, bits);
    for (int64_t i = 0; i < owner->piece_count && status == RA_OK; ++i) {
        int64_t const begin = owner->pieces[i].first;
        int64_t const end = begin + owner->pieces[i].rows.count;
        for (int64_t stride = 1; stride <= common; ++stride)
            for (int64_t r = 0; r < stride && common % stride == 0 && status == RA_OK; ++r)
                status = lift(need, bits, begin + r, end, stride,
                              stride == common ? 1 : 4 * common / stride);
    }
    if (status == RA_OK && need->count > 0)
        qsort(need->items, (size_t)need->count, sizeof(*need->items), compare_ranges);
    free(bits);
    free(old);
    return status;
}

ra_status ra_predict_list(ra_predict_job *job, ra_need *needs)
{
    for (int owner = 0; owner < job->ranks; ++owner) {
        ra_need *need = &needs[owner];
        bool unit = true;
        for (int64_t i = 0; i < need->count; ++i)
            unit = unit && need->items[i].stride == 1;
        if (need->count == 0)
            continue;
        ra_status status = RA_OK;
        if (unit && need->common <= 1) {
            status = list_unit(need, &job->rows[owner]);
        } else if (job->rows[owner].row_count <= BITMAP_ROWS_MAX) {
            status = list_strided(need, &job->rows[owner]);
        } else { /* as they are: an upper bound where ranges of several strides meet */
            int64_t rows = 0;
            for (int64_t i = 0; i < need->count; ++i)
                rows += need->items[i].count;
            need->row_count = ra_min_i64(rows, job->rows[owner].row_count);
            job->sampled = true;
        }
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

void ra_predict_free_needs(ra_need *needs, int count)
{
    for (int i = 0; i < count && needs != NULL; ++i)
        free(needs[i].items);
    free(needs);
}

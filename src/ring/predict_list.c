/* Rows that somebody needs, brought into the order in which the ring would list them. */
#include "internal.h"
#include "ring/predict_job.h"

#include <stdlib.h>

enum { BITMAP_ROWS_MAX = 1 << 22, NEW_RANGES_LEAST = 64 };

ra_status ra_predict_push_range(ra_need *need, ra_range range)
{
    return ra_predict_push(&need->items, &need->count, &need->room, &range, sizeof(range));
}

/* ---- ranges as they come --------------------------------------------------------------------- */

static int64_t end_of(ra_range r)
{
    return r.begin + r.stride * r.count;
}

/* By stride, then by residue, so that ranges that may continue each other are neighbours. */
static int compare_classes(const void *a, const void *b)
{
    const ra_range *x = a, *y = b;
    int64_t const difference = x->stride != y->stride ? x->stride - y->stride
                               : x->begin % x->stride != y->begin % y->stride
                                   ? x->begin % x->stride - y->begin % y->stride
                                   : x->begin - y->begin;
    return (difference > 0) - (difference < 0);
}

/* Of two in that order: they meet, and together are one. */
static bool meet(ra_range before, ra_range after)
{
    return before.stride == after.stride &&
           before.begin % before.stride == after.begin % after.stride &&
           after.begin <= end_of(before);
}

static void put_in_order(ra_need *need)
{
    int64_t kept = 0;
    if (need->ordered == need->count)
        return;
    qsort(need->items, (size_t)need->count, sizeof(*need->items), compare_classes);
    for (int64_t i = 1; i < need->count; ++i) {
        ra_range *last = &need->items[kept], next = need->items[i];
        if (meet(*last, next))
            last->count = ra_max_i64(last->count, (end_of(next) - last->begin) / last->stride);
        else
            need->items[++kept] = next;
    }
    need->count = need->ordered = kept + 1;
}

ra_status ra_predict_add_range(ra_need *need, ra_range range)
{
    int64_t low = 0, high = need->ordered; /* the last ordered item that is not behind */
    while (high - low > 1) {
        int64_t const middle = low + (high - low) / 2;
        if (compare_classes(&need->items[middle], &range) <= 0)
            low = middle;
        else
            high = middle;
    }
    ra_range *at = need->ordered > 0 ? &need->items[low] : NULL;
    if (at != NULL && compare_classes(at, &range) <= 0 && meet(*at, range)) {
        int64_t const count = (end_of(range) - at->begin) / at->stride;
        ra_range const grown = {at->begin, at->stride, ra_max_i64(at->count, count)};
        if (grown.count == at->count)
            return RA_OK;
        if (low + 1 == need->ordered || !meet(grown, at[1])) {
            *at = grown;
            return RA_OK;
        }
    }
    if (need->count - need->ordered >= ra_max_i64(NEW_RANGES_LEAST, need->ordered))
        put_in_order(need);
    return ra_predict_push_range(need, range);
}

/* ---- in the ring's order --------------------------------------------------------------------- */

/* Unit strides: sorted, merged, and cut where the owner's pieces end. */
ra_status ra_predict_list_unit(ra_need *need, const ra_rowset *owner)
{
    ra_range *old = need->items;
    int64_t const count = need->count;
    int64_t piece = 0;
    *need = (ra_need){0};
    qsort(old, (size_t)count, sizeof(*old), ra_compare_i64); /* by begin, in front */
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
            status = ra_predict_push_range(need, (ra_range){begin, 1, stop - begin});
            begin = stop;
        }
    }
    free(old);
    return status;
}

static void mark(const ra_need *need, uint64_t *marks)
{
    for (int64_t i = 0; i < need->count; ++i)
        for (int64_t n = 0; n < need->items[i].count; ++n) {
            int64_t const at = need->items[i].begin + need->items[i].stride * n;
            marks[at / 64] |= (uint64_t)1 << (at % 64);
        }
}

static ra_status push_range(void *need, ra_range range)
{
    return ra_predict_push_range(need, range);
}

/* Of several strides. */
static ra_status list_strided(ra_need *need, const ra_fold *fold, const ra_rowset *owner)
{
    ra_need listed = {0};
    uint64_t *marks;
    ra_status status =
        ra_predict_take(&marks, fold->folded[fold->count - 1] / 64 + 1, sizeof(*marks));
    if (status != RA_OK)
        return status;
    for (int64_t i = 0; i < need->count; ++i)
        need->items[i] = ra_fold_range(fold, need->items[i]);
    mark(need, marks);
    free(need->items);
    for (int64_t i = 0; i < owner->piece_count && status == RA_OK; ++i) {
        int64_t const first = owner->pieces[i].first;
        int64_t const begin = ra_fold_edge(fold, first);
        int64_t const end = ra_fold_edge(fold, first + owner->pieces[i].rows.count);
        status = ra_marks_take(marks, begin, end, &need->strides, push_range, &listed);
    }
    free(marks);
    for (int64_t i = 0; i < listed.count; ++i) {
        listed.items[i] = ra_unfold_range(fold, listed.items[i]);
        listed.row_count += listed.items[i].count;
    }
    if (listed.count > 0)
        qsort(listed.items, (size_t)listed.count, sizeof(*listed.items),
              ra_compare_i64); /* by begin, in front */
    *need = listed;
    return status;
}

ra_status ra_predict_need_all(const ra_rowset *rows, ra_need *need_out)
{
    *need_out = (ra_need){.row_count = rows->row_count, .piece_count = rows->piece_count};
    for (int64_t i = 0; i < rows->piece_count; ++i) {
        ra_range const piece = {rows->pieces[i].first, 1, rows->pieces[i].rows.count};
        ra_status const status = ra_predict_push_range(need_out, piece);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

static ra_status list_whole(ra_need *need, const ra_rowset *owner)
{
    free(need->items);
    return ra_predict_need_all(owner, need);
}

static ra_status list(ra_predict_job *job, int owner, ra_need *need)
{
    const ra_rowset *rows = &job->rows[owner];
    bool unit = true, even = true; /* ranges of one stride are disjoint once they are in order */
    int64_t sum = 0;
    ra_fold fold;
    put_in_order(need);
    for (int64_t i = 0; i < need->count; ++i) {
        unit = unit && need->items[i].stride == 1;
        even = even && need->items[i].stride == need->items[0].stride;
        sum += need->items[i].count;
    }
    if (unit)
        return ra_predict_list_unit(need, rows);
    if (even && sum == rows->row_count)
        return list_whole(need, rows); /* there is nothing to look for */
    ra_status status = ra_fold_init(need, rows, &fold);
    if (status == RA_OK && fold.folded[fold.count - 1] <= BITMAP_ROWS_MAX) {
        status = list_strided(need, &fold, rows);
    } else if (status == RA_OK) { /* an upper bound if ranges of several strides overlap */
        need->row_count = ra_min_i64(sum, rows->row_count);
        job->sampled = true;
    }
    ra_fold_fini(&fold);
    return status;
}

static ra_status list_all(ra_predict_job *job, ra_need *needs)
{
    for (int owner = 0; owner < job->ranks; ++owner) {
        ra_need *need = &needs[owner];
        bool const thin = job->diagonal != NULL;
        ra_status status = RA_OK;
        if (thin)
            status = ra_predict_list_thin(job, owner, need);
        else if (need->count > 0)
            status = list(job, owner, need);
        if (status != RA_OK)
            return status;
        if (!thin)
            need->piece_count = need->count;
    }
    return RA_OK;
}

ra_status ra_predict_needs_of(ra_predict_job *job, ra_heads heads, int reader, int count,
                              ra_need **needs_out)
{
    ra_status status = ra_predict_take(needs_out, job->ranks, sizeof(**needs_out));
    if (status == RA_OK)
        status = ra_predict_touch(job, heads, reader, count, *needs_out);
    return status == RA_OK ? list_all(job, *needs_out) : status;
}

ra_status ra_predict_need_of_round(const ra_predict_job *job, const ra_need *need, int round,
                                   ra_need *part_out)
{
    int const rounds = job->rounds;
    ra_need part = {0};
    ra_status const status = ra_predict_take(&part.items, need->count, sizeof(*part.items));
    int64_t all = 0, first = 0;
    for (int64_t i = 0; i < need->count; ++i)
        all += need->items[i].count;
    int64_t const begin = ra_share_begin(all, round, rounds);
    int64_t const end = ra_share_begin(all, round + 1, rounds);
    for (int64_t i = 0; i < need->count && status == RA_OK; first += need->items[i++].count) {
        ra_range const r = need->items[i];
        int64_t const from = ra_max_i64(begin - first, 0), to = ra_min_i64(end - first, r.count);
        if (from < to)
            part.items[part.count++] = (ra_range){r.begin + r.stride * from, r.stride, to - from};
    }
    /* Of random blocks, items are all that may be there. */
    bool const exact = need->row_count == all && need->piece_count == need->count;
    part.row_count = exact ? end - begin
                           : ra_share_begin(need->row_count, round + 1, rounds) -
                                 ra_share_begin(need->row_count, round, rounds);
    part.piece_count = exact ? part.count : ra_div_ceil(need->piece_count, rounds);
    *part_out = part;
    return status;
}

void ra_predict_free_needs(ra_need *needs, int count)
{
    for (int i = 0; i < count && needs != NULL; ++i) {
        free(needs[i].items);
        free(needs[i].thin);
    }
    free(needs);
}

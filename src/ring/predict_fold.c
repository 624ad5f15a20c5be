/*
 * Rows without the middles of long stretches that repeat. Between two edges, where ranges or pieces
 * begin or end, whether a row is needed depends on its residue modulo the period of the strides
 * alone. Ranges that are read off there begin and end within a few periods of an edge (see
 * ra_marks_take); so a few dozen periods stand for any number of them.
 */
#include "internal.h"
#include "ring/predict_job.h"

#include <stdlib.h>

/* Of a stretch of that many rows. */
static int64_t left_out(const ra_fold *fold, int64_t rows)
{
    int64_t const middle = rows - 2 * fold->reach;
    return fold->period > 0 && middle > 0 ? middle - middle % fold->period : 0;
}

static void add_edges(ra_fold *fold, int64_t begin, int64_t end)
{
    fold->edges[fold->count++] = begin;
    fold->edges[fold->count++] = end;
}

ra_status ra_fold_init(const ra_need *need, const ra_rowset *owner, ra_fold *fold_out)
{
    int64_t const most = 2 * (need->count + owner->piece_count);
    int64_t kept = 1;
    *fold_out = (ra_fold){.period = ra_strides_period(&need->strides),
                          .reach = ra_marks_reach(&need->strides)};
    ra_status status = ra_predict_take(&fold_out->edges, most, sizeof(int64_t));
    if (status == RA_OK)
        status = ra_predict_take(&fold_out->folded, most, sizeof(int64_t));
    if (status != RA_OK)
        return status;
    for (int64_t i = 0; i < owner->piece_count; ++i)
        add_edges(fold_out, owner->pieces[i].first,
                  owner->pieces[i].first + owner->pieces[i].rows.count);
    for (int64_t i = 0; i < need->count; ++i)
        add_edges(fold_out, need->items[i].begin, ra_range_last(need->items[i]) + 1);
    int64_t *const edges = fold_out->edges;
    qsort(edges, (size_t)most, sizeof(*edges), ra_compare_i64);
    for (int64_t i = 1; i < most; ++i)
        if (edges[i] > edges[kept - 1])
            edges[kept++] = edges[i];
    fold_out->count = kept;
    fold_out->folded[0] = edges[0];
    for (int64_t i = 1; i < kept; ++i) {
        int64_t const rows = edges[i] - edges[i - 1];
        fold_out->folded[i] = fold_out->folded[i - 1] + rows - left_out(fold_out, rows);
    }
    return RA_OK;
}

void ra_fold_fini(ra_fold *fold)
{
    free(fold->edges);
    free(fold->folded);
}

/* The last of `values`, which grow, that is not above `value`. */
static int64_t find(const int64_t *values, int64_t count, int64_t value)
{
    int64_t low = 0, high = count;
    while (high - low > 1) {
        int64_t const middle = low + (high - low) / 2;
        if (values[middle] <= value)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int64_t ra_fold_edge(const ra_fold *fold, int64_t edge)
{
    return fold->folded[find(fold->edges, fold->count, edge)];
}

ra_range ra_fold_range(const ra_fold *fold, ra_range range)
{
    int64_t const begin = ra_fold_edge(fold, range.begin);
    int64_t const last = ra_fold_edge(fold, ra_range_last(range) + 1) - 1;
    return (ra_range){begin, range.stride, (last - begin) / range.stride + 1};
}

static int64_t unfold(const ra_fold *fold, int64_t row)
{
    int64_t const i = find(fold->folded, fold->count, row);
    int64_t const inside = row - fold->folded[i];
    if (inside < fold->reach || i + 1 == fold->count)
        return fold->edges[i] + inside;
    return fold->edges[i] + inside + left_out(fold, fold->edges[i + 1] - fold->edges[i]);
}

ra_range ra_unfold_range(const ra_fold *fold, ra_range range)
{
    int64_t const begin = unfold(fold, range.begin), last = unfold(fold, ra_range_last(range));
    return (ra_range){begin, range.stride, (last - begin) / range.stride + 1};
}

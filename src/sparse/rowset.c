#include "ringattn/slice.h"

#include "internal.h"

#include <stdlib.h>

static int64_t pieces_overlap(const ra_row_piece *pieces, int64_t count)
{
    int64_t most = 0, oldest = 0; /* the first piece that reaches the one at hand, or that one */
    for (int64_t i = 1; i < count; ++i) {
        int64_t const begin = pieces[i].rows.begin;
        if (begin < pieces[i - 1].rows.begin)
            return -1;
        while (oldest < i && ra_range_last(pieces[oldest].rows) < begin)
            ++oldest;
        most = ra_max_i64(most, i - oldest);
    }
    return most;
}

int64_t ra_row_pieces_sort(ra_row_piece *pieces, int64_t count)
{
    int64_t const overlap = pieces_overlap(pieces, count);
    if (overlap >= 0)
        return overlap;
    qsort(pieces, (size_t)count, sizeof(*pieces), ra_compare_i64); /* by rows.begin, in front */
    return pieces_overlap(pieces, count);
}

ra_status ra_rowset_init(ra_pool *pool, const ra_range *ranges, int64_t count, ra_rowset *set_out)
{
    *set_out = (ra_rowset){0};
    int64_t pieces = 0;
    for (int64_t i = 0; i < count; ++i)
        pieces += ranges[i].count > 0;
    ra_block block;
    ra_status const status =
        ra_pool_alloc(pool, RA_MEM_TILEMAP, (size_t)pieces * sizeof(ra_row_piece), NULL, &block);
    if (status != RA_OK)
        return status;
    ra_rowset set = {.pieces = block.data, .block = block};
    for (int64_t i = 0; i < count; ++i) {
        ra_range const rows = ranges[i];
        if (rows.count <= 0)
            continue;
        RA_ASSERT(rows.stride >= 1 && rows.begin >= 0);
        RA_ASSERT(rows.count <= INT64_MAX - set.row_count);
        set.pieces[set.piece_count++] = (ra_row_piece){rows, set.row_count};
        set.row_count += rows.count;
    }
    set.overlap = pieces_overlap(set.pieces, set.piece_count);
    *set_out = set;
    return RA_OK;
}

ra_row_piece ra_row_piece_cut(const ra_row_piece *piece, int64_t begin, int64_t end)
{
    ra_range const rows = piece->rows;
    int64_t const from = ra_min_i64(ra_max_i64(begin - piece->first, 0), rows.count);
    int64_t const to = ra_min_i64(end - piece->first, rows.count);
    return (ra_row_piece){{rows.begin + rows.stride * from, rows.stride, to - from},
                          piece->first + from};
}

ra_status ra_rowset_slice(ra_pool *pool, const ra_rowset *set, int64_t begin, int64_t end,
                          ra_rowset *slice_out)
{
    ra_block block;
    *slice_out = (ra_rowset){0};
    ra_status status = ra_pool_alloc(pool, RA_MEM_TILEMAP,
                                     (size_t)set->piece_count * sizeof(ra_range), NULL, &block);
    if (status != RA_OK)
        return status;
    ra_range *const ranges = block.data;
    for (int64_t i = 0; i < set->piece_count; ++i)
        ranges[i] = ra_row_piece_cut(&set->pieces[i], begin, end).rows;
    status = ra_rowset_init(pool, ranges, set->piece_count, slice_out);
    ra_pool_free(pool, NULL, &block);
    return status;
}

void ra_rowset_fini(ra_pool *pool, ra_rowset *set)
{
    ra_pool_free(pool, NULL, &set->block);
    *set = (ra_rowset){0};
}

/* The last piece whose first row, by its local or global number, is not behind `row`; else 0. */
static int64_t last_piece(const ra_rowset *set, int64_t row, bool is_local)
{
    int64_t low = 0, high = set->piece_count; /* the piece is in [low, high) */
    while (high - low > 1) {
        int64_t const middle = low + (high - low) / 2;
        const ra_row_piece *piece = &set->pieces[middle];
        if ((is_local ? piece->first : piece->rows.begin) <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int64_t ra_rowset_piece_of(const ra_rowset *set, int64_t local)
{
    return last_piece(set, local, true);
}

ra_piece_walk ra_rowset_walk(const ra_rowset *set, ra_range rows)
{
    int64_t const first = rows.begin, last = ra_range_last(rows);
    int64_t begin = 0, end = set->piece_count;
    if (set->piece_count == 0)
        return (ra_piece_walk){0};
    if (set->overlap >= 0) {
        begin = ra_max_i64(0, last_piece(set, first, false) - set->overlap);
        end = last_piece(set, last, false) + 1;
    }
    return (ra_piece_walk){set->pieces + begin, set->pieces + end, first, last};
}

const ra_row_piece *ra_piece_walk_next(ra_piece_walk *walk)
{
    while (walk->next < walk->end) {
        const ra_row_piece *const piece = walk->next++;
        if (piece->rows.begin <= walk->last && ra_range_last(piece->rows) >= walk->first)
            return piece;
    }
    return NULL;
}

int64_t ra_rowset_global(const ra_rowset *set, int64_t local)
{
    RA_DASSERT(local >= 0 && local < set->row_count);
    const ra_row_piece *piece = &set->pieces[ra_rowset_piece_of(set, local)];
    return piece->rows.begin + piece->rows.stride * (local - piece->first);
}

static int64_t local_in_piece(const ra_row_piece *piece, int64_t global)
{
    int64_t const distance = global - piece->rows.begin;
    int64_t const at = distance / piece->rows.stride;
    if (distance < 0 || distance % piece->rows.stride != 0 || at >= piece->rows.count)
        return -1;
    return piece->first + at;
}

int64_t ra_rowset_local(const ra_rowset *set, int64_t global)
{
    int64_t local = -1;
    ra_piece_walk walk = ra_rowset_walk(set, (ra_range){global, 1, 1});
    const ra_row_piece *piece = NULL;
    while (local < 0 && (piece = ra_piece_walk_next(&walk)) != NULL)
        local = local_in_piece(piece, global);
    return local;
}

/*
 * Cutting the slices of one layer into tiles and runs.
 *
 * Per chunk, the slices that meet the chunk's queries are restricted to the local numbers of both
 * row sets ("pieces"), and grouped by the progression of queries they use. The queries of a group
 * are cut into parts at the pieces' ends and at tile_rows. A piece is listed with every part in
 * which some query sees one of its keys: the part becomes a tile, the piece one of its runs.
 */
#include "internal.h"
#include "sparse/sparse_internal.h"

#include <stdlib.h>

typedef ra_map_piece piece;

enum { LAST = -1 };

/* Queries of a group, up to the begin of the next part, and the first of their pieces. */
typedef struct part {
    int64_t begin;
    int64_t first; /* in the list, or LAST */
} part;

/* A piece of a part, as an index into the group, and the part's next entry in the list. */
typedef struct listed {
    int64_t piece, next;
} listed;

ra_status ra_map_piece_push(ra_pool *pool, ra_vector *pieces, const ra_local_slice *s)
{
    ra_local_slice tight = *s;
    int64_t q_cut, k_cut;
    if (!ra_band_trim(&q_cut, &tight.q_count, &k_cut, &tight.k_count, &tight.lo, &tight.hi))
        return RA_OK;
    int64_t const begin = s->q_begin / s->q_stride, see = begin + q_cut;
    piece const next = {*s, s->q_begin - begin * s->q_stride, begin, see, see + tight.q_count};
    return ra_vector_push(pool, pieces, &next, sizeof(next));
}

static ra_status add_pieces(ra_map_builder *b, const ra_slice *slice, const ra_row_piece *keys)
{
    int64_t const phases = ra_slice_phases(slice, b->q_rows, keys->rows);
    for (int64_t phase = 0; phase < phases; ++phase) {
        ra_local_slice s;
        if (!ra_slice_restrict_loose(slice, b->q_rows, keys->rows, phase, &s))
            continue;
        s.q_begin += b->q_first;
        s.k_begin += keys->first;
        ra_status const status = ra_map_piece_push(b->pool, b->to, &s);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

/* Visitor: restrict a slice to the pieces of keys that its span meets. */
static ra_status collect(void *context, const ra_slice *slice)
{
    ra_map_builder *b = context;
    ra_piece_walk walk = ra_rowset_walk(b->keys, ra_slice_keys(slice));
    const ra_row_piece *keys = NULL;
    ra_status status = RA_OK;
    while (status == RA_OK && (keys = ra_piece_walk_next(&walk)) != NULL)
        status = add_pieces(b, slice, keys);
    return status;
}

static int compare_pieces(const void *x, const void *y)
{
    const piece *a = x, *b = y;
    if (a->s.q_stride != b->s.q_stride)
        return a->s.q_stride < b->s.q_stride ? -1 : 1;
    if (a->residue != b->residue)
        return a->residue < b->residue ? -1 : 1;
    if (a->s.k_begin != b->s.k_begin)
        return a->s.k_begin < b->s.k_begin ? -1 : 1;
    if (a->s.q_begin != b->s.q_begin)
        return a->s.q_begin < b->s.q_begin ? -1 : 1;
    return (a->s.k_stride > b->s.k_stride) - (a->s.k_stride < b->s.k_stride);
}

/* Most patterns already come in this order. */
static void sort_pieces(piece *pieces, int64_t count)
{
    for (int64_t i = 1; i < count; ++i)
        if (compare_pieces(&pieces[i - 1], &pieces[i]) > 0) {
            qsort(pieces, (size_t)count, sizeof(*pieces), compare_pieces);
            return;
        }
}

static int32_t narrow(int64_t bound)
{
    if (bound <= RA_BAND_NONE_LO)
        return RA_RUN_NONE_LO;
    if (bound >= RA_BAND_NONE_HI)
        return RA_RUN_NONE_HI;
    return (int32_t)bound;
}

static bool is_full(ra_run run)
{
    return run.lo == RA_RUN_NONE_LO && run.hi == RA_RUN_NONE_HI;
}

static void close_run(ra_map_builder *b)
{
    if (!b->has_open)
        return;
    if (b->runs != NULL)
        b->runs[b->run_count] = b->open;
    ++b->run_count;
    b->has_open = false;
}

/* Extend the open run if both are full and this one continues it. */
static void add_run(ra_map_builder *b, ra_run run)
{
    if (b->has_open && is_full(b->open) && is_full(run) && b->open.k_stride == run.k_stride &&
        b->open.k_begin + (int64_t)b->open.k_count * b->open.k_stride == run.k_begin) {
        b->open.k_count += run.k_count;
        return;
    }
    close_run(b);
    b->open = run;
    b->has_open = true;
}

/* The keys of a piece that `count` of its queries, from index `at` on, touch; at least one key. */
static ra_run cut_run(const ra_local_slice *s, int64_t at, int64_t count, int64_t *area)
{
    int64_t first, k_count = s->k_count, lo = s->lo, hi = s->hi;
    (void)ra_band_cut(at, count, &first, &k_count, &lo, &hi);
    RA_DASSERT(k_count > 0);
    ra_band_loosen(count, k_count, &lo, &hi);
    *area += ra_band_area(count, k_count, lo, hi);
    return (ra_run){(int32_t)(s->k_begin + first * s->k_stride),
                    (int32_t)(k_count > 1 ? s->k_stride : 1), (int32_t)k_count, narrow(lo),
                    narrow(hi)};
}

/* Add a tile of `count` queries, if a piece is listed. */
static void add_tile(ra_map_builder *b, const piece *group, const part *queries, int64_t count)
{
    const listed *list = b->listed.block.data;
    int64_t const run_begin = b->run_count;
    if (queries->first == LAST)
        return;
    for (int64_t i = queries->first; i != LAST; i = list[i].next) {
        const piece *p = &group[list[i].piece];
        add_run(b, cut_run(&p->s, queries->begin - p->begin, count, &b->area));
    }
    close_run(b);
    if (b->tiles != NULL) {
        int64_t const stride = group->s.q_stride;
        b->tiles[b->tile_count] =
            (ra_tile){(int32_t)(group->residue + queries->begin * stride),
                      (int32_t)(count > 1 ? stride : 1), (int32_t)count, (uint32_t)run_begin};
    }
    ++b->tile_count;
}

/* Skip a cut that is among the last ones: blocks of a few rows of blocks have equal begins and
   ends. With blocks of 16, a chunk of 256 queries has 17. Skipping more would make plans of single
   groups take so little that a limit which they keep to refuses the one plan that groups are chosen
   by. */
static ra_status push_cut(ra_map_builder *b, int64_t at)
{
    enum { LOOK_BACK = 24 };
    const int64_t *cuts = b->cuts.block.data;
    for (int64_t i = b->cuts.count; i > ra_max_i64(0, b->cuts.count - LOOK_BACK); --i)
        if (cuts[i - 1] == at)
            return RA_OK;
    return ra_vector_push(b->pool, &b->cuts, &at, sizeof(at));
}

/* The begins and ends of a group's pieces, ascending; some more than once. */
static ra_status list_cuts(ra_map_builder *b, const piece *group, int64_t group_count)
{
    b->cuts.count = 0;
    for (int64_t i = 0; i < group_count; ++i) {
        ra_status status = push_cut(b, group[i].begin);
        if (status == RA_OK)
            status = push_cut(b, group[i].begin + group[i].s.q_count);
        if (status != RA_OK)
            return status;
    }
    if (b->cuts.count > 2)
        qsort(b->cuts.block.data, (size_t)b->cuts.count, sizeof(int64_t), ra_compare_i64);
    return RA_OK;
}

/* List parts from cut to cut, of at most tile_rows; one without queries ends the list. */
static ra_status list_parts(ra_map_builder *b)
{
    const int64_t *cuts = b->cuts.block.data;
    b->parts.count = 0;
    for (int64_t i = 0; i < b->cuts.count; ++i) {
        int64_t const end = i + 1 < b->cuts.count ? cuts[i + 1] : cuts[i] + 1;
        for (int64_t at = cuts[i]; at < end; at += b->tile_rows) {
            part const next = {at, LAST};
            ra_status const status = ra_vector_push(b->pool, &b->parts, &next, sizeof(next));
            if (status != RA_OK)
                return status;
        }
    }
    return RA_OK;
}

/* The part that holds a query. */
static part *find_part(const ra_map_builder *b, int64_t query)
{
    part *low = b->parts.block.data, *high = low + b->parts.count - 1;
    while (high - low > 1) {
        part *const middle = low + (high - low) / 2;
        if (middle->begin <= query)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* From the last piece to the first, so that each part lists its pieces in the group's order. */
static ra_status list_pieces(ra_map_builder *b, const piece *group, int64_t group_count)
{
    b->listed.count = 0;
    for (int64_t i = group_count - 1; i >= 0; --i) {
        for (part *at = find_part(b, group[i].see); at->begin < group[i].seen; ++at) {
            listed const next = {i, at->first};
            ra_status const status = ra_vector_push(b->pool, &b->listed, &next, sizeof(next));
            if (status != RA_OK)
                return status;
            at->first = b->listed.count - 1;
        }
    }
    return RA_OK;
}

/* Make the tiles of pieces that share a query progression. */
static ra_status cut_group(ra_map_builder *b, const piece *group, int64_t group_count)
{
    ra_status status = list_cuts(b, group, group_count);
    if (status == RA_OK)
        status = list_parts(b);
    if (status == RA_OK)
        status = list_pieces(b, group, group_count);
    if (status != RA_OK)
        return status;
    const part *parts = b->parts.block.data;
    for (int64_t i = 0; i + 1 < b->parts.count; ++i)
        add_tile(b, group, &parts[i], parts[i + 1].begin - parts[i].begin);
    return RA_OK;
}

static bool progressions_meet(const piece *a, const piece *b)
{
    return (a->residue - b->residue) % ra_gcd_i64(a->s.q_stride, b->s.q_stride) == 0;
}

static ra_status cut_chunk(ra_map_builder *b)
{
    piece *pieces = b->pieces.block.data;
    int64_t const count = b->pieces.count;
    sort_pieces(pieces, count);
    for (int64_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && pieces[end].s.q_stride == pieces[begin].s.q_stride &&
                              pieces[end].residue == pieces[begin].residue;)
            ++end;
        /* Later groups are enough: rows shared with an earlier one were found there. */
        for (int64_t other = end; other < count && !b->shared; ++other)
            b->shared = progressions_meet(&pieces[begin], &pieces[other]);
        ra_status const status = cut_group(b, &pieces[begin], end - begin);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

ra_status ra_map_builder_collect(ra_map_builder *b, int32_t layer, int64_t begin, int64_t end,
                                 ra_vector *pieces)
{
    const ra_rowset *queries = b->queries;
    b->to = pieces;
    pieces->count = 0;
    int64_t i = ra_rowset_piece_of(queries, begin);
    for (; i < queries->piece_count && queries->pieces[i].first < end; ++i) {
        ra_row_piece const cut = ra_row_piece_cut(&queries->pieces[i], begin, end);
        b->q_first = cut.first;
        b->q_rows = cut.rows;
        ra_status const status = ra_pattern_visit(b->pattern, layer, b->q_rows.begin,
                                                  ra_range_span(b->q_rows), collect, b);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

ra_status ra_map_builder_cut(ra_map_builder *b, int32_t layer, int64_t chunk_count,
                             uint32_t *chunk_tile)
{
    for (int64_t c = 0; c < chunk_count; ++c) {
        int64_t const begin = c * b->chunk_rows;
        int64_t const end = ra_min_i64(begin + b->chunk_rows, b->queries->row_count);
        if (chunk_tile != NULL)
            chunk_tile[c] = (uint32_t)b->tile_count;
        ra_status status = b->mask != NULL
                               ? ra_map_builder_collect_masked(b, layer, begin, end)
                               : ra_map_builder_collect(b, layer, begin, end, &b->pieces);
        if (status == RA_OK)
            status = cut_chunk(b);
        if (status != RA_OK)
            return status;
    }
    if (chunk_tile != NULL)
        chunk_tile[chunk_count] = (uint32_t)b->tile_count;
    return RA_OK;
}

/*
 * The rows of one set that queries of another touch: marked in a bitmap over the keys' local
 * numbers, then read off as a short list of strided ranges.
 */
#include "internal.h"
#include "sparse/sparse_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct marking {
    const ra_rowset *queries, *keys;
    ra_range q_rows; /* of the piece of queries at hand */
    uint64_t *bits;
    int64_t full_begin, full_end; /* a range that is marked completely: the longest found so far */
    bool unit_keys;               /* all pieces of keys have stride 1, and do not interleave */
    ra_strides strides;           /* local ones */
    ra_pool *pool;
    ra_block scratch; /* of the bits */
    ra_vector ranges; /* read off: of ra_range, local numbers */
} marking;

static void fill_bits(uint64_t *bits, int64_t begin, int64_t end)
{
    uint64_t const all = ~(uint64_t)0;
    if (begin >= end)
        return;
    int64_t const first = begin / 64, last = (end - 1) / 64;
    uint64_t const head = all << (begin % 64), tail = all >> (63 - (end - 1) % 64);
    if (first == last) {
        bits[first] |= head & tail;
        return;
    }
    bits[first] |= head;
    for (int64_t i = first + 1; i < last; ++i)
        bits[i] = all;
    bits[last] |= tail;
}

/*
 * Mark [begin, end). Causal patterns and many pieces mark the same ranges again and again, so the
 * known full range is skipped.
 */
static void mark_range(marking *m, int64_t begin, int64_t end)
{
    if (begin >= end)
        return;
    if (begin > m->full_end || end < m->full_begin) { /* apart from it */
        fill_bits(m->bits, begin, end);
        if (end - begin > m->full_end - m->full_begin) {
            m->full_begin = begin;
            m->full_end = end;
        }
        return;
    }
    fill_bits(m->bits, begin, m->full_begin);
    fill_bits(m->bits, m->full_end, end);
    m->full_begin = ra_min_i64(m->full_begin, begin);
    m->full_end = ra_max_i64(m->full_end, end);
}

/* Local number of the first key at or after a global row; row_count: none. */
static int64_t lower_bound(const ra_rowset *keys, int64_t row)
{
    int64_t low = 0, high = keys->piece_count; /* first piece that ends after `row` */
    while (low < high) {
        int64_t const middle = low + (high - low) / 2;
        const ra_range *rows = &keys->pieces[middle].rows;
        if (rows->begin + rows->count <= row)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == keys->piece_count)
        return keys->row_count;
    const ra_row_piece *piece = &keys->pieces[low];
    return piece->first + ra_max_i64(0, row - piece->rows.begin);
}

/*
 * The keys that a piece's queries reach through a band of stride 1, if they are one range: each
 * query's keys reach at least to the next query's first key. Else false.
 */
static bool reach(ra_range queries, const ra_slice *slice, int64_t *begin_out, int64_t *end_out)
{
    int64_t const before = ra_max_i64(slice->q_begin - queries.begin, 0);
    int64_t const until = slice->q_begin + slice->q_count - 1 - queries.begin;
    int64_t const first = ra_div_ceil(before, queries.stride);
    int64_t const last = ra_min_i64(ra_div_floor(until, queries.stride), queries.count - 1);
    int64_t const offset = queries.begin - slice->q_begin;
    int64_t const begin = offset + queries.stride * first + slice->lo;
    int64_t const end = offset + queries.stride * last + slice->hi + 1;
    if (slice->stride != 1 || (first < last && slice->hi - slice->lo + 1 < queries.stride))
        return false;
    *begin_out = slice->k_begin + ra_max_i64(begin, 0);
    *end_out = first > last ? *begin_out : slice->k_begin + ra_min_i64(end, slice->k_count);
    return true;
}

static ra_status mark_slice(void *context, const ra_slice *slice)
{
    marking *m = context;
    int64_t begin, end;
    if (m->unit_keys && reach(m->q_rows, slice, &begin, &end)) {
        if (begin < end)
            mark_range(m, lower_bound(m->keys, begin), lower_bound(m->keys, end));
        return RA_OK;
    }
    ra_piece_walk walk = ra_rowset_walk(m->keys, ra_slice_keys(slice));
    for (const ra_row_piece *piece; (piece = ra_piece_walk_next(&walk)) != NULL;) {
        ra_local_slice local;
        int64_t const phases = ra_slice_phases(slice, m->q_rows, piece->rows);
        for (int64_t phase = 0; phase < phases; ++phase) {
            if (!ra_slice_restrict(slice, m->q_rows, piece->rows, phase, &local))
                continue;
            if (local.k_count > 1)
                ra_strides_see(&m->strides, local.k_stride);
            int64_t at = piece->first + local.k_begin;
            if (local.k_stride == 1)
                mark_range(m, at, at + local.k_count);
            else
                for (int64_t n = 0; n < local.k_count; ++n, at += local.k_stride)
                    m->bits[at / 64] |= (uint64_t)1 << (at % 64);
        }
    }
    return RA_OK;
}

static bool has_unit_strides(const ra_rowset *set)
{
    for (int64_t i = 0; i < set->piece_count; ++i)
        if (set->pieces[i].rows.stride != 1)
            return false;
    return set->overlap == 0;
}

static bool all_marked(const marking *m)
{
    int64_t const whole = m->keys->row_count / 64;
    if (m->full_end - m->full_begin == m->keys->row_count)
        return true;
    for (int64_t i = 0; i < whole; ++i)
        if (m->bits[i] != ~(uint64_t)0)
            return false;
    int64_t const rest = m->keys->row_count % 64;
    return rest == 0 || m->bits[whole] == ((uint64_t)1 << rest) - 1;
}

/* Late queries first: if causal, they see most, and a full range needs no more marks. */
static ra_status mark(const ra_pattern *pattern, ra_heads heads, marking *m)
{
    m->unit_keys = has_unit_strides(m->keys);
    for (int32_t layer = 0; layer < pattern->layer_count; ++layer) {
        if (ra_heads_common(pattern->layers[layer].heads, heads) == 0)
            continue;
        for (int64_t i = m->queries->piece_count - 1; i >= 0; --i) {
            ra_range const rows = m->queries->pieces[i].rows;
            m->q_rows = rows;
            ra_status const status =
                ra_pattern_visit(pattern, layer, rows.begin, ra_range_span(rows), mark_slice, m);
            if (status != RA_OK)
                return status;
            if (i % 16 == 0 && all_marked(m))
                return RA_OK;
        }
    }
    return RA_OK;
}

static ra_status take_range(void *context, ra_range range)
{
    marking *m = context;
    return ra_vector_push(m->pool, &m->ranges, &range, sizeof(range));
}

/* Convert ranges to global rows, in place; each lies in one piece of `keys`. */
static void to_global(const ra_rowset *keys, ra_range *ranges, int64_t count)
{
    int64_t piece = 0;
    for (int64_t i = 0; i < count; ++i) {
        while (keys->pieces[piece].first + keys->pieces[piece].rows.count <= ranges[i].begin)
            ++piece;
        ra_range const rows = keys->pieces[piece].rows;
        ranges[i].begin = rows.begin + rows.stride * (ranges[i].begin - keys->pieces[piece].first);
        ranges[i].stride *= rows.stride;
    }
}

/* One bit per key, set if the key is touched; the caller frees the scratch, whatever is returned.
 */
static ra_status marks_make(const ra_pattern *pattern, ra_heads heads, marking *m)
{
    size_t const bytes = (size_t)(m->keys->row_count / 64 + 1) * 8;
    ra_status const status = ra_pool_alloc(m->pool, RA_MEM_TILEMAP, bytes, NULL, &m->scratch);
    if (status != RA_OK)
        return status;
    m->bits = m->scratch.data;
    memset(m->bits, 0, bytes);
    return mark(pattern, heads, m);
}

static int64_t count_bits(const marking *m)
{
    int64_t count = 0;
    for (int64_t i = 0; i <= m->keys->row_count / 64; ++i)
        count += __builtin_popcountll(m->bits[i]);
    return count;
}

ra_status ra_pattern_count_needed(const ra_pattern *pattern, ra_heads heads,
                                  const ra_rowset *queries, const ra_rowset *keys, ra_pool *pool,
                                  int64_t *rows_out)
{
    marking marks = {.queries = queries, .keys = keys, .pool = pool};
    ra_status const status = marks_make(pattern, heads, &marks);
    if (status == RA_OK)
        *rows_out = count_bits(&marks);
    ra_pool_free(pool, NULL, &marks.scratch);
    return status;
}

ra_status ra_pattern_count_fetched(const ra_pattern *pattern, const ra_rowset *queries,
                                   ra_pool *pool, int64_t *rows_out)
{
    ra_heads const heads = {0, 1, pattern->heads};
    ra_range const whole = {0, 1, pattern->seq};
    ra_rowset all;
    ra_status status = ra_rowset_init(pool, &whole, 1, &all);
    if (status != RA_OK)
        return status;
    marking marks = {.queries = queries, .keys = &all, .pool = pool};
    status = marks_make(pattern, heads, &marks);
    int64_t rows = 0;
    if (status == RA_OK)
        rows = count_bits(&marks);
    for (int64_t i = 0; i < queries->piece_count && status == RA_OK; ++i) {
        ra_range const own = queries->pieces[i].rows;
        for (int64_t n = 0, at = own.begin; n < own.count; ++n, at += own.stride)
            rows -= ra_is_marked(marks.bits, at);
    }
    ra_pool_free(pool, NULL, &marks.scratch);
    ra_rowset_fini(pool, &all);
    if (status == RA_OK)
        *rows_out = rows;
    return status;
}

ra_status ra_pattern_needed_rows(const ra_pattern *pattern, ra_heads heads,
                                 const ra_rowset *queries, const ra_rowset *keys, ra_pool *pool,
                                 ra_rowset *rows_out, ra_rowset *local_out)
{
    ra_rowset local = {0}, rows = {0};
    marking marks = {.queries = queries, .keys = keys, .pool = pool};
    ra_status status = marks_make(pattern, heads, &marks);
    for (int64_t i = 0; i < keys->piece_count && status == RA_OK; ++i) {
        int64_t const first = keys->pieces[i].first;
        status = ra_marks_take(marks.bits, first, first + keys->pieces[i].rows.count,
                               &marks.strides, take_range, &marks);
    }
    int64_t const count = marks.ranges.count;
    ra_range *ranges = marks.ranges.block.data;
    if (status == RA_OK && count > 0)
        qsort(ranges, (size_t)count, sizeof(*ranges), ra_compare_i64); /* by begin, in front */
    if (status == RA_OK && local_out != NULL)
        status = ra_rowset_init(pool, ranges, count, &local);
    if (status == RA_OK && rows_out != NULL) {
        to_global(keys, ranges, count);
        status = ra_rowset_init(pool, ranges, count, &rows);
    }
    if (status != RA_OK)
        ra_rowset_fini(pool, &local);
    if (rows_out != NULL)
        *rows_out = rows;
    if (local_out != NULL)
        *local_out = local;
    ra_pool_free(pool, NULL, &marks.ranges.block);
    ra_pool_free(pool, NULL, &marks.scratch);
    return status;
}

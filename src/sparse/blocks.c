/*
 * Block maps: the kept pairs of blocks, as runs of key blocks per row of query blocks. Analytic
 * kinds are enumerated from a few numbers; only `list` and `random` store what they keep.
 */
#include "internal.h"
#include "sparse/sparse_internal.h"

#include <stdlib.h>
#include <string.h>

enum { POWERS_MAX = 31 }; /* below 2^31 - 1, the most blocks */

/* Block distances of dilated_sparse: those given, or powers of two until the density is reached
   (a row of blocks keeps 1 + 2 * rates of them). */
static ra_status make_block_offsets(ra_pattern *p)
{
    const ra_pattern_config *c = &p->config;
    int64_t const rows = p->block_rows;
    int64_t const most = c->block_rates != NULL ? c->block_rate_count : POWERS_MAX;
    ra_status const status =
        ra_pattern_take(p, (size_t)most * sizeof(*p->block_offsets), &p->block_offsets);
    if (status != RA_OK)
        return status;
    int64_t count = 0;
    if (c->block_rates == NULL) {
        for (int64_t power = 1;
             power < rows && (double)(1 + 2 * count) / (double)rows < c->block_density; power *= 2)
            p->block_offsets[count++] = power;
    } else {
        for (int64_t i = 0; i < c->block_rate_count; ++i)
            if (c->block_rates[i] < rows)
                p->block_offsets[count++] = c->block_rates[i];
        if (count > 1)
            qsort(p->block_offsets, (size_t)count, sizeof(*p->block_offsets), ra_compare_i64);
        int64_t unique = 0;
        for (int64_t i = 0; i < count; ++i)
            if (unique == 0 || p->block_offsets[unique - 1] != p->block_offsets[i])
                p->block_offsets[unique++] = p->block_offsets[i];
        count = unique;
    }
    p->block_offset_count = count;
    return RA_OK;
}

/* Append block j to the runs of the row that began at `row_first`; equal blocks count once. */
static int64_t append_block(ra_block_run *runs, int64_t row_first, int64_t count, int32_t j)
{
    if (count > row_first) {
        ra_block_run *last = &runs[count - 1];
        if (j < last->begin + last->count)
            return count;
        if (j == last->begin + last->count) {
            ++last->count;
            return count;
        }
    }
    runs[count] = (ra_block_run){j, 1};
    return count + 1;
}

/* For a density below 1: at 1 all blocks are kept, and the limit would not fit. */
static uint64_t draw_limit(const ra_pattern_config *c)
{
    return c->block_density < 1 ? (uint64_t)(c->block_density * 18446744073709551616.0) : 0;
}

bool ra_block_is_drawn(const ra_pattern_config *c, int64_t bi, int64_t bj)
{
    if (bi == bj || c->block_density >= 1)
        return true;
    return ra_mix64(c->block_seed ^ ((uint64_t)bi << 32 | (uint64_t)bj)) < draw_limit(c);
}

/*
 * Which blocks a row keeps, one byte each. Every pair of blocks is drawn, 67 million pairs for a
 * million rows in blocks of 128, so this loop has no branch.
 */
static void draw_row(const ra_pattern *p, int64_t bi, unsigned char *keeps)
{
    const ra_pattern_config *c = &p->config;
    uint64_t const row = c->block_seed ^ (uint64_t)bi << 32, limit = draw_limit(c);
    for (int64_t bj = 0; bj < p->block_rows; ++bj)
        keeps[bj] = ra_mix64(row ^ (uint64_t)bj) < limit;
    keeps[bi] = 1;
    if (c->block_density >= 1)
        memset(keeps, 1, (size_t)p->block_rows);
}

static ra_status push_runs(ra_pool *pool, const unsigned char *keeps, int64_t rows, ra_vector *runs)
{
    for (int64_t begin = 0, end; begin < rows; begin = end) {
        const unsigned char *first = memchr(keeps + begin, 1, (size_t)(rows - begin));
        if (first == NULL)
            break;
        begin = first - keeps;
        const unsigned char *after = memchr(first, 0, (size_t)(rows - begin));
        end = after != NULL ? after - keeps : rows;
        ra_block_run const run = {(int32_t)begin, (int32_t)(end - begin)};
        ra_status const status = ra_vector_push(pool, runs, &run, sizeof(run));
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

static ra_status draw_runs(ra_pattern *p)
{
    ra_vector runs = {0};
    ra_block scratch;
    ra_status status =
        ra_pool_alloc(p->pool, RA_MEM_TILEMAP, (size_t)p->block_rows, NULL, &scratch);
    if (status != RA_OK)
        return status;
    for (int64_t bi = 0; bi < p->block_rows && status == RA_OK; ++bi) {
        draw_row(p, bi, scratch.data);
        status = push_runs(p->pool, scratch.data, p->block_rows, &runs);
        p->block_row_runs[bi + 1] = runs.count;
    }
    ra_pool_free(p->pool, NULL, &scratch);
    size_t const bytes = (size_t)runs.count * sizeof(*p->block_runs);
    if (status == RA_OK)
        status = ra_pattern_take(p, bytes, &p->block_runs);
    if (status == RA_OK && bytes > 0)
        memcpy(p->block_runs, runs.block.data, bytes);
    ra_pool_free(p->pool, NULL, &runs.block);
    return status;
}

static int compare_pairs(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    if (x[0] != y[0])
        return x[0] < y[0] ? -1 : 1;
    return (x[1] > y[1]) - (x[1] < y[1]);
}

static ra_status list_runs(ra_pattern *p)
{
    const ra_pattern_config *c = &p->config;
    size_t const bytes = (size_t)c->block_pair_count * sizeof(*c->block_pairs);
    ra_block scratch;
    ra_status status = ra_pool_alloc(p->pool, RA_MEM_TILEMAP, bytes, NULL, &scratch);
    if (status != RA_OK)
        return status;
    int32_t(*pairs)[2] = scratch.data;
    if (bytes > 0) {
        memcpy(pairs, c->block_pairs, bytes);
        qsort(pairs, (size_t)c->block_pair_count, sizeof(*pairs), compare_pairs);
    }
    status =
        ra_pattern_take(p, (size_t)c->block_pair_count * sizeof(*p->block_runs), &p->block_runs);
    int64_t count = 0, at = 0;
    for (int64_t bi = 0; status == RA_OK && bi < p->block_rows; ++bi) {
        int64_t const row_first = count;
        for (; at < c->block_pair_count && pairs[at][0] == bi; ++at)
            count = append_block(p->block_runs, row_first, count, pairs[at][1]);
        p->block_row_runs[bi + 1] = count;
    }
    ra_pool_free(p->pool, NULL, &scratch);
    return status;
}

ra_status ra_pattern_make_blocks(ra_pattern *p)
{
    if (p->config.blocks_kind == RA_BLOCKS_NONE)
        return RA_OK;
    p->block_rows = ra_div_ceil(p->seq, p->config.block_size);
    if (p->config.blocks_kind == RA_BLOCKS_DILATED_SPARSE)
        return make_block_offsets(p);
    if (p->config.blocks_kind != RA_BLOCKS_LIST && p->config.blocks_kind != RA_BLOCKS_RANDOM)
        return RA_OK;
    ra_status status = ra_pattern_take(p, (size_t)(p->block_rows + 1) * sizeof(*p->block_row_runs),
                                       &p->block_row_runs);
    if (status != RA_OK)
        return status;
    p->block_row_runs[0] = 0;
    if (p->config.blocks_kind == RA_BLOCKS_LIST)
        return list_runs(p);
    return draw_runs(p);
}

static ra_block_run clipped(int64_t begin, int64_t end, int64_t rows)
{
    begin = ra_max_i64(begin, 0);
    end = ra_min_i64(end, rows);
    return (ra_block_run){(int32_t)begin, (int32_t)ra_max_i64(0, end - begin)};
}

/* Distance number `at` of a dilated row, from the farthest on the left to that on the right. */
static int64_t dilated_block(const ra_pattern *p, int64_t bi, int64_t at)
{
    int64_t const n = p->block_offset_count;
    if (at == n)
        return bi;
    return at < n ? bi - p->block_offsets[n - 1 - at] : bi + p->block_offsets[at - n - 1];
}

static bool next_dilated(const ra_pattern *p, int64_t bi, int64_t *cursor, ra_block_run *run)
{
    int64_t const last = 2 * p->block_offset_count;
    int64_t at = *cursor;
    while (at <= last && dilated_block(p, bi, at) < 0)
        ++at;
    if (at > last || dilated_block(p, bi, at) >= p->block_rows)
        return false;
    int64_t const begin = dilated_block(p, bi, at);
    int64_t end = begin + 1;
    while (++at <= last && dilated_block(p, bi, at) == end && end < p->block_rows)
        ++end;
    *cursor = at;
    *run = (ra_block_run){(int32_t)begin, (int32_t)(end - begin)};
    return true;
}

/* First the leading blocks, which all rows see, then the neighbourhood; a leading row sees all. */
static bool next_global_local(const ra_pattern *p, int64_t bi, int64_t *cursor, ra_block_run *run)
{
    int64_t const globals = p->config.block_globals, width = p->config.block_width;
    int64_t const rows = p->block_rows;
    bool const joined = bi < globals || bi - width <= globals;
    int64_t const at = (*cursor)++;
    if (at > 1 || (at == 1 && joined))
        return false;
    if (bi < globals)
        *run = clipped(0, rows, rows);
    else if (joined)
        *run = clipped(0, bi + width + 1, rows);
    else if (at == 0 && globals > 0)
        *run = clipped(0, globals, rows);
    else {
        *cursor = 2;
        *run = clipped(bi - width, bi + width + 1, rows);
    }
    return true;
}

int64_t ra_block_run_from(const ra_pattern *p, int64_t bi, int64_t block)
{
    if (p->config.blocks_kind != RA_BLOCKS_RANDOM && p->config.blocks_kind != RA_BLOCKS_LIST)
        return 0;
    int64_t low = p->block_row_runs[bi], high = p->block_row_runs[bi + 1];
    while (low < high) { /* the first that ends behind the block */
        int64_t const middle = low + (high - low) / 2;
        if ((int64_t)p->block_runs[middle].begin + p->block_runs[middle].count <= block)
            low = middle + 1;
        else
            high = middle;
    }
    return low - p->block_row_runs[bi];
}

bool ra_block_run_next(const ra_pattern *p, int64_t bi, int64_t *cursor, ra_block_run *run)
{
    switch (p->config.blocks_kind) {
    case RA_BLOCKS_NONE:
        break;
    case RA_BLOCKS_LOCAL_WINDOW:
        *run = clipped(bi - p->config.block_width, bi + p->config.block_width + 1, p->block_rows);
        return (*cursor)++ == 0;
    case RA_BLOCKS_DILATED_SPARSE:
        return next_dilated(p, bi, cursor, run);
    case RA_BLOCKS_GLOBAL_LOCAL:
        return next_global_local(p, bi, cursor, run);
    case RA_BLOCKS_RANDOM:
    case RA_BLOCKS_LIST: {
        int64_t const at = p->block_row_runs[bi] + (*cursor)++;
        if (at >= p->block_row_runs[bi + 1])
            return false;
        *run = p->block_runs[at];
        return true;
    }
    }
    return false;
}

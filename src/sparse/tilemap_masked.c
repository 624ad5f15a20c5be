/*
 * Tile maps from block masks: the mask's lists give the pieces to cut, query block by query block.
 */
#include "ringattn/block_mask.h"

#include "internal.h"
#include "sparse/sparse_internal.h"

bool ra_local_slice_cut_keys(const ra_local_slice *s, int64_t begin, int64_t end,
                             ra_local_slice *out)
{
    int64_t const first = ra_max_i64(0, ra_div_ceil(begin - s->k_begin, s->k_stride));
    int64_t const last =
        ra_min_i64(s->k_count - 1, ra_div_floor(end - 1 - s->k_begin, s->k_stride));
    if (first > last)
        return false;
    *out = *s;
    out->k_begin = s->k_begin + first * s->k_stride;
    out->k_count = last - first + 1;
    ra_band_shift(-first, &out->lo, &out->hi);
    return true;
}

/* Some local queries of one block. */
typedef struct query_rows {
    int64_t begin, count;
    int32_t block;
} query_rows;

/* The consecutive blocks of a list from its entry *at on; moves *at behind them. */
static int64_t next_blocks(const ra_block_list *list, const query_rows *rows, int32_t *at,
                           int64_t *first)
{
    const int32_t *indices = list->indices + rows->block * list->stride;
    int32_t const count = list->counts[rows->block], begin = *at;
    if (begin >= count)
        return 0;
    *first = indices[begin];
    do
        ++*at;
    while (*at < count && indices[*at] == indices[*at - 1] + 1);
    return *at - begin;
}

/* Full blocks, without asking the pattern. */
static ra_status push_full(ra_map_builder *b, const ra_block_list *list, const query_rows *rows)
{
    int64_t first, count;
    for (int32_t at = 0; (count = next_blocks(list, rows, &at, &first)) > 0;) {
        int64_t const begin = first * RA_MASK_BLOCK;
        int64_t const end = ra_min_i64(begin + count * RA_MASK_BLOCK, b->mask->k_rows);
        ra_local_slice const full = {.q_begin = rows->begin,
                                     .q_stride = 1,
                                     .q_count = rows->count,
                                     .k_begin = begin,
                                     .k_stride = 1,
                                     .k_count = end - begin,
                                     .lo = RA_BAND_NONE_LO,
                                     .hi = RA_BAND_NONE_HI};
        ra_status const status = ra_map_piece_push(b->pool, &b->pieces, &full);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

/* The first entry of a list's row that is at least `block`. */
static int32_t find_block(const ra_block_list *list, const query_rows *rows, int64_t block)
{
    const int32_t *indices = list->indices + rows->block * list->stride;
    int32_t low = 0, high = list->counts[rows->block];
    while (low < high) {
        int32_t const middle = low + (high - low) / 2;
        if (indices[middle] < block)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Push what a band of the pattern has in partial blocks. */
static ra_status push_band(ra_map_builder *b, const ra_block_list *list, const query_rows *rows,
                           const ra_local_slice *band)
{
    int64_t const last_key = band->k_begin + band->k_stride * (band->k_count - 1);
    int64_t first, count;
    int32_t at = find_block(list, rows, band->k_begin / RA_MASK_BLOCK);
    while ((count = next_blocks(list, rows, &at, &first)) > 0 &&
           first * RA_MASK_BLOCK <= last_key) {
        ra_local_slice part;
        if (!ra_local_slice_cut_keys(band, first * RA_MASK_BLOCK, (first + count) * RA_MASK_BLOCK,
                                     &part))
            continue;
        ra_status const status = ra_map_piece_push(b->pool, &b->pieces, &part);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

/* Partial blocks: the parts of the pattern's pieces for these queries that lie in them. */
static ra_status push_partial(ra_map_builder *b, const ra_block_mask_layer *lists,
                              const query_rows *rows)
{
    if (lists->kv.counts[rows->block] == 0)
        return RA_OK;
    ra_status status =
        ra_map_builder_collect(b, lists->layer, rows->begin, rows->begin + rows->count, &b->bands);
    const ra_map_piece *bands = b->bands.block.data;
    for (int64_t i = 0; i < b->bands.count && status == RA_OK; ++i)
        status = push_band(b, &lists->kv, rows, &bands[i].s);
    return status;
}

ra_status ra_map_builder_collect_masked(ra_map_builder *b, int32_t layer, int64_t begin,
                                        int64_t end)
{
    const ra_block_mask_layer *lists = b->mask->layers;
    while (lists->layer != layer) {
        ++lists;
        RA_ASSERT(lists < b->mask->layers + b->mask->layer_count);
    }
    b->pieces.count = 0;
    for (int64_t row = begin, next; row < end; row = next) {
        int64_t const block = row / RA_MASK_BLOCK;
        next = ra_min_i64(end, (block + 1) * RA_MASK_BLOCK);
        query_rows const rows = {row, next - row, (int32_t)block};
        ra_status status = push_full(b, &lists->full_kv, &rows);
        if (status == RA_OK)
            status = push_partial(b, lists, &rows);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

ra_status ra_tilemap_init_dense(const ra_map_request *r, ra_pool *pool, ra_tilemap *map_out)
{
    ra_block_mask mask;
    ra_status status = ra_block_mask_init(r->pattern, r->heads, r->queries, r->keys, pool, &mask);
    if (status != RA_OK)
        return status;
    status = ra_tilemap_init_masked(r, &mask, pool, map_out);
    if (status != RA_OK) {
        ra_block_mask_fini(pool, &mask);
        return status;
    }
    map_out->mask = mask.block;
    map_out->bytes += (int64_t)mask.block.bytes;
    return RA_OK;
}

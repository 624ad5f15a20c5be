/*
 * Making a block mask: per layer, query block by query block, how much of each key block is live.
 */
#include "ringattn/block_mask.h"

#include "internal.h"
#include "sparse/sparse_internal.h"

#include <string.h>

enum { LIST_PAIRS = 2 }; /* partial and full: two lists in each direction */

/* INT64_MAX, which every pool refuses, on overflow. */
static size_t bytes_of(const ra_block_mask *mask)
{
    int64_t const q = mask->q_blocks, k = mask->k_blocks;
    int64_t const numbers = 2 * LIST_PAIRS * q * k + LIST_PAIRS * (q + k);
    int64_t bytes = (int64_t)sizeof(ra_block_mask_layer) + numbers * (int64_t)sizeof(int32_t);
    if (__builtin_mul_overflow(bytes, mask->layer_count, &bytes))
        return INT64_MAX;
    return (size_t)bytes;
}

/* Place the lists of one direction; returns the address behind them. */
static int32_t *place_list(ra_block_list *list, int32_t *at, int64_t from_blocks, int64_t to_blocks)
{
    *list = (ra_block_list){at, at + from_blocks, to_blocks};
    memset(at, 0, (size_t)from_blocks * sizeof(*at));
    return at + from_blocks + from_blocks * to_blocks;
}

static ra_status take_lists(const ra_pattern *pattern, ra_heads heads, ra_pool *pool,
                            ra_block_mask *mask)
{
    for (int32_t i = 0; i < pattern->layer_count; ++i)
        mask->layer_count += ra_heads_common(pattern->layers[i].heads, heads) > 0;
    if (mask->layer_count == 0)
        return RA_OK;
    ra_status const status =
        ra_pool_alloc(pool, RA_MEM_TILEMAP, bytes_of(mask), NULL, &mask->block);
    if (status != RA_OK)
        return status;
    mask->layers = mask->block.data;
    int32_t *at = (void *)(mask->layers + mask->layer_count);
    int32_t next = 0;
    for (int32_t i = 0; i < pattern->layer_count; ++i) {
        if (ra_heads_common(pattern->layers[i].heads, heads) == 0)
            continue;
        ra_block_mask_layer *layer = &mask->layers[next++];
        layer->layer = i;
        at = place_list(&layer->kv, at, mask->q_blocks, mask->k_blocks);
        at = place_list(&layer->full_kv, at, mask->q_blocks, mask->k_blocks);
        at = place_list(&layer->q, at, mask->k_blocks, mask->q_blocks);
        at = place_list(&layer->full_q, at, mask->k_blocks, mask->q_blocks);
    }
    return RA_OK;
}

static void list_push(const ra_block_list *list, int32_t from, int32_t to)
{
    list->indices[from * list->stride + list->counts[from]++] = to;
}

/* Live pairs of a row of blocks, by key block. Pieces of a layer are disjoint, so they add up. */
static void add_areas(const ra_map_builder *b, int32_t *areas)
{
    const ra_map_piece *pieces = b->pieces.block.data;
    for (int64_t i = 0; i < b->pieces.count; ++i) {
        const ra_local_slice *s = &pieces[i].s;
        int64_t const last = (s->k_begin + s->k_stride * (s->k_count - 1)) / RA_MASK_BLOCK;
        for (int64_t block = s->k_begin / RA_MASK_BLOCK; block <= last; ++block) {
            ra_local_slice part;
            if (!ra_local_slice_cut_keys(s, block * RA_MASK_BLOCK, (block + 1) * RA_MASK_BLOCK,
                                         &part))
                continue;
            areas[block] += (int32_t)ra_band_area(part.q_count, part.k_count, part.lo, part.hi);
        }
    }
}

static int64_t rows_of_block(int64_t rows, int32_t block)
{
    return ra_min_i64(RA_MASK_BLOCK, rows - (int64_t)block * RA_MASK_BLOCK);
}

static void list_row(const ra_block_mask *mask, const ra_block_mask_layer *layer, int32_t q_block,
                     const int32_t *areas)
{
    int64_t const queries = rows_of_block(mask->q_rows, q_block);
    for (int32_t k_block = 0; k_block < mask->k_blocks; ++k_block) {
        if (areas[k_block] == 0)
            continue;
        bool const full = areas[k_block] == queries * rows_of_block(mask->k_rows, k_block);
        list_push(full ? &layer->full_kv : &layer->kv, q_block, k_block);
        list_push(full ? &layer->full_q : &layer->q, k_block, q_block);
    }
}

static ra_status fill_layer(ra_map_builder *b, const ra_block_mask *mask,
                            const ra_block_mask_layer *layer, int32_t *areas)
{
    for (int32_t q_block = 0; q_block < mask->q_blocks; ++q_block) {
        int64_t const begin = (int64_t)q_block * RA_MASK_BLOCK;
        ra_status const status = ra_map_builder_collect(
            b, layer->layer, begin, begin + rows_of_block(mask->q_rows, q_block), &b->pieces);
        if (status != RA_OK)
            return status;
        memset(areas, 0, (size_t)mask->k_blocks * sizeof(*areas));
        add_areas(b, areas);
        list_row(mask, layer, q_block, areas);
    }
    return RA_OK;
}

ra_status ra_block_mask_init(const ra_pattern *pattern, ra_heads heads, const ra_rowset *queries,
                             const ra_rowset *keys, ra_pool *pool, ra_block_mask *mask_out)
{
    if (queries->row_count > INT32_MAX || keys->row_count > INT32_MAX) {
        ra_log(RA_LOG_ERROR, "a rank may own at most 2^31 - 1 rows: use more ranks");
        return RA_ERR_UNSUPPORTED;
    }
    ra_block_mask mask = {.q_rows = queries->row_count,
                          .k_rows = keys->row_count,
                          .q_blocks = (int32_t)ra_div_ceil(queries->row_count, RA_MASK_BLOCK),
                          .k_blocks = (int32_t)ra_div_ceil(keys->row_count, RA_MASK_BLOCK)};
    ra_map_builder b = {
        .pattern = pattern, .heads = heads, .queries = queries, .keys = keys, .pool = pool};
    size_t const area_bytes = (size_t)ra_max_i64(mask.k_blocks, 1) * sizeof(int32_t);
    ra_block areas;
    ra_status status = take_lists(pattern, heads, pool, &mask);
    if (status != RA_OK)
        return status;
    status = ra_pool_alloc(pool, RA_MEM_TILEMAP, area_bytes, NULL, &areas);
    for (int32_t i = 0; i < mask.layer_count && status == RA_OK; ++i)
        status = fill_layer(&b, &mask, &mask.layers[i], areas.data);
    ra_pool_free(pool, NULL, &b.pieces.block);
    ra_pool_free(pool, NULL, &areas);
    if (status != RA_OK)
        ra_block_mask_fini(pool, &mask);
    else
        *mask_out = mask;
    return status;
}

void ra_block_mask_fini(ra_pool *pool, ra_block_mask *mask)
{
    ra_pool_free(pool, NULL, &mask->block);
    *mask = (ra_block_mask){0};
}

/*
 * Making a tile map: chunks, arrays of exactly the right size, and their contents.
 *
 * Layers are cut (tilemap_cut.c) twice: once to count, once to fill.
 */
#include "ringattn/tilemap.h"

#include "internal.h"
#include "sparse/sparse_internal.h"

enum { CHUNK_ROWS_MAX = 1 << 20 }; /* where no tiles share rows */

static bool wants_layer(const ra_map_builder *b, int32_t layer)
{
    return ra_heads_common(b->pattern->layers[layer].heads, b->heads) > 0;
}

void ra_tilemap_choose_chunks(const ra_pattern *pattern, ra_heads heads, const ra_rowset *queries,
                              bool *shared, int64_t *tile_rows, int64_t *chunk_rows)
{
    int64_t widest = 1;
    int64_t const q_stride = queries->piece_count > 0 ? queries->pieces[0].rows.stride : 1;
    for (int32_t i = 0; i < pattern->layer_count; ++i) {
        const ra_layer *const layer = &pattern->layers[i];
        if (ra_heads_common(layer->heads, heads) == 0)
            continue;
        widest = ra_max_i64(widest, ra_lcm_i64(layer->stride, q_stride) / q_stride);
    }
    *shared = *shared || ra_pattern_shares_heads(&pattern->config);
    int64_t const most = *shared ? RA_SHARED_CHUNK_ROWS_MAX : CHUNK_ROWS_MAX;
    *chunk_rows = ra_min_i64(*tile_rows * ra_min_i64(widest, most), most);
    *tile_rows = ra_min_i64(*tile_rows, *chunk_rows);
}

static int64_t chunk_count_of(const ra_map_builder *b)
{
    return ra_div_ceil(b->queries->row_count, b->chunk_rows);
}

/* Count tiles and runs; if rows turn out to be shared, count again with smaller chunks. */
static ra_status count_all(ra_map_builder *b, int32_t *layer_count)
{
    bool again;
    do {
        ra_tilemap_choose_chunks(b->pattern, b->heads, b->queries, &b->shared, &b->tile_rows,
                                 &b->chunk_rows);
        bool const was_shared = b->shared;
        *layer_count = 0;
        b->tile_count = b->run_count = 0;
        for (int32_t i = 0; i < b->pattern->layer_count; ++i) {
            if (!wants_layer(b, i))
                continue;
            ra_status const status = ra_map_builder_cut(b, i, chunk_count_of(b), NULL);
            if (status != RA_OK)
                return status;
            ++*layer_count;
        }
        again = b->shared && !was_shared && b->chunk_rows > RA_SHARED_CHUNK_ROWS_MAX;
    } while (again);
    if (b->run_count < UINT32_MAX && b->tile_count < UINT32_MAX)
        return RA_OK;
    ra_log(RA_LOG_ERROR, "a tile map may have at most 2^32 - 2 runs: use larger blocks");
    return RA_ERR_UNSUPPORTED;
}

/* One block for all arrays, widest alignment first. */
static ra_status take_arrays(ra_map_builder *b, int32_t layer_count, bool by_keys,
                             ra_map_take *take, void *context, ra_tilemap *map)
{
    size_t const chunks = (size_t)chunk_count_of(b);
    size_t const layers_bytes = (size_t)layer_count * sizeof(ra_tile_layer);
    size_t const tiles_bytes = ((size_t)b->tile_count + 1) * sizeof(ra_tile);
    size_t const runs_bytes = (size_t)b->run_count * sizeof(ra_run);
    size_t const chunks_bytes = (size_t)layer_count * (chunks + 1) * sizeof(uint32_t);
    size_t const index_bytes = by_keys ? (size_t)ra_tilemap_index_bytes(b->run_count) : 0;
    size_t const bytes = layers_bytes + tiles_bytes + runs_bytes + chunks_bytes + index_bytes;
    char *at = take != NULL ? take(context, bytes) : NULL;
    if (at == NULL) {
        ra_status const status = ra_pool_alloc(b->pool, RA_MEM_TILEMAP, bytes, NULL, &map->block);
        if (status != RA_OK)
            return status;
        at = map->block.data;
    }
    map->layers = (void *)at;
    map->tiles = (void *)(at += layers_bytes);
    map->runs = (void *)(at += tiles_bytes);
    uint32_t *chunk_tile = (void *)(at + runs_bytes);
    for (int32_t i = 0; i < layer_count; ++i)
        map->layers[i].chunk_tile = chunk_tile + (size_t)i * (chunks + 1);
    if (by_keys) {
        map->by_keys = chunk_tile + (size_t)layer_count * (chunks + 1);
        map->spans = (void *)(map->by_keys + b->run_count);
    }
    map->layer_count = layer_count;
    map->bytes = (int64_t)bytes;
    b->tiles = map->tiles;
    b->runs = map->runs;
    return RA_OK;
}

static ra_status fill_all(ra_map_builder *b, ra_tilemap *map)
{
    int32_t next = 0;
    b->tile_count = b->run_count = 0;
    for (int32_t i = 0; i < b->pattern->layer_count; ++i) {
        if (!wants_layer(b, i))
            continue;
        ra_heads const heads = b->pattern->layers[i].heads;
        b->area = 0;
        ra_status const status =
            ra_map_builder_cut(b, i, chunk_count_of(b), map->layers[next].chunk_tile);
        if (status != RA_OK)
            return status;
        map->layers[next++].heads = heads;
        map->live_pairs += b->area * ra_heads_common(heads, b->heads);
    }
    map->tiles[b->tile_count] = (ra_tile){.q_stride = 1, .run_begin = (uint32_t)b->run_count};
    return RA_OK;
}

/* Keys of several owners, one after the other, are searched in the order of their first rows. */
static ra_status order_keys(ra_map_builder *b, ra_rowset *ordered)
{
    const ra_rowset *keys = b->keys;
    *ordered = (ra_rowset){0};
    if (keys->overlap >= 0)
        return RA_OK;
    size_t const bytes = (size_t)keys->piece_count * sizeof(*keys->pieces);
    ra_status const status = ra_pool_alloc(b->pool, RA_MEM_TILEMAP, bytes, NULL, &ordered->block);
    if (status != RA_OK)
        return status;
    ordered->pieces = memcpy(ordered->block.data, keys->pieces, bytes);
    ordered->piece_count = keys->piece_count;
    ordered->row_count = keys->row_count;
    ordered->overlap = ra_row_pieces_sort(ordered->pieces, ordered->piece_count);
    b->keys = ordered;
    return RA_OK;
}

ra_status ra_tilemap_build(const ra_map_request *r, const ra_block_mask *mask, ra_pool *pool,
                           ra_map_take *take, void *context, ra_tilemap *map_out)
{
    RA_ASSERT(r->tile_rows >= 1);
    if (r->queries->row_count > INT32_MAX || r->keys->row_count > INT32_MAX) {
        ra_log(RA_LOG_ERROR, "a rank may own at most 2^31 - 1 rows: use more ranks");
        return RA_ERR_UNSUPPORTED;
    }
    ra_map_builder b = {.pattern = r->pattern,
                        .heads = r->heads,
                        .queries = r->queries,
                        .keys = r->keys,
                        .mask = mask,
                        .pool = pool,
                        .tile_rows = r->tile_rows};
    ra_tilemap map = {0};
    ra_rowset ordered;
    int32_t layer_count;
    ra_status status = order_keys(&b, &ordered);
    if (status != RA_OK)
        return status;
    status = count_all(&b, &layer_count);
    if (status == RA_OK)
        status = take_arrays(&b, layer_count, r->by_keys, take, context, &map);
    if (status == RA_OK)
        status = fill_all(&b, &map);
    ra_rowset_fini(pool, &ordered);
    ra_pool_free(pool, NULL, &b.pieces.block);
    ra_pool_free(pool, NULL, &b.cuts.block);
    ra_pool_free(pool, NULL, &b.parts.block);
    ra_pool_free(pool, NULL, &b.listed.block);
    ra_pool_free(pool, NULL, &b.bands.block);
    map.q_rows = r->queries->row_count;
    map.k_rows = r->keys->row_count;
    map.tile_rows = (int32_t)b.tile_rows;
    map.chunk_rows = (int32_t)b.chunk_rows;
    map.chunk_count = (int32_t)chunk_count_of(&b);
    map.tile_count = (uint32_t)b.tile_count;
    map.run_count = (uint32_t)b.run_count;
    map.shared_rows = b.shared;
    map.q_heads = r->heads.count;
    if (status == RA_OK && r->by_keys)
        status = ra_tilemap_index(&map, pool);
    if (status == RA_OK)
        *map_out = map;
    else
        ra_pool_free(pool, NULL, &map.block);
    return status;
}

ra_status ra_tilemap_init(const ra_map_request *request, ra_pool *pool, ra_tilemap *map_out)
{
    return ra_tilemap_build(request, NULL, pool, NULL, NULL, map_out);
}

ra_status ra_tilemap_init_masked(const ra_map_request *request, const ra_block_mask *mask,
                                 ra_pool *pool, ra_tilemap *map_out)
{
    RA_ASSERT(mask->q_rows == request->queries->row_count &&
              mask->k_rows == request->keys->row_count);
    return ra_tilemap_build(request, mask, pool, NULL, NULL, map_out);
}

void ra_tilemap_fini(ra_pool *pool, ra_tilemap *map)
{
    RA_ASSERT(map->entry == NULL);
    ra_pool_free(pool, NULL, &map->mask);
    ra_pool_free(pool, NULL, &map->block);
    *map = (ra_tilemap){0};
}

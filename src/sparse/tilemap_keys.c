/*
 * A tile map's index: each layer's runs in the order of their keys.
 *
 * A kernel that owns keys looks at spans, then at the runs of the spans that reach its keys. These
 * are few if runs are short, whatever the pattern, because runs that meet a key lie side by side. A
 * long run widens its span for nothing, but many keys meet it. Runs are dealt to sections of
 * RA_SECTION_KEYS keys in one pass, and not sorted within them: time is proportional to runs,
 * scratch to sections.
 */
#include "sparse/sparse_internal.h"

static uint32_t section_of(const ra_run *run)
{
    return (uint32_t)run->k_begin / RA_SECTION_KEYS;
}

/* The place of a section's first run, then of its next one. */
static void deal_layer(const ra_tilemap *map, uint32_t begin, uint32_t end, uint32_t *places,
                       uint32_t sections)
{
    for (uint32_t s = 0; s < sections; ++s)
        places[s] = 0;
    for (uint32_t i = begin; i < end; ++i)
        ++places[section_of(&map->runs[i])];
    for (uint32_t s = 0, next = begin; s < sections; ++s) {
        uint32_t const count = places[s];
        places[s] = next;
        next += count;
    }
    for (uint32_t i = begin; i < end; ++i)
        map->by_keys[places[section_of(&map->runs[i])]++] = i;
}

/* Runs of windows and documents are in order already. */
static ra_status order_layer(const ra_tilemap *map, const ra_tile_layer *layer, ra_pool *pool,
                             ra_block *places)
{
    uint32_t const begin = map->tiles[layer->chunk_tile[0]].run_begin;
    uint32_t const end = map->tiles[layer->chunk_tile[map->chunk_count]].run_begin;
    uint32_t const sections = (uint32_t)map->k_rows / RA_SECTION_KEYS + 1;
    bool in_order = true;
    for (uint32_t i = begin; i < end; ++i) {
        map->by_keys[i] = i;
        in_order =
            in_order && (i == begin || section_of(&map->runs[i - 1]) <= section_of(&map->runs[i]));
    }
    if (in_order)
        return RA_OK;
    ra_status status = RA_OK;
    if (places->data == NULL)
        status = ra_pool_alloc(pool, RA_MEM_TILEMAP, sections * sizeof(uint32_t), NULL, places);
    if (status == RA_OK)
        deal_layer(map, begin, end, places->data, sections);
    return status;
}

ra_status ra_tilemap_index(ra_tilemap *map, ra_pool *pool)
{
    ra_block places = {0};
    ra_status status = RA_OK;
    for (int32_t i = 0; i < map->layer_count && status == RA_OK; ++i)
        status = order_layer(map, &map->layers[i], pool, &places);
    ra_pool_free(pool, NULL, &places);
    if (status != RA_OK)
        return status;
    for (uint32_t i = 0; i < map->run_count; ++i) {
        const ra_run *const run = &map->runs[map->by_keys[i]];
        int32_t const last = run->k_begin + run->k_stride * (run->k_count - 1);
        ra_key_span *const span = &map->spans[i / RA_SPAN_RUNS];
        if (i % RA_SPAN_RUNS == 0)
            *span = (ra_key_span){run->k_begin, last};
        span->first = run->k_begin < span->first ? run->k_begin : span->first;
        span->last = last > span->last ? last : span->last;
    }
    return RA_OK;
}

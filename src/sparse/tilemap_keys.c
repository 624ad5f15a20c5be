/*
 * A tile map's index: each layer's runs in the order of their keys.
 *
 * A kernel that owns keys looks at spans, then at the runs of those that meet its keys. Of masks
 * whose runs are short, whatever their pattern, these are few: sorted by their first keys, runs
 * that meet a key lie side by side. Long runs are in the way of others in their span, but each of
 * them is met by many keys.
 */
#include "internal.h"
#include "sparse/sparse_internal.h"

#include <stdlib.h>

/* Runs with the same first key stay in their order, in which queries ascend. */
static int compare_runs(const void *x, const void *y, void *context)
{
    const ra_run *const runs = context;
    uint32_t const a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    if (runs[a].k_begin != runs[b].k_begin)
        return runs[a].k_begin < runs[b].k_begin ? -1 : 1;
    return (a > b) - (a < b);
}

/* Those of windows and documents are in order already. */
static void sort_layer(const ra_tilemap *map, const ra_tile_layer *layer)
{
    uint32_t const begin = map->tiles[layer->chunk_tile[0]].run_begin;
    uint32_t const end = map->tiles[layer->chunk_tile[map->chunk_count]].run_begin;
    bool sorted = true;
    for (uint32_t i = begin; i < end; ++i) {
        map->by_keys[i] = i;
        sorted = sorted && (i == begin || map->runs[i - 1].k_begin <= map->runs[i].k_begin);
    }
    if (!sorted)
        qsort_r(map->by_keys + begin, end - begin, sizeof(uint32_t), compare_runs, map->runs);
}

void ra_tilemap_index(ra_tilemap *map)
{
    for (int32_t i = 0; i < map->layer_count; ++i)
        sort_layer(map, &map->layers[i]);
    for (uint32_t i = 0; i < map->run_count; ++i) {
        const ra_run *const run = &map->runs[map->by_keys[i]];
        int32_t const last = run->k_begin + run->k_stride * (run->k_count - 1);
        ra_key_span *const span = &map->spans[i / RA_SPAN_RUNS];
        if (i % RA_SPAN_RUNS == 0)
            *span = (ra_key_span){run->k_begin, last};
        span->first = run->k_begin < span->first ? run->k_begin : span->first;
        span->last = last > span->last ? last : span->last;
    }
}

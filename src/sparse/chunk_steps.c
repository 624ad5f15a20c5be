/* Which steps of a pass compute a chunk of queries, and which rows carry state between them. */
#include "internal.h"
#include "sparse/sparse_internal.h"

enum { NO_STEP = -1 };

const ra_tilemap *ra_chunk_steps_map(const ra_tilemap *const *maps, int32_t steps)
{
    const ra_tilemap *first = NULL;
    for (int32_t s = 0; s < steps; ++s) {
        if (maps[s]->tile_count == 0)
            continue;
        if (first != NULL && maps[s]->chunk_rows != first->chunk_rows)
            return NULL;
        first = first == NULL ? maps[s] : first;
    }
    return first;
}

static bool has_tiles(const ra_tilemap *map, int32_t chunk)
{
    for (int32_t i = 0; i < map->layer_count; ++i) {
        const uint32_t *const tiles = map->layers[i].chunk_tile;
        if (tiles[chunk] < tiles[chunk + 1])
            return true;
    }
    return false;
}

static void add_step(const ra_tilemap *map, int32_t step, ra_chunk_steps *chunks)
{
    for (int32_t c = 0; c < map->chunk_count; ++c) {
        if (!has_tiles(map, c))
            continue;
        if (chunks[c].first == NO_STEP)
            chunks[c].first = step;
        chunks[c].last = step;
    }
}

int64_t ra_chunk_steps_find(const ra_tilemap *const *maps, int32_t steps,
                            ra_chunk_steps *chunks_out)
{
    const ra_tilemap *const any = ra_chunk_steps_map(maps, steps);
    RA_ASSERT(any != NULL);
    int32_t first = 0;
    while (maps[first] != any)
        ++first;
    int64_t carried = 0;
    for (int32_t c = 0; c < any->chunk_count; ++c)
        chunks_out[c] = (ra_chunk_steps){.first = NO_STEP, .last = NO_STEP};
    for (int32_t s = first; s < steps; ++s)
        if (maps[s]->tile_count > 0)
            add_step(maps[s], s, chunks_out);
    for (int32_t c = 0; c < any->chunk_count; ++c) {
        ra_chunk_steps *const chunk = &chunks_out[c];
        if (chunk->first == NO_STEP)
            chunk->first = chunk->last = first;
        chunk->state_row = (int32_t)carried;
        if (chunk->first < chunk->last)
            carried += ra_min_i64(any->chunk_rows, any->q_rows - (int64_t)c * any->chunk_rows);
    }
    return carried;
}

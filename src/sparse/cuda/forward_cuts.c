#include "sparse/cuda/forward_cuts.h"

#include "internal.h"
#include "sparse/cuda/key_cursor.h"

enum { PART_STEPS_LEAST = 4 };

static size_t slot_bytes(int32_t dim, int32_t rows)
{
    return (size_t)ra_cuda_part_floats(dim, rows) * sizeof(float) + sizeof(uint32_t);
}

size_t ra_cuda_cuts_bytes(int32_t blocks, int32_t dim)
{
    return (size_t)blocks * slot_bytes(dim, ra_cuda_warpgroup_tile_of(dim).q_rows);
}

/* Blocks of keys that a chunk's tile goes through. */
static int64_t chunk_steps(const ra_tilemap *map, int32_t chunk, int32_t k_rows)
{
    const uint32_t *const tiles = map->layers[0].chunk_tile;
    int64_t steps = 0;
    for (uint32_t t = tiles[chunk]; t < tiles[chunk + 1]; ++t)
        for (uint32_t r = map->tiles[t].run_begin; r < map->tiles[t + 1].run_begin; ++r)
            steps += ra_cuda_run_steps(&map->runs[r], map->tiles[t].q_count, k_rows);
    return steps;
}

/* One thread block merges all parts of a chunk, one after the other, each in about the time of a
   step. With fewer steps in a part than that makes parts, this would take longer than it saves. */
static int64_t least_steps(int64_t longest)
{
    int64_t least = PART_STEPS_LEAST;
    while (least * least < longest)
        ++least;
    return least;
}

static bool may_be_cut(const ra_forward_step *step)
{
    const ra_tilemap *const map = step->map;
    bool may = step->first && step->last && step->state.chunks == NULL && !step->ends_only &&
               !map->shared_rows && map->layer_count == 1;
    for (int32_t h = 0; h < step->shape.q_heads && may; ++h)
        may = ra_heads_contain(map->layers[0].heads, step->shape.q_head_begin + h);
    return may;
}

/* Chunks of one tile that take more than two parts' steps. */
static void find(const ra_tilemap *map, int32_t k_rows, int64_t part_steps, ra_cuda_cuts *cuts)
{
    const uint32_t *const tiles = map->layers[0].chunk_tile;
    cuts->count = cuts->parts = 0;
    cuts->part_steps = (int32_t)part_steps;
    for (int32_t c = 0; c < map->chunk_count && cuts->count < RA_CUDA_CUTS_MAX; ++c) {
        int64_t const steps = chunk_steps(map, c, k_rows);
        if (tiles[c + 1] - tiles[c] != 1 || steps <= 2 * part_steps)
            continue;
        int32_t const parts = (int32_t)ra_div_ceil(steps, part_steps);
        cuts->of[cuts->count++] = (ra_cuda_cut){c, parts};
        cuts->parts += parts;
    }
}

ra_cuda_cuts ra_cuda_cuts_of(const ra_forward_step *step, int32_t blocks, int32_t k_rows,
                             void *room, size_t bytes)
{
    const ra_tilemap *const map = step->map;
    int64_t const heads = (int64_t)step->shape.batch * step->shape.q_heads;
    int64_t const slots = (int64_t)(bytes / slot_bytes(step->shape.dim, map->chunk_rows));
    ra_cuda_cuts cuts = {0};
    int64_t steps = 0, longest = 0;
    if (slots == 0 || !may_be_cut(step))
        return cuts;
    for (int32_t c = 0; c < map->chunk_count; ++c) {
        int64_t const of_chunk = chunk_steps(map, c, k_rows);
        steps += of_chunk;
        longest = ra_max_i64(longest, of_chunk);
    }
    int64_t part_steps =
        ra_max_i64(ra_div_ceil(steps * heads, 4 * (int64_t)blocks), least_steps(longest));
    if (longest <= 2 * part_steps)
        return cuts;
    do {
        find(map, k_rows, part_steps, &cuts);
        part_steps *= 2;
    } while (cuts.count > 0 && cuts.parts * heads > slots);
    cuts.tasks = cuts.parts * heads;
    cuts.states = room;
    cuts.arrived =
        (uint32_t *)(void *)((float *)room +
                             slots * ra_cuda_part_floats(step->shape.dim, map->chunk_rows));
    return cuts;
}

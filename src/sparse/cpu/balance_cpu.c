#include "sparse/cpu/balance_cpu.h"

#include "sparse/cpu/cpu_internal.h"
#include "sparse/run_band.h"

static int64_t tile_work(const ra_tilemap *map, uint32_t index)
{
    const ra_tile *tile = &map->tiles[index];
    int64_t keys = 0;
    for (uint32_t r = tile->run_begin; r < map->tiles[index + 1].run_begin; ++r) {
        const ra_run *run = &map->runs[r];
        ra_run_band const band = ra_run_band_of(run, tile->q_count);
        ra_run_keys const seen = ra_run_band_seen(band, 0, tile->q_count, 0, run->k_count);
        keys += ra_hd_max(0, seen.end - seen.begin);
    }
    return keys * tile->q_count;
}

int64_t ra_cpu_chunk_work(const ra_tilemap *map, int32_t head_begin, int32_t head_end,
                          int32_t chunk)
{
    ra_heads const some = {head_begin, 1, head_end - head_begin};
    int64_t work = 0;
    for (int32_t i = 0; i < map->layer_count; ++i) {
        const ra_tile_layer *layer = &map->layers[i];
        int64_t const heads = ra_heads_common(layer->heads, some);
        int64_t pairs = 0;
        if (heads == 0)
            continue;
        for (uint32_t t = layer->chunk_tile[chunk]; t < layer->chunk_tile[chunk + 1]; ++t)
            pairs += tile_work(map, t);
        work += heads * pairs;
    }
    return work;
}

int32_t ra_cpu_task_class(int64_t work, int64_t work_most)
{
    int32_t class = 0;
    while (class < RA_TASK_CLASSES - 1 && work <= work_most / ((int64_t)2 << class))
        ++class;
    return class;
}

/* Rows of a group of key rows: a chunk's rows, or fewer if a member would get no group. */
static int64_t group_rows(const ra_tilemap *map, int32_t members)
{
    int64_t blocks = ra_div_ceil(map->chunk_rows, RA_KEY_BLOCK);
    while (blocks > 1 && map->k_rows < blocks * RA_KEY_BLOCK * members)
        blocks = (blocks + 1) / 2;
    return blocks * RA_KEY_BLOCK;
}

/* The largest member's work. */
static int64_t most_of_shares(const ra_tilemap *map, int32_t head_begin, int32_t head_end,
                              const ra_cpu_shares *shares)
{
    int64_t most = 0;
    for (int32_t member = 0; member < shares->members; ++member) {
        int64_t work = 0;
        for (int32_t chunk = 0; chunk < map->chunk_count; ++chunk) {
            if (ra_cpu_share_of(shares, chunk) == member)
                work += ra_cpu_chunk_work(map, head_begin, head_end, chunk);
        }
        most = work > most ? work : most;
    }
    return most;
}

ra_cpu_shares ra_cpu_share_backward(const ra_tilemap *map, int32_t head_begin, int32_t head_end,
                                    int32_t members)
{
    ra_cpu_shares shares = {.members = members, .key_rows = group_rows(map, members)};
    if (members == 1)
        return shares;
    int64_t const round = most_of_shares(map, head_begin, head_end, &shares);
    shares.to_and_fro = true;
    int64_t const to_and_fro = most_of_shares(map, head_begin, head_end, &shares);
    /* A window's rounds are better in plain order, so to and fro must gain three per cent. */
    shares.to_and_fro = round - to_and_fro > to_and_fro / 32;
    return shares;
}

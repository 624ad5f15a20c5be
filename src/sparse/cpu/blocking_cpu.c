#include "sparse/cpu/blocking_cpu.h"

#include "sparse/cpu/cpu_internal.h"

enum { CACHE_BYTES_ASSUMED = 1 << 20, WEIGHT_BYTES = RA_KEY_BLOCK * 32 * 4, TASKS_PER_THREAD = 8 };

int32_t ra_cpu_tiles_at_once(int64_t cache_bytes, int32_t dim, bool pairs)
{
    int64_t const cache = cache_bytes > 0 ? cache_bytes : CACHE_BYTES_ASSUMED;
    int64_t const packed = pairs ? 2 : 4; /* bytes of a packed value; sums are float32 */
    int64_t const keys = 2 * RA_KEY_BLOCK * dim * packed + WEIGHT_BYTES;
    int64_t const tile = RA_TILE_ROWS_MAX * dim * (packed + 4);
    int64_t const tiles = ra_div_ceil(cache - keys, tile);
    return tiles < 1 ? 1 : tiles > RA_TILES_AT_ONCE_MAX ? RA_TILES_AT_ONCE_MAX : (int32_t)tiles;
}

ra_cpu_tasks ra_cpu_cut_tasks(int64_t lanes, int32_t group, int32_t chunks, int32_t tiles,
                              int threads)
{
    ra_cpu_tasks tasks = {.heads = group < tiles ? group : tiles};
    tasks.chunks = tiles / tasks.heads;
    for (;;) {
        tasks.head_parts = ra_div_ceil(group, tasks.heads);
        tasks.chunk_parts = ra_div_ceil(chunks, tasks.chunks);
        tasks.count = lanes * tasks.head_parts * tasks.chunk_parts;
        if (tasks.count >= (int64_t)TASKS_PER_THREAD * threads || threads == 1)
            return tasks;
        if (tasks.chunks > 1)
            tasks.chunks /= 2;
        else if (tasks.heads > 1)
            tasks.heads = (tasks.heads + 1) / 2;
        else
            return tasks;
    }
}

#include "support/pool_replay.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct replayed_blocks {
    ra_block *of_id; /* without data: given back */
    int64_t count, capacity;
} replayed_blocks;

static ra_status block_take(replayed_blocks *blocks, ra_pool *pool, const char *name, size_t bytes)
{
    int category = 0;
    while (category < RA_MEM_CATEGORY_COUNT &&
           strcmp(name, ra_category_name((ra_category)category)) != 0)
        category++;
    if (category == RA_MEM_CATEGORY_COUNT)
        return RA_ERR_IO;
    if (blocks->count == blocks->capacity) {
        blocks->capacity = 2 * blocks->capacity + 256;
        blocks->of_id = realloc(blocks->of_id, (size_t)blocks->capacity * sizeof(ra_block));
        if (blocks->of_id == NULL)
            abort();
    }
    return ra_pool_alloc(pool, (ra_category)category, bytes, NULL, &blocks->of_id[blocks->count++]);
}

static ra_status line_replay(const char *line, replayed_blocks *blocks, ra_pool *pool)
{
    int64_t id, bytes;
    char category[32], end = '\0';
    if (sscanf(line, "+ %" SCNd64 " %" SCNd64 " %31s%c", &id, &bytes, category, &end) >= 3)
        return end == '\n' && id == blocks->count && bytes > 0
                   ? block_take(blocks, pool, category, (size_t)bytes)
                   : RA_ERR_IO;
    if (sscanf(line, "- %" SCNd64 "%c", &id, &end) != 2 || end != '\n' || id < 0 ||
        id >= blocks->count || blocks->of_id[id].data == NULL)
        return RA_ERR_IO;
    ra_pool_free(pool, NULL, &blocks->of_id[id]);
    return RA_OK;
}

ra_status pool_replay_run(FILE *log, ra_pool *pool, pool_replay *replay_out)
{
    char line[128], end = '\n'; /* the longest line has 64 bytes */
    replayed_blocks blocks = {0};
    pool_replay replay = {0};
    ra_status status = RA_ERR_IO; /* not even a header */
    while (fgets(line, sizeof(line), log) != NULL) {
        if (replay.lines == 0)
            status = strcmp(line, "ringattn pool log 1\n") == 0 ? RA_OK : RA_ERR_IO;
        else if (replay.lost > 0)
            status = RA_ERR_IO;
        else if (sscanf(line, "lost %" SCNd64 "%c", &replay.lost, &end) > 0)
            status = replay.lost > 0 && end == '\n' ? RA_OK : RA_ERR_IO;
        else
            status = line_replay(line, &blocks, pool);
        if (status != RA_OK)
            break;
        replay.lines++;
    }
    if (ferror(log))
        status = RA_ERR_IO;
    for (int64_t id = 0; id < blocks.count; id++)
        ra_pool_free(pool, NULL, &blocks.of_id[id]);
    free(blocks.of_id);
    replay.blocks = blocks.count;
    *replay_out = replay;
    return status;
}

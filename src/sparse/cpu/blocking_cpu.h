/*
 * How much a thread takes on at once: pure functions of the caches and of the job.
 *
 * A forward pass carries several tiles over the keys side by side, so that a block of keys is
 * packed once for all of them: tiles of neighbouring chunks, and of the heads that share a key
 * head. Their packed queries and sums must stay in the L2 cache, beside the packed block. A tile's
 * results do not depend on the others: they are the same bit for bit.
 */
#ifndef RINGATTN_BLOCKING_CPU_H
#define RINGATTN_BLOCKING_CPU_H

#include <stdbool.h>
#include <stdint.h>

/* Most tiles side by side: what the workspace has room for. */
enum { RA_TILES_AT_ONCE_MAX = 4 };

/**
 * Tiles whose queries and sums fill a cache of `cache_bytes` (0: not known, taken for 1 MiB); the
 * last one may hang over, for it pays to pack less often.
 *
 * @param pairs  queries, keys and values are packed as bf16, not as float32
 * @return 1 to RA_TILES_AT_ONCE_MAX
 */
int32_t ra_cpu_tiles_at_once(int64_t cache_bytes, int32_t dim, bool pairs);

/* The size of tasks: the same number of heads of one key head, and of chunks, each. */
typedef struct ra_cpu_tasks {
    int32_t heads, chunks;           /* per task; the last ones may have fewer */
    int64_t head_parts, chunk_parts; /* of the heads of a key head, and of all chunks */
    int64_t count;                   /* over all lanes */
} ra_cpu_tasks;

/**
 * Cut a pass into tasks of at most `tiles` tiles where chunks have one each, and into smaller ones
 * where threads would wait for the last of them: below eight tasks per thread.
 *
 * @param lanes       batches times key heads
 * @param group       query heads per key head
 * @param chunks      of the tile map; 0 gives no task
 */
ra_cpu_tasks ra_cpu_cut_tasks(int64_t lanes, int32_t group, int32_t chunks, int32_t tiles,
                              int threads);

#endif

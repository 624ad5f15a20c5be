/*
 * Tile maps: a pattern cut to size for a kernel, as runs of keys per tile of queries.
 *
 * A map is made for one set of query rows and one set of key rows (a shard against itself, or
 * against a received block) and speaks in their local numbers. It costs bytes by its runs, not by
 * its area. Queries are dealt into chunks of consecutive rows; a chunk is the unit of work. Per
 * layer (see pattern.h) each chunk has tiles, each tile has runs:
 *
 *     tile   queries q = q_begin + q_stride * a,  0 <= a < q_count
 *     run    keys    k = k_begin + k_stride * b,  0 <= b < k_count,  live: lo <= b - a <= hi
 *
 * Every run of a tile has a live pair, though not necessarily with every query. Tiles of a chunk
 * may share query rows (branches of different rates, several phases): then their partial results
 * are one softmax. A map is immutable, and plain arrays: it can be copied to a device as it is.
 *
 * Kernels that loop over queries for a block of keys (backward) find the runs that meet it through
 * an index, made on request: runs sorted by their keys, and bounding intervals of consecutive runs,
 * as in a one-level tree.
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_TILEMAP_H
#define RINGATTN_TILEMAP_H

#include "ringattn/pattern.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RA_RUN_NONE_LO INT32_MIN
#define RA_RUN_NONE_HI INT32_MAX

/* Most queries of a chunk whose tiles share rows: what kernels keep scratch for. */
enum { RA_SHARED_CHUNK_ROWS_MAX = 1024 };

/* The index by keys: runs are sorted by the section of RA_SECTION_KEYS keys that they begin in, and
   each RA_SPAN_RUNS of them have a bounding interval of keys. */
enum { RA_SPAN_RUNS = 256, RA_SECTION_KEYS = 128 };

typedef struct ra_run {
    int32_t k_begin, k_stride, k_count;
    int32_t lo, hi; /* RA_RUN_NONE_LO, RA_RUN_NONE_HI: never binds; both: a full run, no mask */
} ra_run;

typedef struct ra_tile {
    int32_t q_begin, q_stride, q_count;
    uint32_t run_begin; /* runs [run_begin, next tile's run_begin) */
} ra_tile;

typedef struct ra_tile_layer {
    ra_heads heads;
    uint32_t *chunk_tile; /* [chunk_count + 1]: tiles of a chunk, as indices into `tiles` */
} ra_tile_layer;

/* Bounding interval of keys of RA_SPAN_RUNS consecutive runs of the index, both ends included. */
typedef struct ra_key_span {
    int32_t first, last;
} ra_key_span;

typedef struct ra_tilemap {
    int64_t q_rows, k_rows; /* rows of the two sets */
    int32_t tile_rows;      /* most queries in a tile */
    int32_t chunk_rows;     /* queries per chunk; the last may be short */
    int32_t chunk_count;
    int32_t layer_count;
    ra_tile_layer *layers;
    ra_tile *tiles; /* [tile_count + 1]; the last one only ends the runs */
    ra_run *runs;
    uint32_t *by_keys;  /* [run_count]: indices into runs, of each layer, sorted by section, within
                           one in their own order; NULL: no index was requested */
    ra_key_span *spans; /* [ra_tilemap_span_count]: of each RA_SPAN_RUNS of by_keys; likewise */
    uint32_t tile_count, run_count;
    bool shared_rows;             /* a query row of some head may lie in more than one tile; then
                                     chunk_rows is at most RA_SHARED_CHUNK_ROWS_MAX */
    int32_t q_heads;              /* that it was requested for */
    int64_t live_pairs;           /* over all of these, one batch */
    int64_t bytes;                /* of the arrays, and of a block mask */
    ra_block block;               /* category tilemap; empty if a pattern cache has the arrays */
    ra_block mask;                /* likewise: lists of a block mask (block_mask.h), or empty */
    struct ra_cache_entry *entry; /* of that cache, or NULL */
} ra_tilemap;

RA_STATIC_ASSERT(sizeof(ra_run) == 20, "runs cross to devices");
RA_STATIC_ASSERT(sizeof(ra_tile) == 16, "tiles cross to devices");
RA_STATIC_ASSERT(sizeof(ra_key_span) == 8, "spans cross to devices");

/*
 * Which steps of a forward pass compute a chunk: the first and the last whose map has a tile of it.
 * The maps of a pass are of the same queries; chunks are the same unless only some have
 * shared_rows.
 */
typedef struct ra_chunk_steps {
    int32_t first, last; /* numbers of steps, from 0; the same: no state is carried */
    int32_t state_row;   /* where the rows of a carried chunk begin in the state */
} ra_chunk_steps;

RA_STATIC_ASSERT(sizeof(ra_chunk_steps) == 12, "steps of chunks cross to devices");

/* What a map is made from; all borrowed for the call. */
typedef struct ra_map_request {
    const ra_pattern *pattern;
    ra_heads heads;
    const ra_rowset *queries, *keys;
    int32_t tile_rows;
    bool by_keys; /* with an index of runs by keys: 4.03 bytes per run */
} ra_map_request;

/**
 * What a map of these heads and queries is cut by: chunks hold a full tile of the widest stride, or
 * less if tiles may share rows.
 * @param shared      whether they may, as far as is known; set if heads are in several branches
 * @param tile_rows   the most queries in a tile; as many as a chunk holds, at most
 * @param chunk_rows  out
 */
void ra_tilemap_choose_chunks(const ra_pattern *pattern, ra_heads heads, const ra_rowset *queries,
                              bool *shared, int64_t *tile_rows, int64_t *chunk_rows);

/**
 * Cut a pattern for `queries` against `keys`, tiles of at most `tile_rows` (>= 1) queries.
 *
 * Heads: layers keep global head numbers; layers without a head in `heads` are left out. Cost:
 * proportional to the number of runs, whatever their length; a chunk's runs are sorted if the
 * pattern does not give them in order. Scratch: proportional to the runs of one chunk; with an
 * index, also 4 bytes per section if the runs are not in its order.
 * @return RA_ERR_UNSUPPORTED  more than 2^31 - 1 rows on a side, or 2^32 - 2 runs
 *         RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_tilemap_init(const ra_map_request *request, ra_pool *pool,
                                     ra_tilemap *map_out);
/** A zeroed one is fine; one that comes from a pattern cache goes back there instead. */
void ra_tilemap_fini(ra_pool *pool, ra_tilemap *map);

/** Spans of an index of so many runs. */
static inline int64_t ra_tilemap_span_count(int64_t runs)
{
    return (runs + RA_SPAN_RUNS - 1) / RA_SPAN_RUNS;
}

/** Bytes of an index of so many runs. */
static inline int64_t ra_tilemap_index_bytes(int64_t runs)
{
    return runs * (int64_t)sizeof(uint32_t) +
           ra_tilemap_span_count(runs) * (int64_t)sizeof(ra_key_span);
}

/** Bytes of the arrays alone, which follow each other from `layers` on. */
static inline int64_t ra_tilemap_array_bytes(const ra_tilemap *map)
{
    return map->bytes - (int64_t)map->mask.bytes;
}

/** Whether a layer holds a (global) query head. */
static inline bool ra_heads_contain(ra_heads heads, int32_t head)
{
    int32_t const at = head - heads.begin;
    return at >= 0 && at % heads.stride == 0 && at / heads.stride < heads.count;
}

#ifdef __cplusplus
}
#endif
#endif

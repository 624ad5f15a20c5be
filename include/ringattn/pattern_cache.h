/*
 * The pattern cache: tile maps that are kept for later use.
 *
 * The key of a map is everything that decides its contents: the pattern, the heads, both row sets
 * and the tile size, in one canonical byte form that is hashed (XXH3), and compared as a whole on a
 * hit. Fields that change nothing are left out: a window wider than the sequence, sinks without a
 * window, the seed of blocks that are not random.
 *
 * The cache outlives jobs, so it takes memory of its own, not a pool's. While a job uses it, it is
 * attached to the job's pool: what it holds is counted there as category pattern_cache, and what is
 * evicted while in use as tilemap, until it is put back. If the cache gets no memory, the map is
 * made in the caller's pool and not kept.
 *
 * A cache belongs to one rank and is used by one thread at a time, as is a pool that it is attached
 * to.
 *
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_PATTERN_CACHE_H
#define RINGATTN_PATTERN_CACHE_H

#include "ringattn/tilemap.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ra_cache_mode {
    RA_CACHE_OFF,  /* nothing is kept */
    RA_CACHE_LAZY, /* a map is kept when it is asked for the second time, if fewer than 1,024 others
                      were asked for the first time in between */
    RA_CACHE_EAGER /* every map is kept */
} ra_cache_mode;

/** "off", "lazy", "eager". */
const char *ra_cache_mode_name(ra_cache_mode mode);

typedef struct ra_pattern_cache_config {
    ra_cache_mode mode;
    int64_t entries;  /* most maps kept, at least 1 */
    int64_t bytes;    /* most bytes kept, at least 1: maps with their keys, as the memory rounds */
    ra_memory memory; /* host memory; copied, what `self` points to is borrowed until destroy */
} ra_pattern_cache_config;

typedef struct ra_pattern_cache ra_pattern_cache;

/**
 * Besides what it keeps, a cache is a table of 8 KiB with hashes of first uses and one of at most
 * 32 KiB.
 * @return RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_pattern_cache_create(const ra_pattern_cache_config *config,
                                             ra_pattern_cache **cache_out);
/** No map may be in use, and no pool attached. NULL is fine. */
void ra_pattern_cache_destroy(ra_pattern_cache *cache);

/**
 * Charge what is kept, now and later, to a pool (borrowed until detach), and be its evictor
 * (ra_pool_keeper): unused maps are evicted if the pool's limit has no room for them now, or when a
 * request for anything else would be refused. One pool at a time; without one nothing is counted.
 */
void ra_pattern_cache_attach(ra_pattern_cache *cache, ra_pool *pool);
/** Undo it; no map may be in use. */
void ra_pattern_cache_detach(ra_pattern_cache *cache);

/**
 * As ra_tilemap_init, with `pool` for scratch and for a map that is not kept; a map that is kept
 * has its arrays in the cache and nowhere else. Give the map back with ra_pattern_cache_put.
 *
 * Without a cache (NULL) it is ra_tilemap_init. Cost of a hit: O(bytes of the key).
 */
RA_CHECKED ra_status ra_pattern_cache_get(ra_pattern_cache *cache, const ra_map_request *request,
                                          ra_pool *pool, ra_tilemap *map_out);
/** Give back a map from ra_pattern_cache_get, with the pool given there; a zeroed one is fine. */
void ra_pattern_cache_put(ra_pool *pool, ra_tilemap *map);

/** Bytes of the key that a map is kept with: of these heads, of rows in so many pieces, those of
    queries and of keys together. */
size_t ra_pattern_cache_key_bytes(const ra_pattern *pattern, ra_heads heads, int64_t piece_count);

typedef struct ra_cache_counts {
    int64_t hits, misses, evictions; /* since it was made; evictions: for want of room */
    int64_t bytes, entries;          /* kept now */
} ra_cache_counts;

/** NULL: all zero. */
void ra_pattern_cache_read(const ra_pattern_cache *cache, ra_cache_counts *counts_out);

#ifdef __cplusplus
}
#endif
#endif

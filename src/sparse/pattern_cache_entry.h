/* Private to the pattern cache: its representation, and what holds its entries and bounds. */
#ifndef RINGATTN_PATTERN_CACHE_ENTRY_H
#define RINGATTN_PATTERN_CACHE_ENTRY_H

#include "sparse/sparse_internal.h"

/*
 * One block of memory: this, the key, and the map's arrays, in that order. An entry evicted while
 * in use lives until it is put back.
 */
typedef struct ra_cache_entry {
    ra_pattern_cache *cache;
    struct ra_cache_entry *newer, *older; /* by last use, in a circle with the cache's `uses` */
    struct ra_cache_entry *next;          /* of the same bucket */
    uint64_t hash;
    size_t key_bytes;
    int64_t bytes;   /* of the block, as rounded */
    int64_t holders; /* maps that are out */
    bool kept;
    ra_tilemap map;
} ra_cache_entry;

enum { SEEN_COUNT = 1024 };

struct ra_pattern_cache {
    ra_pattern_cache_config config;
    ra_pool *pool;             /* attached, or NULL */
    int64_t bucket_count;      /* a power of two */
    uint64_t seen[SEEN_COUNT]; /* hashes of the last first uses */
    int next_seen;             /* where the next one goes */
    ra_cache_entry uses;       /* uses.older: the last used; uses.newer: the next to be evicted */
    int64_t holders;           /* maps that are out, of all entries */
    int64_t idle_bytes;        /* kept, used by nobody */
    ra_cache_counts counts;
    ra_cache_entry *buckets[];
};

/* Memory for a new entry, charged and within the bounds; NULL: none. */
ra_cache_entry *ra_cache_entry_take(ra_pattern_cache *cache, size_t key_bytes, size_t map_bytes);
/* Give up an entry that could not be built. */
void ra_cache_entry_abandon(ra_cache_entry *entry);
/* Where in its block a key of key_bytes goes, and where arrays. */
char *ra_cache_entry_key(ra_cache_entry *entry);
char *ra_cache_entry_arrays(ra_cache_entry *entry);

/* Put a built entry into the cache, with one holder. */
void ra_cache_entry_insert(ra_cache_entry *entry);
ra_cache_entry *ra_cache_find(ra_pattern_cache *cache, uint64_t hash,
                              const ra_map_request *request);
/* One holder more, and one less. */
void ra_cache_entry_use(ra_cache_entry *entry);
void ra_cache_entry_put(ra_cache_entry *entry);
/* Evict the least recently used idle entry; its bytes, or 0. */
int64_t ra_cache_evict_idle(ra_pattern_cache *cache);

#endif

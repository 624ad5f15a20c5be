/* The pattern cache: finding maps, building them in place in their entries, and its life. */
#include "ringattn/pattern_cache.h"

#include "internal.h"
#include "sparse/pattern_cache_entry.h"

#include <stdlib.h>

enum { BUCKETS_MIN = 16, BUCKETS_MAX = 4096 };

const char *ra_cache_mode_name(ra_cache_mode mode)
{
    static const char *const names[] = {"off", "lazy", "eager"};
    RA_ASSERT((size_t)mode <= RA_CACHE_EAGER);
    return names[mode];
}

/* ---- maps ------------------------------------------------------------------------------------ */

/* Where to put a map that is being built. */
typedef struct placing {
    ra_pattern_cache *cache;
    size_t key_bytes;
    ra_cache_entry *entry; /* NULL: there is no room for one */
} placing;

static void *place_kept(void *context, size_t bytes)
{
    placing *place = context;
    place->entry = ra_cache_entry_take(place->cache, place->key_bytes, bytes);
    return place->entry != NULL ? ra_cache_entry_arrays(place->entry) : NULL;
}

static ra_status build_kept(ra_pattern_cache *cache, const ra_map_request *request, uint64_t hash,
                            size_t key_bytes, ra_pool *pool, ra_tilemap *map_out)
{
    placing place = {.cache = cache, .key_bytes = key_bytes};
    ra_tilemap map;
    ra_status const status = ra_tilemap_build(request, NULL, pool, place_kept, &place, &map);
    ra_cache_entry *entry = place.entry;
    if (status == RA_OK && entry != NULL) {
        ra_map_key_write(request, ra_cache_entry_key(entry));
        entry->hash = hash;
        map.entry = entry;
        entry->map = map;
        ra_cache_entry_insert(entry);
    } else if (entry != NULL) {
        ra_cache_entry_abandon(entry);
    }
    if (status == RA_OK)
        *map_out = map;
    return status;
}

/* Whether to keep a missing map now; notes its first use in place of the oldest one. A look at all
   of them is short beside making a map. */
static bool admits(ra_pattern_cache *cache, uint64_t hash)
{
    if (cache->config.mode == RA_CACHE_EAGER)
        return true;
    for (int i = 0; i < SEEN_COUNT; ++i)
        if (cache->seen[i] == hash)
            return true;
    cache->seen[cache->next_seen] = hash;
    cache->next_seen = (cache->next_seen + 1) % SEEN_COUNT;
    return false;
}

ra_status ra_pattern_cache_get(ra_pattern_cache *cache, const ra_map_request *request,
                               ra_pool *pool, ra_tilemap *map_out)
{
    bool admitted = false;
    uint64_t hash = 0;
    size_t key_bytes = 0;
    if (cache != NULL && cache->config.mode != RA_CACHE_OFF) {
        hash = ra_map_key_hash(request, &key_bytes);
        ra_cache_entry *entry = ra_cache_find(cache, hash, request);
        if (entry != NULL) {
            ++cache->counts.hits;
            ra_cache_entry_use(entry);
            *map_out = entry->map;
            return RA_OK;
        }
        ++cache->counts.misses;
        admitted = admits(cache, hash);
    }
    if (admitted)
        return build_kept(cache, request, hash, key_bytes, pool, map_out);
    return ra_tilemap_init(request, pool, map_out);
}

void ra_pattern_cache_put(ra_pool *pool, ra_tilemap *map)
{
    ra_cache_entry *entry = map->entry;
    if (entry == NULL) {
        ra_tilemap_fini(pool, map);
        return;
    }
    ra_cache_entry_put(entry);
    *map = (ra_tilemap){0};
}

/* ---- the cache ------------------------------------------------------------------------------- */

static int64_t buckets_for(int64_t entries)
{
    int64_t count = BUCKETS_MIN;
    while (count < entries && count < BUCKETS_MAX)
        count *= 2;
    return count;
}

ra_status ra_pattern_cache_create(const ra_pattern_cache_config *config,
                                  ra_pattern_cache **cache_out)
{
    RA_ASSERT((size_t)config->mode <= RA_CACHE_EAGER && config->entries >= 1 &&
              config->bytes >= 1 && config->memory.ops != NULL);
    int64_t const buckets = buckets_for(config->entries);
    ra_pattern_cache *cache =
        calloc(1, sizeof(*cache) + (size_t)buckets * sizeof(ra_cache_entry *));
    if (cache == NULL)
        return ra_refuse_memory("a pattern cache");
    cache->config = *config;
    cache->bucket_count = buckets;
    cache->uses.newer = cache->uses.older = &cache->uses;
    *cache_out = cache;
    return RA_OK;
}

void ra_pattern_cache_destroy(ra_pattern_cache *cache)
{
    if (cache == NULL)
        return;
    RA_ASSERT(cache->pool == NULL && cache->holders == 0);
    while (ra_cache_evict_idle(cache) > 0)
        continue;
    free(cache);
}

/* The pool calls these when it would refuse a request. */
static int64_t keeper_spare_bytes(void *context)
{
    const ra_pattern_cache *cache = context;
    return cache->idle_bytes;
}

static int64_t keeper_give_up(void *context)
{
    return ra_cache_evict_idle(context);
}

void ra_pattern_cache_attach(ra_pattern_cache *cache, ra_pool *pool)
{
    ra_pool_keeper const keeper = {cache, keeper_spare_bytes, keeper_give_up};
    RA_ASSERT(cache->pool == NULL && cache->holders == 0);
    while (cache->counts.bytes > 0 &&
           !ra_pool_try_charge(pool, RA_MEM_PATTERN_CACHE, cache->counts.bytes))
        (void)ra_cache_evict_idle(cache);
    cache->pool = pool;
    ra_pool_set_keeper(pool, &keeper);
}

void ra_pattern_cache_detach(ra_pattern_cache *cache)
{
    RA_ASSERT(cache->pool != NULL && cache->holders == 0);
    ra_pool_set_keeper(cache->pool, NULL);
    ra_pool_release(cache->pool, RA_MEM_PATTERN_CACHE, cache->counts.bytes);
    cache->pool = NULL;
}

void ra_pattern_cache_read(const ra_pattern_cache *cache, ra_cache_counts *counts_out)
{
    *counts_out = cache != NULL ? cache->counts : (ra_cache_counts){0};
}

/*
 * Entries of the pattern cache: their memory, their order of use, and the bounds. All but take and
 * abandon are called with the cache locked.
 */
#include "sparse/pattern_cache_entry.h"
#include "internal.h"

enum { ALIGN_BYTES = 64 };

void ra_cache_lock(const ra_pattern_cache *cache)
{
    /* The mutex is the one part of a cache that readers change. */
    RA_ASSERT(pthread_mutex_lock((pthread_mutex_t *)&cache->mutex) == 0);
}

void ra_cache_unlock(const ra_pattern_cache *cache)
{
    RA_ASSERT(pthread_mutex_unlock((pthread_mutex_t *)&cache->mutex) == 0);
}

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

char *ra_cache_entry_key(ra_cache_entry *entry)
{
    return (char *)entry + round_up(sizeof(*entry));
}

char *ra_cache_entry_arrays(ra_cache_entry *entry)
{
    return ra_cache_entry_key(entry) + round_up(entry->key_bytes);
}

static void entry_free(ra_cache_entry *entry)
{
    const ra_memory memory = entry->cache->config.memory;
    memory.ops->free(&memory, entry, (size_t)entry->bytes);
}

static ra_cache_entry **bucket_of(const ra_pattern_cache *cache, uint64_t hash)
{
    return &cache->buckets[hash & (uint64_t)(cache->bucket_count - 1)];
}

static void use_link(ra_pattern_cache *cache, ra_cache_entry *entry)
{
    entry->newer = &cache->uses;
    entry->older = cache->uses.older;
    entry->older->newer = cache->uses.older = entry;
}

static void use_unlink(ra_cache_entry *entry)
{
    entry->newer->older = entry->older;
    entry->older->newer = entry->newer;
}

ra_cache_entry *ra_cache_find(const ra_pattern_cache *cache, uint64_t hash,
                              const ra_map_request *request)
{
    ra_cache_entry *entry = *bucket_of(cache, hash);
    while (entry != NULL &&
           (entry->hash != hash ||
            !ra_map_key_equals(request, ra_cache_entry_key(entry), entry->key_bytes)))
        entry = entry->next;
    return entry;
}

/* An entry that has left the cache: gone, or its holders' own until they put it back. */
static void let_go(const ra_pattern_cache *cache, ra_cache_entry *entry)
{
    if (entry->holders > 0) {
        if (cache->pool != NULL)
            ra_pool_move(cache->pool, RA_MEM_PATTERN_CACHE, RA_MEM_TILEMAP, entry->bytes);
        return;
    }
    if (cache->pool != NULL)
        ra_pool_release(cache->pool, RA_MEM_PATTERN_CACHE, entry->bytes);
    entry_free(entry);
}

static void remove_entry(ra_pattern_cache *cache, ra_cache_entry *entry)
{
    ra_cache_entry **at = bucket_of(cache, entry->hash);
    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    use_unlink(entry);
    entry->kept = false;
    if (entry->holders == 0)
        cache->idle_bytes -= entry->bytes;
    cache->stats.host.bytes -= entry->bytes;
    --cache->stats.host.entries;
    let_go(cache, entry);
}

/* Until `bytes` and `entries` more are within the bounds; as many as there are, if need be. */
void ra_cache_make_room(ra_pattern_cache *cache, int64_t bytes, int64_t entries)
{
    const ra_cache_counts *now = &cache->stats.host;
    while (now->entries > 0 &&
           (now->bytes + cache->promised_bytes + bytes > cache->config.bytes ||
            now->entries + cache->promised_entries + entries > cache->config.entries)) {
        remove_entry(cache, cache->uses.newer);
        ++cache->stats.host.evictions;
    }
}

/* The least recently used entry that nobody uses; its bytes, or 0. */
int64_t ra_cache_evict_idle(ra_pattern_cache *cache)
{
    ra_cache_entry *entry = cache->uses.newer;
    while (entry != &cache->uses && entry->holders > 0)
        entry = entry->newer;
    if (entry == &cache->uses)
        return 0;
    int64_t const bytes = entry->bytes;
    remove_entry(cache, entry);
    ++cache->stats.host.evictions;
    return bytes;
}

/* Count bytes in the attached pool; idle entries make way. */
static bool charge(ra_pattern_cache *cache, int64_t bytes)
{
    if (cache->pool == NULL)
        return true;
    while (!ra_pool_try_charge(cache->pool, RA_MEM_PATTERN_CACHE, bytes))
        if (ra_cache_evict_idle(cache) == 0)
            return false;
    return true;
}

static bool fits(const ra_pattern_cache *cache, int64_t bytes)
{
    return bytes <= cache->config.bytes - cache->promised_bytes &&
           cache->promised_entries < cache->config.entries;
}

static void promise(ra_pattern_cache *cache, int64_t bytes, int64_t entries)
{
    cache->promised_bytes += bytes;
    cache->promised_entries += entries;
}

/* Memory for an entry, counted and within the bounds; NULL: the map is not kept. */
ra_cache_entry *ra_cache_entry_take(ra_pattern_cache *cache, size_t key_bytes, size_t map_bytes)
{
    const ra_memory memory = cache->config.memory;
    size_t const wanted = round_up(sizeof(ra_cache_entry)) + round_up(key_bytes) + map_bytes;
    int64_t const bytes = (int64_t)memory.ops->round(&memory, wanted);
    void *data;
    ra_cache_lock(cache);
    bool taken = fits(cache, bytes);
    if (taken) {
        ra_cache_make_room(cache, bytes, 1);
        taken = charge(cache, bytes);
    }
    if (taken)
        promise(cache, bytes, 1);
    ra_cache_unlock(cache);
    if (!taken)
        return NULL;
    if (memory.ops->alloc(&memory, (size_t)bytes, &data) == RA_OK) {
        ra_cache_entry *entry = data;
        *entry = (ra_cache_entry){.cache = cache, .key_bytes = key_bytes, .bytes = bytes};
        return entry;
    }
    ra_cache_lock(cache);
    promise(cache, -bytes, -1);
    if (cache->pool != NULL)
        ra_pool_release(cache->pool, RA_MEM_PATTERN_CACHE, bytes);
    ra_cache_unlock(cache);
    return NULL;
}

/* A finished entry joins the cache, unless the bounds have shrunk meanwhile or another thread was
   faster: then it leaves at once, and lives as long as its holder wants. */
void ra_cache_entry_insert(ra_pattern_cache *cache, ra_cache_entry *entry,
                           const ra_map_request *request)
{
    promise(cache, -entry->bytes, -1);
    entry->holders = 1;
    ++cache->holders;
    if (!fits(cache, entry->bytes) || ra_cache_find(cache, entry->hash, request) != NULL) {
        let_go(cache, entry);
        return;
    }
    ra_cache_make_room(cache, entry->bytes, 1);
    ra_cache_entry **bucket = bucket_of(cache, entry->hash);
    entry->next = *bucket;
    *bucket = entry;
    use_link(cache, entry);
    entry->kept = true;
    cache->stats.host.bytes += entry->bytes;
    ++cache->stats.host.entries;
}

void ra_cache_entry_abandon(ra_cache_entry *entry)
{
    ra_pattern_cache *cache = entry->cache;
    ra_cache_lock(cache);
    promise(cache, -entry->bytes, -1);
    let_go(cache, entry);
    ra_cache_unlock(cache);
}

void ra_cache_entry_use(ra_cache_entry *entry)
{
    if (entry->holders++ == 0)
        entry->cache->idle_bytes -= entry->bytes;
    ++entry->cache->holders;
    use_unlink(entry);
    use_link(entry->cache, entry);
}

void ra_cache_entry_put(ra_cache_entry *entry)
{
    ra_pattern_cache *cache = entry->cache;
    RA_ASSERT(entry->holders > 0);
    --entry->holders;
    --cache->holders;
    if (entry->holders == 0 && entry->kept)
        cache->idle_bytes += entry->bytes;
    if (entry->holders > 0 || entry->kept)
        return;
    if (cache->pool != NULL)
        ra_pool_release(cache->pool, RA_MEM_TILEMAP, entry->bytes);
    entry_free(entry);
}

void ra_cache_drop_all(ra_pattern_cache *cache)
{
    while (cache->stats.host.entries > 0)
        remove_entry(cache, cache->uses.newer);
}

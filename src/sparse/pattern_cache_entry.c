/* Entries of the pattern cache: their memory, their order of use, and the bounds. */
#include "sparse/pattern_cache_entry.h"
#include "internal.h"

enum { ALIGN_BYTES = 64 };

static size_t aligned(size_t bytes)
{
    return ra_round_up(bytes, ALIGN_BYTES);
}

char *ra_cache_entry_key(ra_cache_entry *entry)
{
    return (char *)entry + aligned(sizeof(*entry));
}

char *ra_cache_entry_arrays(ra_cache_entry *entry)
{
    return ra_cache_entry_key(entry) + aligned(entry->key_bytes);
}

static void release(const ra_pattern_cache *cache, ra_category category, int64_t bytes)
{
    if (cache->pool != NULL)
        ra_pool_release(cache->pool, category, bytes);
}

/* Free an entry that is counted as `category`. */
static void entry_free(ra_cache_entry *entry, ra_category category)
{
    const ra_memory memory = entry->cache->config.memory;
    release(entry->cache, category, entry->bytes);
    memory.ops->free(&memory, entry, (size_t)entry->bytes);
}

static ra_cache_entry **bucket_of(ra_pattern_cache *cache, uint64_t hash)
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

ra_cache_entry *ra_cache_find(ra_pattern_cache *cache, uint64_t hash, const ra_map_request *request)
{
    ra_cache_entry *entry = *bucket_of(cache, hash);
    while (entry != NULL &&
           (entry->hash != hash ||
            !ra_map_key_equals(request, ra_cache_entry_key(entry), entry->key_bytes)))
        entry = entry->next;
    return entry;
}

/* Free it, or, if it is in use, leave it to its holders until they put it back. */
static void remove_entry(ra_pattern_cache *cache, ra_cache_entry *entry)
{
    ra_cache_entry **at = bucket_of(cache, entry->hash);
    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    use_unlink(entry);
    entry->kept = false;
    cache->counts.bytes -= entry->bytes;
    --cache->counts.entries;
    if (entry->holders == 0) {
        cache->idle_bytes -= entry->bytes;
        entry_free(entry, RA_MEM_PATTERN_CACHE);
    } else if (cache->pool != NULL) {
        ra_pool_move(cache->pool, RA_MEM_PATTERN_CACHE, RA_MEM_TILEMAP, entry->bytes);
    }
}

/* Evict until the bounds have room for an entry of so many bytes, which fits them alone. */
static void make_room(ra_pattern_cache *cache, int64_t bytes)
{
    while (cache->counts.entries > 0 && (cache->counts.bytes + bytes > cache->config.bytes ||
                                         cache->counts.entries >= cache->config.entries)) {
        remove_entry(cache, cache->uses.newer);
        ++cache->counts.evictions;
    }
}

int64_t ra_cache_evict_idle(ra_pattern_cache *cache)
{
    ra_cache_entry *entry = cache->uses.newer;
    while (entry != &cache->uses && entry->holders > 0)
        entry = entry->newer;
    if (entry == &cache->uses)
        return 0;
    int64_t const bytes = entry->bytes;
    remove_entry(cache, entry);
    ++cache->counts.evictions;
    return bytes;
}

/* Charge bytes to the attached pool; evict idle entries if there is no room. */
static bool charge(ra_pattern_cache *cache, int64_t bytes)
{
    if (cache->pool == NULL)
        return true;
    while (!ra_pool_try_charge(cache->pool, RA_MEM_PATTERN_CACHE, bytes))
        if (ra_cache_evict_idle(cache) == 0)
            return false;
    return true;
}

ra_cache_entry *ra_cache_entry_take(ra_pattern_cache *cache, size_t key_bytes, size_t map_bytes)
{
    const ra_memory memory = cache->config.memory;
    size_t const wanted = aligned(sizeof(ra_cache_entry)) + aligned(key_bytes) + map_bytes;
    int64_t const bytes = (int64_t)memory.ops->round(&memory, wanted);
    void *data;
    if (bytes > cache->config.bytes)
        return NULL;
    make_room(cache, bytes);
    if (!charge(cache, bytes))
        return NULL;
    if (memory.ops->alloc(&memory, (size_t)bytes, &data) != RA_OK) {
        release(cache, RA_MEM_PATTERN_CACHE, bytes);
        return NULL;
    }
    ra_cache_entry *entry = data;
    *entry = (ra_cache_entry){.cache = cache, .key_bytes = key_bytes, .bytes = bytes};
    return entry;
}

void ra_cache_entry_insert(ra_cache_entry *entry)
{
    ra_pattern_cache *cache = entry->cache;
    ra_cache_entry **bucket = bucket_of(cache, entry->hash);
    entry->holders = 1;
    ++cache->holders;
    entry->next = *bucket;
    *bucket = entry;
    use_link(cache, entry);
    entry->kept = true;
    cache->counts.bytes += entry->bytes;
    ++cache->counts.entries;
}

void ra_cache_entry_abandon(ra_cache_entry *entry)
{
    entry_free(entry, RA_MEM_PATTERN_CACHE);
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
    if (entry->holders > 0)
        return;
    if (entry->kept)
        cache->idle_bytes += entry->bytes;
    else
        entry_free(entry, RA_MEM_TILEMAP);
}

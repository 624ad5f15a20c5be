#include "job_cache.h"

#include "internal.h"

void ra_job_cache_destroy(ra_job_cache *holder)
{
    RA_ASSERT(!holder->attached);
    ra_pattern_cache_destroy(holder->cache);
    *holder = (ra_job_cache){0};
}

static bool is_wanted(const ra_job_cache *holder, const ra_config *config)
{
    return holder->mode == config->cache_mode && holder->entries == config->cache_entries &&
           holder->bytes == config->cache_bytes;
}

ra_status ra_job_cache_attach(ra_job_cache *holder, const ra_config *config, ra_pool *pool)
{
    if (!is_wanted(holder, config))
        ra_job_cache_destroy(holder);
    if (config->cache_mode == RA_CACHE_OFF)
        return RA_OK;
    if (holder->cache == NULL) {
        ra_pattern_cache_config const wanted = {.mode = config->cache_mode,
                                                .entries = config->cache_entries,
                                                .bytes = config->cache_bytes,
                                                .memory = ra_memory_host()};
        ra_status const status = ra_pattern_cache_create(&wanted, &holder->cache);
        if (status != RA_OK)
            return status;
        holder->mode = wanted.mode;
        holder->entries = wanted.entries;
        holder->bytes = wanted.bytes;
    }
    ra_pattern_cache_attach(holder->cache, pool);
    ra_pattern_cache_read(holder->cache, &holder->before);
    holder->attached = true;
    return RA_OK;
}

void ra_job_cache_detach(ra_job_cache *holder)
{
    if (holder->attached)
        ra_pattern_cache_detach(holder->cache);
    holder->attached = false;
}

ra_cache_counts ra_job_cache_read(const ra_job_cache *holder)
{
    ra_cache_counts counts;
    ra_pattern_cache_read(holder->cache, &counts);
    counts.hits -= holder->before.hits;
    counts.misses -= holder->before.misses;
    counts.evictions -= holder->before.evictions;
    return counts;
}

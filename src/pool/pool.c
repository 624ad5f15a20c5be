#include "pool_internal.h"

#include <stdatomic.h>
#include <stdlib.h>

struct ra_pool {
    ra_pool_config config;
    atomic_llong block_count; /* blocks that are out */
};

/* Above this a request is a mistake in arithmetic, and rounding it up could overflow. */
#define REQUEST_MAX_BYTES ((size_t)1 << 62)

ra_status ra_pool_create(const ra_pool_config *config, ra_pool **pool_out)
{
    RA_ASSERT(config->mode == RA_POOL_OFF);
    RA_ASSERT(config->memory.ops != NULL && config->ledger != NULL);
    ra_pool *const pool = calloc(1, sizeof(*pool));
    if (pool == NULL) {
        ra_log(RA_LOG_ERROR, "out of memory (memory pool)");
        return RA_ERR_NO_MEMORY;
    }
    pool->config = *config;
    atomic_init(&pool->block_count, 0);
    *pool_out = pool;
    return RA_OK;
}

void ra_pool_destroy(ra_pool *pool)
{
    if (pool == NULL)
        return;
    RA_ASSERT(atomic_load(&pool->block_count) == 0);
    free(pool);
}

ra_status ra_pool_alloc(ra_pool *pool, ra_category category, size_t bytes, ra_stream *stream,
                        ra_block *block_out)
{
    (void)stream; /* without a pool nothing is reused, so order on a device does not matter */
    ra_memory const *const memory = &pool->config.memory;
    ra_ledger *const ledger = pool->config.ledger;
    void *data = NULL;

    *block_out = (ra_block){.category = category};
    if (bytes == 0)
        return RA_OK;
    if (bytes > REQUEST_MAX_BYTES) {
        ra_ledger_log_refusal(ledger, "the address space", category, INT64_MAX);
        return RA_ERR_NO_MEMORY;
    }
    size_t const reserved = memory->ops->round(memory, bytes);
    ra_status status = ra_ledger_promise(ledger, category, (int64_t)reserved);
    if (status != RA_OK)
        return status; /* the ledger has said why */
    status = memory->ops->alloc(memory, reserved, &data);
    ra_ledger_settle(ledger, category, (int64_t)reserved, status == RA_OK);
    if (status != RA_OK) {
        ra_ledger_log_refusal(ledger, "the machine", category, (int64_t)reserved);
        return status;
    }
    atomic_fetch_add(&pool->block_count, 1);
    *block_out =
        (ra_block){.data = data, .bytes = bytes, .reserved_bytes = reserved, .category = category};
    return RA_OK;
}

void ra_pool_free(ra_pool *pool, ra_stream *stream, ra_block *block)
{
    (void)stream;
    if (block->reserved_bytes > 0) {
        ra_memory const *const memory = &pool->config.memory;
        memory->ops->free(memory, block->data, block->reserved_bytes);
        ra_ledger_release(pool->config.ledger, block->category, (int64_t)block->reserved_bytes);
        RA_ASSERT(atomic_fetch_sub(&pool->block_count, 1) > 0);
    }
    *block = (ra_block){0};
}

ra_status ra_pool_charge(ra_pool *pool, ra_category category, int64_t bytes)
{
    return ra_ledger_charge(pool->config.ledger, category, bytes);
}

void ra_pool_release(ra_pool *pool, ra_category category, int64_t bytes)
{
    ra_ledger_release(pool->config.ledger, category, bytes);
}

void ra_pool_move(ra_pool *pool, ra_category from, ra_category to, int64_t bytes)
{
    ra_ledger_move(pool->config.ledger, from, to, bytes);
}

size_t ra_pool_round(const ra_pool *pool, size_t bytes)
{
    return bytes > 0 ? pool->config.memory.ops->round(&pool->config.memory, bytes) : 0;
}

ra_status ra_pool_available(const ra_pool *pool, int64_t *bytes_out)
{
    ra_memory const *const memory = &pool->config.memory;
    int64_t machine_bytes;
    ra_status const status = memory->ops->available(memory, &machine_bytes);
    if (status != RA_OK)
        return status;
    *bytes_out = ra_min_i64(ra_ledger_headroom(pool->config.ledger), machine_bytes);
    return RA_OK;
}

const ra_ledger *ra_pool_ledger(const ra_pool *pool)
{
    return pool->config.ledger;
}

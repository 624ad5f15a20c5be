/*
 * The pool of a device's driver. The driver decides what to keep, cut and join, and when a freed
 * block may serve another stream; here it is asked, bounded and counted. It grows by unknown units
 * of its own, so the bytes that it holds are read back after each change.
 */
#include "pool_internal.h"

static const ra_driver_ops *ops_of(const ra_pool *pool)
{
    return pool->config.memory.ops->driver;
}

static int64_t allocated_bytes(const ra_pool *pool)
{
    return pool->stats.bytes[RA_POOL_ALLOCATED].current;
}

/* What the driver's pool holds, as counted. */
static int64_t held_bytes(const ra_pool *pool)
{
    return pool->stats.bytes[RA_POOL_RESERVED].current;
}

int64_t ra_driver_idle(const ra_pool *pool)
{
    return held_bytes(pool) - allocated_bytes(pool);
}

ra_status ra_driver_init(ra_pool *pool)
{
    if (ops_of(pool) == NULL) {
        ra_log(RA_LOG_ERROR, "a driver's pool needs a device: %s memory has none",
               pool->config.memory.ops->name);
        return RA_ERR_UNSUPPORTED;
    }
    return ops_of(pool)->create(&pool->config.memory, &pool->driver);
}

/* What the driver holds: at least `used_bytes`, which are in use. */
static ra_status read_held(const ra_pool *pool, int64_t used_bytes, int64_t *held_out)
{
    int64_t held = 0;
    ra_status const status = ops_of(pool)->held(&pool->config.memory, pool->driver, &held);
    if (status == RA_OK)
        *held_out = ra_max_i64(held, used_bytes);
    return status;
}

/* Count what the driver took or returned. If it cannot be asked (the cause was logged), the next
   call does it. */
static void recount(ra_pool *pool)
{
    int64_t held;
    if (read_held(pool, allocated_bytes(pool), &held) != RA_OK)
        return;
    if (held > held_bytes(pool))
        ra_ledger_admit(pool->config.ledger, RA_MEM_POOL_IDLE, held - held_bytes(pool));
    else
        ra_ledger_release(pool->config.ledger, RA_MEM_POOL_IDLE, held_bytes(pool) - held);
    ra_pool_count(&pool->stats, RA_POOL_RESERVED, held - held_bytes(pool), 0);
}

/* ---- returning what is idle ------------------------------------------------------------------ */

int64_t ra_driver_give_back(ra_pool *pool, int64_t wanted, bool refused)
{
    int64_t const before = held_bytes(pool), idle = ra_driver_idle(pool);
    if (refused)
        ops_of(pool)->see(&pool->config.memory, pool->driver);
    if (idle <= 0)
        return 0;
    ops_of(pool)->trim(&pool->config.memory, pool->driver,
                       allocated_bytes(pool) + ra_max_i64(idle - wanted, 0));
    recount(pool);
    return ra_max_i64(before - held_bytes(pool), 0);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/*
 * What is held after `bytes` have been taken. If the driver grew although it had (fragmented) idle
 * memory, that is returned before anybody counts it.
 */
static ra_status read_bounded(const ra_pool *pool, int64_t bytes, int64_t *held_out)
{
    int64_t const used = allocated_bytes(pool) + bytes, ceiling = ra_keeping_ceiling(pool, bytes);
    ra_status const status = read_held(pool, used, held_out);
    if (status != RA_OK || *held_out <= ceiling)
        return status;
    ops_of(pool)->trim(&pool->config.memory, pool->driver, ceiling);
    return read_held(pool, used, held_out);
}

/*
 * `wanted` bytes have been promised. If the driver took more, the limit is asked for the rest now;
 * if it refuses, the caller gives the block back.
 */
static bool settle(ra_pool *pool, int64_t wanted, int64_t held)
{
    ra_ledger *const ledger = pool->config.ledger;
    int64_t const grown = held - held_bytes(pool);
    if (grown > wanted && !ra_ledger_promise(ledger, grown - wanted))
        return false;
    if (grown < wanted)
        ra_ledger_break(ledger, wanted - ra_max_i64(grown, 0));
    if (grown > 0)
        ra_ledger_settle(ledger, RA_MEM_POOL_IDLE, grown, grown);
    else
        ra_ledger_release(ledger, RA_MEM_POOL_IDLE, -grown);
    ra_pool_count(&pool->stats, RA_POOL_RESERVED, grown, 0);
    if (grown > 0)
        pool->stats.misses++;
    else
        pool->stats.hits++;
    return true;
}

/* If the idle bytes (as far as is known outside the driver) are too few, promise the rest first. */
static ra_status take(ra_pool *pool, size_t size, ra_stream *stream, void **data_out,
                      ra_refusal *refusal)
{
    ra_memory const *const memory = &pool->config.memory;
    ra_ledger *const ledger = pool->config.ledger;
    int64_t const bytes = (int64_t)size;
    int64_t held = 0;
    void *data = NULL;
    ra_keeping_make_room(pool, bytes - ra_driver_idle(pool), bytes); /* negative: none is needed */
    int64_t const wanted = ra_max_i64(bytes - ra_driver_idle(pool), 0);
    *refusal = (ra_refusal){"the memory limit", bytes};
    if (!ra_ledger_promise(ledger, wanted))
        return RA_ERR_NO_MEMORY;
    ra_status status = ops_of(pool)->alloc(memory, pool->driver, size, stream, &data);
    if (status != RA_OK) {
        refusal->who = "the driver";
        goto err_break;
    }
    status = read_bounded(pool, bytes, &held);
    if (status == RA_OK && !settle(pool, wanted, held))
        status = RA_ERR_NO_MEMORY;
    if (status != RA_OK)
        goto err_free;
    *data_out = data;
    return RA_OK;

err_free:
    ops_of(pool)->free(memory, pool->driver, data, stream);
    ops_of(pool)->trim(memory, pool->driver, allocated_bytes(pool));
    recount(pool);
err_break:
    ra_ledger_break(ledger, wanted);
    return status;
}

ra_status ra_driver_alloc(ra_pool *pool, ra_category category, size_t bytes, ra_stream *stream,
                          ra_block *block_out, ra_refusal *refusal)
{
    size_t const size = ops_of(pool)->round(&pool->config.memory, bytes);
    void *data = NULL;
    int64_t const before = held_bytes(pool);
    ra_status status = take(pool, size, stream, &data, refusal);
    if (status == RA_ERR_NO_MEMORY)
        (void)ra_driver_give_back(pool, INT64_MAX, true);
    if (status == RA_ERR_NO_MEMORY && held_bytes(pool) < before) {
        pool->stats.retries++;
        status = take(pool, size, stream, &data, refusal);
    }
    if (status != RA_OK)
        return status;
    ra_ledger_move(pool->config.ledger, RA_MEM_POOL_IDLE, category, (int64_t)size);
    *block_out =
        (ra_block){.data = data, .bytes = bytes, .reserved_bytes = size, .category = category};
    return RA_OK;
}

void ra_driver_free(ra_pool *pool, ra_stream *stream, const ra_block *block)
{
    ops_of(pool)->free(&pool->config.memory, pool->driver, block->data, stream);
    ra_ledger_move(pool->config.ledger, block->category, RA_MEM_POOL_IDLE,
                   (int64_t)block->reserved_bytes);
    if (pool->config.trim_bytes > 0)
        (void)ra_keeping_trim(pool, pool->config.trim_bytes);
}

void ra_driver_fini(ra_pool *pool)
{
    ops_of(pool)->destroy(&pool->config.memory, pool->driver);
    ra_ledger_release(pool->config.ledger, RA_MEM_POOL_IDLE, held_bytes(pool));
}

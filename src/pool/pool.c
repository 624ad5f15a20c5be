/* The pool's front: one lock, one line per refusal, the modes, and the one that keeps nothing. */
#include "pool_internal.h"

#include <stdlib.h>

/* Above this a request is a mistake in arithmetic, and rounding it up could overflow. */
#define REQUEST_MAX_BYTES ((size_t)1 << 61)

const char *ra_pool_mode_name(ra_pool_mode mode)
{
    static const char *const names[] = {"off", "size_class", "driver"};
    RA_ASSERT((unsigned)mode < sizeof(names) / sizeof(names[0]));
    return names[mode];
}

/* ---- modes ----------------------------------------------------------------------------------- */

/* Straight from the memory, with the lock open. */
static ra_status take_off(ra_pool *pool, ra_category category, size_t bytes, ra_stream *stream,
                          ra_block *block_out, ra_refusal *refusal)
{
    (void)stream; /* what is taken is new */
    ra_memory const *const memory = &pool->config.memory;
    ra_ledger *const ledger = pool->config.ledger;
    size_t const reserved = memory->ops->round(memory, bytes);
    void *data = NULL;
    *refusal = (ra_refusal){"the memory limit", (int64_t)reserved};
    if (!ra_ledger_promise(ledger, (int64_t)reserved))
        return RA_ERR_NO_MEMORY;
    ra_pool_unlock(pool);
    ra_status const status = memory->ops->alloc(memory, reserved, &data);
    ra_pool_lock(pool);
    if (status != RA_OK) {
        ra_ledger_break(ledger, (int64_t)reserved);
        refusal->who = "the machine";
        return status;
    }
    ra_ledger_settle(ledger, category, (int64_t)reserved, 0);
    ra_pool_count(&pool->stats, RA_POOL_RESERVED, (int64_t)reserved, 1);
    pool->stats.misses++;
    *block_out =
        (ra_block){.data = data, .bytes = bytes, .reserved_bytes = reserved, .category = category};
    return RA_OK;
}

/* Nothing is reused, so order on a device does not matter. */
static void give_off(ra_pool *pool, ra_stream *stream, const ra_block *block)
{
    (void)stream;
    ra_memory const *const memory = &pool->config.memory;
    int64_t const bytes = (int64_t)block->reserved_bytes;
    ra_pool_unlock(pool);
    memory->ops->free(memory, block->data, block->reserved_bytes);
    ra_pool_lock(pool);
    ra_ledger_release(pool->config.ledger, block->category, bytes);
    ra_pool_count(&pool->stats, RA_POOL_RESERVED, -bytes, -1);
}

/* The heap of a pool that keeps nothing is empty: trimming returns nothing, without a word. */
static const ra_keeping keepings[] = {
    [RA_POOL_OFF] = {.alloc = take_off,
                     .free = give_off,
                     .give_back = ra_heap_give_back,
                     .idle = ra_heap_idle,
                     .spare = ra_heap_spare,
                     .fini = ra_heap_fini},
    [RA_POOL_SIZE_CLASS] = {.alloc = ra_heap_alloc,
                            .free = ra_heap_free,
                            .give_back = ra_heap_give_back,
                            .idle = ra_heap_idle,
                            .spare = ra_heap_spare,
                            .fini = ra_heap_fini},
    [RA_POOL_DRIVER] = {.init = ra_driver_init,
                        .alloc = ra_driver_alloc,
                        .free = ra_driver_free,
                        .give_back = ra_driver_give_back,
                        .idle = ra_driver_idle,
                        .spare = ra_driver_idle,
                        .fini = ra_driver_fini},
};

ra_status ra_pool_create(const ra_pool_config *config, ra_pool **pool_out)
{
    RA_ASSERT(config->memory.ops != NULL && config->ledger != NULL);
    RA_ASSERT(config->trim_bytes >= 0);
    RA_ASSERT((unsigned)config->mode < sizeof(keepings) / sizeof(keepings[0]));
    ra_pool *const pool = calloc(1, sizeof(*pool));
    if (pool == NULL)
        goto err_no_memory;
    if (pthread_mutex_init(&pool->mutex, NULL) != 0)
        goto err_free_pool;
    pool->config = *config;
    pool->keeping = &keepings[config->mode];
    ra_status const status = pool->keeping->init != NULL ? pool->keeping->init(pool) : RA_OK;
    if (status != RA_OK)
        goto err_destroy_mutex;
    *pool_out = pool;
    return RA_OK;

err_destroy_mutex:
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
    return status; /* init has said why */
err_free_pool:
    free(pool);
err_no_memory:
    return ra_refuse_memory("a memory pool");
}

void ra_pool_destroy(ra_pool *pool)
{
    if (pool == NULL)
        return;
    RA_ASSERT(pool->stats.count[RA_POOL_ALLOCATED].current == 0);
    pool->keeping->fini(pool);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

void ra_pool_lock(const ra_pool *pool)
{
    /* The mutex is the one part of a pool that readers change. */
    RA_ASSERT(pthread_mutex_lock((pthread_mutex_t *)&pool->mutex) == 0);
}

void ra_pool_unlock(const ra_pool *pool)
{
    RA_ASSERT(pthread_mutex_unlock((pthread_mutex_t *)&pool->mutex) == 0);
}

/* ---- returning what is idle ------------------------------------------------------------------ */

int64_t ra_keeping_trim(ra_pool *pool, int64_t keep_bytes)
{
    int64_t const wanted = pool->keeping->idle(pool) - keep_bytes;
    return wanted > 0 ? pool->keeping->give_back(pool, wanted, false) : 0;
}

int64_t ra_keeping_trim_for(ra_pool *pool, int64_t bytes)
{
    int64_t const wanted = bytes - ra_ledger_headroom(pool->config.ledger);
    return wanted > 0 ? pool->keeping->give_back(pool, wanted, true) : 0;
}

int64_t ra_keeping_ceiling(const ra_pool *pool, int64_t used_bytes)
{
    int64_t const in_use = pool->stats.bytes[RA_POOL_ALLOCATED].current + pool->outside_bytes;
    if (pool->config.trim_bytes > 0)
        return INT64_MAX; /* the caller has said how much may be idle */
    return ra_max_i64(pool->in_use_peak_bytes, in_use + used_bytes) - pool->outside_bytes;
}

void ra_keeping_make_room(ra_pool *pool, int64_t bytes, int64_t used_bytes)
{
    int64_t const excess =
        pool->stats.bytes[RA_POOL_RESERVED].current + bytes - ra_keeping_ceiling(pool, used_bytes);
    if (excess > 0)
        (void)pool->keeping->give_back(pool, excess, false);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void note_in_use(ra_pool *pool)
{
    pool->in_use_peak_bytes =
        ra_max_i64(pool->in_use_peak_bytes,
                   pool->stats.bytes[RA_POOL_ALLOCATED].current + pool->outside_bytes);
}

static ra_status take_locked(ra_pool *pool, ra_category category, size_t bytes, ra_stream *stream,
                             ra_block *block_out, ra_refusal *refusal)
{
    ra_status const status =
        pool->keeping->alloc(pool, category, bytes, stream, block_out, refusal);
    if (status != RA_OK)
        return status;
    ra_pool_count(&pool->stats, RA_POOL_REQUESTED, (int64_t)bytes, 1);
    ra_pool_count(&pool->stats, RA_POOL_ALLOCATED, (int64_t)block_out->reserved_bytes, 1);
    note_in_use(pool);
    if (pool->config.log != NULL)
        block_out->id = ra_pool_log_taken(pool->config.log, category, bytes);
    return RA_OK;
}

/* Have the keeper give up a piece; the lock is open meanwhile, because giving up takes it too. */
static bool keeper_gives_up(ra_pool *pool)
{
    ra_pool_keeper const keeper = pool->keeper;
    if (keeper.give_up == NULL)
        return false;
    ra_pool_unlock(pool);
    int64_t const bytes = keeper.give_up(keeper.context);
    ra_pool_lock(pool);
    pool->stats.retries += bytes > 0;
    return bytes > 0;
}

ra_status ra_pool_alloc(ra_pool *pool, ra_category category, size_t bytes, ra_stream *stream,
                        ra_block *block_out)
{
    ra_refusal refusal = {"the address space", bytes < INT64_MAX ? (int64_t)bytes : INT64_MAX};
    ra_status status = RA_ERR_NO_MEMORY;
    RA_ASSERT(category != RA_MEM_POOL_IDLE);
    *block_out = (ra_block){.category = category};
    if (bytes == 0)
        return RA_OK;
    bool const measures = pool->config.measures_time;
    int64_t const begin_ns = measures ? ra_clock_ns() : 0;
    ra_pool_lock(pool);
    if (bytes <= REQUEST_MAX_BYTES) {
        do {
            status = take_locked(pool, category, bytes, stream, block_out, &refusal);
        } while (status == RA_ERR_NO_MEMORY && keeper_gives_up(pool));
    }
    ra_heap_refresh(pool);
    pool->stats.ooms += status == RA_ERR_NO_MEMORY;
    if (measures && status == RA_OK)
        ra_pool_times_add(&pool->times, ra_clock_ns() - begin_ns);
    ra_pool_unlock(pool);
    if (status == RA_ERR_NO_MEMORY)
        ra_ledger_log_refusal(pool->config.ledger, refusal.who, category, refusal.bytes);
    return status;
}

void ra_pool_free(ra_pool *pool, ra_stream *stream, ra_block *block)
{
    if (block->reserved_bytes > 0) {
        ra_pool_lock(pool);
        RA_ASSERT(pool->stats.count[RA_POOL_ALLOCATED].current > 0);
        ra_pool_count(&pool->stats, RA_POOL_REQUESTED, -(int64_t)block->bytes, -1);
        ra_pool_count(&pool->stats, RA_POOL_ALLOCATED, -(int64_t)block->reserved_bytes, -1);
        if (pool->config.log != NULL)
            ra_pool_log_given(pool->config.log, block->id);
        pool->keeping->free(pool, stream, block);
        ra_heap_refresh(pool);
        ra_pool_unlock(pool);
    }
    *block = (ra_block){0};
}

/* ---- everything else ------------------------------------------------------------------------- */

static bool charge_locked(ra_pool *pool, ra_category category, int64_t bytes)
{
    ra_ledger *const ledger = pool->config.ledger;
    int64_t const room = ra_min_i64(bytes, INT64_MAX / 4); /* sums of it stay in range */
    ra_keeping_make_room(pool, room, room);
    bool promised = ra_ledger_promise(ledger, bytes);
    if (!promised && ra_keeping_trim_for(pool, bytes) > 0) {
        pool->stats.retries++;
        promised = ra_ledger_promise(ledger, bytes);
    }
    if (promised) {
        ra_ledger_settle(ledger, category, bytes, 0);
        pool->outside_bytes += bytes;
        note_in_use(pool);
    }
    ra_heap_refresh(pool);
    return promised;
}

bool ra_pool_try_charge(ra_pool *pool, ra_category category, int64_t bytes)
{
    ra_pool_lock(pool);
    bool const charged = charge_locked(pool, category, bytes);
    ra_pool_unlock(pool);
    return charged;
}

ra_status ra_pool_charge(ra_pool *pool, ra_category category, int64_t bytes)
{
    bool charged;
    ra_pool_lock(pool);
    do {
        charged = charge_locked(pool, category, bytes);
    } while (!charged && keeper_gives_up(pool));
    ra_pool_unlock(pool);
    if (charged)
        return RA_OK;
    ra_ledger_log_refusal(pool->config.ledger, "the memory limit", category, bytes);
    return RA_ERR_NO_MEMORY;
}

void ra_pool_release(ra_pool *pool, ra_category category, int64_t bytes)
{
    ra_pool_lock(pool);
    ra_ledger_release(pool->config.ledger, category, bytes);
    pool->outside_bytes -= bytes;
    ra_pool_unlock(pool);
}

int64_t ra_pool_trim(ra_pool *pool, int64_t keep_bytes)
{
    ra_pool_lock(pool);
    int64_t const bytes = ra_keeping_trim(pool, keep_bytes);
    ra_heap_refresh(pool);
    ra_pool_unlock(pool);
    return bytes;
}

void ra_pool_set_keeper(ra_pool *pool, const ra_pool_keeper *keeper)
{
    ra_pool_lock(pool);
    pool->keeper = keeper != NULL ? *keeper : (ra_pool_keeper){0};
    ra_pool_unlock(pool);
}

void ra_pool_move(ra_pool *pool, ra_category from, ra_category to, int64_t bytes)
{
    ra_ledger_move(pool->config.ledger, from, to, bytes);
}

size_t ra_pool_round(const ra_pool *pool, size_t bytes)
{
    if (pool->config.mode == RA_POOL_SIZE_CLASS)
        return ra_pool_class_bytes(bytes);
    ra_memory const *const memory = &pool->config.memory;
    return pool->config.mode == RA_POOL_DRIVER ? memory->ops->driver->round(memory, bytes)
                                               : memory->ops->round(memory, bytes);
}

ra_status ra_pool_available(const ra_pool *pool, int64_t *bytes_out)
{
    ra_memory const *const memory = &pool->config.memory;
    int64_t machine_bytes;
    ra_status const status = memory->ops->available(memory, &machine_bytes);
    if (status != RA_OK)
        return status;
    ra_pool_lock(pool);
    ra_pool_keeper const keeper = pool->keeper;
    int64_t idle_bytes = pool->keeping->spare(pool);
    int64_t const limit_bytes = ra_max_i64(ra_ledger_headroom(pool->config.ledger), 0);
    ra_pool_unlock(pool);
    if (keeper.spare_bytes != NULL)
        idle_bytes += keeper.spare_bytes(keeper.context);
    *bytes_out = ra_min_i64(limit_bytes, machine_bytes);
    *bytes_out += ra_min_i64(idle_bytes, INT64_MAX - *bytes_out);
    return RA_OK;
}

void ra_pool_mark(ra_pool *pool, const char *name, int32_t group, int32_t step)
{
    ra_ledger_mark_now(pool->config.ledger, name, group, step);
}

ra_ledger *ra_pool_ledger(const ra_pool *pool)
{
    return pool->config.ledger;
}

void ra_pool_read_stats(const ra_pool *pool, ra_pool_stats *stats_out)
{
    ra_pool_lock(pool);
    *stats_out = pool->stats;
    stats_out->alloc_p50_ns = ra_pool_times_quantile(&pool->times, 0.5);
    stats_out->alloc_p99_ns = ra_pool_times_quantile(&pool->times, 0.99);
    ra_pool_unlock(pool);
}

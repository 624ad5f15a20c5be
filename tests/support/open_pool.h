/* A pool without a limit, where a test does not look at what is charged to it. */
#ifndef RINGATTN_TESTS_OPEN_POOL_H
#define RINGATTN_TESTS_OPEN_POOL_H

#include "ringattn/pool.h"

#include <pthread.h>
#include <stdlib.h>

static ra_pool *open_pool_made; /* once, for good */

static inline void open_pool_make(void)
{
    ra_pool_config config = {.memory = ra_memory_host()};
    if (ra_ledger_create(INT64_MAX, &config.ledger) != RA_OK ||
        ra_pool_create(&config, &open_pool_made) != RA_OK)
        abort();
}

static inline ra_pool *open_pool(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (pthread_once(&once, open_pool_make) != 0)
        abort();
    return open_pool_made;
}

#endif

/* A suite each of whose tests has a pool of poisoned memory, and is to leave it as it was. */
#ifndef RINGATTN_TESTS_POISON_SUITE_H
#define RINGATTN_TESTS_POISON_SUITE_H

#include "support/poison_pool.h"

static ra_ledger *ledger;
static ra_pool *pool;

static inline void poison_suite_begin(void)
{
    poison_pool_begin(&ledger, &pool);
}

static inline void poison_suite_end(void)
{
    poison_pool_end(ledger, pool);
}

#endif

/* A suite's pool of poisoned memory, over a ledger of its own. */
#ifndef RINGATTN_TESTS_POISON_POOL_H
#define RINGATTN_TESTS_POISON_POOL_H

#include "support/poison_memory.h"

#include <criterion/criterion.h>

static inline void poison_pool_begin_within(int64_t limit_bytes, ra_ledger **ledger_out,
                                            ra_pool **pool_out)
{
    cr_assert_eq(ra_ledger_create(limit_bytes, ledger_out), RA_OK);
    cr_assert_eq(
        ra_pool_create(&(ra_pool_config){.memory = ra_memory_poison(), .ledger = *ledger_out},
                       pool_out),
        RA_OK);
}

/** Without a limit. */
static inline void poison_pool_begin(ra_ledger **ledger_out, ra_pool **pool_out)
{
    poison_pool_begin_within(INT64_MAX, ledger_out, pool_out);
}

/** All blocks are to have been given back. */
static inline void poison_pool_end(ra_ledger *ledger, ra_pool *pool)
{
    ra_ledger_snapshot snapshot;
    ra_ledger_read(ledger, &snapshot);
    cr_expect_eq(snapshot.reserved_bytes, 0, "bytes are left over");
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
}

#endif

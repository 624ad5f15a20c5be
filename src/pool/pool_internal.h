/* What the pool's own files share. */
#ifndef RINGATTN_POOL_INTERNAL_H
#define RINGATTN_POOL_INTERNAL_H

#include "internal.h"
#include "ringattn/pool.h"

/*
 * A charge in two halves, around a request to the memory: bytes that are promised count towards
 * the limit, so that two threads cannot both take the last ones, but are in no snapshot and no
 * peak until they are settled. What the memory refuses never shows as having been held.
 */
RA_CHECKED ra_status ra_ledger_promise(ra_ledger *ledger, ra_category category, int64_t bytes);
void ra_ledger_settle(ra_ledger *ledger, ra_category category, int64_t bytes, bool taken);

/** Count bytes of one category towards another. */
void ra_ledger_move(ra_ledger *ledger, ra_category from, ra_category to, int64_t bytes);

/** What the limit leaves; INT64_MAX without a limit. */
int64_t ra_ledger_headroom(const ra_ledger *ledger);

/** Log that `who` refused `bytes` for `category`: one line, with what is held. */
void ra_ledger_log_refusal(const ra_ledger *ledger, const char *who, ra_category category,
                           int64_t bytes);

/**
 * What this process may still take according to the kernel's files under `root` ("" for the
 * machine itself, a folder of recorded files in tests) and to its own resource limits.
 */
RA_CHECKED ra_status ra_host_available(const char *root, int64_t *bytes_out);

#endif

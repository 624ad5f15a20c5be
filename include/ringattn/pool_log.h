/*
 * The pool's event log: every block that is taken and given back, in order, to be replayed against
 * any mode. As text, one event a line:
 *     ringattn pool log 1
 *     + ID BYTES CATEGORY      a block is taken; IDs count up from 0
 *     - ID                     and given back
 *     lost COUNT               events that did not fit in memory; nothing follows
 * Functions return RA_ERR_NO_MEMORY where they can, with one line logged.
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_POOL_LOG_H
#define RINGATTN_POOL_LOG_H

#include "ringattn/pool.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ra_pool_event {
    int64_t id;
    int64_t bytes; /* as asked; -1: given back */
    ra_category category;
} ra_pool_event;

RA_CHECKED ra_status ra_pool_log_create(ra_pool_log **log_out);
void ra_pool_log_destroy(ra_pool_log *log); /* NULL is fine */

/** Events so far; borrowed until the next one, and not while a pool that records may be used. */
const ra_pool_event *ra_pool_log_events(const ra_pool_log *log, int64_t *count_out);
/** Blocks recorded, which is one more than the highest id. */
int64_t ra_pool_log_block_count(const ra_pool_log *log);
/** Events that did not fit in memory. */
int64_t ra_pool_log_lost(const ra_pool_log *log);

/**
 * Write as text. The caller flushes and closes.
 * @return RA_ERR_IO  errno says why; nothing was logged, because only the caller knows the file
 */
RA_CHECKED ra_status ra_pool_log_write(const ra_pool_log *log, FILE *file);
/**
 * Read what was written; `name` is for messages.
 * @return RA_ERR_IO  not a log: one line was logged, with the number of the line that is wrong
 */
RA_CHECKED ra_status ra_pool_log_read(FILE *file, const char *name, ra_pool_log **log_out);

/**
 * Take and give back as recorded, then what is left. Blocks are not written to.
 * @return RA_ERR_NO_MEMORY  the pool refused a block; everything was given back
 */
RA_CHECKED ra_status ra_pool_replay(ra_pool *pool, const ra_pool_log *log);

#ifdef __cplusplus
}
#endif
#endif

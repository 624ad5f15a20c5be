/*
 * The pool's event log: every block that is taken and given back, in order, to be replayed against
 * any mode. As text, one event a line:
 *     ringattn pool log 1
 *     + ID BYTES CATEGORY      a block is taken; IDs count up from 0
 *     - ID                     and given back
 *     lost COUNT               events that did not fit in memory; nothing follows
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_POOL_LOG_H
#define RINGATTN_POOL_LOG_H

#include "ringattn/pool.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/** @return RA_ERR_NO_MEMORY  one line was logged */
RA_CHECKED ra_status ra_pool_log_create(ra_pool_log **log_out);
void ra_pool_log_destroy(ra_pool_log *log); /* NULL is fine */

/** Events that did not fit in memory. */
int64_t ra_pool_log_lost(const ra_pool_log *log);

/** Write as text. A failure stays with the stream, which the caller flushes and closes. */
void ra_pool_log_write(const ra_pool_log *log, FILE *file);

#ifdef __cplusplus
}
#endif
#endif

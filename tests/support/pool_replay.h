/* A pool's event log, of which ringattn/pool_log.h has the format, replayed against another pool.
 */
#ifndef RINGATTN_TESTS_POOL_REPLAY_H
#define RINGATTN_TESTS_POOL_REPLAY_H

#include "ringattn/pool.h"

#include <stdio.h>

typedef struct pool_replay {
    int64_t lines, blocks, lost; /* lines that were understood; events that the log lacks */
} pool_replay;

/**
 * Take and give back as the log says, then give back what is left. Blocks are not written to.
 * @return RA_ERR_IO        the line after the last that was understood is not one of a log
 *         RA_ERR_NO_MEMORY the pool refused a block
 */
RA_CHECKED ra_status pool_replay_run(FILE *log, ra_pool *pool, pool_replay *replay_out);

#endif

/*
 * A pool of size classes over memory that counts, with streams, and whose requests can be refused.
 * One at a time.
 */
#ifndef TESTS_POOL_COUNTED_POOL_H
#define TESTS_POOL_COUNTED_POOL_H

#include "pool/pool_internal.h"
#include "support/captured_log.h"

/* An event is over when its stream is. */
struct ra_stream {
    int64_t done; /* events up to this number are over */
    int64_t recorded;
};

typedef struct counted_memory {
    int64_t out_bytes, requests, refuse_above_bytes;
    int64_t machine_bytes; /* that the machine says it has; 0: without end */
    int64_t events;
    bool refuses_events;
    bool fails; /* whatever it is asked for, and for another reason than want of memory */
} counted_memory;

extern ra_ledger *ledger;
extern ra_pool *pool;
extern counted_memory counted;
extern captured_log said; /* since open_pool */

/** Close it with close_pool, which finds what was not given back. */
void open_pool(int64_t limit_bytes, int64_t trim_bytes, bool has_streams);
void close_pool(void);
ra_pool_stats stats(void);

/* After each of these ledger, statistics and memory must tell the same. */
ra_block take(size_t bytes);
ra_block take_on(ra_stream *stream, size_t bytes);
void give(ra_block *block);

#endif

/*
 * Memory with a pool of its own, as a device's driver keeps one: it grows by units, counts a freed
 * block as used until its stream is over, and fails at the call of a number. For tests.
 */
#ifndef RINGATTN_TESTS_DRIVER_MEMORY_H
#define RINGATTN_TESTS_DRIVER_MEMORY_H

#include "ringattn/pool.h"

enum { DRIVER_MEMORY_UNIT_BYTES = 64 << 10 };

typedef struct driver_memory {
    int64_t held_bytes;
    int64_t used_bytes;    /* blocks that are out */
    int64_t pending_bytes; /* freed, but their stream is not over */
    int64_t pools, calls;
    int64_t fail_call; /* the call of this number, from 1, fails with fail_status; 0: none */
    ra_status fail_status;
    bool stream_is_over; /* true at first */
    bool fragmented;     /* nothing idle serves a request */
} driver_memory;

/** Everything 0; `driver` is borrowed. */
ra_memory driver_memory_make(driver_memory *driver);

#endif

/*
 * Memory of which one request is refused, for sweeps over all of them, whose room is another or
 * unknown, and which counts what is out.
 */
#ifndef RINGATTN_TESTS_REFUSING_MEMORY_H
#define RINGATTN_TESTS_REFUSING_MEMORY_H

#include "ringattn/pool.h"

#include <stdatomic.h>

typedef struct refusing_memory {
    ra_memory inner;
    atomic_long countdown; /* requests until the one that is refused; negative: none */
    atomic_bool refused;   /* it has been */
    atomic_llong out_bytes;
    int64_t room_bytes; /* 0: as much as the inner one has */
    ra_status unknown;  /* what asking for its room returns; RA_OK: it is known */
} refusing_memory;

/** Borrows `self`, whose inner memory must be set by then. */
ra_memory ra_memory_refusing(refusing_memory *self);

#endif

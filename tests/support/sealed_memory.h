/*
 * Memory that stands for a device's: the host reaches it through ra_memory_write and ra_memory_read
 * only, and any other access ends the process.
 */
#ifndef RINGATTN_TESTS_SEALED_MEMORY_H
#define RINGATTN_TESTS_SEALED_MEMORY_H

#include "ringattn/pool.h"

typedef struct sealed_memory {
    int64_t copied_bytes, longest_bytes; /* by all copies, and by the longest one */
    long copies;
    long fail_copy; /* the number, from 1, of a copy that fails; 0: none */
} sealed_memory;

/** Borrows `self`, which starts zeroed. */
ra_memory ra_memory_sealed(sealed_memory *self);

#endif

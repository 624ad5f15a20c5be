/*
 * Memory that stands for a device's: the host reaches it through ra_memory_write and ra_memory_read
 * only, and any other access ends the process.
 */
#ifndef RINGATTN_TESTS_SEALED_MEMORY_H
#define RINGATTN_TESTS_SEALED_MEMORY_H

#include "ringattn/pool.h"

enum { SEALED_BLOCKS_MAX = 256 };

typedef struct sealed_memory {
    int64_t limit_bytes, used_bytes;     /* limit: 0: none */
    int64_t copied_bytes, longest_bytes; /* by all copies, and by the longest one */
    long copies;
    long fail_copy; /* the number, from 1, of a copy that fails; 0: none */
    struct {
        void *data; /* NULL: there is no block here */
        size_t bytes;
    } blocks[SEALED_BLOCKS_MAX];
} sealed_memory;

/** Borrows `self`, which starts zeroed. */
ra_memory ra_memory_sealed(sealed_memory *self);

/** While a table that stands for a device's computes, all blocks are open to it. */
void sealed_memory_open(sealed_memory *self);
void sealed_memory_seal(sealed_memory *self);

#endif

/* Host memory that hands out blocks full of 0xFF: NaN as any float, -1 as any integer. */
#ifndef RINGATTN_TESTS_POISON_MEMORY_H
#define RINGATTN_TESTS_POISON_MEMORY_H

#include "ringattn/pool.h"

/** Whoever takes zeros for granted computes NaN, or counts from -1. */
ra_memory ra_memory_poison(void);

#endif

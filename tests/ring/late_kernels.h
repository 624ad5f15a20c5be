/*
 * The CPU's kernels as a GPU would run them: each call is enqueued on a stream of the stand-in
 * runtime, and done when something waits for it. Whoever relies on a call being done when it
 * returns gets what was there before. For tests only.
 */
#ifndef TESTS_RING_LATE_KERNELS_H
#define TESTS_RING_LATE_KERNELS_H

#include "ringattn/kernel.h"

/** A table whose views lie in memory of the stand-in's device. */
ra_kernel_ops late_kernels(void);

#endif

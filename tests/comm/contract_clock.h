/* Time that passes as a test says. Programs that use it are linked with --wrap=clock_gettime. */
#ifndef RINGATTN_TEST_CONTRACT_CLOCK_H
#define RINGATTN_TEST_CONTRACT_CLOCK_H

#include <stdatomic.h>

/**
 * From here on CLOCK_MONOTONIC shows *now_ns, in all threads: no stall of a machine lets a deadline
 * pass. Processes may share it. NULL: time goes on by itself, from there.
 */
void contract_clock_follow(atomic_llong *now_ns);

#endif

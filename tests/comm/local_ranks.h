/* Run one function on every rank of a local communicator, each in a thread of its own. */
#ifndef RINGATTN_TEST_LOCAL_RANKS_H
#define RINGATTN_TEST_LOCAL_RANKS_H

#include "ringattn/comm.h"

/** Sum of what `body` returned on the ranks. Each communicator is destroyed by its thread. */
int local_ranks_run(int ranks, int64_t timeout_ms, int (*body)(ra_comm *comm, void *context),
                    void *context);

/* The same on communicators that are there; they are destroyed. */
int local_ranks_run_on(int ranks, ra_comm **comms, int (*body)(ra_comm *comm, void *context),
                       void *context);

#endif

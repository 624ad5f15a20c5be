/* Ranks that are threads, with communicators of stand-in GPUs over their local ones. */
#ifndef RINGATTN_TEST_DEVICE_RANKS_H
#define RINGATTN_TEST_DEVICE_RANKS_H

#include "ringattn/comm_device.h"

typedef ra_status device_maker(ra_comm *host, const ra_comm_device *device, ra_comm **comm_out);

typedef struct device_ranks {
    device_maker *make;
    int64_t timeout_ms;
    const int *hosts;                          /* as if ranks were on several; NULL: on one */
    size_t piece_bytes;                        /* of staged; 0: its own */
    ra_pool *pool, *host_pool;                 /* NULL: open_pool */
    int (*body)(ra_comm *comm, void *context); /* NULL: having a communicator is a failure */
    void *context;
    int (*refused)(ra_status status, void *context); /* NULL: having none is a failure */
} device_ranks;

/** Before a test of NCCL: stand-ins as new, all ranks on the first GPU, the log captured. */
void device_ranks_begin_nccl(void);

/** Sum of what `body` or `refused` returned on the ranks. */
int device_ranks_run(int ranks, device_ranks *plan);
/** The same of one rank that does not hear its own signs of work, as over MPI. */
int device_ranks_run_alone(device_ranks *plan);

#endif

/* Ranks of a ring job, each with a GPU of the stand-in's behind its communicator. */
#ifndef TESTS_RING_ON_GPUS_H
#define TESTS_RING_ON_GPUS_H

#include "ringattn/comm_device.h"
#include "support/open_pool.h"

/* ra_comm_create_nccl or ra_comm_create_staged. */
typedef ra_status device_maker(ra_comm *host, const ra_comm_device *device, ra_comm **comm_out);

/* As ring_job.wrap, of a device_maker at `context`: a rank's own where there is no GPU, which ends.
 */
static inline ra_comm *wrap_on_gpu(void *context, int rank, ra_comm *host)
{
    device_maker *const *make = context;
    ra_comm_device device = {.pool = open_pool(), .host_pool = open_pool()};
    ra_comm *comm = host;
    (void)rank;
    if (ra_memory_device(0, &device.memory) != RA_OK || (*make)(host, &device, &comm) != RA_OK)
        ra_comm_abort(host, 5);
    return comm;
}

#endif

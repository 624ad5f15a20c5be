#include "ring/ring_job_cuda.h"

#include "ringattn/comm_device.h"
#include "support/open_pool.h"
#include "support/standin_cudart.h"

#include <stdlib.h>

void ring_job_begin_cuda(void)
{
    standin_reset();
    standin.multiprocessors = 1;
}

static ra_comm *wrap(void *context, int rank, ra_comm *host)
{
    ra_comm_device device = {.pool = open_pool(), .host_pool = open_pool()};
    ra_comm *comm = host;
    (void)context, (void)rank;
    if (ra_memory_device(0, &device.memory) != RA_OK ||
        ra_comm_create_staged(host, &device, &comm) != RA_OK)
        ra_comm_abort(host, 5);
    return comm;
}

void ring_job_on_cuda(ring_job *job)
{
    job->kernel = ra_kernel_cuda();
    job->two_pools = true;
    if (ra_memory_device(0, &job->kernel_memory) != RA_OK)
        abort();
    job->wrap_comm = job->ranks > 1 ? wrap : NULL;
}

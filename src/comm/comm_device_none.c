/* A build without CUDA: asked for exchanges between GPUs, it says so. */
#include "internal.h"
#include "ringattn/comm_device.h"

static ra_status refuse(void)
{
    ra_log(RA_LOG_ERROR, "exchanges between GPUs: this build has no CUDA: build with -DRA_CUDA=ON "
                         "where nvcc is");
    return RA_ERR_UNSUPPORTED;
}

ra_status ra_comm_create_staged(ra_comm *host, const ra_comm_device *device, ra_comm **comm_out)
{
    (void)host;
    (void)device;
    (void)comm_out;
    return refuse();
}

ra_status ra_comm_create_device(ra_comm *host, const ra_comm_device *device, ra_comm **comm_out)
{
    (void)host;
    (void)device;
    (void)comm_out;
    return refuse();
}

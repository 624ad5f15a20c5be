/* A build without NCCL: asked for it, it says so. */
#include "internal.h"
#include "ringattn/comm_device.h"

#include <stdio.h>

static const char why_not[] =
    "this build has no NCCL: build with -DRA_NCCL=ON where nccl.h is installed";

ra_status ra_comm_create_nccl(ra_comm *host, const ra_comm_device *device, ra_comm **comm_out)
{
    (void)host;
    (void)device;
    (void)comm_out;
    ra_log(RA_LOG_ERROR, "%s", why_not);
    return RA_ERR_UNSUPPORTED;
}

bool ra_nccl_has_memory(void)
{
    return false;
}

int ra_nccl_version(void)
{
    return 0;
}

bool ra_nccl_describe(char *text, size_t bytes)
{
    snprintf(text, bytes, "%s", why_not);
    return false;
}

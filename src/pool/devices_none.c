/* A build without CUDA: asked for a GPU, it says so. */
#include "internal.h"
#include "ringattn/device.h"

#include <stdio.h>

static const char why_not[] = "this build has no CUDA: build with -DRA_CUDA=ON where nvcc is";

void ra_devices_read(ra_devices *devices_out)
{
    *devices_out = (ra_devices){0};
    snprintf(devices_out->why_not, sizeof(devices_out->why_not), "%s", why_not);
}

static ra_status refuse(const char *what)
{
    ra_log(RA_LOG_ERROR, "%s: %s", what, why_not);
    return RA_ERR_UNSUPPORTED;
}

ra_status ra_memory_device(int index, ra_memory *memory_out)
{
    (void)index, (void)memory_out;
    return refuse("device memory");
}

ra_status ra_memory_pinned(ra_memory *memory_out)
{
    (void)memory_out;
    return refuse("pinned memory");
}

ra_status ra_device_use(int index)
{
    (void)index;
    return refuse("GPU");
}

int ra_device_used(void)
{
    return 0;
}

/* There is none to lose. */
bool ra_device_lose(void)
{
    return false;
}

bool ra_device_is_lost(void)
{
    return false;
}

void ra_device_share(bool shared)
{
    (void)shared;
}

ra_status ra_device_taken(int64_t *bytes_out)
{
    (void)bytes_out;
    return refuse("GPU");
}

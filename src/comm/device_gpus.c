/* Which GPU each rank has, and how messages between them travel. */
#include "device_comm.h"

#include <stdlib.h>

/* NCCL takes NCCL_HOSTID for the host's name. */
static uint64_t nccl_host(const ra_comm *host)
{
    const char *const told = getenv("NCCL_HOSTID");
    return told != NULL ? ra_hash_text(0, told) : (uint64_t)ra_comm_host_id(host);
}

ra_status ra_device_find_shared(ra_comm *host, bool *shared_out)
{
    ra_devices devices;
    int own = 0, most = 0;
    ra_devices_read(&devices);
    int const index = ra_device_used();
    ra_status const status = ra_device_count_sharers(
        host, RA_OK, nccl_host(host), index < devices.count ? devices.list[index].bus_id : "", &own,
        &most);
    *shared_out = most > 1;
    return status;
}

/* Whether NCCL can serve, the same on all ranks; if not, rank 0 logs why. NCCL refuses ranks that
   have different versions of it. */
static ra_status judge_nccl(ra_comm *host, bool *serves_out)
{
    enum { MOST, MINUS_LEAST, COUNT };
    char why_not[240];
    bool shared = false;
    int64_t const version = ra_nccl_version();
    int64_t found[COUNT] = {version, -version};
    ra_status status = ra_comm_reduce_i64(host, "looking for NCCL", RA_MAX, found, COUNT);
    if (status == RA_OK)
        status = ra_device_find_shared(host, &shared);
    if (status != RA_OK)
        return status;
    bool const lacks = found[MINUS_LEAST] == 0, differ = found[MOST] != -found[MINUS_LEAST];
    *serves_out = !lacks && !differ && !shared;
    if (*serves_out || host->rank != 0)
        return RA_OK;
    (void)ra_nccl_describe(why_not, sizeof(why_not));
    ra_log(RA_LOG_INFO, "messages between GPUs go through host memory: %s",
           version == 0 ? why_not
           : lacks      ? "a rank has no NCCL"
           : differ     ? "ranks have different versions of NCCL"
                        : "ranks share a GPU");
    return RA_OK;
}

ra_status ra_comm_create_device(ra_comm *host, const ra_comm_device *device, ra_comm **comm_out)
{
    bool serves = false;
    ra_status const status = judge_nccl(host, &serves);
    if (status != RA_OK)
        return status;
    return serves ? ra_comm_create_nccl(host, device, comm_out)
                  : ra_comm_create_staged(host, device, comm_out);
}

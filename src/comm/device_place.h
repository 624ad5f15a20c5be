/* Which ranks share a GPU; whether a rank runs near one: tests ask it of recorded machines. */
#ifndef RINGATTN_DEVICE_PLACE_H
#define RINGATTN_DEVICE_PLACE_H

#include "comm_internal.h"
#include "ringattn/comm_device.h"

/**
 * Whether the process may run on no core of the part of the machine that the GPU hangs on; false,
 * too, where hwloc does not see it.
 * @param recorded  an hwloc XML file; NULL: this machine
 * @param cpus      that the process is bound to, as in "0-3,8"; NULL: what it is bound to here
 * @param bus_id    "0000:3b:00.0"
 */
bool ra_device_is_far(const char *recorded, const char *cpus, const char *bus_id);

/**
 * Collective. How many ranks have the GPU of this one, by place and address on the bus, and most
 * that have any one.
 * @param mine    of the caller: a failure is that of all ranks
 * @param place   within which an address names one GPU: of a host, or of a slice there
 * @param bus_id  of the rank's GPU
 */
RA_CHECKED ra_status ra_device_count_sharers(ra_comm *host, ra_status mine, uint64_t place,
                                             const char *bus_id, int *own_out, int *most_out);

#endif

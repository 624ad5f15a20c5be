/* Which GPU a rank gets, and whether the rank runs near it. */
#include "device_place.h"

#include <hwloc.h>
#include <stdio.h>

/* ---- near or far ----------------------------------------------------------------------------- */

/* The hardware threads that the GPU hangs on; NULL: hwloc does not see it, or it hangs on all. */
static hwloc_const_cpuset_t find_near(hwloc_topology_t machine, const char *bus_id)
{
    hwloc_obj_t const gpu = hwloc_get_pcidev_by_busidstring(machine, bus_id);
    hwloc_obj_t const part = gpu != NULL ? hwloc_get_non_io_ancestor_obj(machine, gpu) : NULL;
    if (part == NULL || part->cpuset == NULL ||
        hwloc_bitmap_isincluded(hwloc_topology_get_complete_cpuset(machine), part->cpuset))
        return NULL;
    return part->cpuset;
}

static ra_nearness compare(hwloc_topology_t machine, hwloc_const_cpuset_t bound, const char *bus_id)
{
    hwloc_const_cpuset_t const near = find_near(machine, bus_id);
    if (near == NULL)
        return RA_NEARNESS_UNKNOWN;
    return hwloc_bitmap_intersects(bound, near) ? RA_NEARNESS_NEAR : RA_NEARNESS_FAR;
}

/* `recorded` NULL: this machine. */
static bool load(hwloc_topology_t machine, const char *recorded)
{
    return (recorded == NULL || hwloc_topology_set_xml(machine, recorded) == 0) &&
           hwloc_topology_set_io_types_filter(machine, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0 &&
           hwloc_topology_load(machine) == 0;
}

ra_nearness ra_device_nearness(const char *recorded, const char *cpus, const char *bus_id)
{
    ra_nearness nearness = RA_NEARNESS_UNKNOWN;
    hwloc_topology_t machine;
    if (hwloc_topology_init(&machine) != 0)
        return nearness;
    hwloc_bitmap_t const bound = hwloc_bitmap_alloc();
    if (bound != NULL && load(machine, recorded)) {
        int const found = cpus != NULL ? hwloc_bitmap_list_sscanf(bound, cpus)
                                       : hwloc_get_cpubind(machine, bound, HWLOC_CPUBIND_PROCESS);
        if (found == 0)
            nearness = compare(machine, bound, bus_id);
    }
    hwloc_bitmap_free(bound);
    hwloc_topology_destroy(machine);
    return nearness;
}

/* ---- dealing out ----------------------------------------------------------------------------- */

/* Usable GPU number `number` in the list. */
static int usable_at(const ra_devices *devices, int number)
{
    int index = 0;
    for (int seen = -1;; index++) {
        seen += devices->list[index].usable;
        if (seen == number)
            return index;
    }
}

static int count_before(const ra_comm *host)
{
    int count = 0;
    for (int r = 0; r < host->rank; r++)
        count += host->hosts[r] == host->hosts[host->rank];
    return count;
}

static ra_status pick(const ra_comm *host, int *index_out)
{
    ra_devices devices;
    ra_devices_read(&devices);
    if (devices.usable_count == 0) {
        ra_log(RA_LOG_ERROR, "no GPU for rank %d on host %s: %s", host->rank, host->host,
               devices.why_not);
        return RA_ERR_UNSUPPORTED;
    }
    int const index = usable_at(&devices, count_before(host) % devices.usable_count);
    const char *const bus_id = devices.list[index].bus_id;
    if (ra_device_nearness(NULL, NULL, bus_id) == RA_NEARNESS_FAR)
        ra_log(RA_LOG_WARNING,
               "rank %d on host %s runs on another NUMA node than its GPU %d (%s): bind it there, "
               "or let CUDA_VISIBLE_DEVICES order the GPUs as the ranks are bound",
               host->rank, host->host, index, bus_id);
    *index_out = index;
    return RA_OK;
}

ra_status ra_comm_pick_device(ra_comm *host, int *index_out)
{
    int index = 0;
    int64_t worst = (int64_t)pick(host, &index);
    ra_status const mine = (ra_status)worst;
    ra_status const shared = ra_comm_reduce_i64(host, "dealing out GPUs", RA_MAX, &worst, 1);
    if (mine != RA_OK || shared != RA_OK || worst != RA_OK)
        return mine != RA_OK ? mine : shared != RA_OK ? shared : (ra_status)worst;
    *index_out = index;
    return RA_OK;
}

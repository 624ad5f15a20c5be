/* Which GPU a rank gets, and whether the rank runs near it. */
#include "device_place.h"

#include <hwloc.h>
#include <stdatomic.h>

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

/* Said once by a process: it takes a look at the machine. */
static void judge_place(const ra_comm *host, const char *bus_id)
{
    static atomic_flag judged = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&judged) &&
        ra_device_nearness(NULL, NULL, bus_id) == RA_NEARNESS_FAR)
        ra_log(RA_LOG_WARNING,
               "rank %d on host %s runs on another NUMA node than its GPU (%s): bind it there, or "
               "let CUDA_VISIBLE_DEVICES order the GPUs as the ranks are bound",
               host->rank, host->host, bus_id);
}

ra_status ra_comm_pick_device(const ra_comm *host, int *index_out, int *sharers_out)
{
    ra_devices devices;
    ra_devices_read(&devices);
    int const count = devices.usable_count;
    if (count == 0) {
        ra_log(RA_LOG_ERROR, "no GPU for rank %d on host %s: %s", host->rank, host->host,
               devices.why_not);
        return RA_ERR_UNSUPPORTED;
    }
    int const at = count_before(host) % count;
    *index_out = usable_at(&devices, at);
    *sharers_out = host->local_size / count + (at < host->local_size % count);
    judge_place(host, devices.list[*index_out].bus_id);
    return RA_OK;
}

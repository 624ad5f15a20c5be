/* Which GPU a rank gets, and whether the rank runs near it. */
#include "device_place.h"

#include <hwloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- sharing --------------------------------------------------------------------------------- */

ra_status ra_device_count_sharers(ra_comm *host, ra_status mine, uint64_t place, const char *bus_id,
                                  int *own_out, int *most_out)
{
    int64_t *const ids = mine == RA_OK ? calloc((size_t)host->size, sizeof(*ids)) : NULL;
    if (mine == RA_OK && ids == NULL)
        mine = ra_refuse_memory("the ranks' GPUs");
    ra_status status = ra_comm_agree(host, "comparing GPUs", mine);
    if (status == RA_OK) {
        RA_ASSERT(ids != NULL); /* the agreed status is never better than this rank's */
        ids[host->rank] = (int64_t)(ra_hash_text(place, bus_id) | 1); /* never 0 */
        status = ra_comm_reduce_i64(host, "comparing GPUs", RA_SUM, ids, host->size);
    }
    *own_out = *most_out = 0;
    for (int a = 0; a < host->size && status == RA_OK; a++) {
        int count = 0;
        for (int b = 0; b < host->size; b++)
            count += ids[a] == ids[b];
        *own_out = a == host->rank ? count : *own_out;
        *most_out = count > *most_out ? count : *most_out;
    }
    free(ids);
    return status;
}

/*
 * Slices of a GPU (MIG) have its address, but memory of their own. A process sees one slice at
 * most, the first that CUDA_VISIBLE_DEVICES names.
 */
static uint64_t memory_place(const ra_comm *host)
{
    uint64_t const place = (uint64_t)ra_comm_host_id(host);
    const char *const visible = getenv("CUDA_VISIBLE_DEVICES");
    char slice[96];
    if (visible == NULL || strncmp(visible, "MIG-", 4) != 0)
        return place;
    snprintf(slice, sizeof(slice), "%.*s", (int)strcspn(visible, ","), visible);
    return ra_hash_text(place, slice);
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

static ra_status pick(const ra_comm *host, const ra_devices *devices, int *index_out)
{
    int const count = devices->usable_count;
    if (count == 0) {
        ra_log(RA_LOG_ERROR, "no GPU for rank %d on host %s: %s", host->rank, host->host,
               devices->why_not);
        return RA_ERR_UNSUPPORTED;
    }
    *index_out = usable_at(devices, ra_hosts_place(host->hosts, host->rank) % count);
    return RA_OK;
}

ra_status ra_comm_pick_device(ra_comm *host, int *index_out, int *sharers_out, int *most_out)
{
    ra_devices devices;
    int index = 0, sharers = 0, most = 0;
    ra_devices_read(&devices);
    ra_status status = pick(host, &devices, &index);
    const char *const bus_id = devices.list[index].bus_id;
    status = ra_device_count_sharers(host, status, memory_place(host), bus_id, &sharers, &most);
    if (status != RA_OK)
        return status;
    *index_out = index;
    *sharers_out = sharers;
    *most_out = most;
    judge_place(host, bus_id);
    return RA_OK;
}

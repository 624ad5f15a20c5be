/* Which GPU a rank gets, and whether the rank runs near it. */
#include "device_place.h"

#include "topology_places.h"

#include <hwloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- near or far ----------------------------------------------------------------------------- */

static bool is_apart(hwloc_topology_t machine, hwloc_const_cpuset_t bound, const char *bus_id)
{
    hwloc_obj_t const gpu = hwloc_get_pcidev_by_busidstring(machine, bus_id);
    hwloc_obj_t const part = gpu != NULL ? hwloc_get_non_io_ancestor_obj(machine, gpu) : NULL;
    return part != NULL && part->cpuset != NULL && !hwloc_bitmap_intersects(bound, part->cpuset);
}

/* `recorded` NULL: this machine. */
static bool load(hwloc_topology_t machine, const char *recorded)
{
    return (recorded == NULL || hwloc_topology_set_xml(machine, recorded) == 0) &&
           hwloc_topology_set_io_types_filter(machine, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0 &&
           hwloc_topology_load(machine) == 0;
}

bool ra_device_is_far(const char *recorded, const char *cpus, const char *bus_id)
{
    bool is_far = false;
    hwloc_topology_t machine;
    if (hwloc_topology_init(&machine) != 0)
        return false;
    hwloc_bitmap_t const bound = hwloc_bitmap_alloc();
    if (bound != NULL && load(machine, recorded)) {
        int const found = cpus != NULL ? hwloc_bitmap_list_sscanf(bound, cpus)
                                       : hwloc_get_cpubind(machine, bound, HWLOC_CPUBIND_PROCESS);
        if (cpus == NULL)
            ra_openmp_places_add(bound);
        is_far = found == 0 && is_apart(machine, bound, bus_id);
    }
    hwloc_bitmap_free(bound);
    hwloc_topology_destroy(machine);
    return is_far;
}

/* ---- sharing --------------------------------------------------------------------------------- */

/* Of a GPU, among all ranks; never 0. */
static int64_t gpu_id(uint64_t place, const char *bus_id)
{
    return (int64_t)(ra_hash_text(place, bus_id) | 1);
}

ra_status ra_device_count_sharers(ra_comm *host, ra_status mine, uint64_t place, const char *bus_id,
                                  int *own_out, int *most_out)
{
    int64_t *const ids = mine == RA_OK ? malloc((size_t)host->size * sizeof(*ids)) : NULL;
    if (mine == RA_OK && ids == NULL)
        mine = ra_refuse_memory("the ranks' GPUs");
    ra_status status = ra_comm_agree(host, "comparing GPUs", mine);
    if (status == RA_OK) {
        RA_ASSERT(ids != NULL); /* the agreed status is never better than this rank's */
        int64_t const own = gpu_id(place, bus_id);
        status = ra_comm_allgather_i64(host, "comparing GPUs", &own, 1, ids);
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

/* How many ranks of a host have each of its GPUs, as far as they have been dealt out. */
typedef struct dealt {
    int64_t count;
    struct {
        int64_t gpu, ranks;
    } list[RA_DEVICES_MAX];
} dealt;

/* NULL: no rank has it. */
static int64_t *ranks_of(dealt *d, int64_t gpu)
{
    int64_t at = 0;
    while (at < d->count && d->list[at].gpu != gpu)
        at++;
    return at < d->count ? &d->list[at].ranks : NULL;
}

/* The first of those that fewest ranks have; -1: none is usable. */
static int choose(dealt *d, const ra_devices *devices, uint64_t place)
{
    int64_t least = INT64_MAX;
    int index = -1;
    for (int i = 0; i < devices->count; i++) {
        const int64_t *const ranks = ranks_of(d, gpu_id(place, devices->list[i].bus_id));
        int64_t const taken = ranks != NULL ? *ranks : 0;
        if (devices->list[i].usable && taken < least) {
            least = taken;
            index = i;
        }
    }
    return index;
}

/* Where ranks see different GPUs, a host may have more than the list holds: they count as free. */
static void take(dealt *d, int64_t gpu)
{
    int64_t *const ranks = ranks_of(d, gpu);
    if (ranks != NULL) {
        ++*ranks;
    } else if (d->count < RA_DEVICES_MAX) {
        d->list[d->count].gpu = gpu;
        d->list[d->count++].ranks = 1;
    }
}

/* Said once by a process: it takes a look at the machine. */
static void judge_place(const ra_comm *host, const char *bus_id)
{
    static atomic_flag judged = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&judged) && ra_device_is_far(NULL, NULL, bus_id))
        ra_log(RA_LOG_WARNING,
               "rank %d on host %s runs on another NUMA node than its GPU (%s): bind it there, or "
               "let CUDA_VISIBLE_DEVICES order the GPUs as the ranks are bound",
               host->rank, host->host, bus_id);
}

/* The next rank of this one's host in a direction; -1: there is none. */
static int find_neighbour(const ra_comm *host, int direction)
{
    int rank = host->rank + direction;
    while (rank >= 0 && rank < host->size && host->hosts[rank] != host->hosts[host->rank])
        rank += direction;
    return rank < host->size ? rank : -1;
}

static ra_status pass_on(ra_comm *host, int from, int to, dealt *d)
{
    ra_exchange exchange = {.operation = "dealing out GPUs", .step = -1};
    if (from >= 0)
        exchange.recv = (ra_message){from, d, sizeof(*d)};
    if (to >= 0)
        exchange.send = (ra_message){to, d, sizeof(*d)};
    return ra_comm_exchange(host, &exchange);
}

/* Rank after rank, each from what it sees. One that sees none tells what there is, too. */
static ra_status pick(ra_comm *host, const ra_devices *devices, uint64_t place, int *index_out)
{
    dealt d = {0};
    int const before = find_neighbour(host, -1), after = find_neighbour(host, 1);
    ra_status status = before >= 0 ? pass_on(host, before, -1, &d) : RA_OK;
    if (status != RA_OK)
        return status;
    int const index = choose(&d, devices, place);
    if (index >= 0)
        take(&d, gpu_id(place, devices->list[index].bus_id));
    status = after >= 0 ? pass_on(host, -1, after, &d) : RA_OK;
    if (status != RA_OK)
        return status;
    if (index < 0) {
        ra_log(RA_LOG_ERROR, "no GPU for rank %d on host %s: %s", host->rank, host->host,
               devices->why_not);
        return RA_ERR_UNSUPPORTED;
    }
    *index_out = index;
    return RA_OK;
}

ra_status ra_comm_pick_device(ra_comm *host, int *index_out, int *sharers_out, int *most_out)
{
    ra_devices devices;
    int index = 0, sharers = 0, most = 0;
    ra_devices_read(&devices);
    uint64_t const place = memory_place(host);
    ra_status status = pick(host, &devices, place, &index);
    const char *const bus_id = devices.list[index].bus_id;
    status = ra_device_count_sharers(host, status, place, bus_id, &sharers, &most);
    if (status != RA_OK)
        return status;
    *index_out = index;
    *sharers_out = sharers;
    *most_out = most;
    judge_place(host, bus_id);
    return RA_OK;
}

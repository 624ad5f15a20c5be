/* The machine through hwloc, live or recorded. */
#include "ringattn/topology.h"
#include "bytes_text.h"
#include "comm_internal.h"
#include "kernel_files.h"
#include "topology_places.h"

#include <errno.h>
#include <hwloc.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- CPU time that the cgroup grants --------------------------------------------------------- */

/* In millionths of a CPU. Version 2 has "200000 100000" in one file, or "max 100000". */
static int64_t group_quota(const char *root, int version, const char *folder)
{
    char line[RA_KERNEL_LINE_MAX];
    int64_t quota_us = 0, period_us = 0;
    bool const known =
        version == 2 ? ra_kernel_line(root, folder, "cpu.max", "", line) &&
                           sscanf(line, "%" SCNd64 " %" SCNd64, &quota_us, &period_us) == 2
                     : ra_kernel_value(root, folder, "cpu.cfs_quota_us", "", 1, &quota_us) &&
                           ra_kernel_value(root, folder, "cpu.cfs_period_us", "", 1, &period_us);
    bool const limits = known && quota_us > 0 && period_us > 0; /* version 1 has -1 for none */
    return limits && quota_us <= INT64_MAX / 1000000 ? quota_us * 1000000 / period_us : INT64_MAX;
}

double ra_quota_read(const char *root)
{
    int64_t const quota = ra_cgroups_least(root, "cpu", group_quota);
    return quota < INT64_MAX ? 1e-6 * (double)quota : 0;
}

/* ---- hwloc ----------------------------------------------------------------------------------- */

static int count_of(hwloc_topology_t machine, hwloc_obj_type_t type)
{
    int const count = hwloc_get_nbobjs_by_type(machine, type);
    return count > 0 ? count : 0;
}

static int64_t cache_bytes(hwloc_topology_t machine, hwloc_obj_type_t type)
{
    hwloc_obj_t const cache = hwloc_get_obj_by_type(machine, type, 0);
    return cache != NULL ? (int64_t)cache->attr->cache.size : 0;
}

/* Some virtual machines and old processors have hardware threads only. */
static hwloc_obj_type_t core_type(hwloc_topology_t machine)
{
    return count_of(machine, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
}

/* Cores that are at least partly in both sets. */
static int count_cores(hwloc_topology_t machine, hwloc_const_cpuset_t part,
                       hwloc_const_cpuset_t usable)
{
    hwloc_obj_type_t const type = core_type(machine);
    int const total = count_of(machine, type);
    int cores = 0;
    for (int c = 0; c < total; c++) {
        hwloc_obj_t const core = hwloc_get_obj_by_type(machine, type, (unsigned)c);
        cores += hwloc_bitmap_intersects(core->cpuset, part) &&
                 hwloc_bitmap_intersects(core->cpuset, usable);
    }
    return cores;
}

/* Memory of two kinds beside the same cores is two NUMA nodes, but one place to run. Memory beside
   none has the cores of the part that it hangs on, and comes after those within. */
static bool is_place(hwloc_topology_t machine, hwloc_obj_type_t type, int index)
{
    hwloc_obj_t const part = hwloc_get_obj_by_type(machine, type, (unsigned)index);
    for (int i = 0; i < index; i++) {
        hwloc_obj_t const before = hwloc_get_obj_by_type(machine, type, (unsigned)i);
        if (hwloc_bitmap_intersects(before->cpuset, part->cpuset))
            return false;
    }
    return true;
}

static ra_domains find_domains(hwloc_topology_t machine, hwloc_obj_type_t type,
                               hwloc_const_cpuset_t usable)
{
    int const total = count_of(machine, type);
    ra_domains domains = {0};
    for (int i = 0; i < total; i++) {
        if (!is_place(machine, type, i))
            continue;
        domains.count++;
        hwloc_obj_t const part = hwloc_get_obj_by_type(machine, type, (unsigned)i);
        int const cores = count_cores(machine, part->cpuset, usable);
        if (cores == 0)
            continue;
        if (domains.usable == 0 || cores < domains.cores_least)
            domains.cores_least = cores;
        if (cores > domains.cores_most)
            domains.cores_most = cores;
        domains.usable++;
    }
    return domains;
}

static void describe(hwloc_topology_t machine, hwloc_const_cpuset_t usable, ra_topology *topology)
{
    hwloc_obj_type_t const type = core_type(machine);
    hwloc_obj_t const package = hwloc_get_obj_by_type(machine, HWLOC_OBJ_PACKAGE, 0);
    const char *const cpu =
        package != NULL ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    *topology = (ra_topology){.packages = count_of(machine, HWLOC_OBJ_PACKAGE),
                              .numa_nodes = count_of(machine, HWLOC_OBJ_NUMANODE),
                              .cores = count_of(machine, type),
                              .hardware_threads = count_of(machine, HWLOC_OBJ_PU),
                              .l1_bytes = cache_bytes(machine, HWLOC_OBJ_L1CACHE),
                              .l2_bytes = cache_bytes(machine, HWLOC_OBJ_L2CACHE),
                              .l3_bytes = cache_bytes(machine, HWLOC_OBJ_L3CACHE)};
    topology->memory_bytes = (int64_t)hwloc_get_root_obj(machine)->total_memory;
    topology->allowed_cores = count_cores(machine, hwloc_topology_get_allowed_cpuset(machine),
                                          hwloc_topology_get_allowed_cpuset(machine));
    topology->l3 = find_domains(machine, HWLOC_OBJ_L3CACHE, usable);
    topology->numa = find_domains(machine, HWLOC_OBJ_NUMANODE, usable);
    snprintf(topology->cpu, sizeof(topology->cpu), "%s", cpu != NULL ? cpu : "");
    for (int c = 0; c < topology->cores && c < RA_TOPOLOGY_CORES_MAX; c++) {
        hwloc_obj_t const core = hwloc_get_obj_by_type(machine, type, (unsigned)c);
        if (!hwloc_bitmap_intersects(core->cpuset, usable))
            continue;
        topology->usable_cores++;
        topology->usable_mask[c / 64] |= UINT64_C(1) << (c % 64);
    }
    topology->usable_hardware_threads =
        hwloc_get_nbobjs_inside_cpuset_by_type(machine, usable, HWLOC_OBJ_PU);
}

/* Make an empty topology and an empty set. */
static ra_status begin(hwloc_topology_t *machine_out, hwloc_bitmap_t *usable_out)
{
    *usable_out = hwloc_bitmap_alloc();
    if (*usable_out != NULL && hwloc_topology_init(machine_out) == 0)
        return RA_OK;
    hwloc_bitmap_free(*usable_out); /* NULL is fine */
    return ra_refuse_memory("the machine's topology");
}

/* Cores that are forbidden stay, so that core numbers mean the same to every rank of a host. */
static bool load(hwloc_topology_t machine)
{
    return hwloc_topology_set_flags(machine, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) == 0 &&
           hwloc_topology_load(machine) == 0;
}

ra_status ra_topology_read(ra_topology *topology_out)
{
    hwloc_topology_t machine;
    hwloc_bitmap_t usable;
    ra_topology topology;
    ra_status status = begin(&machine, &usable);
    if (status != RA_OK)
        return status;
    if (!load(machine)) {
        ra_log(RA_LOG_ERROR, "hwloc cannot read this machine's topology (%s): give compute.threads",
               strerror(errno));
        status = RA_ERR_UNSUPPORTED;
        goto out_drop;
    }
    hwloc_const_cpuset_t const allowed = hwloc_topology_get_allowed_cpuset(machine);
    if (hwloc_get_cpubind(machine, usable, HWLOC_CPUBIND_THREAD) != 0)
        hwloc_bitmap_copy(usable, allowed); /* a system without binding: all that is allowed */
    ra_openmp_places_add(usable);
    hwloc_bitmap_and(usable, usable, allowed);
    describe(machine, usable, &topology);
    topology.quota_cpus = ra_quota_read("");
    if (topology.usable_cores == 0) {
        ra_log(RA_LOG_ERROR, "none of this machine's %d cores may be used: give compute.threads",
               topology.cores);
        status = RA_ERR_UNSUPPORTED;
        goto out_drop;
    }
    *topology_out = topology;

out_drop:
    hwloc_bitmap_free(usable);
    hwloc_topology_destroy(machine);
    return status;
}

static bool ends_with(const char *text, const char *end)
{
    size_t const length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

ra_status ra_topology_read_recorded(const char *recorded, const char *cpus,
                                    ra_topology *topology_out)
{
    hwloc_topology_t machine;
    hwloc_bitmap_t usable;
    ra_topology topology;
    ra_status status = begin(&machine, &usable);
    if (status != RA_OK)
        return status;
    bool const is_file = ends_with(recorded, ".xml");
    int const error = is_file ? hwloc_topology_set_xml(machine, recorded)
                              : hwloc_topology_set_synthetic(machine, recorded);
    if (error != 0 || !load(machine)) {
        ra_log(RA_LOG_ERROR, "no machine can be read from '%s': give an hwloc %s", recorded,
               is_file ? "XML file" : "synthetic description, or a file that ends in .xml");
        status = RA_ERR_IO;
        goto out_drop;
    }
    bool const parsed = cpus == NULL || hwloc_bitmap_list_sscanf(usable, cpus) == 0;
    hwloc_const_cpuset_t const allowed = hwloc_topology_get_allowed_cpuset(machine);
    if (cpus == NULL)
        hwloc_bitmap_copy(usable, allowed);
    hwloc_bitmap_and(usable, usable, allowed);
    describe(machine, usable, &topology);
    if (!parsed || topology.usable_cores == 0) {
        ra_log(RA_LOG_ERROR, "'%s' names no hardware thread of '%s': give a list like 0-3,8",
               cpus != NULL ? cpus : "", recorded);
        status = RA_ERR_INVALID;
        goto out_drop;
    }
    *topology_out = topology;

out_drop:
    hwloc_bitmap_free(usable);
    hwloc_topology_destroy(machine);
    return status;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void append_count(char *text, size_t bytes, int count, const char *noun)
{
    if (count > 0)
        ra_text_append(text, bytes, ", ", "%d %s%s", count, noun, ra_plural(count));
}

static void append_bytes(char *text, size_t bytes, const char *noun, int64_t amount)
{
    char written[32];
    if (amount > 0)
        ra_text_append(text, bytes, ", ", "%s %s", noun, ra_bytes_text(amount, written));
}

int ra_topology_render(const ra_topology *topology, char *text, size_t bytes)
{
    char parts[128] = "", quota[48] = "", sizes[192] = "";
    append_count(parts, sizeof(parts), topology->packages, "package");
    append_count(parts, sizeof(parts), topology->numa_nodes, "NUMA node");
    append_count(parts, sizeof(parts), topology->cores, "core");
    if (topology->quota_cpus > 0)
        snprintf(quota, sizeof(quota), " for %.4g CPUs' time", topology->quota_cpus);
    append_bytes(sizes, sizeof(sizes), "L1d", topology->l1_bytes);
    append_bytes(sizes, sizeof(sizes), "L2", topology->l2_bytes);
    append_bytes(sizes, sizeof(sizes), "L3", topology->l3_bytes);
    append_bytes(sizes, sizeof(sizes), "memory", topology->memory_bytes);
    return snprintf(text, bytes, "%s: %s (%d hardware threads), %d usable by this process%s\n%s",
                    topology->cpu[0] != '\0' ? topology->cpu : "unknown processor", parts,
                    topology->hardware_threads, topology->usable_cores, quota, sizes);
}

/* ---- threads --------------------------------------------------------------------------------- */

/* At least one, at most the cgroup's CPU time divided by that many ranks. */
static int limit_threads(const ra_topology *topology, double cores, int ranks)
{
    double threads = cores + 1e-9; /* three thirds are one */
    if (topology->quota_cpus > 0 && threads > topology->quota_cpus / ranks)
        threads = topology->quota_cpus / ranks;
    return threads >= 1 ? (int)threads : 1;
}

int ra_topology_divide(const ra_topology *topology, int ranks)
{
    RA_ASSERT(ranks >= 1);
    return limit_threads(topology, (double)topology->usable_cores / ranks, ranks);
}

/* Usable cores, each divided by the ranks that may use it; masks: [rank][words]. */
static double share_cores(const int64_t *masks, const int *hosts, int ranks, int words, int rank)
{
    const int64_t *const mine = masks + (size_t)rank * (size_t)words;
    double cores = 0;
    for (int core = 0; core < words * 64; core++) {
        uint64_t const bit = UINT64_C(1) << (core % 64);
        int sharers = 0;
        if (((uint64_t)mine[core / 64] & bit) == 0)
            continue;
        for (int other = 0; other < ranks; other++) {
            const int64_t *const mask = masks + (size_t)other * (size_t)words;
            sharers += hosts[other] == hosts[rank] && ((uint64_t)mask[core / 64] & bit) != 0;
        }
        cores += 1.0 / sharers;
    }
    return cores;
}

ra_status ra_topology_threads(const ra_topology *topology, ra_comm *comm, int *threads_out)
{
    static const char operation[] = "sharing the cores";
    int const rank = ra_comm_rank(comm), ranks = ra_comm_size(comm);
    int64_t own[RA_TOPOLOGY_CORES_MAX / 64], words = 1;
    for (int w = 0; w < RA_TOPOLOGY_CORES_MAX / 64; w++) {
        if (topology->usable_mask[w] != 0)
            words = w + 1;
    }
    ra_status status = ra_comm_reduce_i64(comm, operation, RA_MAX, &words, 1);
    if (status != RA_OK)
        return status;

    size_t const count = (size_t)ranks * (size_t)words;
    int64_t *const masks = malloc(count * sizeof(*masks)); /* 8 KB for 1,024 ranks of 64 cores */
    status = ra_comm_agree(comm, operation,
                           masks != NULL ? RA_OK : ra_refuse_memory("the ranks' cores"));
    if (status != RA_OK) {
        free(masks);
        return status;
    }
    RA_ASSERT(masks != NULL); /* the agreed status is never better than this rank's */
    for (int w = 0; w < words; w++)
        own[w] = (int64_t)topology->usable_mask[w];
    status = ra_comm_allgather_i64(comm, operation, own, (int)words, masks);
    if (status == RA_OK) {
        double const cores = share_cores(masks, ra_comm_hosts(comm), ranks, (int)words, rank);
        *threads_out = limit_threads(topology, cores, ra_comm_local_size(comm));
    }
    free(masks);
    return status;
}

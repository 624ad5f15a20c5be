/* Finding out what this machine and this build are. */
#include "tool_info.h"

#include "json_build.h"
#include "placement.h"
#include "ringattn/comm_device.h"

#include <hwloc.h>
#include <libfyaml.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

/* ---- processors ------------------------------------------------------------------------------ */

/* Counts that are not known are null. */
static json_t *count(int64_t value)
{
    return ra_json_known(value > 0 ? value : -1);
}

static json_t *processor_json(const ra_topology *topology)
{
    json_t *caches = json_pack("{s:o, s:o, s:o}", "l1_bytes", count(topology->l1_bytes), "l2_bytes",
                               count(topology->l2_bytes), "l3_bytes", count(topology->l3_bytes));
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "model", topology->cpu, "packages",
        count(topology->packages), "numa_nodes", count(topology->numa_nodes), "cores",
        count(topology->cores), "hardware_threads", count(topology->hardware_threads),
        "usable_cores", count(topology->usable_cores), "usable_hardware_threads",
        count(topology->usable_hardware_threads), "quota_cpus",
        topology->quota_cpus > 0 ? json_real(topology->quota_cpus) : json_null(), "caches", caches);
}

static json_t *advice_json(const ra_topology *topology)
{
    char command[256];
    ra_devices devices;
    ra_devices_read(&devices);
    ra_advice const advice = ra_placement_advise(topology, devices.usable_count);
    return json_pack("{s:i, s:i, s:i, s:s, s:s}", "ranks_per_host", advice.ranks, "threads_least",
                     advice.threads_least, "threads_most", advice.threads_most, "bind_to",
                     ra_domain_name(advice.domain), "command",
                     ra_advice_command(&advice, command, sizeof(command)));
}

/* Kernel tables that this build has and this machine runs; the first is the choice of auto. */
static json_t *isa_json(void)
{
    static const ra_isa isas[] = {RA_ISA_PORTABLE,   RA_ISA_AVX2, RA_ISA_AVX512,
                                  RA_ISA_AVX512BF16, RA_ISA_AMX,  RA_ISA_NEON};
    json_t *available = json_array();
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); ++i) {
        const ra_kernel_ops *ops = ra_kernel_cpu(isas[i]);
        if (ops != NULL)
            available = ra_json_append(available, json_string(ops->name));
    }
    return json_pack("{s:s, s:o}", "chosen", ra_kernel_cpu(RA_ISA_AUTO)->name, "available",
                     available);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int64_t shm_free(void)
{
    struct statvfs info;
    if (statvfs("/dev/shm", &info) != 0)
        return -1;
    return (int64_t)info.f_bavail * (int64_t)info.f_frsize;
}

static json_t *memory_json(void)
{
    ra_memory const host = ra_memory_host();
    int64_t available;
    if (host.ops->available(&host, &available) != RA_OK)
        available = -1;
    int64_t const total = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    return json_pack("{s:o, s:o, s:o, s:o}", "total_bytes", ra_json_known(total), "available_bytes",
                     ra_json_known(available), "cgroup_limit_bytes",
                     ra_json_known(ra_memory_host_limit()), "shared_memory_free_bytes",
                     ra_json_known(shm_free()));
}

/* ---- the build ------------------------------------------------------------------------------- */

static json_t *openmp_json(void)
{
#ifdef RA_TOOL_OPENMP
    return json_pack("{s:b, s:n}", "available", 1, "why_not");
#else
    return json_pack("{s:b, s:s}", "available", 0, "why_not",
                     "built without OpenMP: one thread per rank");
#endif
}

/* A library that is looked for when it is wanted. */
static json_t *library_json(bool (*describe)(char *text, size_t bytes))
{
    char text[240];
    bool const there = describe(text, sizeof(text));
    return json_pack("{s:b, s:s?, s:s?}", "available", there, "library", there ? text : NULL,
                     "why_not", there ? NULL : text);
}

static json_t *build_json(void)
{
    char compiler[128], hwloc[32];
#ifdef __clang__
    snprintf(compiler, sizeof(compiler), "%s", __VERSION__);
#else
    snprintf(compiler, sizeof(compiler), "gcc %s", __VERSION__);
#endif
    unsigned const api = hwloc_get_api_version();
    snprintf(hwloc, sizeof(hwloc), "%u.%u.%u", api >> 16, api >> 8 & 0xff, api & 0xff);
    return json_pack("{s:s, s:s, s:s, s:s}", "compiler", compiler, "libfyaml", fy_library_version(),
                     "jansson", jansson_version_str(), "hwloc", hwloc);
}

json_t *ra_machine_json(void)
{
    ra_topology topology;
    bool const is_known = ra_topology_read(&topology) == RA_OK; /* else it has been said why */
    return ra_machine_json_of(is_known ? &topology : NULL);
}

json_t *ra_machine_json_of(const ra_topology *topology)
{
    static const ra_topology unknown;
    struct utsname name;
    if (uname(&name) != 0)
        memset(&name, 0, sizeof(name));
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "host",
                     name.nodename, "kernel", name.release, "processor",
                     processor_json(topology != NULL ? topology : &unknown), "advice",
                     topology != NULL ? advice_json(topology) : json_null(), "isa", isa_json(),
                     "memory", memory_json(), "mpi", ra_machine_mpi_json(), "openmp", openmp_json(),
                     "cuda", ra_machine_cuda_json(), "nccl", library_json(ra_nccl_describe),
                     "cublas", library_json(ra_cublas_describe), "build", build_json());
}

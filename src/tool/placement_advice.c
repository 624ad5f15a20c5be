/* How ranks and threads fit a machine. */
#include "placement.h"

#include "bytes_text.h"

#include <stdio.h>

/*
 * Threads of a rank read the same packed keys repeatedly, so they should share an L3 cache and near
 * memory. If the cgroup grants less CPU time than there are cores, several ranks would be throttled
 * in turn and wait for each other: then one rank gets everything. On a GPU one thread of the host
 * hands out work, and which cores are near the GPU is not always known: those are bound to nothing.
 */
ra_advice ra_placement_advise(const ra_topology *topology, int gpus)
{
    const ra_domains *l3 = &topology->l3, *numa = &topology->numa;
    bool const by_l3 = l3->usable >= numa->usable;
    const ra_domains *domains = by_l3 ? l3 : numa;
    bool const short_of_time =
        topology->quota_cpus > 0 && topology->quota_cpus < topology->usable_cores;
    if (gpus > 0) {
        int const threads = ra_topology_divide(topology, gpus);
        return (ra_advice){RA_DOMAIN_GPU, gpus, threads, threads};
    }
    if (domains->usable < 2 || short_of_time) {
        int const threads = ra_topology_divide(topology, 1);
        return (ra_advice){RA_DOMAIN_MACHINE, 1, threads, threads};
    }
    return (ra_advice){by_l3 ? RA_DOMAIN_L3 : RA_DOMAIN_NUMA, domains->usable, domains->cores_least,
                       domains->cores_most};
}

const char *ra_domain_name(ra_domain_type domain)
{
    static const char *const names[] = {"none", "l3cache", "numa", "none"};
    return names[domain];
}

const char *ra_advice_describe(const ra_advice *advice, char *text, size_t bytes)
{
    static const char *const domains[] = {"", ", each with an L3 cache to itself",
                                          ", each with a NUMA node to itself"};
    char threads[32];
    if (advice->domain == RA_DOMAIN_GPU) {
        snprintf(text, bytes, "%d rank%s, %swith a GPU to itself", advice->ranks,
                 ra_plural(advice->ranks), advice->ranks > 1 ? "each " : "");
        return text;
    }
    if (advice->threads_least == advice->threads_most)
        snprintf(threads, sizeof(threads), "%d", advice->threads_most);
    else
        snprintf(threads, sizeof(threads), "%d to %d", advice->threads_least, advice->threads_most);
    snprintf(text, bytes, "%d rank%s of %s thread%s%s", advice->ranks, ra_plural(advice->ranks),
             threads, ra_plural(advice->threads_most), domains[advice->domain]);
    return text;
}

const char *ra_advice_command(const ra_advice *advice, char *text, size_t bytes)
{
    const char *const domain = ra_domain_name(advice->domain);
    if (advice->domain == RA_DOMAIN_MACHINE || advice->domain == RA_DOMAIN_GPU)
        snprintf(text, bytes, "mpirun -n %d --bind-to none ringattn run --config FILE",
                 advice->ranks);
    else
        snprintf(text, bytes,
                 "mpirun -n %d --map-by ppr:1:%s --bind-to %s ringattn run --config FILE",
                 advice->ranks, domain, domain);
    return text;
}

/* What is wrong with where ranks run: pure, from the table of all ranks' places. */
#include "placement.h"

#include "bytes_text.h"
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { CORE_WORDS = RA_TOPOLOGY_CORES_MAX / 64 };

/* The ranks of one host. */
typedef struct host {
    const ra_place *places; /* of all ranks */
    int ranks;              /* of all hosts */
    int64_t id;
    char name[sizeof(int64_t) * RA_PLACE_NAME_WORDS];
    int first, count; /* first: the lowest of its ranks */
    int64_t threads;
    int64_t cores;   /* its ranks may use so many, bound or not; bounded by the cgroup's time */
    int64_t reached; /* cores that some rank may run on, bound as it is */
} host;

static int64_t count_bits(const int64_t words[CORE_WORDS])
{
    int64_t count = 0;
    for (int w = 0; w < CORE_WORDS; w++)
        count += __builtin_popcountll((unsigned long long)words[w]);
    return count;
}

static bool is_here(const host *h, int rank)
{
    return h->places[rank].host == h->id;
}

/* Read the host of rank `first`; false: one of its ranks does not know its place. */
static bool host_read(const ra_place *places, int ranks, int first, host *out)
{
    int64_t all[CORE_WORDS] = {0}, quota = 0;
    host h = {.places = places, .ranks = ranks, .id = places[first].host, .first = first};
    memcpy(h.name, places[first].host_name, sizeof(h.name));
    h.name[sizeof(h.name) - 1] = '\0';
    for (int r = first; r < ranks; r++) {
        if (!is_here(&h, r))
            continue;
        if (!places[r].known)
            return false;
        h.count++;
        h.threads += places[r].threads;
        h.cores = ra_max_i64(h.cores, places[r].allowed_cores);
        quota = ra_max_i64(quota, places[r].quota_cpus);
        for (int w = 0; w < CORE_WORDS; w++)
            all[w] |= places[r].cores[w];
    }
    h.reached = count_bits(all);
    h.cores = ra_max_i64(h.cores, h.reached); /* if each rank has its own cpuset, they add up */
    if (quota > 0)
        h.cores = ra_min_i64(h.cores, quota);
    *out = h;
    return true;
}

/* Count a host with a fault; the first one is described. */
RA_PRINTF(2, 3) static void find(ra_placement_finding *finding, const char *format, ...)
{
    va_list arguments;
    if (finding->hosts++ > 0)
        return;
    va_start(arguments, format);
    vsnprintf(finding->line, sizeof(finding->line), format, arguments);
    va_end(arguments);
}

/* ---- cores ----------------------------------------------------------------------------------- */

static bool is_crowded(const host *h)
{
    return h->threads > h->cores;
}

/* OpenMP's threads keep their cores busy while they wait for each other, unless told otherwise. */
static void judge_crowd(const host *h, ra_placement_finding *finding)
{
    bool const spins = h->threads > h->count && !h->places[h->first].omp_is_passive;
    if (is_crowded(h))
        find(finding,
             "%d rank%s with %lld threads in all share %lld core%s of host %s: fewer ranks, or "
             "fewer compute.threads, are faster%s",
             h->count, ra_plural(h->count), (long long)h->threads, (long long)h->cores,
             ra_plural(h->cores), h->name, spins ? ", or at least OMP_WAIT_POLICY=passive" : "");
}

/* Threads that a rank has, or would have if it were not bound. */
static int64_t threads_wanted(const host *h, const ra_place *place)
{
    if (!place->threads_are_auto)
        return place->threads;
    return h->reached < h->cores ? h->cores / h->count : 1;
}

static void judge_narrow(const host *h, ra_placement_finding *finding)
{
    int narrow = 0, first = -1;
    for (int r = h->first; r < h->ranks; r++) {
        const ra_place *place = &h->places[r];
        int64_t const own = is_here(h, r) ? count_bits(place->cores) : 0;
        if (own == 0 || own >= place->allowed_cores || threads_wanted(h, place) <= own)
            continue;
        first = narrow++ == 0 ? r : first;
    }
    if (narrow == 0)
        return;
    int64_t const own = count_bits(h->places[first].cores);
    int64_t const wanted = threads_wanted(h, &h->places[first]);
    char others[48] = "";
    if (narrow > 1)
        snprintf(others, sizeof(others), " (and %d more like it)", narrow - 1);
    find(finding,
         "rank %d on host %s%s is bound to %lld of %lld cores, %s %lld threads: bind it to more, "
         "or not at all (mpirun --bind-to none)",
         first, h->name, others, (long long)own, (long long)h->places[first].allowed_cores,
         h->places[first].threads_are_auto ? "where there is room for" : "and runs",
         (long long)wanted);
}

/* Cores of a rank, each counted by the share that the rank has in it; *other: who shares one. */
static double share_of(const host *h, int rank, int *other)
{
    double share = 0;
    for (int core = 0; core < RA_TOPOLOGY_CORES_MAX; core++) {
        int64_t const bit = (int64_t)(UINT64_C(1) << (core % 64));
        int sharers = 0;
        if ((h->places[rank].cores[core / 64] & bit) == 0)
            continue;
        for (int r = h->first; r < h->ranks; r++) {
            if (!is_here(h, r) || (h->places[r].cores[core / 64] & bit) == 0)
                continue;
            sharers++;
            if (r != rank && *other < 0)
                *other = r;
        }
        share += 1.0 / sharers;
    }
    return share;
}

static void judge_together(const host *h, ra_placement_finding *finding)
{
    for (int r = h->first; r < h->ranks && !is_crowded(h); r++) {
        const ra_place *place = &h->places[r];
        int64_t const own = is_here(h, r) ? count_bits(place->cores) : 0;
        int other = -1;
        if (own == 0 || own >= place->allowed_cores || place->threads > own ||
            share_of(h, r, &other) + 1e-9 >= (double)place->threads || other < 0)
            continue;
        find(finding,
             "rank %d and rank %d on host %s are bound to the same core%s while others are free: "
             "bind each to its own, or none (mpirun --bind-to none)",
             r < other ? r : other, r < other ? other : r, h->name, ra_plural(own));
        return;
    }
}

/* Ranks bound to nothing, on a host with several caches or memories, which are slow to cross. */
static void judge_unbound(const host *h, ra_placement_finding *finding)
{
    const ra_place *first = &h->places[h->first];
    if (h->count < 2 || is_crowded(h) || first->domains < 2)
        return;
    for (int r = h->first; r < h->ranks; r++) {
        if (is_here(h, r) && (count_bits(h->places[r].cores) != h->reached ||
                              h->places[r].allowed_cores != h->reached))
            return;
    }
    find(finding,
         "the %d ranks of host %s are bound to nothing, and it has %lld %s: bind them "
         "(mpirun --map-by %s --bind-to %s; 'ringattn info' has more)",
         h->count, h->name, (long long)first->domains,
         first->domain_type == RA_DOMAIN_NUMA ? "NUMA nodes" : "L3 caches",
         ra_domain_name((ra_domain_type)first->domain_type),
         ra_domain_name((ra_domain_type)first->domain_type));
}

/* ---- messages -------------------------------------------------------------------------------- */

/* The first rank of a host that could not read another's memory; -1: none. */
static int find_refused(const host *h)
{
    for (int r = h->first; r < h->ranks; r++) {
        if (is_here(h, r) && h->places[r].attach > 0)
            return r;
    }
    return -1;
}

static void judge_copies(const host *h, ra_placement_finding *finding)
{
    int const refused = find_refused(h);
    if (h->count < 2)
        return;
    if (refused >= 0) {
        const ra_place *place = &h->places[refused];
        find(finding,
             "rank %d on host %s may not read other ranks' memory (process_vm_readv: %s), so "
             "messages are copied twice: %s",
             refused, h->name, strerror((int)place->attach),
             place->ptrace_scope > 0 ? "set kernel.yama.ptrace_scope to 0, or use schedule shared"
                                     : "give the container SYS_PTRACE, or use schedule shared");
    } else if (h->places[h->first].copies_once == RA_ANSWER_NO) {
        find(finding,
             "the %d ranks of host %s copy messages twice: Open MPI's "
             "btl_vader_single_copy_mechanism is off; set it to cma, or use schedule shared",
             h->count, h->name);
    }
}

static void judge_spinning(const host *h, ra_placement_finding *finding)
{
    if (h->count > h->cores && h->places[h->first].yields_when_idle == RA_ANSWER_NO)
        find(finding,
             "%d ranks wait for each other on %lld core%s of host %s without yielding: start them "
             "with OMPI_MCA_mpi_yield_when_idle=1",
             h->count, (long long)h->cores, ra_plural(h->cores), h->name);
}

void ra_placement_judge(const ra_place *places, int ranks, bool sends,
                        ra_placement_finding findings_out[RA_PLACEMENT_FAULTS])
{
    memset(findings_out, 0, RA_PLACEMENT_FAULTS * sizeof(*findings_out));
    for (int first = 0; first < ranks; first++) {
        host h;
        bool seen = false;
        for (int r = 0; r < first && !seen; r++)
            seen = places[r].host == places[first].host;
        if (seen || !host_read(places, ranks, first, &h))
            continue;
        judge_crowd(&h, &findings_out[RA_PLACEMENT_CROWDED]);
        judge_narrow(&h, &findings_out[RA_PLACEMENT_NARROW]);
        judge_together(&h, &findings_out[RA_PLACEMENT_TOGETHER]);
        judge_unbound(&h, &findings_out[RA_PLACEMENT_UNBOUND]);
        if (sends)
            judge_copies(&h, &findings_out[RA_PLACEMENT_COPIED]);
        judge_spinning(&h, &findings_out[RA_PLACEMENT_SPINNING]);
    }
}

/* Looking at where ranks run, and saying what is wrong with it. */
#include "placement.h"

#include "console.h"
#include "internal.h"
#include "kernel_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/uio.h>
#include <unistd.h>

_Static_assert(sizeof(ra_place) % sizeof(int64_t) == 0, "ranks add up tables of int64");
_Static_assert(sizeof(ra_place) + sizeof(int64_t) == 704, "what memory.md says of a rank");

/* What other ranks try to read. */
static int64_t probe;

void ra_place_read(ra_place *place_out)
{
    ra_topology topology;
    ra_place place = {.attach = RA_PLACE_ATTACH_UNTRIED, .ptrace_scope = -1};
    probe = getpid();
    const char *const policy = getenv("OMP_WAIT_POLICY");
    place.omp_is_passive = policy != NULL && strcasecmp(policy, "passive") == 0;
    place.pid = probe;
    place.probe = (int64_t)(intptr_t)&probe;
    (void)ra_kernel_value("", "/proc/sys/kernel/yama", "ptrace_scope", "", 1, &place.ptrace_scope);
    /* A machine that cannot be read is an error only if threads depend on it: not reported here. */
    ra_console_hold();
    bool const read = ra_topology_read(&topology) == RA_OK;
    if (ra_console_agree(NULL, "looking at the machine", RA_OK) == RA_OK && read) {
        ra_advice const advice = ra_placement_advise(&topology, 0);
        place.known = 1;
        place.allowed_cores = topology.allowed_cores;
        place.quota_cpus =
            topology.quota_cpus > 0 ? ra_max_i64((int64_t)topology.quota_cpus, 1) : 0;
        place.domains = advice.ranks;
        place.domain_type = advice.domain;
        memcpy(place.cores, topology.usable_mask, sizeof(place.cores));
    }
    *place_out = place;
}

int ra_place_attach(const ra_place *other)
{
    int64_t found = 0;
    struct iovec here = {.iov_base = &found, .iov_len = sizeof(found)};
    struct iovec there = {.iov_base = (void *)(intptr_t)other->probe, .iov_len = sizeof(found)};
    ssize_t const count = process_vm_readv((pid_t)other->pid, &here, 1, &there, 1, 0);
    if (count < 0)
        return errno;
    return count == (ssize_t)sizeof(found) && found == other->pid ? 0 : EIO;
}

/* The next rank of the same host; the rank itself if it is alone there. */
static int next_on_host(const ra_place *places, int ranks, int rank)
{
    int next = rank;
    do
        next = (next + 1) % ranks;
    while (places[next].host != places[rank].host);
    return next;
}

/* Every rank reads its neighbour; nobody goes on, and perhaps ends, before all have. */
static ra_status share_attach(ra_comm *comm, ra_place *places, int64_t *results)
{
    int const rank = ra_comm_rank(comm), ranks = ra_comm_size(comm);
    int const next = next_on_host(places, ranks, rank);
    int64_t const own = next != rank ? ra_place_attach(&places[next]) : RA_PLACE_ATTACH_UNTRIED;
    ra_status const status =
        ra_comm_allgather_i64(comm, "reading other ranks' memory", &own, 1, results);
    for (int r = 0; r < ranks && status == RA_OK; r++)
        places[r].attach = results[r];
    return status;
}

static void say(const ra_place *places, int ranks, bool sends)
{
    ra_placement_finding findings[RA_PLACEMENT_FAULTS];
    ra_placement_judge(places, ranks, sends, findings);
    for (int i = 0; i < RA_PLACEMENT_FAULTS; i++) {
        if (findings[i].hosts == 1)
            ra_log(RA_LOG_WARNING, "%s", findings[i].line);
        else if (findings[i].hosts > 1)
            ra_log(RA_LOG_WARNING, "%s (%d more hosts are like this)", findings[i].line,
                   findings[i].hosts - 1);
    }
}

ra_status ra_placement_check(const ra_place *own, ra_comm *comm, bool sends)
{
    int const ranks = ra_comm_size(comm);
    ra_place place = *own;
    ra_place *const places = calloc((size_t)ranks, sizeof(*places) + sizeof(int64_t));
    ra_console_hold();
    ra_status status =
        ra_console_agree(comm, "comparing where ranks run",
                         places != NULL ? RA_OK : ra_refuse_memory("the ranks' places"));
    if (status != RA_OK)
        goto out_free;
    RA_ASSERT(places != NULL); /* the agreed status is never better than this rank's */
    bool const by_mpi = strcmp(ra_comm_name(comm), "mpi") == 0, copies = by_mpi && sends;
    place.host = ra_comm_host_id(comm);
    snprintf((char *)place.host_name, sizeof(place.host_name), "%s", ra_comm_host(comm));
    if (by_mpi) {
        ra_mpi_settings const settings = ra_mpi_settings_read();
        place.yields_when_idle = settings.yields_when_idle;
        place.copies_once = settings.copies_once;
    } else {
        place.yields_when_idle = place.copies_once = RA_ANSWER_UNKNOWN;
    }
    status = ra_comm_allgather_i64(comm, "comparing where ranks run",
                                   (const int64_t *)(const void *)&place,
                                   sizeof(place) / sizeof(int64_t), (int64_t *)(void *)places);
    if (status == RA_OK && copies)
        status = share_attach(comm, places, (int64_t *)(void *)(places + ranks));
    if (status == RA_OK && ra_comm_rank(comm) == 0 && !ra_console_is_quiet()) {
        ra_console_hold(); /* rank 0 speaks for all */
        say(places, ranks, copies);
        ra_console_release();
    }

out_free:
    free(places);
    return status;
}

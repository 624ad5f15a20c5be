/*
 * Where ranks run: what is wrong with it, in one line each, and how to start them better. Nothing
 * here changes what is computed.
 */
#ifndef RINGATTN_TOOL_PLACEMENT_H
#define RINGATTN_TOOL_PLACEMENT_H

#include "ringattn/topology.h"

/* ---- looking --------------------------------------------------------------------------------- */

typedef enum ra_answer { RA_ANSWER_UNKNOWN = -1, RA_ANSWER_NO, RA_ANSWER_YES } ra_answer;

/* The MPI library's settings as it reports them, whatever set them. */
typedef struct ra_mpi_settings {
    ra_answer yields_when_idle;
    ra_answer copies_once; /* between ranks of a host: by CMA, KNEM or XPMEM */
} ra_mpi_settings;

ra_mpi_settings ra_mpi_settings_read(void);

enum { RA_PLACE_NAME_WORDS = 8, RA_PLACE_ATTACH_UNTRIED = -1 };

/* One rank's place. Numbers only, of 64 bits: ranks add up tables of these. */
typedef struct ra_place {
    int64_t known; /* 0: the machine could not be read; nothing is reported about this host */
    int64_t host;  /* ra_comm_host_id */
    int64_t host_name[RA_PLACE_NAME_WORDS]; /* text, cut to fit */
    int64_t threads, threads_are_auto;
    int64_t allowed_cores;        /* of the cpuset */
    int64_t quota_cpus;           /* of the cgroup, rounded down, at least 1; 0: none */
    int64_t domains, domain_type; /* usable parts that deserve a rank each; ra_domain_type */
    int64_t omp_is_passive;       /* its threads give their core away while they wait */
    int64_t yields_when_idle, copies_once; /* ra_answer */
    int64_t pid, probe;                    /* probe: an address where this process holds its pid */
    int64_t attach;       /* how reading another rank's probe went: 0, an errno, or UNTRIED */
    int64_t ptrace_scope; /* Yama's; -1: there is none */
    int64_t cores[RA_TOPOLOGY_CORES_MAX / 64]; /* bits: those that the rank may run on */
} ra_place;

/** Read this process's place, threads left at 0, before anything computes: see ra_topology. */
void ra_place_read(ra_place *place_out);

/**
 * Read the probe of another process of this host as MPI would read a message.
 * @return 0, or the errno; EIO where something else than its pid was found
 */
int ra_place_attach(const ra_place *other);

/**
 * Collective. Compare all ranks' places; rank 0 warns of what is wrong unless it is quiet. Takes
 * some 0.7 KB per rank for the time being, on no ledger.
 *
 * @param own   from ra_place_read, but threads and threads_are_auto from the job
 * @param sends whether keys and values are sent rather than read in place; the same on all ranks
 */
RA_CHECKED ra_status ra_placement_check(const ra_place *own, ra_comm *comm, bool sends);

/* ---- judging --------------------------------------------------------------------------------- */

typedef enum ra_placement_fault {
    RA_PLACEMENT_CROWDED,  /* more threads on a host than cores */
    RA_PLACEMENT_NARROW,   /* a rank is bound to fewer cores than its threads want */
    RA_PLACEMENT_TOGETHER, /* ranks are bound to the same cores while others are free */
    RA_PLACEMENT_UNBOUND,  /* several ranks wander over several L3 caches or NUMA nodes */
    RA_PLACEMENT_COPIED,   /* messages within a host are copied twice */
    RA_PLACEMENT_SPINNING, /* more ranks than cores, and idle ones do not yield */
    RA_PLACEMENT_FAULTS
} ra_placement_fault;

typedef struct ra_placement_finding {
    int hosts;      /* with this fault; 0: none */
    char line[512]; /* about the first of them */
} ra_placement_finding;

void ra_placement_judge(const ra_place *places, int ranks, bool sends,
                        ra_placement_finding findings_out[RA_PLACEMENT_FAULTS]);

/* ---- advice ---------------------------------------------------------------------------------- */

typedef enum ra_domain_type {
    RA_DOMAIN_MACHINE,
    RA_DOMAIN_L3,
    RA_DOMAIN_NUMA,
    RA_DOMAIN_GPU
} ra_domain_type;

/* How to start ranks on a host like this one. */
typedef struct ra_advice {
    ra_domain_type domain; /* each rank has one to itself */
    int ranks;
    int threads_least, threads_most; /* of a rank, as compute.threads: auto finds them */
} ra_advice;

/**
 * @param gpus  usable ones of the host: if there are any, each gets a rank, bound to nothing. 0:
 * for ranks that compute on the CPU
 */
ra_advice ra_placement_advise(const ra_topology *topology, int gpus);
/** What mpirun binds ranks to: "none", "l3cache", "numa". */
const char *ra_domain_name(ra_domain_type domain);
/** "2 ranks of 8 threads, each with an L3 cache to itself", "8 ranks, each with a GPU to itself";
    returns `text`. */
const char *ra_advice_describe(const ra_advice *advice, char *text, size_t bytes);
/** The command line for that, for one host; returns `text`. */
const char *ra_advice_command(const ra_advice *advice, char *text, size_t bytes);

#endif

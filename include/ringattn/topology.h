/*
 * The machine: cores, caches and memory, and how many threads a rank may run.
 *
 * "Usable" is what this process may run on: the machine, less what its cpuset forbids, less what
 * the binding of the calling thread leaves out. Read it early, from the main thread: an OpenMP
 * runtime may bind that thread to one core later.
 *
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_TOPOLOGY_H
#define RINGATTN_TOPOLOGY_H

#include "ringattn/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { RA_TOPOLOGY_CORES_MAX = 4096 }; /* further cores are counted, but never used */

/* The parts of a machine that share an L3 cache, or a NUMA node. Parts without cores are none. */
typedef struct ra_domains {
    int count, usable;           /* usable: with a usable core */
    int cores_least, cores_most; /* usable cores of a usable one */
} ra_domains;

/* Counts are of the whole machine unless they say usable. 0: not known, or none. */
typedef struct ra_topology {
    char cpu[128]; /* the processor's own name; empty: not known */
    int packages, numa_nodes, cores;
    int hardware_threads; /* at least `cores` */
    int allowed_cores;    /* that the cpuset leaves, whatever the calling thread is bound to */
    int usable_cores;     /* at least 1 */
    int usable_hardware_threads;
    double quota_cpus; /* CPU time that the cgroup grants, in CPUs; 0: no such limit */
    ra_domains l3, numa;
    int64_t l1_bytes, l2_bytes, l3_bytes; /* of one data cache of each level */
    int64_t memory_bytes;
    uint64_t usable_mask[RA_TOPOLOGY_CORES_MAX / 64]; /* bit c: core c of the machine is usable */
} ra_topology;

/**
 * Look at this machine; takes some milliseconds.
 *
 * @return RA_ERR_UNSUPPORTED  hwloc does not understand the machine, already logged
 *         RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_topology_read(ra_topology *topology_out);

/**
 * Look at a recorded machine: an hwloc XML file (a name that ends in .xml, as `lstopo out.xml`
 * writes it), or an hwloc synthetic description ("package:2 core:8 pu:2").
 *
 * @param cpus  hardware threads that the process may use, as in "0-3,8"; NULL: all
 * @return RA_ERR_IO       no such file or description, already logged
 *         RA_ERR_INVALID  `cpus` names none of the machine's, already logged
 *         RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_topology_read_recorded(const char *machine, const char *cpus,
                                               ra_topology *topology_out);

/**
 * Describe the machine in two lines without a final newline. Cut to `bytes` with its terminator.
 * @return length of the whole description, as snprintf does
 */
int ra_topology_render(const ra_topology *topology, char *text, size_t bytes);

/**
 * Threads for each of `ranks` (>= 1) ranks that share all usable cores of this machine: at least 1.
 */
int ra_topology_divide(const ra_topology *topology, int ranks);

/**
 * Collective. Threads for this rank: a core that n ranks of this host may use counts 1 / n, so
 * ranks bound apart get all of their cores, and unbound ones divide the machine.
 * @return RA_OK and at least 1 in *threads_out; RA_ERR_NO_MEMORY, or the failure of a collective
 */
RA_CHECKED ra_status ra_topology_threads(const ra_topology *topology, ra_comm *comm,
                                         int *threads_out);

#ifdef __cplusplus
}
#endif
#endif

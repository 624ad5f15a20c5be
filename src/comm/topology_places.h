/* Parts of topology.c that tests look at. */
#ifndef RINGATTN_TOPOLOGY_PLACES_H
#define RINGATTN_TOPOLOGY_PLACES_H

/** CPUs from the text of a cgroup's cpu.max ("200000 100000" is 2); 0: no limit, or not readable.
 */
double ra_quota_parse(const char *text);

struct hwloc_bitmap_s;

/**
 * If OMP_PROC_BIND or the like is set, an OpenMP runtime binds the main thread before main begins.
 * Add the hardware threads of all its places, which that thread had before.
 */
void ra_openmp_places_add(struct hwloc_bitmap_s *usable);

#endif

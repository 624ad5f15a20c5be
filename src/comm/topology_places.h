/* Parts of topology.c that tests look at. */
#ifndef RINGATTN_TOPOLOGY_PLACES_H
#define RINGATTN_TOPOLOGY_PLACES_H

/** CPUs that control groups grant, by the kernel's files under `root` ("": of this machine); 0: no
 *  limit, or not readable. */
double ra_quota_read(const char *root);

struct hwloc_bitmap_s;

/**
 * If OMP_PROC_BIND or the like is set, an OpenMP runtime binds the main thread before main begins.
 * Add the hardware threads of all its places, which that thread had before.
 */
void ra_openmp_places_add(struct hwloc_bitmap_s *usable);

#endif

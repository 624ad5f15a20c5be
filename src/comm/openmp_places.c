/* The hardware threads of a process whose main thread OpenMP has bound. */
#include "topology_places.h"

#include <hwloc.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

void ra_openmp_places_add(struct hwloc_bitmap_s *usable)
{
#ifdef _OPENMP
    if (omp_get_proc_bind() == omp_proc_bind_false)
        return;
    int const places = omp_get_num_places();
    for (int place = 0; place < places; place++) {
        int const count = omp_get_place_num_procs(place);
        int *const ids = count > 0 ? calloc((size_t)count, sizeof(*ids)) : NULL;
        if (ids == NULL)
            continue; /* fewer cores are found than there are, and work all the same */
        omp_get_place_proc_ids(place, ids);
        for (int i = 0; i < count; i++)
            hwloc_bitmap_set(usable, (unsigned)ids[i]);
        free(ids);
    }
#else
    (void)usable;
#endif
}

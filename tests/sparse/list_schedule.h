/* A launch played through: tasks in their order, each by the thread block that is free first. */
#ifndef TESTS_SPARSE_LIST_SCHEDULE_H
#define TESTS_SPARSE_LIST_SCHEDULE_H

#include <stdint.h>

/* Thread blocks of an H100 or H200, for the kernels of head_dim 128. */
enum { SCHEDULE_BLOCKS = 264 };

/* When the last one ends. */
static inline double list_schedule_end(const double *tasks, int64_t count)
{
    double ends[SCHEDULE_BLOCKS] = {0}, last = 0;
    for (int64_t i = 0; i < count; ++i) {
        int first = 0;
        for (int b = 1; b < SCHEDULE_BLOCKS; ++b)
            if (ends[b] < ends[first])
                first = b;
        ends[first] += tasks[i];
        last = ends[first] > last ? ends[first] : last;
    }
    return last;
}

#endif

/* A launch played through: tasks in their order, each by the thread block that is free first. */
#ifndef TESTS_SPARSE_LIST_SCHEDULE_H
#define TESTS_SPARSE_LIST_SCHEDULE_H

#include <stdint.h>

/* Multiprocessors of an H100 or H200; of head_dim 128 each holds two thread blocks of the forward
   kernels for sm_80, and one of the kernel by warpgroups. */
enum { MULTIPROCESSORS = 132, SCHEDULE_BLOCKS_MOST = 2 * MULTIPROCESSORS };

/* When the last one ends. */
static inline double list_schedule_end(const double *tasks, int64_t count, int blocks)
{
    double ends[SCHEDULE_BLOCKS_MOST] = {0}, last = 0;
    for (int64_t i = 0; i < count; ++i) {
        int first = 0;
        for (int b = 1; b < blocks; ++b)
            if (ends[b] < ends[first])
                first = b;
        ends[first] += tasks[i];
        last = ends[first] > last ? ends[first] : last;
    }
    return last;
}

#endif

/* The clock that the stand-in runtime's own times begin with. */
#ifndef RINGATTN_TESTS_STANDIN_TIME_H
#define RINGATTN_TESTS_STANDIN_TIME_H

#include <stdint.h>
#include <time.h>

static inline int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif

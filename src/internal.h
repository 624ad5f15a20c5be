/* Common ground of all folders: assertions and small arithmetic. */
#ifndef RINGATTN_SRC_INTERNAL_H
#define RINGATTN_SRC_INTERNAL_H

#include "ringattn/status.h"

#include <time.h>

/* A broken precondition is a bug in the caller: stop with the expression. Always on. */
#define RA_ASSERT(condition)                                                                       \
    ((condition) ? (void)0 : ra_assert_failed(#condition, __FILE__, __LINE__))
/* The same for inner loops: debug builds only. */
#ifdef NDEBUG
#define RA_DASSERT(condition) ((void)0)
#else
#define RA_DASSERT(condition) RA_ASSERT(condition)
#endif

/* OpenMP where the build has it; the code runs on one thread where it has not. */
#ifdef _OPENMP
#define RA_OMP(directive) _Pragma(#directive)
#else
#define RA_OMP(directive)
#endif

_Noreturn void ra_assert_failed(const char *condition, const char *file, int line);

static inline int64_t ra_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t ra_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* CLOCK_MONOTONIC. */
static inline int64_t ra_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Quotients rounded down and up; the divisor is positive. */
static inline int64_t ra_div_floor(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

static inline int64_t ra_div_ceil(int64_t a, int64_t b)
{
    return a / b + (a % b > 0);
}

#endif

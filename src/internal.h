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

/* Put '?' for control characters, as ra_log does. Names in a line are the user's, or a stranger's
   file's: none may begin another line, or speak to the terminal. */
void ra_controls_mask(char *line);

/* Log what there is no memory for. Inline, so that who analyses callers sees what it returns. */
static inline ra_status ra_refuse_memory(const char *what)
{
    ra_log(RA_LOG_ERROR, "out of memory for %s", what);
    return RA_ERR_NO_MEMORY;
}

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

/* So long that nothing is waited for to its end, and sums of deadlines stay in range. */
static inline int64_t ra_clamp_timeout(int64_t timeout_ms)
{
    int64_t const most_ms = INT64_C(1000) * 1000 * 1000 * 1000; /* 30 years */
    return ra_min_i64(timeout_ms, most_ms);
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

/* Where part `index` of `n` begins, if they are cut into `parts` even ones: index * n / parts. */
static inline int64_t ra_share_begin(int64_t n, int64_t index, int64_t parts)
{
    return n / parts * index + n % parts * index / parts;
}

/* To a multiple of `unit`. */
static inline size_t ra_round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* For qsort; no number is NaN. */
static inline int ra_compare_i64(const void *a, const void *b)
{
    int64_t const x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static inline int ra_compare_f64(const void *a, const void *b)
{
    double const x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One step of Steele, Lea and Flood's SplitMix64 (doi:10.1145/2660193.2660195) from state `x`,
   which the step moves on by RA_MIX64_STEP. */
#define RA_MIX64_STEP 0x9e3779b97f4a7c15u

static inline uint64_t ra_mix64(uint64_t x)
{
    x += RA_MIX64_STEP;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

#endif

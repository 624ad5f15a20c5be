/*
 * Band arithmetic of a run against a block of keys and a panel of queries. A run's keys are
 * numbered b, a tile's queries a; a pair is live where lo <= b - a <= hi.
 */
#ifndef RINGATTN_CPU_GEOMETRY_H
#define RINGATTN_CPU_GEOMETRY_H

#include "sparse/cpu/cpu_internal.h"

static inline int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static inline int32_t max_i32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

typedef struct key_span {
    int32_t begin, end;
} key_span;

/* A band whose bounds can be added to indices without overflow: clipped to where they bind. */
typedef struct key_band {
    int32_t lo, hi;
} key_band;

static inline key_band run_band(const ra_run *run, int32_t q_count)
{
    return (key_band){max_i32(run->lo, 1 - q_count), min_i32(run->hi, run->k_count - 1)};
}

/* Keys of [begin, end) that some query of [a0, a1) sees; empty where end <= begin. */
static inline key_span band_seen(key_band band, int32_t a0, int32_t a1, int32_t begin, int32_t end)
{
    return (key_span){max_i32(begin, a0 + band.lo), min_i32(end, a1 + band.hi)};
}

/* Keys that every query of [a0, a1) sees: the others of the span need a mask. */
static inline key_span band_full(key_band band, int32_t a0, int32_t a1)
{
    return (key_span){a1 - 1 + band.lo, a0 + band.hi + 1};
}

static inline bool span_covers(key_span outer, key_span inner)
{
    return outer.begin <= inner.begin && inner.end <= outer.end;
}

#endif

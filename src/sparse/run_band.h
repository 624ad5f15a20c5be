/*
 * Which of a run's keys a tile's queries see, on CPUs and GPUs. A run's keys are numbered b, a
 * tile's queries a; a pair is live if lo <= b - a <= hi.
 */
#ifndef RINGATTN_RUN_BAND_H
#define RINGATTN_RUN_BAND_H

#include "ringattn/tilemap.h"
#include "sparse/host_device.h"

/* A run's band, clipped to where it binds. */
typedef struct ra_run_band {
    int32_t lo, hi;
} ra_run_band;

/* Keys [begin, end) of a run; none if end <= begin. */
typedef struct ra_run_keys {
    int32_t begin, end;
} ra_run_keys;

RA_HD ra_run_band ra_run_band_of(const ra_run *run, int32_t q_count)
{
    ra_run_band band = {ra_hd_max(run->lo, 1 - q_count), ra_hd_min(run->hi, run->k_count - 1)};
    return band;
}

RA_HD bool ra_run_band_has(ra_run_band band, int32_t a, int32_t b)
{
    return b - a >= band.lo && b - a <= band.hi;
}

/* Keys of [begin, end) that some query of [a0, a1) sees. A run may have 2^31 - 1 keys: no addition
   to `hi` overflows. `lo` is at most 0 in a map, because runs begin with a key that is seen. */
RA_HD ra_run_keys ra_run_band_seen(ra_run_band band, int32_t a0, int32_t a1, int32_t begin,
                                   int32_t end)
{
    ra_run_keys keys = {ra_hd_max(begin, a0 + band.lo), ra_hd_min(end - a1, band.hi) + a1};
    return keys;
}

/* Keys that all of these queries see; the other keys that are seen need a mask. */
RA_HD ra_run_keys ra_run_band_full(ra_run_band band, int32_t a0, int32_t a1, int32_t begin,
                                   int32_t end)
{
    return ra_run_band_seen(band, a1 - 1, a0 + 1, begin, end);
}

/* Queries [begin, end) of a tile; none if end <= begin. */
typedef struct ra_run_queries {
    int32_t begin, end;
} ra_run_queries;

/* Queries of [0, q_count) that see some key of [begin, end). */
RA_HD ra_run_queries ra_run_band_seeing(ra_run_band band, int32_t q_count, int32_t begin,
                                        int32_t end)
{
    ra_run_queries queries = {ra_hd_max(0, begin - band.hi),
                              ra_hd_min(q_count + band.lo, end) - band.lo};
    return queries;
}

#endif

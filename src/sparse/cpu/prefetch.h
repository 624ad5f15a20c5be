/*
 * Rows that will be read soon are asked for before, all at once: one after the other, each would be
 * waited for. They come to the second cache, because the first has what is multiplied now; those of
 * 16-bit values to the first where that is large enough. What either gave is in
 * docs/performance.md.
 */
#ifndef RINGATTN_CPU_PREFETCH_H
#define RINGATTN_CPU_PREFETCH_H

#include "sparse/cpu/pack.h"
#include "sparse/run_band.h"

/* Dims [d, d + dims) of a row. */
RA_INLINE void prefetch_row(const ra_kernel *kernel, const char *row, ra_dtype dtype, int32_t d,
                            int32_t dims)
{
    enum { LINE = 64, SECOND_CACHE = 2, FIRST_CACHE = 3, LARGE_ENOUGH = 48 << 10 };
    int64_t const element = (int64_t)ra_dtype_bytes(dtype);
    bool const to_first = element == 2 && kernel->caches.first_bytes >= LARGE_ENOUGH;
    for (int64_t at = d * element; at < (d + dims) * element; at += LINE) {
        if (to_first)
            __builtin_prefetch(row + at, 0, FIRST_CACHE);
        else
            __builtin_prefetch(row + at, 0, SECOND_CACHE);
    }
}

RA_INLINE void prefetch_tile(const ra_kernel *kernel, head_view view, const ra_tile *tile,
                             int32_t dim)
{
    for (int32_t a = 0; a < tile->q_count; ++a)
        prefetch_row(kernel, head_row(view, tile_row(tile, a)), view.dtype, 0, dim);
}

/* Keys [begin, end) of a run; NULL: none. */
typedef struct run_keys {
    const ra_run *run;
    int32_t begin, end;
} run_keys;

/* Where a tile's keys go on after those below `begin` of a run, of which queries see [.., end). */
static inline run_keys keys_after(const ra_run *run, const ra_run *run_end, int32_t begin,
                                  int32_t end, int32_t q_count)
{
    while (begin >= end) {
        if (++run >= run_end)
            return (run_keys){0};
        ra_run_band const band = ra_run_band_of(run, q_count);
        ra_run_keys const seen = ra_run_band_seen(band, 0, q_count, 0, run->k_count);
        begin = seen.begin;
        end = seen.end;
    }
    return (run_keys){run, begin, end};
}

/* Dims [d, d + dims) of keys [begin, end). */
RA_INLINE void prefetch_keys(const ra_kernel *kernel, head_view view, run_keys keys, int32_t d,
                             int32_t dims)
{
    for (int32_t b = keys.begin; b < keys.end; ++b)
        prefetch_row(kernel, run_row(view, keys.run, b), view.dtype, d, dims);
}

/* A part of them: from the index `from` on, so many at most. */
static inline run_keys keys_part(run_keys keys, int32_t from, int32_t count)
{
    int32_t const begin = keys.begin + ra_hd_min(from, keys.end - keys.begin);
    return (run_keys){keys.run, begin, begin + ra_hd_min(count, keys.end - begin)};
}

#endif

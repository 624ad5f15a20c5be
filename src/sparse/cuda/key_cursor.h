/*
 * The way through a tile's runs, one block of keys at a time, and which blocks need a mask.
 *
 * A run's keys are numbered b, a tile's queries a; a pair is live where lo <= b - a <= hi. Blocks
 * begin at the first key that any query of the tile sees, so that a window's edge costs no extra
 * blocks.
 */
#ifndef RINGATTN_CUDA_KEY_CURSOR_H
#define RINGATTN_CUDA_KEY_CURSOR_H

#include "sparse/run_band.h"

/* Most key rows: a block's keys and queries can be added without overflow. */
enum { RA_CUDA_KEY_ROWS_MAX = INT32_MAX - 256 };

typedef struct ra_key_cursor {
    const ra_run *runs;
    uint32_t run, run_end; /* run == run_end: there are no more blocks */
    int32_t q_count;
    int32_t k_begin, k_stride; /* of the run */
    ra_run_band band;          /* its own */
    int32_t b, end;            /* the block begins at key b; keys from `end` on are not its own */
} ra_key_cursor;

RA_HD void ra_key_cursor_enter(ra_key_cursor *c)
{
    if (c->run == c->run_end)
        return;
    /* Read at once: as far as the compiler knows, writes to the cursor may alias it. */
    ra_run const run = c->runs[c->run];
    c->k_begin = run.k_begin;
    c->k_stride = run.k_stride;
    c->band = ra_run_band_of(&run, c->q_count);
    ra_run_keys const seen = ra_run_band_seen(c->band, 0, c->q_count, 0, run.k_count);
    c->b = seen.begin;
    c->end = seen.end;
}

/* Every run of a tile has a live pair, so no run is without a block. */
RA_HD void ra_key_cursor_begin(const ra_tile *tile, uint32_t run_end, const ra_run *runs,
                               ra_key_cursor *c)
{
    c->runs = runs;
    c->run = tile->run_begin;
    c->run_end = run_end;
    c->q_count = tile->q_count;
    ra_key_cursor_enter(c);
}

RA_HD bool ra_key_cursor_is_over(const ra_key_cursor *c)
{
    return c->run == c->run_end;
}

RA_HD void ra_key_cursor_next(ra_key_cursor *c, int32_t k_rows)
{
    c->b += k_rows;
    if (c->b < c->end)
        return;
    ++c->run;
    ra_key_cursor_enter(c);
}

/* So many blocks further; then it may be over. */
RA_HD void ra_key_cursor_skip(ra_key_cursor *c, int32_t k_rows, int32_t blocks)
{
    while (!ra_key_cursor_is_over(c)) {
        int32_t const there = (c->end - c->b + k_rows - 1) / k_rows;
        if (blocks < there) {
            c->b += blocks * k_rows;
            return;
        }
        blocks -= there;
        ++c->run;
        ra_key_cursor_enter(c);
    }
}

/* Blocks of a run. */
RA_HD int32_t ra_cuda_run_steps(const ra_run *run, int32_t q_count, int32_t k_rows)
{
    ra_run_keys const seen =
        ra_run_band_seen(ra_run_band_of(run, q_count), 0, q_count, 0, run->k_count);
    return (seen.end - seen.begin + k_rows - 1) / k_rows;
}

/* Row of key b in the tensors. */
RA_HD int64_t ra_key_cursor_row(const ra_key_cursor *c, int32_t b)
{
    return c->k_begin + (int64_t)c->k_stride * b;
}

/* Whether some pair of queries [0, q_rows) and the k_rows keys of the block is not live. Rows
   beyond q_count are ignored: their results are never stored. No branch, so that the whole cursor
   is read at once. */
RA_HD bool ra_key_cursor_masked(const ra_key_cursor *c, int32_t k_rows)
{
    return (c->b + k_rows > c->end) | (c->b - (c->q_count - 1) < c->band.lo) |
           (c->b + k_rows - 1 > c->band.hi);
}

/* Which of the k_rows keys of the block some of `rows` queries from a on sees. If these are all
   beyond q_count, nothing is said. */
RA_HD ra_run_keys ra_key_cursor_seen(const ra_key_cursor *c, int32_t a, int32_t rows,
                                     int32_t k_rows)
{
    int32_t const a_end = ra_hd_min(a + rows, c->q_count);
    int32_t const end = ra_hd_min(c->b + k_rows, c->end);
    return ra_run_band_seen(c->band, a, a_end, c->b, end);
}

/* Whether some of them, below q_count, sees any. */
RA_HD bool ra_key_cursor_sees(const ra_key_cursor *c, int32_t a, int32_t rows, int32_t k_rows)
{
    ra_run_keys const seen = ra_key_cursor_seen(c, a, rows, k_rows);
    return a < c->q_count && seen.begin < seen.end;
}

/*
 * The keys that a query sees, as offsets from some key: those from `first` on, `count` of them. A
 * kernel tests many keys of a row: this takes two instructions per key, and no branch.
 */
typedef struct ra_live_span {
    int32_t first, count;
} ra_live_span;

RA_HD bool ra_live_span_has(ra_live_span span, int32_t offset)
{
    return (uint32_t)(offset - span.first) < (uint32_t)span.count;
}

/* Of query a, from key b of the block on. */
RA_HD ra_live_span ra_key_cursor_span(const ra_key_cursor *c, int32_t a, int32_t b)
{
    int32_t const first = a + c->band.lo, last = ra_hd_min(c->end - 1, a + c->band.hi);
    ra_live_span span = {0, 0};
    span.first = first - b;
    span.count = ra_hd_max(0, last - first + 1);
    return span;
}

/* Whether query a sees key b of the block. */
RA_HD bool ra_key_cursor_live(const ra_key_cursor *c, int32_t a, int32_t b)
{
    return b < c->end && ra_run_band_has(c->band, a, b);
}

#endif

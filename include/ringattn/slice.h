/*
 * Ranges, row sets and band slices: the one idea.
 *
 * A slice is a strided set of queries, a strided set of keys at the same stride, and a band:
 *
 *     queries i = q_begin + stride * a,   0 <= a < q_count
 *     keys    j = k_begin + stride * b,   0 <= b < k_count
 *     live    lo <= b - a <= hi
 *
 * Every mask is a list of slices, and slices are closed under restricting queries and keys to
 * strided ranges. All functions here are pure, allocate nothing unless they take a pool, and are
 * safe from any thread. Rows count tokens of the whole sequence ("global") unless a row set gives
 * them a local number. SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_SLICE_H
#define RINGATTN_SLICE_H

#include "ringattn/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Band bounds that never bind; far from overflow when coordinates are added. */
#define RA_BAND_NONE_LO (INT64_MIN / 4)
#define RA_BAND_NONE_HI (INT64_MAX / 4)

/* begin + stride * x for 0 <= x < count; stride >= 1. */
typedef struct ra_range {
    int64_t begin, stride, count;
} ra_range;

/** How many numbers lie from the first to the last of them; count >= 1. */
static inline int64_t ra_range_span(ra_range range)
{
    return range.stride * (range.count - 1) + 1;
}

/** The last of them; count >= 1. */
static inline int64_t ra_range_last(ra_range range)
{
    return range.begin + ra_range_span(range) - 1;
}

typedef struct ra_slice {
    int64_t q_begin, q_count;
    int64_t k_begin, k_count;
    int64_t stride;
    int64_t lo, hi; /* RA_BAND_NONE_LO / _HI: unbounded */
} ra_slice;

static inline ra_range ra_slice_queries(const ra_slice *slice)
{
    ra_range const queries = {slice->q_begin, slice->stride, slice->q_count};
    return queries;
}

static inline ra_range ra_slice_keys(const ra_slice *slice)
{
    ra_range const keys = {slice->k_begin, slice->stride, slice->k_count};
    return keys;
}

/* Query heads begin + stride * x for 0 <= x < count. */
typedef struct ra_heads {
    int32_t begin, stride, count;
} ra_heads;

/** How many heads two sets have in common; O(1). */
int32_t ra_heads_common(ra_heads a, ra_heads b);

/**
 * Intersection of two ranges: stride ra_lcm_i64(a.stride, b.stride).
 * @return false when it is empty (then *out is {0, 1, 0})
 */
bool ra_range_intersect(ra_range a, ra_range b, ra_range *out);

/** Live pairs of a band over so many queries and keys, exactly; O(1). The product q_count * k_count
    must fit int64. */
int64_t ra_band_area(int64_t q_count, int64_t k_count, int64_t lo, int64_t hi);
/** The same of a slice. */
int64_t ra_slice_area(const ra_slice *slice);
/** The same of those of its queries that are in a range. */
int64_t ra_slice_area_of(const ra_slice *slice, ra_range queries);

/** Adjust a band to rows cut off in front: `by` is how many queries, or minus how many keys. Bounds
    that never bind stay. */
static inline void ra_band_shift(int64_t by, int64_t *lo, int64_t *hi)
{
    if (*lo > RA_BAND_NONE_LO)
        *lo += by;
    if (*hi < RA_BAND_NONE_HI)
        *hi += by;
}

/**
 * The keys [*k_first, *k_first + *k_count), of *k_count, that queries [at, at + count) of a band,
 * *lo at most *hi, see, and the band between the two.
 * @return false when they see none (then *k_count is 0 or less)
 */
bool ra_band_cut(int64_t at, int64_t count, int64_t *k_first, int64_t *k_count, int64_t *lo,
                 int64_t *hi);

/**
 * Shrink a slice to the queries that see a key and the keys that are seen; both stay contiguous
 * in a and b. Bounds that no pair reaches become RA_BAND_NONE_*.
 * @return false when no pair is live
 */
bool ra_slice_trim(ra_slice *slice);

/* A slice in the local numbering of two ranges: q and k strides differ if the ranges' do. */
typedef struct ra_local_slice {
    int64_t q_begin, q_stride, q_count; /* positions x within the query range */
    int64_t k_begin, k_stride, k_count; /* positions y within the key range */
    int64_t lo, hi;                     /* on indices b - a, as in a slice */
} ra_local_slice;

/**
 * Restrict a slice to a query range and a key range, in positions of those ranges.
 *
 * Closed form if queries and keys meet at one common stride L = lcm(slice, q range, k range). If
 * that leaves out queries that one range alone would keep, the caller asks for the other phases:
 * `phase` runs from 0 to ra_slice_phases() - 1 and the live pairs of the phases, together, are
 * exactly those of the restriction.
 * @return false when this phase has no live pair
 */
bool ra_slice_restrict(const ra_slice *slice, ra_range q, ra_range k, int64_t phase,
                       ra_local_slice *out);
int64_t ra_slice_phases(const ra_slice *slice, ra_range q, ra_range k);
/** As ra_slice_restrict, but queries and keys outside the band are kept: true promises no pair.
    After false *out holds nothing of use. */
bool ra_slice_restrict_loose(const ra_slice *slice, ra_range q, ra_range k, int64_t phase,
                             ra_local_slice *out);

/** Greatest common divisor, and least common multiple, of strides of at least 1. INT64_MAX stands
    for multiples beyond it: no range has two rows so far apart. */
int64_t ra_gcd_i64(int64_t a, int64_t b);
int64_t ra_lcm_i64(int64_t a, int64_t b);

/* ---- row sets ---------------------------------------------------------------------------------
 */

/* One piece of a row set; its rows have the local numbers first, first + 1, … */
typedef struct ra_row_piece {
    ra_range rows; /* global */
    int64_t first;
} ra_row_piece;

/*
 * Disjoint rows with a local numbering: piece after piece. A rank's shard, or the rows of a
 * received block. {0} is the empty set. The memory is a block of category tilemap.
 *
 * The overlap says how far pieces interleave, so that rows can be searched for: a piece with a row
 * from the first one of piece i on is at most so many before piece i. 0: not at all, and local
 * order is global order. -1: they do not begin in ascending order, so that any piece may hold any
 * row.
 */
typedef struct ra_rowset {
    ra_row_piece *pieces;
    int64_t piece_count;
    int64_t row_count;
    int64_t overlap; /* of the pieces */
    ra_block block;
} ra_rowset;

/* The rest of a walk over pieces of a row set, which stays as it is meanwhile. */
typedef struct ra_piece_walk {
    const ra_row_piece *next, *end;
    int64_t first, last; /* global rows */
} ra_piece_walk;

/** Put pieces in the order of their first rows. In a set of them global rows can be searched for,
    but no local number, unless they were in that order. Returns their overlap. */
int64_t ra_row_pieces_sort(ra_row_piece *pieces, int64_t count);
/** Build from ranges in the order given (copied), of fewer than 2^63 rows in all; empty ranges are
    left out. Errors as ra_pool_alloc; on failure the set is empty. */
RA_CHECKED ra_status ra_rowset_init(ra_pool *pool, const ra_range *ranges, int64_t count,
                                    ra_rowset *set_out);
/** A piece's rows with local numbers in [begin, end); of none the count is 0 or less. */
ra_row_piece ra_row_piece_cut(const ra_row_piece *piece, int64_t begin, int64_t end);
/** Rows [begin, end) by their local numbers, numbered anew. Errors as ra_pool_alloc; on failure the
    set may be empty. */
RA_CHECKED ra_status ra_rowset_slice(ra_pool *pool, const ra_rowset *set, int64_t begin,
                                     int64_t end, ra_rowset *slice_out);
void ra_rowset_fini(ra_pool *pool, ra_rowset *set);
/** The piece of a local number in [0, row_count), 0 for the empty set; O(log pieces). */
int64_t ra_rowset_piece_of(const ra_rowset *set, int64_t local);
/** A walk over the pieces whose rows may be among `rows`, count >= 1, in the set's order: those
    whose spans meet. O(log pieces + overlap), or O(pieces) if that is -1, and what is met. */
ra_piece_walk ra_rowset_walk(const ra_rowset *set, ra_range rows);
/** The next of them; NULL: there is none. */
const ra_row_piece *ra_piece_walk_next(ra_piece_walk *walk);
/** Global row of a local number in [0, row_count); O(log pieces). */
int64_t ra_rowset_global(const ra_rowset *set, int64_t local);
/** Local number of a global row, or -1; O(log pieces + overlap), or O(pieces) if that is -1. */
int64_t ra_rowset_local(const ra_rowset *set, int64_t global);

/* ---- marked rows ------------------------------------------------------------------------------
 */

enum { RA_STRIDES_MAX = 32 };

/* Strides of ranges that are marked; {0}: none yet. */
typedef struct ra_strides {
    int64_t items[RA_STRIDES_MAX]; /* other than 1, ascending */
    int count;                     /* more than RA_STRIDES_MAX: too many, and none is listed */
    int64_t largest;               /* of all */
    int64_t common;                /* least common multiple of all; above 65,536 that or more */
} ra_strides;

/** Add a stride of at least 1. The order of calls does not matter. */
void ra_strides_see(ra_strides *strides, int64_t stride);
/**
 * After how many rows the marks of such ranges repeat: the least common multiple of their strides.
 * 0: not soon enough to list them by it, above 1,024 or, if one of the strides is a multiple of all
 * others, above 65,536.
 */
int64_t ra_strides_period(const ra_strides *strides);

typedef ra_status ra_range_visitor(void *context, ra_range range);

/**
 * Unmark the rows of [begin, end) that are marked, bit i % 64 of word i / 64 for row i, and give
 * them to `take` in few ranges: disjoint, in no order, of single rows at stride 1, else at strides
 * that divide the period, or without one at 1 and, if that makes fewer, those that were seen.
 *
 * Where marks repeat with the period, so do the ranges, but for what is nearer than ra_marks_reach
 * to where they cease to. Cost: for each stride that is tried the words of the bitmap, and the rows
 * that are still marked times the larger strides. Errors are those of `take`, the first of which
 * ends it.
 */
RA_CHECKED ra_status ra_marks_take(uint64_t *marks, int64_t begin, int64_t end,
                                   const ra_strides *strides, ra_range_visitor *take,
                                   void *context);
/** In rows; a multiple of the period, 0 without one. */
int64_t ra_marks_reach(const ra_strides *strides);

#ifdef __cplusplus
}
#endif
#endif

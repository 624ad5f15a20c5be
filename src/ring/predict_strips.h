/*
 * Private to predictions: strips, the parts of a pattern's slices between pieces of queries and
 * pieces of keys, in local numbers. Tiles and runs are counted from them, a chunk of queries at a
 * time.
 */
#ifndef RINGATTN_PREDICT_STRIPS_H
#define RINGATTN_PREDICT_STRIPS_H

#include "ring/predict_job.h"

/* A slice between one piece of queries and one piece of keys: queries residue + stride * x. */
typedef struct ra_strip {
    int64_t stride, residue, begin, count; /* x from begin on */
    int64_t k_begin, k_stride, k_count, lo, hi;
    ra_range keys; /* the same in the sequence */
    double chance; /* that a block of them is kept */
} ra_strip;

typedef struct ra_strip_list {
    ra_strip *items;
    int64_t count, room;
    int64_t most; /* that were there at a time */
} ra_strip_list;

/* Blocks [begin, end) of keys that are all of one kind. */
typedef struct ra_block_span {
    int64_t begin, end;
    bool full;
} ra_block_span;

/* Where a strip of a group begins, and which it is. */
typedef struct ra_strip_begin {
    int64_t at, strip;
} ra_strip_begin;

typedef struct ra_block_event ra_block_event;

typedef struct ra_strip_mapper {
    const ra_predict_job *job;
    const ra_rowset *queries, *keys;
    double share; /* of the keys, those that are held */
    int64_t tile_rows, chunk_rows;
    bool shared;             /* a row was found in several tiles */
    ra_predict_looks *looks; /* of the plan, or NULL */

    /* While slices are visited: */
    double chance;     /* that a block of the one at hand is kept */
    ra_range q_rows;   /* global queries, */
    int64_t q_first;   /* and the local number of their first */
    ra_strip_list *to; /* where strips go */

    ra_strip_list strips; /* of the chunk at hand */
    ra_strip_begin *begins;
    int64_t begin_room;
    int64_t *open; /* strips of a group that have the queries at hand, in its order */
    int64_t open_count, open_room;
    double tiles, runs, pairs, run_keys; /* likewise, one head */

    /* Of block masks, for a block of queries: */
    bool none_full;      /* no block of keys can be full */
    ra_strip_list bands; /* the pattern's own strips */
    ra_block_event *events;
    ra_block_span *spans; /* the blocks of keys that these meet, ascending */
    int64_t event_count, event_room, span_count, span_room;
} ra_strip_mapper;

/* Live pairs, one head. */
int64_t ra_strip_area(const ra_strip *strip);
RA_CHECKED ra_status ra_strips_push(ra_strip_list *list, const ra_strip *strip);
/* Add the strips of a layer's local queries [begin, end) to a list. */
RA_CHECKED ra_status ra_strips_gather(ra_strip_mapper *mapper, int32_t layer, int64_t begin,
                                      int64_t end, ra_strip_list *list);
/* The same, into mapper->strips, as a block mask has them. */
RA_CHECKED ra_status ra_strips_gather_masked(ra_strip_mapper *mapper, int32_t layer, int64_t begin,
                                             int64_t end);
/* Count tiles, runs, pairs and keys of mapper->strips, which are sorted as in a map. */
RA_CHECKED ra_status ra_strips_count(ra_strip_mapper *mapper);
void ra_strips_free(ra_strip_mapper *mapper);

#endif

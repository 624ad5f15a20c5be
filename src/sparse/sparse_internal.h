/* Private to src/sparse: the pattern's representation, band arithmetic, growable arrays. */
#ifndef RINGATTN_SPARSE_INTERNAL_H
#define RINGATTN_SPARSE_INTERNAL_H

#include "ringattn/block_mask.h"
#include "ringattn/pattern_cache.h"

#include <string.h>

/*
 * Shrink {q_count, k_count, lo, hi} to the queries that see a key and the keys that are seen.
 * *q_cut and *k_cut: how many are cut off in front. False: nothing is live.
 */
bool ra_band_trim(int64_t *q_cut, int64_t *q_count, int64_t *k_cut, int64_t *k_count, int64_t *lo,
                  int64_t *hi);

/* Set bounds that no pair reaches to RA_BAND_NONE_*. */
static inline void ra_band_loosen(int64_t q_count, int64_t k_count, int64_t *lo, int64_t *hi)
{
    if (*lo <= -(q_count - 1))
        *lo = RA_BAND_NONE_LO;
    if (*hi >= k_count - 1)
        *hi = RA_BAND_NONE_HI;
}

/* A bit of a bitmap, as ra_marks_take reads it. */
static inline bool ra_is_marked(const uint64_t *marks, int64_t row)
{
    return marks[row / 64] >> (row % 64) & 1;
}

/* ---- growable array on a pool block, category tilemap ---------------------------------------- */

typedef struct ra_vector {
    ra_block block;
    int64_t count;
} ra_vector;

/* Double the room of a full vector. */
RA_CHECKED ra_status ra_vector_grow(ra_pool *pool, ra_vector *vector, size_t item_bytes);

/* Append a copy of an item. Inline: maps push many, and so the copy's size is known. */
RA_CHECKED static inline ra_status ra_vector_push(ra_pool *pool, ra_vector *vector,
                                                  const void *item, size_t item_bytes)
{
    size_t const used = (size_t)vector->count * item_bytes;
    if (used + item_bytes > vector->block.bytes) {
        ra_status const status = ra_vector_grow(pool, vector, item_bytes);
        if (status != RA_OK)
            return status;
    }
    memcpy((char *)vector->block.data + used, item, item_bytes);
    ++vector->count;
    return RA_OK;
}

/* ---- tile maps under construction ------------------------------------------------------------ */

/* A slice in local numbers, ready to be cut. Its queries are residue + s.q_stride * x. */
typedef struct ra_map_piece {
    ra_local_slice s;
    int64_t residue;   /* with s.q_stride: the query progression */
    int64_t begin;     /* x of its first query, */
    int64_t see, seen; /* and of those that see a key: [see, seen) */
} ra_map_piece;

typedef struct ra_map_builder {
    const ra_pattern *pattern;
    ra_heads heads;
    const ra_rowset *queries, *keys;
    const ra_block_mask *mask; /* NULL: none */
    ra_pool *pool;
    int64_t tile_rows, chunk_rows;
    ra_range q_rows;         /* while visiting: the part of a query piece in the chunk, */
    int64_t q_first;         /* the local number of its first row, */
    ra_vector *to;           /* and where its pieces go */
    ra_vector pieces;        /* of ra_map_piece, one chunk of one layer */
    ra_vector bands;         /* likewise: the pattern's own, if there is a mask */
    ra_vector cuts;          /* of int64_t, one group of pieces */
    ra_vector parts, listed; /* of the group too: see tilemap_cut.c */
    ra_tile *tiles;          /* NULL while counting */
    ra_run *runs;
    int64_t tile_count, run_count;
    ra_run open; /* the run that may still grow */
    bool has_open;
    int64_t area; /* live pairs of the layer, one head */
    bool shared;
} ra_map_builder;

/*
 * Add a layer's tiles and runs to the builder's counts, and to its arrays if it has any;
 * chunk_tile, [chunk_count + 1], may be NULL.
 */
RA_CHECKED ra_status ra_map_builder_cut(ra_map_builder *builder, int32_t layer, int64_t chunk_count,
                                        uint32_t *chunk_tile);

/* Refill `pieces` with a layer's pieces for local queries [begin, end), at least one. */
RA_CHECKED ra_status ra_map_builder_collect(ra_map_builder *builder, int32_t layer, int64_t begin,
                                            int64_t end, ra_vector *pieces);
/* The same from builder->mask, into builder->pieces. */
RA_CHECKED ra_status ra_map_builder_collect_masked(ra_map_builder *builder, int32_t layer,
                                                   int64_t begin, int64_t end);

/* Add a slice to pieces, if it has a live pair. */
RA_CHECKED ra_status ra_map_piece_push(ra_pool *pool, ra_vector *pieces,
                                       const ra_local_slice *slice);

/* Cut a local slice to keys [begin, end); it may have no live pair left. False: no key is left. */
bool ra_local_slice_cut_keys(const ra_local_slice *slice, int64_t begin, int64_t end,
                             ra_local_slice *out);

/* Called for the memory of a map's arrays, once their size is known; NULL: take the pool's. */
typedef void *ra_map_take(void *context, size_t bytes);

/*
 * Make a map whose arrays lie where `take` says, which may be NULL, or in map_out->block. After a
 * failure the caller gives back what `take` gave.
 */
RA_CHECKED ra_status ra_tilemap_build(const ra_map_request *request, const ra_block_mask *mask,
                                      ra_pool *pool, ra_map_take *take, void *context,
                                      ra_tilemap *map_out);

/* Fill a map's index; all else in the map is done. The pool is for scratch. */
RA_CHECKED ra_status ra_tilemap_index(ra_tilemap *map, ra_pool *pool);

/* ---- keys of the pattern cache: the canonical form of a request ------------------------------ */

uint64_t ra_map_key_hash(const ra_map_request *request, size_t *bytes_out);
void ra_map_key_write(const ra_map_request *request, void *key);
bool ra_map_key_equals(const ra_map_request *request, const void *key, size_t bytes);

/* ---- pattern --------------------------------------------------------------------------------- */

typedef struct ra_layer {
    ra_heads heads;
    int64_t segment;        /* length; seq if the pattern is not dilated */
    int64_t stride, offset; /* rows of a segment in this layer: offset + stride * x */
} ra_layer;

/* Key blocks [begin, begin + count) that a row of query blocks keeps. */
typedef struct ra_block_run {
    int32_t begin, count;
} ra_block_run;

struct ra_pattern {
    ra_pool *pool;
    int64_t seq;
    int32_t heads;
    ra_pattern_config config; /* arrays replaced by our copies, or NULL */
    int64_t *document_starts; /* [document_count + 1] */
    int64_t document_count;
    int64_t block_rows;     /* blocks in the sequence; 0 without a block pattern */
    int64_t *block_offsets; /* dilated_sparse: distances, ascending, unique */
    int64_t block_offset_count;
    int64_t *block_row_runs; /* list, random: [block_rows + 1] into block_runs */
    ra_block_run *block_runs;
    ra_layer *layers;
    int32_t layer_count;
    ra_block memory[6]; /* of the arrays above, in the order of their making */
    int memory_count;
};

/* Whether a head may be in several layers: in one of each branch. Those of one have other heads. */
bool ra_pattern_shares_heads(const ra_pattern_config *config);
RA_CHECKED ra_status ra_pattern_take(ra_pattern *pattern, size_t bytes, void *pointer_out);
RA_CHECKED ra_status ra_pattern_make_blocks(ra_pattern *pattern);

/* The next run of a row of blocks; they are disjoint and ascend. *cursor begins at 0, or at
   ra_block_run_from: behind runs that end before `block`, if the pattern stores its runs. */
bool ra_block_run_next(const ra_pattern *pattern, int64_t bi, int64_t *cursor, ra_block_run *run);
int64_t ra_block_run_from(const ra_pattern *pattern, int64_t bi, int64_t block);

/* The map whose chunks are those of all maps of a pass that have a tile, the first of these; NULL:
   chunks differ, or there is no tile. */
const ra_tilemap *ra_chunk_steps_map(const ra_tilemap *const *maps, int32_t steps);
/*
 * The steps of every chunk of that map, if there is one. A chunk that no map has a tile of gets the
 * first step that has any. Returns how many rows are carried.
 */
int64_t ra_chunk_steps_find(const ra_tilemap *const *maps, int32_t steps,
                            ra_chunk_steps *chunks_out);

#endif

/*
 * Block masks: a pattern as lists of blocks, as FlexAttention's BlockMask holds it. They exist to
 * show what such a mask costs: a tile map made from the pattern needs none.
 *
 * Rows of both sides are dealt into blocks of RA_MASK_BLOCK local numbers. A block is full if every
 * pair in it is live, partial if some are; otherwise it is in no list. Lists are held in both
 * directions and have room for every block, so a mask takes
 *     16 * q_blocks * k_blocks + 8 * (q_blocks + k_blocks) bytes per layer:
 * 16 (N / 128)^2, or 1 GiB at a million tokens, whatever the pattern.
 *
 * A mask has one set of lists per layer of the pattern (see pattern.h) that any of the heads takes
 * part in. So heads that differ have lists of their own, and so has each branch of a dilated
 * pattern.
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_BLOCK_MASK_H
#define RINGATTN_BLOCK_MASK_H

#include "ringattn/tilemap.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { RA_MASK_BLOCK = 128 };

/* Row `from` has counts[from] blocks, ascending, from indices[from * stride] on; the rest of the
   row is undefined. */
typedef struct ra_block_list {
    int32_t *counts, *indices;
    int64_t stride;
} ra_block_list;

typedef struct ra_block_mask_layer {
    int32_t layer; /* of the pattern */
    ra_block_list kv,
        full_kv; /* key blocks of each query block: kv_num_blocks, kv_indices, full_… */
    ra_block_list q, full_q; /* query blocks of each key block: q_num_blocks, q_indices, … */
} ra_block_mask_layer;

typedef struct ra_block_mask {
    int64_t q_rows, k_rows;
    int32_t q_blocks, k_blocks;
    int32_t layer_count;
    ra_block_mask_layer *layers;
    ra_block block; /* category tilemap */
} ra_block_mask;

/**
 * Make the lists for `queries` against `keys`.
 *
 * Cost: O(all blocks, and those that slices meet) time, 4 bytes of scratch per key block.
 * @return RA_ERR_UNSUPPORTED  more than 2^31 - 1 rows on a side
 *         RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_block_mask_init(const ra_pattern *pattern, ra_heads heads,
                                        const ra_rowset *queries, const ra_rowset *keys,
                                        ra_pool *pool, ra_block_mask *mask_out);
void ra_block_mask_fini(ra_pool *pool, ra_block_mask *mask); /* a zeroed one is fine */

/**
 * As ra_tilemap_init, from a mask for the same heads and rows, borrowed for the call.
 *
 * The mask's kv lists decide what is live: full blocks become full runs without asking the pattern,
 * partial ones are cut from the pattern's bands, and all others are empty, whatever the pattern
 * says. Tiles end with blocks of queries. No kernel of ours reads the lists of the other direction:
 * those that loop over keys go by the map's own index.
 */
RA_CHECKED ra_status ra_tilemap_init_masked(const ra_map_request *request,
                                            const ra_block_mask *mask, ra_pool *pool,
                                            ra_tilemap *map_out);

/**
 * Make both: the mask lives as long as the map, and counts in its `bytes`. Give it back with
 * ra_tilemap_fini, or ra_pattern_cache_put.
 */
RA_CHECKED ra_status ra_tilemap_init_dense(const ra_map_request *request, ra_pool *pool,
                                           ra_tilemap *map_out);

#ifdef __cplusplus
}
#endif
#endif

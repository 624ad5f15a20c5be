/*
 * Patterns: what attends to what, as band slices that are enumerated, never stored.
 *
 * All constraints that are present hold together:
 *   documents  i and j lie in the same document
 *   window     i - left <= j <= i + right, or j is one of its document's first `sinks` tokens
 *   causal     j <= i
 *   blocks     block pair (i / size, j / size) is kept
 *   dilated    for each branch (segment w, rate r) and offset o = head mod r:
 *              i / w == j / w, i mod w mod r == o, j mod w mod r == o
 * The slices of the dilated branches add up: a pair that several branches keep counts once for
 * each (attention over the multiset union, one joint softmax; LongNet, arXiv:2307.02486).
 * SPDX-License-Identifier: BSD-3-Clause
 */
#ifndef RINGATTN_PATTERN_H
#define RINGATTN_PATTERN_H

#include "ringattn/slice.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ra_blocks_kind {
    RA_BLOCKS_NONE,
    RA_BLOCKS_LOCAL_WINDOW,   /* |bi - bj| <= width */
    RA_BLOCKS_DILATED_SPARSE, /* bi == bj, or |bi - bj| is one of `rates` */
    RA_BLOCKS_GLOBAL_LOCAL,   /* bi < globals, or bj < globals, or |bi - bj| <= width */
    RA_BLOCKS_RANDOM,         /* bi == bj, or splitmix64(seed ^ (bi << 32 | bj)) < density * 2^64 */
    RA_BLOCKS_LIST            /* the pairs given */
} ra_blocks_kind;

typedef enum ra_dilated_heads {
    RA_HEADS_ALL,    /* every head takes part in every branch */
    RA_HEADS_GROUPED /* head h takes branch h * branches / heads only */
} ra_dilated_heads;

/* Borrowed for ra_pattern_create, which copies it. {0} with window_left = window_right = -1 is
   dense attention; ra_pattern_config_dense() gives that. */
typedef struct ra_pattern_config {
    bool causal;
    int64_t window_left, window_right; /* negative: unlimited */
    int64_t sinks;                     /* >= 0; matters only if a side is limited */
    const int64_t *documents;          /* lengths >= 0 that sum to seq; NULL: one document */
    int64_t document_count;

    ra_blocks_kind blocks_kind;
    int64_t block_size;         /* >= 1 */
    int64_t block_width;        /* >= 0 */
    const int64_t *block_rates; /* >= 1 each; NULL: powers of two until `density` is reached */
    int64_t block_rate_count;
    double block_density; /* 0 to 1 */
    int64_t block_globals;
    uint64_t block_seed;
    const int32_t (*block_pairs)[2]; /* kind list: {query block, key block} */
    int64_t block_pair_count;

    const int64_t *segments; /* >= 1 each; NULL: not dilated */
    const int64_t *rates;    /* >= 1 each, one per segment length */
    int64_t branch_count;
    ra_dilated_heads dilated_heads;
} ra_pattern_config;

ra_pattern_config ra_pattern_config_dense(void);

typedef struct ra_pattern ra_pattern;

/**
 * Check and copy a configuration for `seq` tokens (1 to 2^60) and `heads` query heads (>= 1).
 *
 * Memory (category tilemap): documents, kept pairs of `list` and `random`, a few dozen bytes per
 * branch and layer; nothing else grows.
 * @return RA_ERR_CONFIG     one line says which key is wrong and what it must be
 *         RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_pattern_create(const ra_pattern_config *config, int64_t seq, int32_t heads,
                                       ra_pool *pool, ra_pattern **pattern_out);
void ra_pattern_destroy(ra_pattern *pattern); /* NULL is fine */

int64_t ra_pattern_seq(const ra_pattern *pattern);
int32_t ra_pattern_heads(const ra_pattern *pattern);
/** Branches of `dilated`; 0: not dilated. */
int64_t ra_pattern_branch_count(const ra_pattern *pattern);

/*
 * A layer is a set of heads that share slices of one stride: one layer without `dilated`, else one
 * per branch and offset. A head may be in several layers; its slices are those of all of them.
 */
int32_t ra_pattern_layer_count(const ra_pattern *pattern);
ra_heads ra_pattern_layer_heads(const ra_pattern *pattern, int32_t layer);
int64_t ra_pattern_layer_stride(const ra_pattern *pattern, int32_t layer);
int64_t ra_pattern_layer_segment(const ra_pattern *pattern, int32_t layer); /* its length */
/** Kind random: whether block pair (bi, bj) is kept, from the configuration alone; O(1). */
bool ra_block_is_drawn(const ra_pattern_config *config, int64_t bi, int64_t bj);
/** Whether different heads see different pairs. */
bool ra_pattern_differs_by_head(const ra_pattern *pattern);

/**
 * Whether any map of a ring of this pattern may have tiles that share query rows (shared_rows of
 * ra_tilemap), whatever the length, heads and layout. If not, kernels need no scratch to merge
 * them. Rows are shared if a head takes part in several branches; on several ranks, also if
 * branches have different strides, because keys are sent at the strides of all heads; and in maps
 * from block masks of dilated patterns, in which a block of a single pair is full. Row sets that no
 * layout deals may share rows besides, where queries lie at other strides than keys. Pure.
 *
 * @param config  as ra_pattern_create takes it
 * @param masked  maps are made from block masks (block_mask.h)
 */
bool ra_pattern_shares_rows(const ra_pattern_config *config, int ranks, bool masked);

/**
 * Whether a kv head's query heads are in several layers, whatever the length; if not, a kernel goes
 * over a block of keys once. Pure.
 *
 * @param config    as ra_pattern_create takes it
 * @param kv_heads  divides heads
 */
bool ra_pattern_shares_keys(const ra_pattern_config *config, int32_t heads, int32_t kv_heads);

/**
 * Whether batch * seq^2 * heads * branches is below 2^61. Pairs of more are not counted, however
 * few the pattern keeps: some code counts what it leaves out, and some subtracts it.
 *
 * @param batch, seq, heads  at least 1
 * @param branches           of pattern.dilated; 0: not dilated
 */
static inline bool ra_pairs_fit(int64_t batch, int64_t seq, int32_t heads, int64_t branches)
{
    return branches <= INT64_MAX / 4 / batch / seq / seq / heads &&
           heads <= INT64_MAX / 4 / batch / seq / seq;
}

/**
 * Whether a few queries may see far more keys than the others, whatever the length: global ones, or
 * a list of blocks. A GPU's kernels may divide the work of such a row. Pure.
 */
bool ra_pattern_has_long_rows(const ra_pattern_config *config);

/** Stops the visit when it returns anything but RA_OK. `slice` is trimmed and borrowed. */
typedef ra_status ra_slice_visitor(void *context, const ra_slice *slice);

/**
 * Call `visit` for every slice of a layer with a live pair whose query lies in
 * [q_begin, q_begin + q_count); queries outside are cut off. Slices of one layer are disjoint as
 * sets of pairs and come in no particular order.
 *
 * Cost: O(slices visited), with blocks, documents and segments that hold none of the layer's rows,
 * and, if there are sinks, kept blocks that the window hides. Allocates nothing.
 * @return RA_OK, or what `visit` returned
 */
RA_CHECKED ra_status ra_pattern_visit(const ra_pattern *pattern, int32_t layer, int64_t q_begin,
                                      int64_t q_count, ra_slice_visitor *visit, void *context);

/** Live pairs with queries in a range of rows, summed over all heads; O(slices visited). Below
   2^63: where ra_pairs_fit says no, of a range that is short enough. */
int64_t ra_pattern_area(const ra_pattern *pattern, ra_range queries);

/**
 * How many times query i of `head` attends to key j, straight from the definition above: a check
 * on the slices that shares no code with them. O(branches + block rates + log documents + log pairs
 * listed).
 */
int32_t ra_pattern_multiplicity(const ra_pattern *pattern, int32_t head, int64_t i, int64_t j);

/**
 * The rows of `keys` that queries in `queries` touch, with any of `heads`.
 *
 * *rows_out is a subset of `keys` in a short list of pieces; *local_out lists the same rows in the
 * same order as local numbers of `keys` (its `rows` are those). Either may be NULL. Cost: O(slices
 * + key rows / 64) time where all is at stride 1, else O(slices * pieces of keys) and that of
 * ra_marks_take; key rows / 8 bytes of scratch, given back. On failure both are empty. Errors as
 * ra_pool_alloc.
 */
RA_CHECKED ra_status ra_pattern_needed_rows(const ra_pattern *pattern, ra_heads heads,
                                            const ra_rowset *queries, const ra_rowset *keys,
                                            ra_pool *pool, ra_rowset *rows_out,
                                            ra_rowset *local_out);

/** How many rows ra_pattern_needed_rows would give: a bit per key, and no ranges. */
RA_CHECKED ra_status ra_pattern_count_needed(const ra_pattern *pattern, ra_heads heads,
                                             const ra_rowset *queries, const ra_rowset *keys,
                                             ra_pool *pool, int64_t *rows_out);

/** How many rows of the sequence beside their own these queries touch with any head. */
RA_CHECKED ra_status ra_pattern_count_fetched(const ra_pattern *pattern, const ra_rowset *queries,
                                              ra_pool *pool, int64_t *rows_out);

#ifdef __cplusplus
}
#endif
#endif

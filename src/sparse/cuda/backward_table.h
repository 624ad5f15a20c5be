/*
 * Tile sizes of the backward kernels by dtype and head_dim, as tile_table.h has those of the
 * forward one: `queries` sums dq of a tile of queries over blocks of keys; `keys` sums dk and dv of
 * a block of keys over steps of queries; `single` does that, and adds to dq meanwhile.
 */
#ifndef RINGATTN_CUDA_BACKWARD_TABLE_H
#define RINGATTN_CUDA_BACKWARD_TABLE_H

#include "sparse/cuda/tile_table.h"

/* At the begin of shared memory: what a thread block of `keys` knows of its work; then runs. */
enum { RA_CUDA_KEYS_HEAD_BYTES = 384 };

/* How many runs a thread block of `keys` checks at once (one per thread, at least four warps), and
   how many it lists at a time: some more. */
enum {
    RA_CUDA_LOOK_RUNS = 128,
    RA_CUDA_LIST_ENTRIES = RA_CUDA_LOOK_RUNS + 32,
    RA_CUDA_LIST_BYTES = RA_CUDA_LIST_ENTRIES * 2 * (int32_t)sizeof(uint32_t)
};

/* Queries and dout of the tile, a block of keys and one of values. */
RA_HD ra_cuda_tile ra_cuda_queries_16(int32_t dim, int32_t warps, int32_t row_tiles, int32_t keys,
                                      int32_t blocks_per_sm)
{
    ra_cuda_tile tile = ra_cuda_tile_16(dim, warps, row_tiles, keys, blocks_per_sm);
    tile.shared_bytes = RA_CUDA_HEAD_BYTES + 2 * dim * (2 * tile.q_rows + 2 * tile.k_rows);
    return tile;
}

/* Keys and values of the block; queries, dout, lse and delta of a step, double-buffered: the next
   step's arrive meanwhile. A warp has row_tiles times 16 keys. */
RA_HD ra_cuda_tile ra_cuda_keys_16(int32_t dim, int32_t warps, int32_t row_tiles, int32_t queries,
                                   int32_t blocks_per_sm)
{
    ra_cuda_tile tile = ra_cuda_tile_16(dim, warps, row_tiles, 0, blocks_per_sm);
    tile.k_rows = tile.q_rows;
    tile.q_rows = queries;
    tile.shared_bytes = RA_CUDA_KEYS_HEAD_BYTES + RA_CUDA_LIST_BYTES + 16 * queries +
                        2 * dim * (2 * tile.k_rows + 4 * tile.q_rows);
    return tile;
}

/* Queries, their dout, as many keys and values in float32, rows a float apart from a multiple of
   the banks; weights, gradients of scores, lse and delta. Both kernels. */
RA_HD ra_cuda_tile ra_cuda_backward_32(int32_t dim)
{
    ra_cuda_tile tile = ra_cuda_tile_32(dim);
    int32_t const rows = tile.q_rows;
    tile.k_rows = rows;
    tile.warps = 4;
    tile.registers = ra_cuda_registers(32 * tile.warps, tile.blocks_per_sm);
    tile.shared_bytes = RA_CUDA_KEYS_HEAD_BYTES + RA_CUDA_LIST_BYTES +
                        4 * rows * (4 * (dim + 1) + 2 * (rows + 1) + 2);
    return tile;
}

/* Pure, as ra_cuda_tile_of, whose q_rows the tiles of `queries` have. */
RA_HD ra_cuda_tile ra_cuda_queries_of(ra_dtype dtype, int32_t head_dim)
{
    int32_t const dim = ra_cuda_tile_of(dtype, head_dim).dim;
    if (dtype == RA_F32)
        return ra_cuda_backward_32(dim);
    if (dim <= 64)
        return ra_cuda_queries_16(dim, 4, 2, 64, 2);
    if (dim <= 128)
        return ra_cuda_queries_16(dim, 4, 2, 32, 2);
    return ra_cuda_queries_16(dim, 4, 1, dim == 192 ? 64 : 32, 2);
}

RA_HD ra_cuda_tile ra_cuda_keys_of(ra_dtype dtype, int32_t head_dim)
{
    int32_t const dim = ra_cuda_tile_of(dtype, head_dim).dim;
    if (dtype == RA_F32)
        return ra_cuda_backward_32(dim);
    if (dim == 32)
        return ra_cuda_keys_16(dim, 4, 2, 64, 2);
    if (dim == 64)
        return ra_cuda_keys_16(dim, 4, 2, 32, 2);
    if (dim <= 128)
        return ra_cuda_keys_16(dim, 4, 1, 64, 2);
    return ra_cuda_keys_16(dim, 4, 1, dim == 192 ? 32 : 16, 2);
}

/* `single` is compiled for bfloat16 and dims whose sums of dk and dv fit registers together. */
enum { RA_CUDA_SINGLE_DIM_MOST = 128 };

RA_HD bool ra_cuda_is_single_dim(int32_t head_dim)
{
    return head_dim <= RA_CUDA_SINGLE_DIM_MOST;
}

/* Warps of it that share keys. */
enum { RA_CUDA_SINGLE_ACROSS = 2 };

/* As `keys`, and weights and gradients of scores of a step. */
RA_HD ra_cuda_tile ra_cuda_single_of(int32_t head_dim)
{
    ra_cuda_tile tile = ra_cuda_keys_16(ra_cuda_dim_of(head_dim), 8, 2, 64, 1);
    tile.k_rows /= RA_CUDA_SINGLE_ACROSS;
    tile.shared_bytes = RA_CUDA_KEYS_HEAD_BYTES + RA_CUDA_LIST_BYTES + 16 * tile.q_rows +
                        2 * tile.dim * (2 * tile.k_rows + 4 * tile.q_rows) +
                        4 * tile.k_rows * tile.q_rows;
    return tile;
}

/* Whether `single` runs on a GPU with so much shared memory per thread block. */
RA_HD bool ra_cuda_has_single(ra_dtype dtype, int32_t head_dim, int64_t shared_bytes)
{
    return dtype == RA_BF16 && ra_cuda_is_single_dim(head_dim) &&
           ra_cuda_single_of(head_dim).shared_bytes <= shared_bytes;
}

/* ---- `single` by warpgroups: wgmma, sm_90a --------------------------------------------------- */

/* Where its tiles begin in shared memory, aligned as wgmma wants them: behind what `keys` has there
   before its own. */
enum { RA_CUDA_SINGLE_PANELS = 4096 };

/* Whether it is compiled for them: `single` that warpgroups have. */
RA_HD bool ra_cuda_has_warpgroup_single(ra_dtype dtype, int32_t head_dim)
{
    return dtype == RA_BF16 && ra_cuda_has_warpgroups(dtype, head_dim);
}

/* As many keys as `single` has, 64 per warpgroup; queries so that each of these has 64 rows and 64
   columns of a step's dq. Gradients of scores are in shared memory, weights are not. */
RA_HD ra_cuda_tile ra_cuda_warpgroup_single_of(int32_t head_dim)
{
    int32_t const dim = ra_cuda_dim_of(head_dim);
    ra_cuda_tile tile = ra_cuda_keys_16(dim, 8, 1, dim == 64 ? 128 : 64, 1);
    tile.shared_bytes = RA_CUDA_SINGLE_PANELS + 2 * dim * (2 * tile.k_rows + 4 * tile.q_rows) +
                        2 * tile.k_rows * tile.q_rows;
    return tile;
}

/* Passes of `keys` over the same block: above 128 dims the sums of dk and of dv do not fit
   registers together, and each has a task of its own. */
RA_HD int32_t ra_cuda_key_parts(ra_dtype dtype, int32_t head_dim)
{
    return dtype != RA_F32 && ra_cuda_dim_of(head_dim) > 128 ? 2 : 1;
}

#endif

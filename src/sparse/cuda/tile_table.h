/*
 * Tile sizes of the CUDA kernels by dtype and head_dim: what a thread block works on, its threads,
 * and the shared memory and registers that these take. Except for `single` and the tiles of
 * warpgroups (sm_90a), no tile of softmax attention takes more than the 99 KiB that a thread block
 * may have on any GPU from sm_80 on; a multiprocessor with more holds several.
 */
#ifndef RINGATTN_CUDA_TILE_TABLE_H
#define RINGATTN_CUDA_TILE_TABLE_H

#include "ringattn/kernel.h"
#include "sparse/host_device.h"

/* What kernels are compiled for. */
#define RA_CUDA_DIMS(X) X(32) X(64) X(96) X(128) X(192) X(256)

/* The smallest of these that holds head_dim (1 to 256). */
RA_HD int32_t ra_cuda_dim_of(int32_t head_dim)
{
    int32_t const step = head_dim <= 128 ? 32 : 64;
    return (head_dim + step - 1) / step * step;
}

/* Whether there are instances for just this. */
RA_HD bool ra_cuda_is_dim(int32_t dim)
{
    return ra_cuda_dim_of(dim) == dim;
}

/* Keys of a forward step in float32. */
enum { RA_CUDA_KEYS_F32 = 32 };
/* At the start of shared memory: in forward, the work at hand and the next; in the backward pass
   for queries, the head at hand, and tickets. */
enum { RA_CUDA_FORWARD_HEAD_BYTES = 640, RA_CUDA_HEAD_BYTES = 256 };
/* Per thread of the 16-bit forward kernels and row tile: the tops of two rows. */
enum { RA_CUDA_ROW_TILE_TOP_BYTES = 8 };

/* A warp of the 16-bit kernels has row_tiles times 16 query rows: m of mma.m16n8k16. */
typedef struct ra_cuda_tile {
    int32_t dim;            /* of the instance: ra_cuda_dim_of */
    int32_t q_rows, k_rows; /* per thread block, per step of its loop */
    int32_t warps, row_tiles;
    int32_t blocks_per_sm; /* that the kernel's registers allow, as compiled */
    int32_t registers;     /* most per thread for that: 65,536 per multiprocessor */
    int32_t shared_bytes;  /* per thread block */
} ra_cuda_tile;

/* Registers per thread come in eights; an instruction can address 255 at most. */
RA_HD int32_t ra_cuda_registers(int32_t threads, int32_t blocks_per_sm)
{
    int32_t const each = 65536 / (threads * blocks_per_sm) / 8 * 8;
    return each > 255 ? 255 : each;
}

/* One block of queries, one of keys, one of values, in 16 bits: the next keys arrive during the
   softmax and the product with values, the next values during scores. Then tops of rows. */
RA_HD ra_cuda_tile ra_cuda_tile_16(int32_t dim, int32_t warps, int32_t row_tiles, int32_t keys,
                                   int32_t blocks_per_sm)
{
    ra_cuda_tile tile = {0, 0, 0, 0, 0, 0, 0, 0};
    tile.dim = dim;
    tile.q_rows = 16 * row_tiles * warps;
    tile.k_rows = keys;
    tile.warps = warps;
    tile.row_tiles = row_tiles;
    tile.blocks_per_sm = blocks_per_sm;
    tile.registers = ra_cuda_registers(32 * warps, blocks_per_sm);
    tile.shared_bytes = RA_CUDA_FORWARD_HEAD_BYTES + 2 * dim * (tile.q_rows + 2 * tile.k_rows) +
                        32 * warps * RA_CUDA_ROW_TILE_TOP_BYTES * row_tiles;
    return tile;
}

/* Queries, keys and values in float32, rows a float apart from a multiple of the banks; weights.
   Four threads share a query. */
RA_HD ra_cuda_tile ra_cuda_tile_32(int32_t dim)
{
    ra_cuda_tile tile = {0, 0, 0, 0, 0, 0, 0, 0};
    tile.dim = dim;
    tile.q_rows = dim <= 128 ? 32 : 16;
    tile.k_rows = RA_CUDA_KEYS_F32;
    tile.warps = tile.q_rows / 8;
    tile.row_tiles = 0;
    tile.blocks_per_sm = 2;
    tile.registers = ra_cuda_registers(32 * tile.warps, tile.blocks_per_sm);
    tile.shared_bytes =
        RA_CUDA_FORWARD_HEAD_BYTES +
        4 * ((dim + 1) * (tile.q_rows + 2 * tile.k_rows) + tile.q_rows * (tile.k_rows + 1));
    return tile;
}

/* Pure. `head_dim` is 1 to 256. */
RA_HD ra_cuda_tile ra_cuda_tile_of(ra_dtype dtype, int32_t head_dim)
{
    int32_t const dim = ra_cuda_dim_of(head_dim);
    if (dtype == RA_F32)
        return ra_cuda_tile_32(dim);
    if (dim == 32)
        return ra_cuda_tile_16(dim, 4, 2, 64, 3);
    if (dim <= 128)
        return ra_cuda_tile_16(dim, 4, 2, 64, 2);
    return ra_cuda_tile_16(dim, 4, 1, 64, 2);
}

/* ---- forward by warpgroups: wgmma, sm_90a ---------------------------------------------------- */

/* What it is compiled for, in 16 bits: dims of whole panels (wgmma_layout.h), so few that a
   multiprocessor holds the tiles of ra_cuda_warpgroup_tile_of. */
RA_HD bool ra_cuda_is_warpgroup_dim(int32_t dim)
{
    return dim == 64 || dim == 128;
}

/* head_dims that such an instance holds and no smaller one does. */
RA_HD bool ra_cuda_has_warpgroups(ra_dtype dtype, int32_t head_dim)
{
    return dtype != RA_F32 && ra_cuda_is_warpgroup_dim(ra_cuda_dim_of(head_dim));
}

/* What is known of tiles and blocks of keys, and signals. Tiles begin behind it in shared memory:
   wgmma wants them aligned to 1,024 bytes. */
enum { RA_CUDA_WARPGROUP_BOARD_BYTES = 2048 };

/* Per thread of the warpgroups that compute, and of the one that brings what they read: together no
   more than what all begin with. Multiples of 8. */
enum { RA_CUDA_REGISTERS_COMPUTING = 216, RA_CUDA_REGISTERS_BRINGING = 72 };

/* As many queries as ra_cuda_tile_of has, so that tile maps suit both; a warpgroup has 64 of them,
   and there is one more. Two tiles of queries, two blocks of keys, two of values, in 16 bits. */
RA_HD ra_cuda_tile ra_cuda_warpgroup_tile_of(int32_t head_dim)
{
    ra_cuda_tile tile = {0, 0, 0, 0, 0, 0, 0, 0};
    tile.dim = ra_cuda_dim_of(head_dim);
    tile.q_rows = 128;
    tile.k_rows = 128;
    tile.warps = tile.q_rows / 16 + 4;
    tile.row_tiles = 1;
    tile.blocks_per_sm = 1;
    tile.registers = ra_cuda_registers(32 * tile.warps, tile.blocks_per_sm);
    tile.shared_bytes =
        RA_CUDA_WARPGROUP_BOARD_BYTES + 2 * tile.dim * (2 * tile.q_rows + 4 * tile.k_rows);
    return tile;
}

/* Most thread blocks of a forward kernel that a multiprocessor is to hold. */
RA_HD int32_t ra_cuda_blocks_most(int32_t head_dim)
{
    return ra_hd_max(ra_cuda_tile_of(RA_F32, head_dim).blocks_per_sm,
                     ra_cuda_tile_of(RA_BF16, head_dim).blocks_per_sm);
}

#endif

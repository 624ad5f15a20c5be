/*
 * Where things lie: 16-bit tiles in shared memory, and the fragments of mma.m16n8k16 (PTX ISA,
 * "Matrix Fragments for mma.m16n8k16") over the lanes of a warp.
 *
 * A tile is [rows][dim] in pieces of 16 bytes (8 elements). Piece p of row r lies in place
 * p ^ (r & 7) of its row, so that the 8 rows that ldmatrix reads at once lie in different banks.
 */
#ifndef RINGATTN_CUDA_FRAGMENTS_H
#define RINGATTN_CUDA_FRAGMENTS_H

#include "sparse/cuda/host_device.h"

enum { RA_PIECE = 8 /* elements */, RA_PIECE_BYTES = 16 };

/*
 * Bytes from the tile's begin to piece p of row r; dim is a multiple of 64. Written so that of p
 * only its place among 8 meets the row: a lane then has 4 different sums, not one per step, and
 * the compiler keeps them in registers.
 */
RA_HD int ra_piece_offset(int dim, int r, int p)
{
    return r * dim * 2 + (p >> 3) * 8 * RA_PIECE_BYTES + ((p & 7) ^ (r & 7)) * RA_PIECE_BYTES;
}

typedef struct ra_piece_at {
    int row, piece;
} ra_piece_at;

/*
 * Which row of 16 bytes a lane gives to ldmatrix.x4, whose four 8 x 8 matrices become the four
 * registers of every lane. `step` counts 16 elements along the dim (scores) or 16 keys (values).
 */
/* A, queries: 16 rows from `row` on; registers a0 to a3. */
RA_HD ra_piece_at ra_ldmatrix_query(int lane, int row, int step)
{
    ra_piece_at at = {row + (lane & 15), 2 * step + (lane >> 4)};
    return at;
}

/* B, keys: 16 keys from `key` on, which are two n-tiles; b0, b1 of the first, b0, b1 of the other.
 */
RA_HD ra_piece_at ra_ldmatrix_key(int lane, int key, int step)
{
    ra_piece_at at = {key + (lane >> 4) * 8 + (lane & 7), 2 * step + (lane >> 3 & 1)};
    return at;
}

/* B, values, transposed: 16 keys, and 16 dims from 16 * pair on, which are two n-tiles. */
RA_HD ra_piece_at ra_ldmatrix_value(int lane, int step, int pair)
{
    ra_piece_at at = {16 * step + (lane >> 3 & 1) * 8 + (lane & 7), 2 * pair + (lane >> 4)};
    return at;
}

/* C, and the scores that become A: row and column of a lane's first element. The second is a column
   further; the third and fourth are 8 rows below these two. */
RA_HD int ra_fragment_row(int lane)
{
    return lane / 4;
}

RA_HD int ra_fragment_column(int lane)
{
    return lane % 4 * 2;
}

#endif

/*
 * Where things lie: 16-bit tiles in shared memory, and the fragments of mma.m16n8k16 (PTX ISA,
 * "Matrix Fragments for mma.m16n8k16") over the lanes of a warp.
 *
 * A tile is [rows][dim] in chunks of 16 bytes ("pieces", 8 elements), with an XOR swizzle against
 * bank conflicts: piece p of row r is stored at p ^ f(r), within groups of 8 or 4 pieces. Rows of a
 * multiple of 128 bytes all begin in bank 0: groups of 8, f(r) = r mod 8. Other rows, of an odd
 * multiple of 64 bytes, begin in banks 0 and 16 in turn: groups of 4, f(r) = (r mod 8) / 2.
 */
#ifndef RINGATTN_CUDA_FRAGMENTS_H
#define RINGATTN_CUDA_FRAGMENTS_H

#include "sparse/host_device.h"

enum { RA_PIECE = 8 /* elements */, RA_PIECE_BYTES = 16 };

/* Pieces of a row that change places with each other; dim is a multiple of 32. */
RA_HD int ra_piece_group(int dim)
{
    return dim % 64 == 0 ? 8 : 4;
}

/* Bytes from the tile's begin to piece p of row r. */
RA_HD int ra_piece_offset(int dim, int r, int p)
{
    int const group = ra_piece_group(dim), place = (p & (group - 1)) ^ (r & 7) / (8 / group);
    return r * dim * 2 + (p & -group) * RA_PIECE_BYTES + place * RA_PIECE_BYTES;
}

/* Likewise, in a tile of `rows` rows that is cut into panels of so many columns, each a tile of its
   own behind the one before. */
RA_HD int ra_panel_offset(int columns, int rows, int r, int p)
{
    int const pieces = columns / RA_PIECE;
    return p / pieces * rows * columns * 2 + ra_piece_offset(columns, r, p % pieces);
}

/*
 * From the offset of piece 0 or 1 of a row to that of the piece 2 * step further. Compile-time
 * constants become part of an instruction: a lane needs one register for all rows and steps of a
 * tile, and a few for the places in a group.
 */
RA_HD int ra_piece_step(int dim, int offset, int step)
{
    int const half = ra_piece_group(dim) / 2;
    return (offset ^ (step & (half - 1)) * 2 * RA_PIECE_BYTES) +
           step / half * half * 2 * RA_PIECE_BYTES;
}

typedef struct ra_piece_at {
    int row, piece;
} ra_piece_at;

/* Threads that copy one row side by side: the largest power of two that divides its pieces, at most
   16, so that four warps copy rows by eights. */
RA_HD int ra_copy_columns(int dim)
{
    int const pieces = dim / RA_PIECE;
    return ra_hd_min(pieces & -pieces, 16);
}

/* The first piece that a thread copies. Its others lie in steps of `columns` pieces beside it, and
   in steps of threads / columns rows below. */
RA_HD ra_piece_at ra_copy_at(int dim, int thread)
{
    unsigned const columns = (unsigned)ra_copy_columns(dim), number = (unsigned)thread;
    ra_piece_at at = {(int)(number / columns), (int)(number % columns)};
    return at;
}

/*
 * Which row of 16 bytes a lane gives to ldmatrix.x4, whose four 8 x 8 matrices become the four
 * registers of every lane: of the first 16 rows and 16 elements. For others along the dim there is
 * ra_piece_step; multiples of 16 rows are as many rows away.
 */
/* A, queries: 16 rows; registers a0 to a3. */
RA_HD ra_piece_at ra_ldmatrix_query(int lane)
{
    ra_piece_at at = {lane & 15, lane >> 4};
    return at;
}

/* B, keys: 16 keys, which are two n-tiles; b0, b1 of the first, b0, b1 of the other. */
RA_HD ra_piece_at ra_ldmatrix_key(int lane)
{
    ra_piece_at at = {(lane >> 4) * 8 + (lane & 7), lane >> 3 & 1};
    return at;
}

/* B, values, transposed: 16 keys, and 16 dims, which are two n-tiles. */
RA_HD ra_piece_at ra_ldmatrix_value(int lane)
{
    ra_piece_at at = {lane & 15, lane >> 4};
    return at;
}

/* C, and the scores that become A: row and column of a lane's first element. The second is a column
   further; the third and fourth are 8 rows below these two. */
RA_HD int ra_fragment_row(int lane)
{
    return lane >> 2;
}

RA_HD int ra_fragment_column(int lane)
{
    return (lane & 3) * 2;
}

/* How far a lane's tile n of sums (8 columns) lies from its first, if `across` warps take 16
   columns in turn. */
RA_HD int ra_sum_column(int across, int n)
{
    return 16 * across * (n / 2) + 8 * (n & 1);
}

#endif

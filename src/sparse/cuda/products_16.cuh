/*
 * What the 16-bit kernels have in common: rows into shared memory, and products of tiles on tensor
 * cores (mma.m16n8k16, sm_80 and newer). A warp has 16 rows per row tile of a product's left
 * operand and of its sums; all warps read the whole right operand.
 *
 * Includers bring the primitives first: lanes.cuh on a GPU, an emulation of it in tests.
 */
#ifndef RINGATTN_CUDA_PRODUCTS_16_CUH
#define RINGATTN_CUDA_PRODUCTS_16_CUH

#include "sparse/cuda/fragments.h"
#include "sparse/cuda/heads.cuh"

template <class Element, int DIM, int THREADS> struct products_16 {
    static constexpr int PIECES = DIM / RA_PIECE;
    static_assert(THREADS % PIECES == 0, "a thread copies the same piece of every row");

    /* ---- into shared memory ---- */

    /* Elements of a row of `dim` that lie in a piece. */
    static LANE_CODE int piece_elements(int piece, int dim)
    {
        return ra_hd_max(0, ra_hd_min(RA_PIECE, dim - piece * RA_PIECE));
    }

    /* Where rows do not begin at multiples of 16 bytes: `count` elements, and zeros. */
    static LANE_CODE void copy_elements(char *to, const char *from, int count)
    {
        uint16_t values[RA_PIECE];
#pragma unroll
        for (int i = 0; i < RA_PIECE; ++i)
            values[i] = i < count ? ((const uint16_t *)from)[i] : (uint16_t)0;
        store_piece(to, values);
    }

    /*
     * Rows r of `ROWS` of a tile that begins at `to`: row r of the tensor is begin + stride * r for
     * r < count, and there are zeros for the others and beyond dim. Where nothing is read, the
     * address is that of row 0, which exists.
     */
    template <int ROWS>
    static LANE_CODE void copy_rows(bool aligned, int dim, const char *data, int64_t row_stride,
                                    int64_t begin, int64_t stride, int count, char *to)
    {
        static_assert(ROWS * PIECES % THREADS == 0, "threads copy as much as each other");
        int const thread = thread_index(), piece = thread % PIECES, first = thread / PIECES;
        int const elements = piece_elements(piece, dim);
        const char *from = data + (begin * row_stride + (elements > 0 ? piece * RA_PIECE : 0)) * 2;
        int64_t const row_bytes = stride * row_stride * 2;
        if (aligned) {
#pragma unroll
            for (int i = 0; i < ROWS * PIECES / THREADS; ++i) {
                int const r = first + i * (THREADS / PIECES);
                bool const there = r < count;
                copy_async(to + ra_piece_offset(DIM, r, piece), from + (there ? r : 0) * row_bytes,
                           there ? 2 * elements : 0);
            }
            return;
        }
#pragma unroll 1
        for (int r = first; r < ROWS; r += THREADS / PIECES)
            copy_elements(to + ra_piece_offset(DIM, r, piece),
                          from + (r < count ? r : 0) * row_bytes, r < count ? elements : 0);
    }

    /* ---- where a lane's elements lie ---- */

    /* The first row of the sums that a lane holds; others are 8 and multiples of 16 further. */
    template <int ROW_TILES> static LANE_CODE int first_row()
    {
        int const thread = thread_index();
        return 16 * ROW_TILES * (thread / 32) + ra_fragment_row(thread % 32);
    }

    static LANE_CODE int first_column()
    {
        return ra_fragment_column(lane_index());
    }

    /* ---- products ---- */

    template <int ROW_TILES, int TILES>
    static LANE_CODE void clear(float (&sums)[ROW_TILES][TILES][4])
    {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int n = 0; n < TILES; ++n)
                sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0;
    }

    /* s[left row][right row] = sum over dims of left * right: this warp's rows of the left tile
       with all of the right one. */
    template <int ROW_TILES, int TILES>
    static LANE_CODE void score(const char *left, const char *right,
                                float (&s)[ROW_TILES][TILES][4])
    {
        int const thread = thread_index(), lane = thread % 32, row = thread / 32 * 16 * ROW_TILES;
        clear(s);
#pragma unroll
        for (int step = 0; step < DIM / 16; ++step) {
            uint32_t a[ROW_TILES][4];
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
                ra_piece_at const at = ra_ldmatrix_query(lane, row + 16 * m, step);
                load_matrices(left + ra_piece_offset(DIM, at.row, at.piece), a[m]);
            }
#pragma unroll
            for (int n = 0; n < TILES; n += 2) {
                uint32_t b[4];
                ra_piece_at const at = ra_ldmatrix_key(lane, 8 * n, step);
                load_matrices(right + ra_piece_offset(DIM, at.row, at.piece), b);
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m) {
                    Element::multiply(s[m][n], a[m], b[0], b[1]);
                    Element::multiply(s[m][n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

    /* acc[left row][dim] += sum over right rows of w[left row][right row] * right[right row][dim],
       w rounded to 16 bits. */
    template <int ROW_TILES, int TILES>
    static LANE_CODE void add_weighted(const float (&w)[ROW_TILES][TILES][4], const char *right,
                                       float (&acc)[ROW_TILES][DIM / 8][4])
    {
        int const lane = lane_index();
#pragma unroll
        for (int step = 0; step < TILES / 2; ++step) {
            uint32_t a[ROW_TILES][4];
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    a[m][i] = Element::pack(w[m][2 * step + (i >> 1)][2 * (i & 1)],
                                            w[m][2 * step + (i >> 1)][2 * (i & 1) + 1]);
#pragma unroll
            for (int n = 0; n < DIM / 8; n += 2) {
                uint32_t b[4];
                ra_piece_at const at = ra_ldmatrix_value(lane, step, n / 2);
                load_matrices_transposed(right + ra_piece_offset(DIM, at.row, at.piece), b);
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m) {
                    Element::multiply(acc[m][n], a[m], b[0], b[1]);
                    Element::multiply(acc[m][n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }
};

#endif

/*
 * Common to the 16-bit kernels: copying rows to shared memory, masking scores of queries, and
 * products of tiles on tensor cores (mma.m16n8k16, sm_80 and newer). A warp has 16 rows per row
 * tile of a product's left operand and of its sums. If ACROSS is 1, warps lie one below the other,
 * and each reads the whole right operand; else ACROSS of them share rows and divide the columns.
 *
 * Includers bring the primitives first: lanes.cuh on a GPU, an emulation of it in tests.
 */
#ifndef RINGATTN_CUDA_PRODUCTS_16_CUH
#define RINGATTN_CUDA_PRODUCTS_16_CUH

#include "sparse/cuda/fragments.h"
#include "sparse/cuda/heads.cuh"
#include "sparse/cuda/key_cursor.h"

/* Tiles are rows of DIM elements, or panels of PANEL columns, one after the other: fragments.h. */
template <class Element, int DIM, int THREADS, int PANEL = DIM> struct products_16 {
    /* Threads copy rows side by side; if pieces are no power of two, each copies several. */
    static constexpr int COLUMNS = ra_copy_columns(DIM), ROUNDS = DIM / RA_PIECE / COLUMNS;
    static constexpr int ROWS_AT_ONCE = THREADS / COLUMNS;

    static constexpr int ROW_BYTES = PANEL * 2;

    /* Where piece p of row r lies in a tile of ROWS rows of WIDTH elements, in panels of PART. */
    template <int WIDTH, int PART, int ROWS> static LANE_CODE int offset_in_tile(int r, int p)
    {
        static_assert(PART == WIDTH || ROWS > 0, "panels lie behind each other");
        return PART == WIDTH ? ra_piece_offset(WIDTH, r, p) : ra_panel_offset(PART, ROWS, r, p);
    }

    /* ---- into shared memory ---- */

    /* For rows that are not aligned to 16 bytes: copy `count` elements, then zeros. */
    static LANE_CODE void copy_elements(char *to, const char *from, int count)
    {
        uint16_t values[RA_PIECE];
#pragma unroll
        for (int i = 0; i < RA_PIECE; ++i)
            values[i] = i < count ? ((const uint16_t *)from)[i] : (uint16_t)0;
        store_piece(to, values);
    }

    /*
     * Copy ROWS rows to the tile at `to`: row r is the tensor's row begin + stride * r for r <
     * count; other rows, and elements beyond dim, are zeros. This runs in the loops over keys,
     * beside the products: with aligned rows, two additions, a comparison and a copy per piece.
     */
    template <int ROWS>
    static LANE_CODE void copy_rows(bool aligned, int dim, const char *data, int64_t row_stride,
                                    int64_t begin, int64_t stride, int count, char *to)
    {
        static_assert(ROWS % ROWS_AT_ONCE == 0, "threads copy as much as each other");
        static_assert(ROWS_AT_ONCE % 8 == 0, "pieces of a thread have one place in their groups");
        int const thread = thread_index();
        ra_piece_at const at = ra_copy_at(DIM, thread);
        int64_t const row_bytes = stride * row_stride * 2;
        const char *const from =
            data + begin * row_stride * 2 + at.row * row_bytes + at.piece * RA_PIECE_BYTES;
#pragma unroll
        for (int round = 0; round < ROUNDS; ++round) {
            int const piece = at.piece + round * COLUMNS;
            int const elements = ra_hd_min(RA_PIECE, dim - piece * RA_PIECE);
            copy_column<ROWS>(aligned, from + round * COLUMNS * RA_PIECE_BYTES,
                              ROWS_AT_ONCE * row_bytes, elements, elements > 0 ? count - at.row : 0,
                              to + offset_in_tile<DIM, PANEL, ROWS>(at.row, piece));
        }
    }

    /* Copy a piece of every ROWS_AT_ONCE-th row. Rows from `count` on become zeros; only their
       address is computed. */
    template <int ROWS>
    static LANE_CODE void copy_column(bool aligned, const char *from, int64_t step, int elements,
                                      int count, char *to)
    {
        if (aligned) {
#pragma unroll
            for (int r = 0; r < ROWS; r += ROWS_AT_ONCE, from += step)
                copy_async(to + r * ROW_BYTES, from, r < count);
            return;
        }
#pragma unroll 1
        for (int r = 0; r < ROWS; r += ROWS_AT_ONCE, from += step)
            copy_elements(to + r * ROW_BYTES, from, r < count ? elements : 0);
    }

    /* The keys, or their values, of a cursor's block; f: the arguments of a pass. */
    template <int KEYS, class Args>
    static LANE_CODE void copy_keys(const Args &f, const char *data, int64_t row_stride,
                                    const ra_key_cursor &c, char *to)
    {
        copy_rows<KEYS>(f.aligned, f.dim, data, row_stride, ra_key_cursor_row(&c, c.b), c.k_stride,
                        c.end - c.b, to);
    }

    /* ---- where a lane's elements lie ---- */

    /* The first row of the sums that a lane holds; the others are 8 and multiples of 16 further. */
    template <int ROW_TILES, int ACROSS = 1> static LANE_CODE int first_row()
    {
        int const thread = thread_index();
        return 16 * ROW_TILES * ((thread >> 5) / ACROSS) + ra_fragment_row(thread & 31);
    }

    static LANE_CODE int first_column()
    {
        return ra_fragment_column(lane_index());
    }

    /* For scores: a warp's columns follow each other. */
    template <int ACROSS, int TILES> static LANE_CODE int first_score_column()
    {
        int const thread = thread_index();
        return 8 * TILES * ((thread >> 5) % ACROSS) + ra_fragment_column(thread & 31);
    }

    /* For sums of weighted rows, whose columns warps take in turn, 16 at a time: a lane's tile n is
       ra_sum_column(ACROSS, n) columns further. */
    template <int ACROSS> static LANE_CODE int first_sum_column()
    {
        int const thread = thread_index();
        return 16 * ((thread >> 5) % ACROSS) + ra_fragment_column(thread & 31);
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
       with its share of the right one. */
    template <int ACROSS = 1, int ROW_TILES, int TILES>
    static LANE_CODE void score(const char *left, const char *right,
                                float (&s)[ROW_TILES][TILES][4])
    {
        int const thread = thread_index(), lane = thread & 31, warp = thread >> 5;
        int const row = warp / ACROSS * 16 * ROW_TILES, column = warp % ACROSS * 8 * TILES;
        ra_piece_at const left_at = ra_ldmatrix_query(lane), right_at = ra_ldmatrix_key(lane);
        int const left_offset = ra_piece_offset(DIM, row + left_at.row, left_at.piece);
        int const right_offset = ra_piece_offset(DIM, column + right_at.row, right_at.piece);
        clear(s);
#pragma unroll
        for (int step = 0; step < DIM / 16; ++step) {
            uint32_t a[ROW_TILES][4];
            const char *const from = left + ra_piece_step(DIM, left_offset, step);
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
                load_matrices(from + 16 * m * ROW_BYTES, a[m]);
#pragma unroll
            for (int n = 0; n < TILES; n += 2) {
                uint32_t b[4];
                load_matrices(right + ra_piece_step(DIM, right_offset, step) + 8 * n * ROW_BYTES,
                              b);
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m) {
                    Element::multiply(s[m][n], a[m], b[0], b[1]);
                    Element::multiply(s[m][n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

    /* A lane's scores of one row, in columns 8 n and 8 n + 1: those outside the span become -Inf.
     */
    template <int TILES>
    static LANE_CODE void mask_row(ra_live_span span, int half, float (&s)[TILES][4])
    {
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (!ra_live_span_has(span, 8 * n + e))
                    s[n][2 * half + e] = -INFINITY;
    }

    /* Scores of queries with a cursor's block, from its key `first` on: those that are not live
       become -Inf. */
    template <int ROW_TILES, int TILES>
    static LANE_CODE void mask(const ra_key_cursor &c, float (&s)[ROW_TILES][TILES][4],
                               int first = 0)
    {
        int const row = first_row<ROW_TILES>(), key = c.b + first + first_column();
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int const a = row + 16 * m + 8 * half;
                mask_row(ra_key_cursor_span(&c, a, key), half, s[m]);
            }
        }
    }

    /* The 16 scores from 16 step on of a row tile, rounded to 16 bits, as a left operand. */
    template <int TILES>
    static LANE_CODE void pack_left(const float (&w)[TILES][4], int step, uint32_t a[4])
    {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            a[i] = Element::pack(w[2 * step + (i >> 1)][2 * (i & 1)],
                                 w[2 * step + (i >> 1)][2 * (i & 1) + 1]);
    }

    /* All of a row tile's. */
    template <int STEPS>
    static LANE_CODE void pack_rows(const float (&w)[2 * STEPS][4], uint32_t (&a)[STEPS][4])
    {
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
            pack_left(w, step, a[step]);
    }

    /* acc[left row][dim] += sum over right rows of w[left row][right row] * right[right row][dim],
       w rounded to 16 bits. */
    template <int ROW_TILES, int TILES>
    static LANE_CODE void add_weighted(const float (&w)[ROW_TILES][TILES][4], const char *right,
                                       float (&acc)[ROW_TILES][DIM / 8][4])
    {
        ra_piece_at const at = ra_ldmatrix_value(lane_index());
        int const offset = ra_piece_offset(DIM, at.row, at.piece);
#pragma unroll
        for (int step = 0; step < TILES / 2; ++step) {
            uint32_t a[ROW_TILES][4];
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
                pack_left(w[m], step, a[m]);
#pragma unroll
            for (int n = 0; n < DIM / 8; n += 2) {
                uint32_t b[4];
                load_matrices_transposed(
                    right + ra_piece_step(DIM, offset, n / 2) + 16 * step * ROW_BYTES, b);
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m) {
                    Element::multiply(acc[m][n], a[m], b[0], b[1]);
                    Element::multiply(acc[m][n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

    /*
     * acc[left row][dim] += sum over right rows of left[left row][right row] * right[right
     * row][dim] with the left operand in shared memory, too: a tile of rows of WIDTH elements, or,
     * TURNED, that of its columns, whose rows are then right rows. `after` is called after each
     * step of 16 right rows, with its number.
     */
    template <int WIDTH, bool TURNED, int STEPS, int ACROSS, int ROW_TILES, int TILES, class After>
    static LANE_CODE void add_product(const char *left, const char *right,
                                      float (&acc)[ROW_TILES][TILES][4], const After &after)
    {
        int const thread = thread_index(), lane = thread & 31, warp = thread >> 5;
        int const left_offset = left_product_offset<WIDTH, TURNED>(warp / ACROSS * ROW_TILES, lane);
        ra_piece_at const at = ra_ldmatrix_value(lane);
        int const right_offset = ra_piece_offset(DIM, at.row, at.piece + warp % ACROSS * 2);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            uint32_t a[ROW_TILES][4];
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
                if (TURNED)
                    load_matrices_transposed(
                        left + ra_piece_step(WIDTH, left_offset, m) + 16 * step * WIDTH * 2, a[m]);
                else
                    load_matrices(
                        left + ra_piece_step(WIDTH, left_offset, step) + 16 * m * WIDTH * 2, a[m]);
#pragma unroll
            for (int n = 0; n < TILES; n += 2) {
                uint32_t b[4];
                load_matrices_transposed(right +
                                             ra_piece_step(DIM, right_offset, ACROSS * (n / 2)) +
                                             16 * step * ROW_BYTES,
                                         b);
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m) {
                    Element::multiply(acc[m][n], a[m], b[0], b[1]);
                    Element::multiply(acc[m][n + 1], a[m], b[2], b[3]);
                }
            }
            after(step);
        }
    }

    template <int WIDTH, bool TURNED, int STEPS, int ACROSS, int ROW_TILES, int TILES>
    static LANE_CODE void add_product(const char *left, const char *right,
                                      float (&acc)[ROW_TILES][TILES][4])
    {
        add_product<WIDTH, TURNED, STEPS, ACROSS>(left, right, acc, [](int) {});
    }

    /* Offset of a lane's first piece of add_product's left operand; row_tile: its warp's first. */
    template <int WIDTH, bool TURNED>
    static LANE_CODE int left_product_offset(int row_tile, int lane)
    {
        if (TURNED) {
            ra_piece_at const at = ra_ldmatrix_key(lane);
            return ra_piece_offset(WIDTH, at.row, at.piece + 2 * row_tile);
        }
        ra_piece_at const at = ra_ldmatrix_query(lane);
        return ra_piece_offset(WIDTH, 16 * row_tile + at.row, at.piece);
    }

    /* Add the row `half` of a lane's sums, times factor, to float32 that no other thread adds to.
       If rows are whole, all is read before any is written: else each read would wait for the write
       before it. Other rows have `dims` elements from `to` on. */
    template <int ACROSS, int TILES>
    static LANE_CODE void add_row(const float (&acc)[TILES][4], int half, float factor, bool whole,
                                  int dims, float *to)
    {
        if (!whole) {
#pragma unroll
            for (int n = 0; n < TILES; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    if (ra_sum_column(ACROSS, n) + e < dims)
                        to[ra_sum_column(ACROSS, n) + e] += acc[n][2 * half + e] * factor;
            return;
        }
        float sum[TILES][2];
#pragma unroll
        for (int n = 0; n < TILES; ++n)
            load_pair(to + ra_sum_column(ACROSS, n), sum[n]);
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
            sum[n][0] += acc[n][2 * half] * factor;
            sum[n][1] += acc[n][2 * half + 1] * factor;
            store_pair(to + ra_sum_column(ACROSS, n), sum[n]);
        }
    }

    /* Round the row `half` of a lane's sums, times factor, to elements that no other thread stores;
       `whole` and `dims` as above. */
    template <int ACROSS, int TILES>
    static LANE_CODE void store_row(const float (&acc)[TILES][4], int half, float factor,
                                    bool whole, int dims, char *to)
    {
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
            int const column = ra_sum_column(ACROSS, n);
            float const sum[2] = {acc[n][2 * half] * factor, acc[n][2 * half + 1] * factor};
            if (whole)
                store_elements(to + 2 * column, Element::pack(sum[0], sum[1]));
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (!whole && column + e < dims)
                    Element::store(to, column + e, sum[e]);
        }
    }

    /* A row of gradients: see ra_backward_step.dq. */
    template <int ACROSS, int TILES>
    static LANE_CODE void put_row(const float (&acc)[TILES][4], int half, float factor, bool whole,
                                  int dims, ra_dtype dtype, char *to)
    {
        if (dtype == RA_F32)
            add_row<ACROSS>(acc, half, factor, whole, dims, (float *)to);
        else
            store_row<ACROSS>(acc, half, factor, whole, dims, to);
    }

    /* A lane's scores, rounded to 16 bits, as a tile of rows of WIDTH elements, in panels of PART.
     */
    template <int WIDTH, int ACROSS, int PART = WIDTH, int ROWS = 0, int ROW_TILES, int TILES>
    static LANE_CODE void store_scores(const float (&s)[ROW_TILES][TILES][4], char *to)
    {
        static_assert(8 * TILES * ACROSS == WIDTH, "warps divide the columns");
        int const row = first_row<ROW_TILES, ACROSS>();
        int const column = first_score_column<ACROSS, TILES>();
        char *const first = to + column % RA_PIECE * 2;
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
            int const offset = offset_in_tile<WIDTH, PART, ROWS>(row, column / RA_PIECE + n);
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    store_pair_shared(first + offset + (16 * m + 8 * half) * PART * 2,
                                      Element::pack(s[m][n][2 * half], s[m][n][2 * half + 1]));
        }
    }
};

#endif

/*
 * Rows of dq that blocks of keys add to, in any order: where a lane's sums of a step go, and adding
 * them atomically.
 *
 * Includers bring the primitives first: lanes.cuh on a GPU, an emulation of it in tests.
 */
#ifndef RINGATTN_CUDA_QUERY_SUMS_16_CUH
#define RINGATTN_CUDA_QUERY_SUMS_16_CUH

#include "sparse/cuda/backward_keys.cuh"
#include "sparse/cuda/fragments.h"

struct query_sums_rows {
    float *first;         /* the step's first row, from the lane's first column on */
    int64_t row_floats;   /* from one row to the next */
    int own, count, dims; /* the lane's first row; rows and columns that are there */
};

/* For the lane's first column of the step; `own` is left to the caller. */
LANE_CODE query_sums_rows query_sums_rows_of(const ra_cuda_backward &f,
                                             const backward_keys_block &block,
                                             const ra_query_cursor &c, int column)
{
    query_sums_rows rows;
    rows.first = (float *)head_data(f.dq, (int)sizeof(float), block.task.batch, c.head) +
                 ra_query_cursor_row(&c, c.a) * f.dq.row_stride + column;
    rows.row_floats = (int64_t)c.q_stride * f.dq.row_stride;
    rows.count = c.a_end - c.a;
    rows.dims = f.dim - column;
    return rows;
}

/*
 * Row tiles of 16 rows, and tiles of 8 columns, of which ACROSS warps take two in turn; times
 * f.scale.
 */
template <int ROW_TILES, int TILES, int ACROSS> struct query_sums_16 {
    typedef float sums[ROW_TILES][TILES][4];
    static constexpr int EIGHTS = 2 * ROW_TILES; /* rows of a lane: eight apart */

    /* The lane's row `eight` times 8 rows after its first; f.whole. Lanes side by side swap what
       they have of two tiles: each then adds four columns of one, at once. A row that is not there
       adds 0 to the last one: compilers move no products across a branch. */
    static LANE_CODE void add_whole_row(const ra_cuda_backward &f, const query_sums_rows &rows,
                                        int eight, const sums &acc)
    {
        int const row = rows.own + 8 * eight, m = eight / 2, half = eight % 2;
        bool const there = row < rows.count, odd = lane_index() % 2 != 0;
        float *const to =
            rows.first + ra_hd_min(row, rows.count - 1) * rows.row_floats + (odd ? 6 : 0);
#pragma unroll
        for (int n = 0; n < TILES; n += 2) {
            float low[2], high[2]; /* of the two tiles: what the lane adds, in their order */
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                low[e] = there ? acc[m][n][2 * half + e] * f.scale : 0;
                high[e] = there ? acc[m][n + 1][2 * half + e] * f.scale : 0;
                float const taken = shuffle_xor(odd ? low[e] : high[e], 1);
                low[e] = odd ? taken : low[e];
                high[e] = odd ? high[e] : taken;
            }
            float const four[4] = {low[0], low[1], high[0], high[1]};
            add_four_atomic(to + ra_sum_column(ACROSS, n), four);
        }
    }

    /* Any rows. */
    static LANE_CODE void add_elements(const ra_cuda_backward &f, const query_sums_rows &rows,
                                       const sums &acc)
    {
#pragma unroll
        for (int eight = 0; eight < EIGHTS; ++eight) {
            int const row = rows.own + 8 * eight;
            float *const to = rows.first + row * rows.row_floats;
            if (row >= rows.count)
                continue;
#pragma unroll
            for (int n = 0; n < TILES; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    if (ra_sum_column(ACROSS, n) + e < rows.dims)
                        add_atomic(to + ra_sum_column(ACROSS, n) + e,
                                   acc[eight / 2][n][2 * (eight % 2) + e] * f.scale);
        }
    }
};

#endif

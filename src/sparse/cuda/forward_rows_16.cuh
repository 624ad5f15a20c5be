/*
 * What the 16-bit forward kernels have in common: the sums of query rows, which lanes hold as
 * fragments of m16n8 products in float32 registers, their softmax, and how they begin and end. Warp
 * w has the query rows from 16 ROW_TILES w on. Instances bring a block's scores, multiply its
 * values, and have room for output, in panels of PANEL columns (fragments.h).
 */
#ifndef RINGATTN_CUDA_FORWARD_ROWS_16_CUH
#define RINGATTN_CUDA_FORWARD_ROWS_16_CUH

#include "sparse/cuda/forward_chunk.cuh"
#include "sparse/cuda/products_16.cuh"

template <class Element, int DIM, int WARPS, int ROW_TILES, int KEYS, int PANEL = DIM>
struct forward_rows_16 {
    static constexpr int K_TILES = KEYS / 8, O_TILES = DIM / 8, Q_ROWS = 16 * ROW_TILES * WARPS;
    typedef products_16<Element, DIM, 32 * WARPS, PANEL> products;

    /* What a lane holds: rows lane / 4 and lane / 4 + 8 of each of its row tiles. */
    struct sums {
        float acc[ROW_TILES][O_TILES][4];
        float sum[ROW_TILES][2]; /* of this lane's columns */
    };

    /* top: the running max of a row, as the softmax sees it (see raise). Where registers are scarce
       (forward_16), tops lie in shared memory, one place per thread: they are used once per block
       of keys, and would take registers all the time. */
    struct tops {
        float of[ROW_TILES][2];
    };
    static_assert(sizeof(tops) == RA_CUDA_ROW_TILE_TOP_BYTES * ROW_TILES, "as the table has it");

    typedef float scores[ROW_TILES][K_TILES][4];

    /* ---- state ---- */

    static LANE_CODE int first_row()
    {
        return products::template first_row<ROW_TILES>();
    }

    static LANE_CODE int first_column()
    {
        return products::first_column();
    }

    static LANE_CODE void begin_sums(tops &top, sums &s)
    {
        products::clear(s.acc);
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            top.of[m][0] = top.of[m][1] = -INFINITY;
            s.sum[m][0] = s.sum[m][1] = 0;
        }
    }

    static LANE_CODE void load_sums(const ra_cuda_forward &f, const forward_head &h,
                                    const ra_tile &tile, tops &top, sums &s)
    {
        int const row = first_row(), column = first_column();
        begin_sums(top, s);
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int const a = row + 16 * m + 8 * half;
                if (a >= tile.q_count)
                    continue;
                int64_t const at = tile.q_begin + (int64_t)tile.q_stride * a - h.state_row;
                top.of[m][half] = h.top[at];
                /* One lane of the four that share a row brings its sum. */
                s.sum[m][half] = column == 0 ? h.sum[at] : 0;
                const float *const acc = h.acc + at * f.dim + column;
#pragma unroll
                for (int n = 0; n < O_TILES; ++n) {
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        if (8 * n + e < f.dim - column)
                            s.acc[m][n][2 * half + e] = acc[8 * n + e];
                }
            }
        }
    }

    static LANE_CODE void store_state_row(const ra_cuda_forward &f, const forward_head &h,
                                          int64_t at, const tops &top, const sums &s, int m,
                                          int half, float sum)
    {
        int const column = first_column();
        if (column == 0) {
            h.top[at] = top.of[m][half];
            h.sum[at] = sum;
        }
        float *const acc = h.acc + at * f.dim + column;
#pragma unroll
        for (int n = 0; n < O_TILES; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (8 * n + e < f.dim - column)
                    acc[8 * n + e] = s.acc[m][n][2 * half + e];
        }
    }

    /* The products of a row of dout and of the row `half` of a tile's sums, in a lane's columns.
       Pairs are all read before any is used: reads take long. */
    static LANE_CODE float dot_pairs(const char *dout, const float (&acc)[O_TILES][4], int half,
                                     int dims)
    {
        uint32_t pairs[O_TILES];
        float dot = 0;
#pragma unroll
        for (int n = 0; n < O_TILES; ++n)
            pairs[n] = 8 * n < dims ? load_elements(dout + 16 * n) : 0;
#pragma unroll
        for (int n = 0; n < O_TILES; ++n) {
            float two[2];
            Element::widen(pairs[n], two);
            dot += acc[n][2 * half] * two[0] + acc[n][2 * half + 1] * two[1];
        }
        return dot;
    }

    static LANE_CODE float dot_elements(const char *dout, const float (&acc)[O_TILES][4], int half,
                                        int dims)
    {
        float dot = 0;
#pragma unroll
        for (int n = 0; n < O_TILES; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (8 * n + e < dims)
                    dot += acc[n][2 * half + e] * Element::load(dout, 8 * n + e);
        return dot;
    }

    /* For a row whose sums were divided; writes elements only if store_tile does not. */
    static LANE_CODE void store_output_row(const ra_cuda_forward &f, const forward_head &h,
                                           int64_t row, bool there, const tops &top, const sums &s,
                                           int m, int half, float sum)
    {
        int const column = first_column();
        int const dims = there ? f.dim - column : 0;
        float delta = 0;
        if (h.delta != NULL) {
            const char *const dout = h.dout + (row * f.dout.row_stride + column) * 2;
            delta = f.dout_aligned ? dot_pairs(dout, s.acc[m], half, dims)
                                   : dot_elements(dout, s.acc[m], half, dims);
            delta = quad_sum(delta);
        }
        if (!f.out_aligned) {
            char *const out = h.out + (row * f.out.row_stride + column) * 2;
#pragma unroll
            for (int n = 0; n < O_TILES; ++n) {
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    if (8 * n + e < dims)
                        Element::store(out, 8 * n + e, s.acc[m][n][2 * half + e]);
            }
        }
        if (there && column == 0) {
            if (h.lse != NULL)
                h.lse[row] = row_lse(top.of[m][half], sum);
            if (h.delta != NULL)
                h.delta[row] = delta;
        }
    }

    /* Store output in pieces of 16 bytes, through the warp's own rows of a tile in shared memory.
     */
    static LANE_CODE void store_tile(const ra_cuda_forward &f, const forward_head &h,
                                     const ra_tile &tile, const sums &s, char *rows)
    {
        constexpr int COLUMNS = products::COLUMNS, ROWS_AT_ONCE = 32 / COLUMNS;
        ra_piece_at const at = ra_copy_at(DIM, lane_index());
        int const first = 16 * ROW_TILES * warp_index() + at.row;
        int64_t const row = tile.q_begin + (int64_t)tile.q_stride * first;
        int64_t const step = (int64_t)tile.q_stride * f.out.row_stride * ROWS_AT_ONCE * 2;
        char *to = h.out + (row * f.out.row_stride + at.piece * RA_PIECE) * 2;
        products::template store_scores<DIM, 1, PANEL, Q_ROWS>(s.acc, rows);
        warp_barrier(); /* the warp's rows are there */
#pragma unroll
        for (int a = first; a < first + 16 * ROW_TILES; a += ROWS_AT_ONCE, to += step) {
#pragma unroll
            for (int piece = at.piece; piece < at.piece + DIM / RA_PIECE; piece += COLUMNS)
                if (a < tile.q_count && piece * RA_PIECE < f.dim)
                    copy_piece(to + (piece - at.piece) * RA_PIECE_BYTES,
                               rows +
                                   products::template offset_in_tile<DIM, PANEL, Q_ROWS>(a, piece));
        }
    }

    /* `rows`: room for the tile's rows, in panels of PANEL; no other warp needs this one's. */
    static LANE_CODE void store_sums(const ra_cuda_forward &f, const forward_head &h,
                                     const ra_tile &tile, const tops &top, sums &s, char *rows)
    {
        int const first = first_row();
        float sum[ROW_TILES][2], factor[ROW_TILES][2];
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                sum[m][half] = quad_sum(s.sum[m][half]);
                factor[m][half] = h.tiles_end ? row_factor(sum[m][half]) : 1;
            }
        }
        scale_sums(factor, s);
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int const a = first + 16 * m + 8 * half;
                bool const there = a < tile.q_count;
                int64_t const row = tile.q_begin + (int64_t)tile.q_stride * a;
                if (h.tiles_end)
                    store_output_row(f, h, row, there, top, s, m, half, sum[m][half]);
                else if (there)
                    store_state_row(f, h, row - h.state_row, top, s, m, half, sum[m][half]);
            }
        }
        if (h.tiles_end && f.out_aligned)
            store_tile(f, h, tile, s, rows);
    }

    /* ---- softmax ---- */

    /*
     * Lazy rescaling (in base 2): probabilities P are 2^(score - top), where the top may lag behind
     * the running max by up to `slack`. After the first blocks of keys the top rarely moves, and
     * sums are rarely rescaled; P is at most 2^slack, which float16 holds (65,504). P is rounded to
     * 16 bits for P V but not for its sum, so the error of o grows with the largest P, which is 1
     * only without slack. If delta is wanted, slack is 0: in a row that sees one key dp = delta,
     * and its gradients would be nothing but that rounding.
     *
     * Sets the new tops and, in `left`, the factors that rescale sums. @return whether a factor is
     * not 1 in some row of the warp
     */
    template <int TILES>
    static LANE_CODE bool raise(const ra_cuda_forward &f, const float (&w)[ROW_TILES][TILES][4],
                                tops &top, float (&left)[ROW_TILES][2])
    {
        bool raised = false;
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float most = -INFINITY;
#pragma unroll
                for (int n = 0; n < TILES; n += 2) /* not one after the other: that takes long */
                    most =
                        fmaxf(most, fmaxf(fmaxf(w[m][n][2 * half], w[m][n][2 * half + 1]),
                                          fmaxf(w[m][n + 1][2 * half], w[m][n + 1][2 * half + 1])));
                most = quad_max(most) * f.factor;
                bool const higher = most > top.of[m][half] + f.slack;
                left[m][half] = higher ? exp2_fast(top.of[m][half] - most) : 1.0f;
                top.of[m][half] = higher ? most : top.of[m][half];
                raised = raised || higher;
            }
        }
        return warp_vote(raised) != 0;
    }

    static LANE_CODE void scale_sums(const float (&left)[ROW_TILES][2], sums &s)
    {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            s.sum[m][0] *= left[m][0];
            s.sum[m][1] *= left[m][1];
#pragma unroll
            for (int n = 0; n < O_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    s.acc[m][n][i] *= left[m][i >> 1];
        }
    }

    /* Scores become weights 2^(score * factor - top), in the order that products need; `sum`: of
       this lane's columns. */
    template <int TILES>
    static LANE_CODE void weigh(const ra_cuda_forward &f, const tops &top,
                                float (&w)[ROW_TILES][TILES][4], float (&sum)[ROW_TILES][2])
    {
        float base[ROW_TILES][2];
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                /* A row that has seen nothing: -Inf - -Inf must not become NaN. */
                base[m][half] = top.of[m][half] == -INFINITY ? 0 : top.of[m][half];
                sum[m][half] = 0;
            }
        }
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float const p = exp2_fast(fmaf(w[m][n][i], f.factor, -base[m][i >> 1]));
                    w[m][n][i] = p;
                    sum[m][i >> 1] += p;
                }
            }
        }
    }

    static LANE_CODE void add_sums(const float (&sum)[ROW_TILES][2], sums &s)
    {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            s.sum[m][0] += sum[m][0];
            s.sum[m][1] += sum[m][1];
        }
    }

    /* One block's scores become weights, and sums what they are beside these. */
    template <int TILES>
    static LANE_CODE void soften(const ra_cuda_forward &f, tops &own,
                                 float (&w)[ROW_TILES][TILES][4], sums &s)
    {
        float left[ROW_TILES][2], sum[ROW_TILES][2];
        tops top = own;
        if (raise(f, w, top, left)) {
            scale_sums(left, s);
            own = top;
        }
        weigh(f, top, w, sum);
        add_sums(sum, s);
    }
};

#endif

/*
 * dq of one tile in 16-bit elements on tensor cores (mma.m16n8k16, sm_80 and newer).
 *
 * Warp w has the query rows from 16 ROW_TILES w on; a lane holds fragments of their sums in float32
 * registers. Per block of keys: dp = dout . v, s = q . k, ds = 2^(s - lse) (dp - delta), rounded to
 * 16 bits, dq += ds k. Keys of a block are copied (cp.async) while dp is computed, and values of
 * the next block while s and dq are.
 */
#ifndef RINGATTN_CUDA_BACKWARD_QUERIES_16_CUH
#define RINGATTN_CUDA_BACKWARD_QUERIES_16_CUH

#include "sparse/cuda/backward_queries.cuh"
#include "sparse/cuda/products_16.cuh"
#include "sparse/cuda/row_scale.cuh"

template <class Element, int DIM> struct backward_queries_16 {
    typedef Element element;
    static constexpr ra_cuda_tile TILE = ra_cuda_queries_of(RA_BF16, DIM);
    static constexpr int ROW_TILES = TILE.row_tiles, KEYS = TILE.k_rows, Q_ROWS = TILE.q_rows;
    static constexpr int THREADS = 32 * TILE.warps, K_TILES = KEYS / 8;
    typedef products_16<Element, DIM, THREADS> products;
    static_assert(Q_ROWS == ra_cuda_tile_of(RA_BF16, DIM).q_rows, "maps are cut for all passes");

    /* What a lane holds: rows lane / 4 and lane / 4 + 8 of each of its row tiles. */
    struct sums {
        float acc[ROW_TILES][DIM / 8][4];
        float base[ROW_TILES][2], delta[ROW_TILES][2];
        row_scale<Element, ROW_TILES> scale;
    };

    static LANE_CODE char *query_tile(char *shared)
    {
        return shared;
    }

    static LANE_CODE char *dout_tile(char *shared)
    {
        return shared + Q_ROWS * DIM * 2;
    }

    static LANE_CODE char *key_tile(char *shared)
    {
        return shared + 2 * Q_ROWS * DIM * 2;
    }

    static LANE_CODE char *value_tile(char *shared)
    {
        return shared + (2 * Q_ROWS + KEYS) * DIM * 2;
    }

    static LANE_CODE void copy_queries(const ra_cuda_backward &f, const char *data,
                                       int64_t row_stride, const ra_tile &tile, char *to)
    {
        products::template copy_rows<Q_ROWS>(f.aligned, f.dim, data, row_stride, tile.q_begin,
                                             tile.q_stride, tile.q_count, to);
    }

    static LANE_CODE void begin_sums(const backward_queries_block &block, const ra_tile &tile,
                                     sums &s)
    {
        int const first = products::template first_row<ROW_TILES>();
        products::clear(s.acc);
        s.scale.begin();
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int const a = first + 16 * m + 8 * half;
                int64_t const row = tile.q_begin + (int64_t)tile.q_stride * a;
                s.base[m][half] = a < tile.q_count ? weight_base(block.lse[row]) : INFINITY;
                s.delta[m][half] = a < tile.q_count ? block.delta[row] : 0;
            }
        }
    }

    static LANE_CODE void put_sums(const ra_cuda_backward &f, const backward_queries_block &block,
                                   const ra_tile &tile, const sums &s)
    {
        int const first = products::template first_row<ROW_TILES>();
        int const column = products::first_column(), bytes = grad_bytes(f.dq);
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int const a = first + 16 * m + 8 * half;
                if (a >= tile.q_count)
                    continue;
                int64_t const row = tile.q_begin + (int64_t)tile.q_stride * a;
                char *const dq = block.dq + (row * f.dq.row_stride + column) * bytes;
                products::template put_row<1>(s.acc[m], half, f.scale * s.scale.inverse(m, half),
                                              f.whole, f.dim - column, f.dq.dtype, dq);
            }
        }
    }

    typedef float scores[ROW_TILES][K_TILES][4];

    /* dp becomes ds. */
    static LANE_CODE void differentiate(float factor, const scores &s, const sums &sums, scores &dp)
    {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int n = 0; n < K_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    dp[m][n][i] = exp2_fast(fmaf(s[m][n][i], factor, -sums.base[m][i >> 1])) *
                                  (dp[m][n][i] - sums.delta[m][i >> 1]);
    }

    static LANE_CODE void tile(const ra_cuda_backward &f, backward_queries_block &block,
                               const ra_tile &tile, uint32_t run_end, char *shared)
    {
        sums sums;
        if (thread_index() == 0)
            ra_key_cursor_begin(&tile, run_end, f.map.runs, &block.cursor[0]);
        copy_queries(f, block.q, f.q.row_stride, tile, query_tile(shared));
        copy_queries(f, block.dout, f.dout.row_stride, tile, dout_tile(shared));
        block_barrier(); /* the cursor is set */
        products::template copy_keys<KEYS>(f, block.v, f.v.row_stride, block.cursor[0],
                                           value_tile(shared));
        copies_commit();
        begin_sums(block, tile, sums);
        for (int turn = 0; !ra_key_cursor_is_over(&block.cursor[turn]); turn ^= 1) {
            scores s, dp;
            ra_key_cursor const &c = block.cursor[turn];
            ra_key_cursor &next = block.cursor[turn ^ 1];
            copies_wait();
            block_barrier(); /* queries and values are there; keys and the other cursor are read */
            if (thread_index() == 0) {
                next = c;
                ra_key_cursor_next(&next, KEYS);
            }
            warp_barrier(); /* all lanes do what follows together, as products ask for */
            products::template copy_keys<KEYS>(f, block.k, f.k.row_stride, c, key_tile(shared));
            copies_commit();
            products::score(dout_tile(shared), value_tile(shared), dp);
            copies_wait();
            block_barrier(); /* keys and the next cursor are there; values have been read */
            if (!ra_key_cursor_is_over(&next))
                products::template copy_keys<KEYS>(f, block.v, f.v.row_stride, next,
                                                   value_tile(shared));
            copies_commit();
            products::score(query_tile(shared), key_tile(shared), s);
            if (ra_key_cursor_masked(&c, KEYS))
                products::mask(c, s);
            differentiate(f.factor, s, sums, dp);
            sums.scale.fit(dp, sums.acc);
            products::add_weighted(dp, key_tile(shared), sums.acc);
        }
        put_sums(f, block, tile, sums);
    }
};

#endif

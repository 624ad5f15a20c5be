/*
 * dk and dv of a block of keys in 16-bit elements on tensor cores (mma.m16n8k16, sm_80 and newer).
 *
 * Warp w has the keys from 16 ROW_TILES w on; a lane holds fragments of their sums in float32
 * registers. Per step of queries, all transposed, so that weights and their gradients can stay in
 * place as left operands: s = k . q, p = 2^(s - lse), dv += p dout, dp = v . dout, ds = p (dp -
 * delta), dk += ds q.
 */
#ifndef RINGATTN_CUDA_BACKWARD_KEYS_16_CUH
#define RINGATTN_CUDA_BACKWARD_KEYS_16_CUH

#include "sparse/cuda/key_steps_16.cuh"

template <class Element, int DIM> struct backward_keys_16 {
    typedef Element element;
    static constexpr ra_cuda_tile TILE = ra_cuda_keys_of(RA_BF16, DIM);
    static constexpr int ROW_TILES = TILE.row_tiles, KEYS = TILE.k_rows, QUERIES = TILE.q_rows;
    static constexpr int THREADS = 32 * TILE.warps, Q_TILES = QUERIES / 8;
    static constexpr int PARTS = ra_cuda_key_parts(RA_BF16, DIM);
    typedef products_16<Element, DIM, THREADS> products;
    typedef key_steps_16<Element, DIM, KEYS, QUERIES, THREADS> steps;

    /* What a lane holds: rows lane / 4 and lane / 4 + 8 of each of its row tiles. dk, then dv; if
       parts are tasks of their own, only the part's. */
    struct sums {
        float acc[3 - PARTS][ROW_TILES][DIM / 8][4];
        row_scale<Element, ROW_TILES> scale;
    };

    static LANE_CODE bool has_keys(const ra_cuda_key_task &task)
    {
        return PARTS == 1 || task.part == 1;
    }

    static LANE_CODE bool has_values(const ra_cuda_key_task &task)
    {
        return PARTS == 1 || task.part == 0;
    }

    static LANE_CODE void begin(sums &s)
    {
        s.scale.begin();
#pragma unroll
        for (int i = 0; i < 3 - PARTS; ++i)
            products::clear(s.acc[i]);
    }

    static LANE_CODE void copied() {}

    static LANE_CODE void load(const ra_cuda_backward &f, const backward_keys_block &block,
                               char *shared)
    {
        steps::load(f, block, has_keys(block.task), shared);
    }

    static LANE_CODE void step(const ra_cuda_backward &f, backward_keys_block &block, int turn,
                               char *shared, int at, sums &sums)
    {
        steps::copy_next(f, block, turn, shared, at);
        ra_query_cursor const &c = block.cursor[turn];
        typename steps::stage const from = steps::stage_of(shared, at);
        float p[ROW_TILES][Q_TILES][4];
        products::score(steps::key_tile(shared), from.query, p);
        if (ra_query_cursor_masked(&c, &block.keys, QUERIES))
            steps::mask(c, block.keys, products::template first_row<ROW_TILES>(),
                        products::first_column(), p);
        steps::weigh(f.factor, from.lse + products::first_column(), p);
        if (has_values(block.task))
            products::add_weighted(p, from.dout, sums.acc[2 - PARTS]);
        if (has_keys(block.task)) {
            float dp[ROW_TILES][Q_TILES][4];
            products::score(steps::value_tile(shared), from.dout, dp);
            steps::differentiate(from.delta + products::first_column(), p, dp);
            sums.scale.fit(dp, sums.acc[0]);
            products::add_weighted(dp, from.query, sums.acc[0]);
        }
    }

    static LANE_CODE void visit(const ra_cuda_backward &f, backward_keys_block &block, char *shared,
                                sums &sums)
    {
        steps::template visit<backward_keys_16>(f, block, shared, sums);
    }

    static LANE_CODE void end(const ra_cuda_backward &f, const backward_keys_block &block, bool any,
                              const sums &s)
    {
        float const down = 1.0f / (float)(1 << weight_bits<Element>::value);
        float dk_factor[ROW_TILES][2], dv_factor[ROW_TILES][2];
        if (!any)
            return;
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                dk_factor[m][half] = f.scale * down * s.scale.inverse(m, half);
                dv_factor[m][half] = down;
            }
        if (has_keys(block.task))
            steps::template put_rows<1>(f, f.dk, block, s.acc[0], dk_factor);
        if (has_values(block.task))
            steps::template put_rows<1>(f, f.dv, block, s.acc[2 - PARTS], dv_factor);
    }
};

#endif

/*
 * dq, dk and dv in one pass, as in backward_single_16.cuh, by warpgroups (wgmma, sm_90a): two of
 * them, 64 keys each.
 *
 * Per step of queries: s = k . q, dp = v . dout, of which rows are keys; p = 2^(s - lse), ds = p
 * (dp - delta). Rounded to 16 bits, a warpgroup's p and ds are left operands from its registers:
 * dv += p dout, dk += ds q. dq += ds^T k sums over the keys of both, so ds goes to shared memory,
 * too; each warpgroup then has 64 rows and 64 columns of dq. So FlashAttention-3 divides the work
 * (arXiv:2407.08608, its backward pass). Products run beside what prepares the next ones: copies
 * beside s, scores' softmax beside dp, gradients of scores beside dv, additions to dq beside dk;
 * and one warpgroup's beside the other's.
 *
 * Includers bring the primitives first: lanes.cuh and warpgroup.cuh on a GPU, an emulation of them
 * in tests.
 */
#ifndef RINGATTN_CUDA_BACKWARD_SINGLE_WGMMA_CUH
#define RINGATTN_CUDA_BACKWARD_SINGLE_WGMMA_CUH

#include "sparse/cuda/key_steps_16.cuh"
#include "sparse/cuda/panel_products.cuh"
#include "sparse/cuda/query_sums_16.cuh"

template <class Element, int DIM> struct backward_single_wgmma {
    typedef Element element;
    static constexpr ra_cuda_tile TILE = ra_cuda_warpgroup_single_of(DIM);
    static constexpr int KEYS = TILE.k_rows, QUERIES = TILE.q_rows, THREADS = 32 * TILE.warps;
    static constexpr int GROUP_ROWS = 64, GROUPS = THREADS / 128;
    static constexpr int FIRST_TILE =
        RA_CUDA_SINGLE_PANELS - RA_CUDA_KEYS_HEAD_BYTES - RA_CUDA_LIST_BYTES;
    typedef key_steps_16<Element, DIM, KEYS, QUERIES, THREADS, RA_PANEL, FIRST_TILE> steps;
    typedef products_16<Element, DIM, THREADS, RA_PANEL> products;
    typedef panel_products<Element> panels;
    typedef query_sums_16<1, RA_PANEL / 8, 1> queries;
    static_assert(weight_bits<Element>::value == 0, "ds is not scaled");
    static_assert(GROUP_ROWS * GROUPS == KEYS, "warpgroups divide the keys");

    /* Panels of a step's queries, and of dims: a pair for each warpgroup. */
    static constexpr int QUERY_PANELS = QUERIES / RA_PANEL, DIM_PANELS = DIM / RA_PANEL;
    static_assert(QUERY_PANELS * DIM_PANELS == GROUPS, "warpgroups divide dq");

    typedef float scores[1][QUERIES / 8][4];
    typedef uint32_t weights[QUERIES / 16][4]; /* rounded: left operands */

    struct sums {
        float dk[1][DIM / 8][4], dv[1][DIM / 8][4];
    };

    /* Rows are keys, in panels of queries. */
    static LANE_CODE char *dscore_tile(char *shared)
    {
        return steps::rest(shared);
    }

    static LANE_CODE void begin(sums &s)
    {
        products::clear(s.dk);
        products::clear(s.dv);
    }

    static LANE_CODE void copied()
    {
        shared_publish();
    }

    static LANE_CODE void load(const ra_cuda_backward &f, const backward_keys_block &block,
                               char *shared)
    {
        steps::load(f, block, true, shared);
    }

    static LANE_CODE void store_dscores(const weights &ds, char *to)
    {
        int const row = products::template first_row<1>(), column = products::first_column();
#pragma unroll
        for (int n = 0; n < QUERIES / 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                store_pair_shared(to + ra_panel_offset(RA_PANEL, KEYS, row + 8 * half, n) +
                                      2 * column,
                                  ds[n / 2][2 * (n % 2) + half]);
    }

    /* What the block's keys add to the warpgroup's panel of the step's dq, to be waited for. */
    static LANE_CODE void begin_queries(char *shared, int own, typename queries::sums &dq)
    {
        int const query_panel = own % QUERY_PANELS, dim_panel = own / QUERY_PANELS;
        panels::template begin_turned<KEYS>(
            panels::place_of(dscore_tile(shared), query_panel * KEYS),
            panels::place_of(steps::key_tile(shared), dim_panel * KEYS), dq[0]);
    }

    static LANE_CODE void add_queries(const ra_cuda_backward &f, const backward_keys_block &block,
                                      const ra_query_cursor &c, int own,
                                      const typename queries::sums &dq)
    {
        query_sums_rows rows = query_sums_rows_of(
            f, block, c, own / QUERY_PANELS * RA_PANEL + products::first_column());
        rows.own = own % QUERY_PANELS * RA_PANEL + products::template first_row<1>() % GROUP_ROWS;
        if (!f.whole) {
            queries::add_elements(f, rows, dq);
            return;
        }
#pragma unroll
        for (int eight = 0; eight < queries::EIGHTS; ++eight)
            queries::add_whole_row(f, rows, eight, dq);
    }

    /* Slots beyond the block's have zero keys, and must have zero weights too: infinite ones, of a
       query whose scores are low, would make its dq NaN. */
    static LANE_CODE void step(const ra_cuda_backward &f, backward_keys_block &block, int turn,
                               char *shared, int at, sums &sums)
    {
        ra_query_cursor const &c = block.cursor[turn];
        typename steps::stage const from = steps::stage_of(shared, at);
        int const own = warpgroup_index(), row = own * GROUP_ROWS;
        int const column = products::first_column();
        scores s, dp;
        weights p, ds;
        typename queries::sums dq;
        panels::template begin_scores<DIM, KEYS, QUERIES>(
            panels::place_of(steps::key_tile(shared), row), panels::place_of(from.query), s[0]);
        panels::template begin_scores<DIM, KEYS, QUERIES>(
            panels::place_of(steps::value_tile(shared), row), panels::place_of(from.dout), dp[0]);
        steps::copy_next(f, block, turn, shared, at);
        warpgroup_wait<1>();
        warpgroup_pin(s[0]);
        if ((block.keys.count < KEYS) | ra_query_cursor_masked(&c, &block.keys, QUERIES))
            steps::mask(c, block.keys, products::template first_row<1>(), column, s);
        steps::weigh(f.factor, from.lse + column, s);
        products::pack_rows(s[0], p);
        panels::template begin_weighted<QUERIES>(p, panels::place_of(from.dout), sums.dv[0]);
        warpgroup_wait<1>();
        warpgroup_pin(dp[0]);
        steps::differentiate(from.delta + column, s, dp);
        products::pack_rows(dp[0], ds);
        store_dscores(ds, dscore_tile(shared));
        shared_publish();
        block_barrier(); /* gradients of scores are there */
        begin_queries(shared, own, dq);
        panels::template begin_weighted<QUERIES>(ds, panels::place_of(from.query), sums.dk[0]);
        warpgroup_wait<1>();
        warpgroup_pin(dq[0]);
        add_queries(f, block, c, own, dq);
        warpgroup_wait<0>();
        warpgroup_pin(sums.dv[0]);
        warpgroup_pin(sums.dk[0]);
    }

    static LANE_CODE void visit(const ra_cuda_backward &f, backward_keys_block &block, char *shared,
                                sums &sums)
    {
        steps::template visit<backward_single_wgmma>(f, block, shared, sums);
    }

    static LANE_CODE void end(const ra_cuda_backward &f, const backward_keys_block &block, bool any,
                              const sums &s)
    {
        float const dk_factor[1][2] = {{f.scale, f.scale}}, dv_factor[1][2] = {{1, 1}};
        if (!any)
            return;
        steps::template put_rows<1>(f, f.dk, block, s.dk, dk_factor);
        steps::template put_rows<1>(f, f.dv, block, s.dv, dv_factor);
    }
};

#endif

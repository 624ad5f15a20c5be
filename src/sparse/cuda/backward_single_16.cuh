/*
 * dq, dk and dv in one pass, in 16-bit elements on tensor cores (mma.m16n8k16, sm_80 and newer):
 * five products per pair of tiles, instead of seven in two passes (dq; dk and dv). A block of keys
 * adds to rows of dq atomically, so the order, and with it the last bits of dq, differ from run to
 * run.
 *
 * Per step of queries: s = k . q, p = 2^(s - lse), dp = v . dout, ds = p (dp - delta), with two
 * warps that share keys and divide queries. p and ds go to shared memory in 16 bits, and from there
 * into dv += p dout, dk += ds q, dq += ds^T k. Warps divide the columns of these: each reads less
 * of both operands than with whole rows. For bfloat16 only: in float16, ds would need the same
 * power of two in rows and columns.
 */
#ifndef RINGATTN_CUDA_BACKWARD_SINGLE_16_CUH
#define RINGATTN_CUDA_BACKWARD_SINGLE_16_CUH

#include "sparse/cuda/key_steps_16.cuh"
#include "sparse/cuda/query_sums_16.cuh"

template <class Element, int DIM> struct backward_single_16 {
    typedef Element element;
    static constexpr ra_cuda_tile TILE = ra_cuda_single_of(DIM);
    static constexpr int ROW_TILES = TILE.row_tiles, KEYS = TILE.k_rows, QUERIES = TILE.q_rows;
    static constexpr int THREADS = 32 * TILE.warps, ACROSS = RA_CUDA_SINGLE_ACROSS;
    typedef products_16<Element, DIM, THREADS> products;
    typedef key_steps_16<Element, DIM, KEYS, QUERIES, THREADS> steps;
    static_assert(weight_bits<Element>::value == 0, "ds is not scaled");
    static_assert(16 * ROW_TILES * TILE.warps == KEYS * ACROSS, "warps divide the keys");

    /* For dq: warps side by side, row tiles of each, and tiles of 8 columns. */
    static constexpr int DQ_ACROSS = DIM % 64 == 0 ? 4 : 2;
    static constexpr int DQ_ROW_TILES = QUERIES * DQ_ACROSS / (16 * TILE.warps);
    static constexpr int DQ_TILES = DIM / 8 / DQ_ACROSS;
    static_assert(16 * DQ_ROW_TILES * TILE.warps == QUERIES * DQ_ACROSS, "warps divide dq");

    typedef query_sums_16<DQ_ROW_TILES, DQ_TILES, DQ_ACROSS> queries;

    typedef float scores[ROW_TILES][QUERIES / 8 / ACROSS][4];

    struct sums {
        float dk[ROW_TILES][DIM / 8 / ACROSS][4], dv[ROW_TILES][DIM / 8 / ACROSS][4];
    };

    static LANE_CODE char *weight_tile(char *shared)
    {
        return steps::rest(shared);
    }

    static LANE_CODE char *dscore_tile(char *shared)
    {
        return weight_tile(shared) + KEYS * QUERIES * 2;
    }

    static LANE_CODE void begin(sums &s)
    {
        products::clear(s.dk);
        products::clear(s.dv);
    }

    static LANE_CODE void copied() {}

    static LANE_CODE void load(const ra_cuda_backward &f, const backward_keys_block &block,
                               char *shared)
    {
        steps::load(f, block, true, shared);
    }

    /* Slots beyond the block's have zero keys, and must have zero weights too: infinite ones, of a
       query whose scores are low, would make its dq NaN. */
    static LANE_CODE void weigh(const ra_cuda_backward &f, const backward_keys_block &block,
                                const ra_query_cursor &c, char *shared,
                                const typename steps::stage &from)
    {
        int const column = products::template first_score_column<ACROSS, QUERIES / 8 / ACROSS>();
        scores p, dp;
        products::template score<ACROSS>(steps::key_tile(shared), from.query, p);
        if ((block.keys.count < KEYS) | ra_query_cursor_masked(&c, &block.keys, QUERIES))
            steps::mask(c, block.keys, products::template first_row<ROW_TILES, ACROSS>(), column,
                        p);
        steps::weigh(f.factor, from.lse + column, p);
        products::template store_scores<QUERIES, ACROSS>(p, weight_tile(shared));
        products::template score<ACROSS>(steps::value_tile(shared), from.dout, dp);
        steps::differentiate(from.delta + column, p, dp);
        products::template store_scores<QUERIES, ACROSS>(dp, dscore_tile(shared));
    }

    /* dq comes first, and its rows are added between the steps of the next product: additions queue
       up, and until one has been sent its registers cannot be used again. */
    static LANE_CODE void step(const ra_cuda_backward &f, backward_keys_block &block, int turn,
                               char *shared, int at, sums &sums)
    {
        steps::copy_next(f, block, turn, shared, at);
        ra_query_cursor const &c = block.cursor[turn];
        typename steps::stage const from = steps::stage_of(shared, at);
        typename queries::sums dq;
        weigh(f, block, c, shared, from);
        block_barrier(); /* weights and their gradients are there */
        products::clear(dq);
        products::template add_product<QUERIES, true, KEYS / 16, DQ_ACROSS>(
            dscore_tile(shared), steps::key_tile(shared), dq);
        query_sums_rows rows =
            query_sums_rows_of(f, block, c, products::template first_sum_column<DQ_ACROSS>());
        rows.own = products::template first_row<DQ_ROW_TILES, DQ_ACROSS>();
        static_assert(queries::EIGHTS <= QUERIES / 16, "a row per step");
        if (f.whole) {
            products::template add_product<QUERIES, false, QUERIES / 16, ACROSS>(
                weight_tile(shared), from.dout, sums.dv, [&](int step) {
                    warp_barrier(); /* or compilers would put all additions first */
                    if (step < queries::EIGHTS)
                        queries::add_whole_row(f, rows, step, dq);
                });
        } else {
            queries::add_elements(f, rows, dq);
            products::template add_product<QUERIES, false, QUERIES / 16, ACROSS>(
                weight_tile(shared), from.dout, sums.dv);
        }
        products::template add_product<QUERIES, false, QUERIES / 16, ACROSS>(dscore_tile(shared),
                                                                             from.query, sums.dk);
    }

    static LANE_CODE void visit(const ra_cuda_backward &f, backward_keys_block &block, char *shared,
                                sums &sums)
    {
        steps::template visit<backward_single_16>(f, block, shared, sums);
    }

    static LANE_CODE void end(const ra_cuda_backward &f, const backward_keys_block &block, bool any,
                              const sums &s)
    {
        float dk_factor[ROW_TILES][2], dv_factor[ROW_TILES][2];
        if (!any)
            return;
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            dk_factor[m][0] = dk_factor[m][1] = f.scale;
            dv_factor[m][0] = dv_factor[m][1] = 1;
        }
        steps::template put_rows<ACROSS>(f, f.dk, block, s.dk, dk_factor);
        steps::template put_rows<ACROSS>(f, f.dv, block, s.dv, dv_factor);
    }
};

#endif

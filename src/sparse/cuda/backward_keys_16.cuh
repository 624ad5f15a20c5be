/*
 * dk and dv of a block of keys in 16-bit elements on tensor cores (mma.m16n8k16, sm_80 and newer).
 *
 * Warp w has keys 16 ROW_TILES w and on; a lane holds fragments of their sums in float32 registers.
 * Per step of queries, everything transposed, so that weights and their gradients are left operands
 * where they are: s = k . q, p = 2^(s - lse), dv += p dout, dp = v . dout, ds = p (dp - delta),
 * dk += ds q. Rows of the next step are copied (cp.async) meanwhile.
 */
#ifndef RINGATTN_CUDA_BACKWARD_KEYS_16_CUH
#define RINGATTN_CUDA_BACKWARD_KEYS_16_CUH

#include "sparse/cuda/backward_keys.cuh"
#include "sparse/cuda/products_16.cuh"
#include "sparse/cuda/row_scale.cuh"

/* float16 has no room below the weights of long rows: they are 2^15 times as large there. */
template <class Element> struct weight_bits {
    static constexpr int value = 0;
};
template <> struct weight_bits<element_f16> {
    static constexpr int value = 15;
};

template <class Element, int DIM> struct backward_keys_16 {
    typedef Element element;
    static constexpr ra_cuda_tile TILE = ra_cuda_keys_of(RA_BF16, DIM);
    static constexpr int ROW_TILES = TILE.row_tiles, KEYS = TILE.k_rows, QUERIES = TILE.q_rows;
    static constexpr int THREADS = 32 * TILE.warps, Q_TILES = QUERIES / 8;
    static constexpr int PARTS = ra_cuda_key_parts(RA_BF16, DIM);
    typedef products_16<Element, DIM, THREADS> products;
    static_assert(QUERIES <= THREADS, "a thread copies the LSE of a query");

    /* What a lane holds: rows lane / 4 and lane / 4 + 8 of each of its row tiles. dk, then dv;
       where parts are tasks of their own, that of the part. */
    struct sums {
        float acc[3 - PARTS][ROW_TILES][DIM / 8][4];
        row_scale<Element, ROW_TILES> scale;
    };

    /* Queries of a step, their dout, LSE and delta. */
    struct stage {
        char *query, *dout;
        float *lse, *delta;
    };

    static LANE_CODE char *key_tile(char *shared)
    {
        return shared + 16 * QUERIES;
    }

    static LANE_CODE char *value_tile(char *shared)
    {
        return key_tile(shared) + KEYS * DIM * 2;
    }

    static LANE_CODE stage stage_of(char *shared, int turn)
    {
        stage s;
        s.lse = (float *)shared + 2 * QUERIES * turn;
        s.delta = s.lse + QUERIES;
        s.query = key_tile(shared) + (2 * KEYS + 2 * QUERIES * turn) * DIM * 2;
        s.dout = s.query + QUERIES * DIM * 2;
        return s;
    }

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

    static LANE_CODE void load(const ra_cuda_backward &f, const backward_keys_block &block,
                               char *shared)
    {
        ra_cuda_key_task const &task = block.task;
        ra_key_block const &keys = block.keys;
        const char *const k = head_data(f.k, Element::bytes, task.batch, task.kv_head);
        const char *const v = head_data(f.v, Element::bytes, task.batch, task.kv_head);
        products::template copy_rows<KEYS>(f.aligned, f.dim, k, f.k.row_stride, keys.row,
                                           keys.stride, keys.count, key_tile(shared));
        if (has_keys(task))
            products::template copy_rows<KEYS>(f.aligned, f.dim, v, f.v.row_stride, keys.row,
                                               keys.stride, keys.count, value_tile(shared));
        copies_commit();
    }

    static LANE_CODE void copy_step(const ra_cuda_backward &f, const ra_cuda_key_task &task,
                                    const ra_query_cursor &c, const stage &to)
    {
        const char *const q = head_data(f.q, Element::bytes, task.batch, c.head);
        const char *const dout = head_data(f.dout, Element::bytes, task.batch, c.head);
        int64_t const row = ra_query_cursor_row(&c, c.a);
        int const count = c.q_count - c.a, thread = thread_index();
        products::template copy_rows<QUERIES>(f.aligned, f.dim, q, f.q.row_stride, row, c.q_stride,
                                              count, to.query);
        products::template copy_rows<QUERIES>(f.aligned, f.dim, dout, f.dout.row_stride, row,
                                              c.q_stride, count, to.dout);
        if (thread < QUERIES) {
            int64_t const at = task.batch * f.lse_batch_stride + (int64_t)c.head * f.map.q_rows +
                               row + (thread < count ? (int64_t)c.q_stride * thread : 0);
            copy_float_async(to.lse + thread, f.lse + at, thread < count);
            copy_float_async(to.delta + thread, f.delta + at, thread < count);
        }
        copies_commit();
    }

    typedef float scores[ROW_TILES][Q_TILES][4];

    static LANE_CODE void mask(const ra_query_cursor &c, const ra_key_block &keys, scores &s)
    {
        int const slot = products::template first_row<ROW_TILES>();
        int const query = c.a + products::first_column();
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int const key = ra_query_cursor_key(&c, &keys, slot + 16 * m + 8 * half);
                ra_live_span const span = ra_query_cursor_span(&c, query, key);
#pragma unroll
                for (int n = 0; n < Q_TILES; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        if (!ra_live_span_has(span, 8 * n + e))
                            s[m][n][2 * half + e] = -INFINITY;
            }
    }

    /* Scores become weights. A query that is not there has LSE 0, and dout 0. */
    static LANE_CODE void weigh(float factor, const float *lse, scores &s)
    {
        int const column = products::first_column();
#pragma unroll
        for (int n = 0; n < Q_TILES; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float const base =
                    weight_base(lse[column + 8 * n + e]) - (float)weight_bits<Element>::value;
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        s[m][n][2 * half + e] =
                            exp2_fast(fmaf(s[m][n][2 * half + e], factor, -base));
            }
    }

    /* dp becomes ds. */
    static LANE_CODE void differentiate(const float *delta, const scores &p, scores &dp)
    {
        int const column = products::first_column();
#pragma unroll
        for (int n = 0; n < Q_TILES; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float const less = delta[column + 8 * n + e];
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        dp[m][n][2 * half + e] =
                            p[m][n][2 * half + e] * (dp[m][n][2 * half + e] - less);
            }
    }

    static LANE_CODE void step(const ra_cuda_backward &f, const backward_keys_block &block,
                               const ra_query_cursor &c, char *shared, const stage &from,
                               sums &sums)
    {
        scores p;
        products::score(key_tile(shared), from.query, p);
        if (ra_query_cursor_masked(&c, &block.keys, QUERIES))
            mask(c, block.keys, p);
        weigh(f.factor, from.lse, p);
        if (has_values(block.task))
            products::add_weighted(p, from.dout, sums.acc[2 - PARTS]);
        if (has_keys(block.task)) {
            scores dp;
            products::score(value_tile(shared), from.dout, dp);
            differentiate(from.delta, p, dp);
            sums.scale.fit(dp, sums.acc[0]);
            products::add_weighted(dp, from.query, sums.acc[0]);
        }
    }

    static LANE_CODE void visit(const ra_cuda_backward &f, backward_keys_block &block, char *shared,
                                sums &sums)
    {
        if (!visit_is_over(block, block.cursor[0]))
            copy_step(f, block.task, block.cursor[0], stage_of(shared, 0));
        for (int turn = 0, at = 0; !visit_is_over(block, block.cursor[turn]); at ^= 1) {
            int const next = turn == 2 ? 0 : turn + 1, after = turn == 0 ? 2 : turn - 1;
            copies_wait();
            block_barrier(); /* keys and this step's rows are there; the other stage and the cursor
                                of the step before have been read, the next cursor is there */
            if (!visit_is_over(block, block.cursor[next]))
                copy_step(f, block.task, block.cursor[next], stage_of(shared, at ^ 1));
            if (thread_index() == 0) {
                block.cursor[after] = block.cursor[next];
                visit_next<THREADS>(f, block, QUERIES, block.cursor[after]);
            }
            step(f, block, block.cursor[turn], shared, stage_of(shared, at), sums);
            turn = next;
        }
    }

    static LANE_CODE void add_rows(const ra_cuda_backward &f, const ra_view &view,
                                   const backward_keys_block &block,
                                   const float (&acc)[ROW_TILES][DIM / 8][4],
                                   const float (&factor)[ROW_TILES][2])
    {
        int const first = products::template first_row<ROW_TILES>();
        int const column = products::first_column();
        ra_key_block const keys = block.keys;
        char *const data =
            head_data(view, (int)sizeof(float), block.task.batch, block.task.kv_head);
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int const slot = first + 16 * m + 8 * half;
                if (slot >= keys.count)
                    continue;
                int64_t const row = keys.row + (int64_t)keys.stride * slot;
                float *const to = (float *)data + row * view.row_stride + column;
#pragma unroll
                for (int n = 0; n < DIM / 8; ++n) {
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        if (8 * n + e < f.dim - column)
                            to[8 * n + e] += acc[m][n][2 * half + e] * factor[m][half];
                }
            }
        }
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
            add_rows(f, f.dk, block, s.acc[0], dk_factor);
        if (has_values(block.task))
            add_rows(f, f.dv, block, s.acc[2 - PARTS], dv_factor);
    }
};

#endif

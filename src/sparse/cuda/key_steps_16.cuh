/*
 * Common to the 16-bit kernels that own a block of keys: where tiles lie in shared memory, the loop
 * over the steps of queries that see the block, and what becomes of a lane's scores.
 *
 * Rows of the next step are copied (cp.async) while one is worked on.
 *
 * Includers bring the primitives first: lanes.cuh on a GPU, an emulation of it in tests.
 */
#ifndef RINGATTN_CUDA_KEY_STEPS_16_CUH
#define RINGATTN_CUDA_KEY_STEPS_16_CUH

#include "sparse/cuda/backward_keys.cuh"
#include "sparse/cuda/products_16.cuh"
#include "sparse/cuda/row_scale.cuh"

/* Weights of long rows would underflow in float16: there they are 2^15 times as large. */
template <class Element> struct weight_bits {
    static constexpr int value = 0;
};
template <> struct weight_bits<element_f16> {
    static constexpr int value = 15;
};

/* Tiles are rows, or panels, as products_16 has them; FIRST_TILE: bytes to the first one. */
template <class Element, int DIM, int KEYS, int QUERIES, int THREADS, int PANEL = DIM,
          int FIRST_TILE = 16 * QUERIES>
struct key_steps_16 {
    typedef products_16<Element, DIM, THREADS, PANEL> products;
    static_assert(FIRST_TILE >= 16 * QUERIES, "LSE and delta of two stages come before");
    static_assert(QUERIES <= THREADS, "a thread copies the LSE of a query");

    /* Queries of a step, their dout, LSE and delta. */
    struct stage {
        char *query, *dout;
        float *lse, *delta;
    };

    static LANE_CODE char *key_tile(char *shared)
    {
        return shared + FIRST_TILE;
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

    /* After both stages. */
    static LANE_CODE char *rest(char *shared)
    {
        return stage_of(shared, 2).query;
    }

    /* ---- copies ---- */

    static LANE_CODE void load(const ra_cuda_backward &f, const backward_keys_block &block,
                               bool values, char *shared)
    {
        ra_cuda_key_task const &task = block.task;
        ra_key_block const &keys = block.keys;
        const char *const k = head_data(f.k, Element::bytes, task.batch, task.kv_head);
        const char *const v = head_data(f.v, Element::bytes, task.batch, task.kv_head);
        products::template copy_rows<KEYS>(f.aligned, f.dim, k, f.k.row_stride, keys.row,
                                           keys.stride, keys.count, key_tile(shared));
        if (values)
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

    /* Three cursors take turns, and two stages of rows. */
    static LANE_CODE int turn_after(int turn)
    {
        return turn == 2 ? 0 : turn + 1;
    }

    /* Copy the next step's rows, and find the one after it. */
    static LANE_CODE void copy_next(const ra_cuda_backward &f, backward_keys_block &block, int turn,
                                    char *shared, int at)
    {
        int const next = turn_after(turn), after = turn == 0 ? 2 : turn - 1;
        if (!visit_is_over(block, block.cursor[next]))
            copy_step(f, block.task, block.cursor[next], stage_of(shared, at ^ 1));
        if (thread_index() == 0) {
            ra_query_cursor c = block.cursor[next]; /* in registers: others wait for this thread */
            visit_next(f, block, QUERIES, c);
            block.cursor[after] = c;
        }
        warp_barrier(); /* all lanes do what follows together, as products ask for */
    }

    /* Block::step for every step of the list: it calls copy_next. Block::copied is what a thread
       does about its copies that have arrived, before others read them. */
    template <class Block>
    static LANE_CODE void visit(const ra_cuda_backward &f, backward_keys_block &block, char *shared,
                                typename Block::sums &sums)
    {
        if (!visit_is_over(block, block.cursor[0]))
            copy_step(f, block.task, block.cursor[0], stage_of(shared, 0));
        for (int turn = 0, at = 0; !visit_is_over(block, block.cursor[turn]); at ^= 1) {
            copies_wait();
            Block::copied();
            block_barrier(); /* keys and this step's rows are there; the other stage, the cursor of
                                the step before and what it left in shared memory have been read,
                                the next cursor is there */
            Block::step(f, block, turn, shared, at, sums);
            turn = turn_after(turn);
        }
    }

    /* ---- scores: rows are slots, from a lane's first `slot` on; columns are queries, from
       `column` on ---- */

    template <int ROW_TILES, int TILES>
    static LANE_CODE void mask(const ra_query_cursor &c, const ra_key_block &keys, int slot,
                               int column, float (&s)[ROW_TILES][TILES][4])
    {
        int const query = c.a + column;
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int const key = ra_query_cursor_key(&c, &keys, slot + 16 * m + 8 * half);
                products::mask_row(ra_query_cursor_span(&c, query, key), half, s[m]);
            }
    }

    /* Scores become weights; `lse` is the first column's. A query that is not there has LSE 0, and
       dout 0. */
    template <int ROW_TILES, int TILES>
    static LANE_CODE void weigh(float factor, const float *lse, float (&s)[ROW_TILES][TILES][4])
    {
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float const base = weight_base(lse[8 * n + e]) - (float)weight_bits<Element>::value;
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        s[m][n][2 * half + e] =
                            exp2_fast(fmaf(s[m][n][2 * half + e], factor, -base));
            }
    }

    /* dp becomes ds; `delta` is the first column's. */
    template <int ROW_TILES, int TILES>
    static LANE_CODE void differentiate(const float *delta, const float (&p)[ROW_TILES][TILES][4],
                                        float (&dp)[ROW_TILES][TILES][4])
    {
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float const less = delta[8 * n + e];
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        dp[m][n][2 * half + e] =
                            p[m][n][2 * half + e] * (dp[m][n][2 * half + e] - less);
            }
    }

    /* ---- sums ---- */

    /* Put a lane's sums into rows of dk or dv, which no other thread block has. */
    template <int ACROSS, int ROW_TILES, int TILES>
    static LANE_CODE void
    put_rows(const ra_cuda_backward &f, const ra_view &view, const backward_keys_block &block,
             const float (&acc)[ROW_TILES][TILES][4], const float (&factor)[ROW_TILES][2])
    {
        int const first = products::template first_row<ROW_TILES, ACROSS>();
        int const column = products::template first_sum_column<ACROSS>();
        ra_key_block const keys = block.keys;
        int const bytes = grad_bytes(view);
        char *const data = head_data(view, bytes, block.task.batch, block.task.kv_head);
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int const slot = first + 16 * m + 8 * half;
                if (slot >= keys.count)
                    continue;
                int64_t const row = keys.row + (int64_t)keys.stride * slot;
                products::template put_row<ACROSS>(acc[m], half, factor[m][half], f.whole,
                                                   f.dim - column, view.dtype,
                                                   data + (row * view.row_stride + column) * bytes);
            }
        }
    }
};

#endif

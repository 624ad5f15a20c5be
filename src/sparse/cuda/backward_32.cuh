/*
 * Backward in float32, exact: no tensor cores, which would round to tf32. It exists to check the
 * fast kernels, and is written to be read.
 *
 * Tiles are square, QUERIES x KEYS. First, P and dS of a tile go to shared memory, SHARE threads
 * per query. Then SHARE threads share one output row (a query's dq, or a key's dk and dv); each has
 * dims q, q + SHARE, ... Sums run within a tile first; sums across the (small) tiles are
 * compensated: two floats, the sum and its rounding error.
 */
#ifndef RINGATTN_CUDA_BACKWARD_32_CUH
#define RINGATTN_CUDA_BACKWARD_32_CUH

#include "sparse/cuda/backward_keys.cuh"

template <int DIM> struct backward_32 {
    typedef element_f32 element;
    static constexpr ra_cuda_tile TILE = ra_cuda_keys_of(RA_F32, DIM);
    static constexpr int THREADS = 32 * TILE.warps, QUERIES = TILE.q_rows, KEYS = TILE.k_rows;
    static constexpr int PITCH = DIM + 1;           /* rows begin in different banks */
    static constexpr int SHARE = THREADS / QUERIES; /* threads of a row, which divide its dims */
    static constexpr int OWN_DIMS = DIM / SHARE;
    static constexpr int SIDE_BY_SIDE = 8; /* dims that are summed in one loop over rows */
    static_assert(THREADS == SHARE * QUERIES && QUERIES == KEYS, "a row's threads are its own");
    static_assert(OWN_DIMS % SIDE_BY_SIDE == 0, "whole loops");

    struct tiles {
        float query[QUERIES][PITCH], dout[QUERIES][PITCH], key[KEYS][PITCH], value[KEYS][PITCH];
        float weight[QUERIES][KEYS + 1], dscore[QUERIES][KEYS + 1]; /* 0 if the pair is not live */
        float base[QUERIES], delta[QUERIES];
    };
    static_assert(sizeof(tiles) + RA_CUDA_KEYS_HEAD_BYTES + RA_CUDA_LIST_BYTES == TILE.shared_bytes,
                  "as the table has it");

    static LANE_CODE void copy_row_numbers(const float *lse, const float *delta, int64_t begin,
                                           int64_t stride, int count, tiles &t)
    {
        int const r = thread_index();
        if (r >= QUERIES)
            return;
        t.base[r] = r < count ? weight_base(lse[begin + stride * r]) : INFINITY;
        t.delta[r] = r < count ? delta[begin + stride * r] : 0;
    }

    /* Weight and score gradient of query a and key k, if the pair is live. */
    static LANE_CODE void weigh(float factor, int dim, int a, int k, bool live, tiles &t)
    {
        float score = 0, dp = 0;
        for (int d = 0; d < dim; ++d) {
            score = fmaf(t.query[a][d], t.key[k][d], score);
            dp = fmaf(t.dout[a][d], t.value[k][d], dp);
        }
        float const p = live ? exp2f(fmaf(score, factor, -t.base[a])) : 0;
        t.weight[a][k] = p;
        t.dscore[a][k] = live ? p * (dp - t.delta[a]) : 0;
    }

    /* Skip terms without weight: zero times an Inf or NaN is NaN. */
    static LANE_CODE float add_product(float sum, float weight, float value)
    {
        return weight != 0 ? fmaf(weight, value, sum) : sum;
    }

    static LANE_CODE void add_row(const ra_cuda_backward &f, char *data, int64_t row_stride,
                                  int64_t row, float factor, const float (&acc)[OWN_DIMS])
    {
        int const q = thread_index() % SHARE;
        float *const to = (float *)data + row * row_stride + q;
#pragma unroll
        for (int j = 0; j < OWN_DIMS; ++j)
            if (SHARE * j < f.dim - q)
                to[SHARE * j] += acc[j] * factor;
    }
};

/* dq of one tile. */
template <int DIM> struct backward_queries_32 : backward_32<DIM> {
    typedef backward_32<DIM> base;
    typedef typename base::tiles tiles;
    static constexpr ra_cuda_tile TILE = ra_cuda_queries_of(RA_F32, DIM);

    static LANE_CODE void tile(const ra_cuda_backward &f, backward_queries_block &block,
                               const ra_tile &tile, uint32_t run_end, char *shared)
    {
        ra_key_cursor &c = block.cursor[0];
        tiles &t = *(tiles *)shared;
        int const row = thread_index() / base::SHARE, q = thread_index() % base::SHARE;
        float acc[base::OWN_DIMS], rest[base::OWN_DIMS];
#pragma unroll
        for (int j = 0; j < base::OWN_DIMS; ++j)
            acc[j] = rest[j] = 0;
        if (thread_index() == 0)
            ra_key_cursor_begin(&tile, run_end, f.map.runs, &c);
        copy_floats<base::THREADS>(block.q, f.q.row_stride, tile.q_begin, tile.q_stride,
                                   tile.q_count, f.dim, t.query);
        copy_floats<base::THREADS>(block.dout, f.dout.row_stride, tile.q_begin, tile.q_stride,
                                   tile.q_count, f.dim, t.dout);
        base::copy_row_numbers(block.lse, block.delta, tile.q_begin, tile.q_stride, tile.q_count,
                               t);
        block_barrier(); /* the cursor is set */
        while (!ra_key_cursor_is_over(&c)) {
            int64_t const begin = ra_key_cursor_row(&c, c.b);
            copy_floats<base::THREADS>(block.k, f.k.row_stride, begin, c.k_stride, c.end - c.b,
                                       f.dim, t.key);
            copy_floats<base::THREADS>(block.v, f.v.row_stride, begin, c.k_stride, c.end - c.b,
                                       f.dim, t.value);
            block_barrier(); /* queries, keys and values are there */
#pragma unroll 1
            for (int k = q; k < base::KEYS; k += base::SHARE)
                base::weigh(f.factor, f.dim, row, k, ra_key_cursor_live(&c, row, c.b + k), t);
            block_barrier(); /* gradients of scores are there */
#pragma unroll
            for (int j = 0; j < base::OWN_DIMS; j += base::SIDE_BY_SIDE) {
                float sum[base::SIDE_BY_SIDE] = {};
#pragma unroll 1
                for (int k = 0; k < base::KEYS; ++k)
#pragma unroll
                    for (int i = 0; i < base::SIDE_BY_SIDE; ++i)
                        sum[i] = base::add_product(sum[i], t.dscore[row][k],
                                                   t.key[k][q + base::SHARE * (j + i)]);
#pragma unroll
                for (int i = 0; i < base::SIDE_BY_SIDE; ++i)
                    carry_sum(acc[j + i], rest[j + i], sum[i]);
            }
            block_barrier(); /* all of it and the cursor have been read */
            if (thread_index() == 0)
                ra_key_cursor_next(&c, base::KEYS);
            block_barrier(); /* the cursor has moved on */
        }
        if (row < tile.q_count)
            base::add_row(f, block.dq, f.dq.row_stride, tile.q_begin + (int64_t)tile.q_stride * row,
                          f.scale, acc);
    }
};

/* dk and dv of one block of keys. */
template <int DIM> struct backward_keys_32 : backward_32<DIM> {
    typedef backward_32<DIM> base;
    typedef typename base::tiles tiles;

    struct sums {
        float dk[base::OWN_DIMS], dk_rest[base::OWN_DIMS];
        float dv[base::OWN_DIMS], dv_rest[base::OWN_DIMS];
    };

    static LANE_CODE void begin(sums &s)
    {
#pragma unroll
        for (int j = 0; j < base::OWN_DIMS; ++j)
            s.dk[j] = s.dk_rest[j] = s.dv[j] = s.dv_rest[j] = 0;
    }

    static LANE_CODE void load(const ra_cuda_backward &f, const backward_keys_block &block,
                               char *shared)
    {
        ra_cuda_key_task const &task = block.task;
        ra_key_block const &keys = block.keys;
        tiles &t = *(tiles *)shared;
        const char *const k = head_data(f.k, element_f32::bytes, task.batch, task.kv_head);
        const char *const v = head_data(f.v, element_f32::bytes, task.batch, task.kv_head);
        copy_floats<base::THREADS>(k, f.k.row_stride, keys.row, keys.stride, keys.count, f.dim,
                                   t.key);
        copy_floats<base::THREADS>(v, f.v.row_stride, keys.row, keys.stride, keys.count, f.dim,
                                   t.value);
    }

    static LANE_CODE void copy_step(const ra_cuda_backward &f, const ra_cuda_key_task &task,
                                    const ra_query_cursor &c, tiles &t)
    {
        const char *const q = head_data(f.q, element_f32::bytes, task.batch, c.head);
        const char *const dout = head_data(f.dout, element_f32::bytes, task.batch, c.head);
        int64_t const row = ra_query_cursor_row(&c, c.a);
        int64_t const at = task.batch * f.lse_batch_stride + (int64_t)c.head * f.map.q_rows;
        int const count = c.q_count - c.a;
        copy_floats<base::THREADS>(q, f.q.row_stride, row, c.q_stride, count, f.dim, t.query);
        copy_floats<base::THREADS>(dout, f.dout.row_stride, row, c.q_stride, count, f.dim, t.dout);
        base::copy_row_numbers(f.lse + at, f.delta + at, row, c.q_stride, count, t);
    }

    static LANE_CODE void add_step(const tiles &t, sums &s)
    {
        int const key = thread_index() / base::SHARE, q = thread_index() % base::SHARE;
#pragma unroll
        for (int j = 0; j < base::OWN_DIMS; j += base::SIDE_BY_SIDE) {
            float dk[base::SIDE_BY_SIDE] = {}, dv[base::SIDE_BY_SIDE] = {};
#pragma unroll 1
            for (int a = 0; a < base::QUERIES; ++a) {
#pragma unroll
                for (int i = 0; i < base::SIDE_BY_SIDE; ++i) {
                    int const d = q + base::SHARE * (j + i);
                    dk[i] = base::add_product(dk[i], t.dscore[a][key], t.query[a][d]);
                    dv[i] = base::add_product(dv[i], t.weight[a][key], t.dout[a][d]);
                }
            }
#pragma unroll
            for (int i = 0; i < base::SIDE_BY_SIDE; ++i) {
                carry_sum(s.dk[j + i], s.dk_rest[j + i], dk[i]);
                carry_sum(s.dv[j + i], s.dv_rest[j + i], dv[i]);
            }
        }
    }

    static LANE_CODE void visit(const ra_cuda_backward &f, backward_keys_block &block, char *shared,
                                sums &s)
    {
        tiles &t = *(tiles *)shared;
        ra_query_cursor &c = block.cursor[0];
        int const row = thread_index() / base::SHARE, q = thread_index() % base::SHARE;
        while (!visit_is_over(block, c)) {
            copy_step(f, block.task, c, t);
            block_barrier(); /* keys, values and this step's rows are there */
#pragma unroll 1
            for (int k = q; k < base::KEYS; k += base::SHARE) {
                int32_t const key = ra_query_cursor_key(&c, &block.keys, k);
                base::weigh(f.factor, f.dim, row, k,
                            c.a + row < c.q_count && ra_query_cursor_live(&c, c.a + row, key), t);
            }
            block_barrier(); /* weights are there */
            add_step(t, s);
            block_barrier(); /* all of it and the cursor have been read */
            if (thread_index() == 0)
                visit_next(f, block, base::QUERIES, c);
            block_barrier(); /* the cursor has moved on */
        }
    }

    static LANE_CODE void end(const ra_cuda_backward &f, const backward_keys_block &block, bool any,
                              const sums &s)
    {
        ra_cuda_key_task const &task = block.task;
        ra_key_block const &keys = block.keys;
        int const slot = thread_index() / base::SHARE;
        int64_t const row = keys.row + (int64_t)keys.stride * slot;
        if (!any || slot >= keys.count)
            return;
        base::add_row(f, head_data(f.dk, (int)sizeof(float), task.batch, task.kv_head),
                      f.dk.row_stride, row, f.scale, s.dk);
        base::add_row(f, head_data(f.dv, (int)sizeof(float), task.batch, task.kv_head),
                      f.dv.row_stride, row, 1, s.dv);
    }
};

#endif

/*
 * Gradients of linear attention, in two sweeps over the chunks of a segment. `queries` carries the
 * states forwards and computes dq; on the way it sums G and w over the segment's queries. `keys`
 * carries G and w backwards; dk and dv are separate tasks, each of which carries one matrix. The
 * sweeps share two floats per row and query head, 1 / d and c.
 */
#ifndef RINGATTN_CUDA_LINEAR_BACKWARD_CUH
#define RINGATTN_CUDA_LINEAR_BACKWARD_CUH

#include "sparse/cuda/linear_block.cuh"

/* ---- queries --------------------------------------------------------------------------------- */

template <int DIM> struct linear_queries : linear_block<DIM> {
    typedef linear_block<DIM> base;
    typedef typename base::tiles tiles;
    typedef typename base::wide wide;

    /*
     * s holds S do of each row. dphi(q) = S do / d + c z, with c = -(phi(q) . S do) / d^2, which is
     * -(g . o): the output is not needed. do becomes g; only this warp has read these rows.
     */
    static LANE_CODE void finish(const ra_cuda_linear &f, const linear_task &task, int member,
                                 int64_t first, int count, tiles &t, const wide &s)
    {
        int const lane = lane_index();
        char *const dq = linear_head(f.dq, task.batch, task.kv_head * task.ratio + member);
        float *const lines = linear_lines(f, task, member, first);
        float line[base::COLUMNS];
        warp_barrier(); /* all lanes have read the warp's rows of do, which become g */
        base::line_before(f, t, line);
#pragma unroll
        for (int r = 0; r < base::OWN; ++r) {
            int const row = base::own_row() + r;
            float d = 0, top = 0;
            base::line_at(f, t, row, line);
#pragma unroll
            for (int n = 0; n < base::COLUMNS; ++n) {
                float const query = t.query[row][lane + 32 * n];
                d = fmaf(query, base::line_of(t, line, n), d);
                top = fmaf(query, s.at[r][n], top);
            }
            float const inverse = 1 / (warp_sum(d) + RA_LINEAR_EPSILON);
            float const c = row < count ? -warp_sum(top) * inverse * inverse : 0;
#pragma unroll
            for (int n = 0; n < base::COLUMNS; ++n)
                t.dout[row][lane + 32 * n] *= inverse;
            store(f, dq, (first + row) * f.dq.row_stride, row < count ? f.dim - lane : 0, inverse,
                  c, t.query[row], t, line, s.at[r]);
            if (lane == 0)
                t.c[row] = c;
            if (lane < 2 && row < count)
                lines[2 * row + lane] = lane == 0 ? inverse : c;
        }
    }

    static LANE_CODE void store(const ra_cuda_linear &f, char *dq, int64_t at, int dims,
                                float inverse, float c, const float *query, const tiles &t,
                                const float (&line)[base::COLUMNS], const float (&s)[base::COLUMNS])
    {
        int const lane = lane_index();
#pragma unroll
        for (int n = 0; n < base::COLUMNS; ++n)
            if (32 * n < dims)
                linear_store(f.dq.dtype, dq, at + lane + 32 * n,
                             fmaf(c, base::line_of(t, line, n), s[n] * inverse) *
                                 linear_slope(query[lane + 32 * n]));
    }

    /* `matrix` is transposed: the right operand of the product with do. */
    static LANE_CODE void member(const ra_cuda_linear &f, const linear_task &task, int member,
                                 int64_t row, int n, const float *matrix, float *rest, tiles &t)
    {
        int32_t const head = task.kv_head * task.ratio + member;
        wide s;
        block_barrier(); /* queries, dout and weights have been used */
        base::load(f.q, task.batch, head, row, n, f.dim, true, t.query);
        base::load(f.dout, task.batch, head, row, n, f.dim, false, t.dout);
        block_barrier(); /* the chunk is there */
        base::see(f, t.dout, t.value, t.key, matrix, t, s);
        finish(f, task, member, row, n, t, s);
        block_barrier(); /* g and c are there */
        base::carry_product(t.query, t.dout, f.dim, task.grad, rest);
        base::carry_rows(t.query, t.c, f.dim, t.grad_line, t.grad_line_rest);
    }

    static LANE_CODE void begin(const ra_cuda_linear &f, const linear_task &task, tiles &t)
    {
        int const square = f.dim * f.dim;
        linear_copy_transposed(linear_scratch(f, 0), task.state, f.dim);
        linear_clear(linear_scratch(f, 1), 2 * square);
        linear_clear(task.grad, square);
        for (int d = thread_index(); d < DIM; d += base::THREADS) {
            t.line[d] = d < f.dim ? task.state[square + d] : 0;
            t.line_rest[d] = t.grad_line[d] = t.grad_line_rest[d] = 0;
        }
    }

    static LANE_CODE void task(const ra_cuda_linear &f, int64_t index, tiles &t)
    {
        linear_task const task = linear_task_of(f, index);
        float *const matrix = linear_scratch(f, 0);
        begin(f, task, t);
        for (int64_t row = task.begin; row < task.end; row += base::ROWS) {
            int const n = (int)(task.end - row < base::ROWS ? task.end - row : base::ROWS);
            block_barrier(); /* the chunk before has been added */
            if (f.causal) {
                base::load(f.k, task.batch, task.kv_head, row, n, f.dim, true, t.key);
                base::load(f.v, task.batch, task.kv_head, row, n, f.dim, false, t.value);
            }
            for (int i = 0; i < task.ratio; ++i)
                member(f, task, i, row, n, matrix, linear_scratch(f, 2), t);
            /* The state before the chunk was used before the last barrier. */
            if (f.causal) {
                base::carry_product(t.value, t.key, f.dim, matrix, linear_scratch(f, 1));
                base::carry_rows(t.key, NULL, f.dim, t.line, t.line_rest);
            }
        }
        block_barrier(); /* sums are complete */
        linear_copy(task.grad + f.dim * f.dim, t.grad_line, f.dim);
    }
};

/* ---- keys ------------------------------------------------------------------------------------ */

/*
 * dphi(k) = G v + w and dv = phi(k) G: both are own rows times a matrix, transposed for dk. Then
 * come the queries of the chunk: rows of `added` are added, weighted by own rows times `others`
 * (for dk also c), and the matrix gains others^T times `added`.
 */
template <int DIM> struct linear_keys : linear_block<DIM> {
    typedef linear_block<DIM> base;
    typedef typename base::tiles tiles;
    typedef typename base::wide wide;

    static LANE_CODE void load_queries(const ra_cuda_linear &f, const linear_task &task, int member,
                                       int64_t row, int n, tiles &t)
    {
        int32_t const head = task.kv_head * task.ratio + member;
        const float *const lines = linear_lines(f, task, member, row);
        base::load(f.q, task.batch, head, row, n, f.dim, true, t.query);
        base::load(f.dout, task.batch, head, row, n, f.dim, false, t.dout);
        for (int i = thread_index(); i < 2 * base::ROWS; i += base::THREADS) {
            float const x = i < 2 * n ? lines[i] : 0;
            float *const to = i % 2 == 0 ? t.inverse : t.c;
            to[i / 2] = x;
        }
        block_barrier(); /* dout and its factors are there */
        for (int i = thread_index(); i < base::ROWS * DIM; i += base::THREADS)
            t.dout[i / DIM][i % DIM] *= t.inverse[i / DIM];
        block_barrier(); /* g is there */
    }

    static LANE_CODE void member(const ra_cuda_linear &f, bool for_keys, tiles &t, float *matrix,
                                 float *rest, wide &s)
    {
        typename base::tile const &own = for_keys ? t.value : t.key;
        typename base::tile const &others = for_keys ? t.dout : t.query;
        typename base::tile const &added = for_keys ? t.query : t.dout;
        typename base::template sums<1> weights;
        base::clear(weights);
        base::multiply_transposed(own, others, f.dim, weights);
        if (for_keys)
#pragma unroll
            for (int r = 0; r < base::OWN; ++r)
                weights.at[r][0] += t.c[lane_index()];
        base::keep_weights(weights, t);
        block_barrier(); /* weights are there, and the matrix has been used */
        base::template multiply_causal<true>(t, added, s);
        base::carry_product(others, added, f.dim, matrix, rest);
        if (for_keys)
            base::carry_rows(t.query, t.c, f.dim, t.line, t.line_rest);
    }

    static LANE_CODE void store(const ra_cuda_linear &f, const linear_task &task, bool for_keys,
                                int64_t first, int n, const wide &s)
    {
        int const lane = lane_index();
        const ra_view &view = for_keys ? f.dk : f.dv;
        char *const to = linear_head(view, task.batch, task.kv_head);
        const char *const keys = linear_head(f.k, task.batch, task.kv_head);
#pragma unroll
        for (int r = 0; r < base::OWN; ++r) {
            int const row = base::own_row() + r;
#pragma unroll
            for (int c = 0; c < base::COLUMNS; ++c) {
                int const d = lane + 32 * c;
                if (row >= n || d >= f.dim)
                    continue;
                float x = s.at[r][c];
                if (for_keys)
                    x *= linear_slope(linear_feature(
                        linear_load(f.k.dtype, keys, (first + row) * f.k.row_stride + d)));
                linear_store(view.dtype, to, (first + row) * view.row_stride + d, x);
            }
        }
    }

    static LANE_CODE void chunk(const ra_cuda_linear &f, const linear_task &task, bool for_keys,
                                int64_t row, int n, tiles &t, float *matrix, float *rest)
    {
        wide s;
        block_barrier(); /* the chunk before has been added */
        if (for_keys)
            base::load(f.v, task.batch, task.kv_head, row, n, f.dim, false, t.value);
        else
            base::load(f.k, task.batch, task.kv_head, row, n, f.dim, true, t.key);
        block_barrier(); /* the own rows are there */
#pragma unroll
        for (int r = 0; r < base::OWN; ++r)
#pragma unroll
            for (int c = 0; c < base::COLUMNS; ++c)
                s.at[r][c] = for_keys ? t.line[lane_index() + 32 * c] : 0;
        base::multiply(for_keys ? t.value : t.key, matrix, f.dim, s);
        for (int i = 0; i < task.ratio && f.causal; ++i) {
            block_barrier(); /* queries, dout and weights have been used */
            load_queries(f, task, i, row, n, t);
            member(f, for_keys, t, matrix, rest, s);
        }
        store(f, task, for_keys, row, n, s);
    }

    /* Two tasks per segment: dk, then dv. */
    static LANE_CODE void task(const ra_cuda_linear &f, int64_t index, tiles &t)
    {
        linear_task const task = linear_task_of(f, index / 2);
        bool const for_keys = index % 2 == 0;
        int const square = f.dim * f.dim;
        float *const matrix = linear_scratch(f, 0), *const rest = linear_scratch(f, 1);
        if (for_keys)
            linear_copy_transposed(matrix, task.grad, f.dim);
        else
            linear_copy(matrix, task.grad, square);
        linear_clear(rest, square);
        for (int d = thread_index(); d < DIM; d += base::THREADS) {
            t.line[d] = d < f.dim ? task.grad[square + d] : 0;
            t.line_rest[d] = 0;
        }
        int64_t const chunks = (task.end - task.begin + base::ROWS - 1) / base::ROWS;
        for (int64_t i = chunks - 1; i >= 0; --i) {
            int64_t const row = task.begin + i * base::ROWS;
            int const n = (int)(task.end - row < base::ROWS ? task.end - row : base::ROWS);
            chunk(f, task, for_keys, row, n, t, matrix, rest);
        }
    }
};

#endif

/*
 * Linear attention, forward: a task is a segment of one (batch, kv head). A thread block goes
 * through it chunk by chunk, carries the state in scratch, and serves all query heads of the kv
 * head. Tasks share nothing that is written.
 */
#ifndef RINGATTN_CUDA_LINEAR_FORWARD_CUH
#define RINGATTN_CUDA_LINEAR_FORWARD_CUH

#include "sparse/cuda/linear_block.cuh"

/* ---- sums ------------------------------------------------------------------------------------ */

template <int DIM> struct linear_sum : linear_block<DIM> {
    typedef linear_block<DIM> base;
    typedef typename base::tiles tiles;

    static LANE_CODE void task(const ra_cuda_linear &f, int64_t index, tiles &t)
    {
        linear_task const task = linear_task_of(f, index);
        float *const matrix = task.state, *const rest = linear_scratch(f, 0);
        int const square = f.dim * f.dim;
        linear_clear(matrix, square);
        linear_clear(rest, square);
        linear_clear(t.line, DIM);
        linear_clear(t.line_rest, DIM);
        for (int64_t row = task.begin; row < task.end; row += base::ROWS) {
            int const n = (int)(task.end - row < base::ROWS ? task.end - row : base::ROWS);
            block_barrier(); /* the chunk before has been read; sums are clear */
            base::load(f.k, task.batch, task.kv_head, row, n, f.dim, true, t.key);
            base::load(f.v, task.batch, task.kv_head, row, n, f.dim, false, t.value);
            block_barrier(); /* keys and values are there */
            base::carry_product(t.key, t.value, f.dim, matrix, rest);
            base::carry_rows(t.key, NULL, f.dim, t.line, t.line_rest);
        }
        block_barrier(); /* sums are complete */
        linear_copy(matrix + square, t.line, f.dim);
    }
};

/* ---- chunk by chunk -------------------------------------------------------------------------- */

template <int DIM> struct linear_forward : linear_block<DIM> {
    typedef linear_block<DIM> base;
    typedef typename base::tiles tiles;
    typedef typename base::wide wide;

    /* Store rows of sums over what each row sees, divided by phi(q) z + eps. */
    static LANE_CODE void store(const ra_cuda_linear &f, const linear_task &task, int member,
                                int64_t first, int n, const tiles &t, const wide &s)
    {
        int const lane = lane_index(), own = base::own_row();
        char *const out = linear_head(f.out, task.batch, task.kv_head * task.ratio + member);
        float line[base::COLUMNS];
        base::line_before(f, t, line);
#pragma unroll
        for (int r = 0; r < base::OWN; ++r) {
            float d = 0;
            base::line_at(f, t, own + r, line);
#pragma unroll
            for (int c = 0; c < base::COLUMNS; ++c)
                d = fmaf(t.query[own + r][lane + 32 * c], base::line_of(t, line, c), d);
            float const inverse = 1 / (warp_sum(d) + RA_LINEAR_EPSILON);
#pragma unroll
            for (int c = 0; c < base::COLUMNS; ++c)
                if (own + r < n && lane + 32 * c < f.dim)
                    linear_store(f.out.dtype, out,
                                 (first + own + r) * f.out.row_stride + lane + 32 * c,
                                 s.at[r][c] * inverse);
        }
    }

    static LANE_CODE void member(const ra_cuda_linear &f, const linear_task &task, int member,
                                 int64_t row, int n, const float *matrix, tiles &t)
    {
        wide s;
        block_barrier(); /* queries and weights have been used */
        base::load(f.q, task.batch, task.kv_head * task.ratio + member, row, n, f.dim, true,
                   t.query);
        block_barrier(); /* the chunk is there */
        base::see(f, t.query, t.key, t.value, matrix, t, s);
        store(f, task, member, row, n, t, s);
    }

    static LANE_CODE void task(const ra_cuda_linear &f, int64_t index, tiles &t)
    {
        linear_task const task = linear_task_of(f, index);
        int const square = f.dim * f.dim;
        float *const own = linear_scratch(f, 0), *const rest = linear_scratch(f, 1);
        const float *const matrix = f.causal ? own : task.state; /* which is not added to */
        linear_clear(t.line, DIM);
        linear_clear(t.line_rest, DIM);
        block_barrier(); /* clear, where there are no dims */
        linear_copy(t.line, task.state + square, f.dim);
        if (f.causal) {
            linear_copy(own, task.state, square);
            linear_clear(rest, square);
        }
        for (int64_t row = task.begin; row < task.end; row += base::ROWS) {
            int const n = (int)(task.end - row < base::ROWS ? task.end - row : base::ROWS);
            block_barrier(); /* the chunk before has been added */
            if (f.causal) {
                base::load(f.k, task.batch, task.kv_head, row, n, f.dim, true, t.key);
                base::load(f.v, task.batch, task.kv_head, row, n, f.dim, false, t.value);
            }
            for (int i = 0; i < task.ratio; ++i)
                member(f, task, i, row, n, matrix, t);
            block_barrier(); /* the state before the chunk has been used */
            if (f.causal) {
                base::carry_product(t.key, t.value, f.dim, own, rest);
                base::carry_rows(t.key, NULL, f.dim, t.line, t.line_rest);
            }
        }
    }
};

#endif

/*
 * Linear attention row by row: `recurrent` with one state at hand, `cumsum` with the state of every
 * row in memory before any is read, as a plain cumulative sum has it. They exist for comparison,
 * and are bound by memory: each row goes through the whole state. A thread owns columns of the
 * matrices, and goes down them a few elements at a time: what it reads of them comes together. One
 * by one, each read would wait for the write before it, which might be to the same place.
 */
#ifndef RINGATTN_CUDA_LINEAR_ROWWISE_CUH
#define RINGATTN_CUDA_LINEAR_ROWWISE_CUH

#include "sparse/cuda/linear_block.cuh"

struct linear_rowwise {
    static constexpr ra_cuda_tile TILE = ra_cuda_linear_rowwise_tile();
    static constexpr int THREADS = 32 * TILE.warps, DIM = TILE.dim, SOME = 16;
    static_assert(THREADS >= DIM, "a thread has at most one column");
    static_assert(DIM % SOME == 0, "the last few rows of a column are within a row of tiles");

    struct tiles {
        float query[DIM], key[DIM], value[DIM];    /* one row of each */
        float line[DIM], line_rest[DIM], own[DIM]; /* z, what it cannot hold, and the chunk's */
    };
    static_assert(sizeof(tiles) == TILE.shared_bytes, "as the table has it");

    /* Rows [row, row + SOME) of a column; the last one stands for those beyond, which are not
       stored. */
    struct some {
        float at[SOME];
    };

    static LANE_CODE some take(const float *column, int row, int dim)
    {
        some s;
#pragma unroll
        for (int i = 0; i < SOME; ++i)
            s.at[i] = column[(row + i < dim ? row + i : dim - 1) * dim];
        return s;
    }

    static LANE_CODE void give(float *column, int row, int dim, const some &s)
    {
#pragma unroll
        for (int i = 0; i < SOME; ++i)
            if (row + i < dim)
                column[(row + i) * dim] = s.at[i];
    }

    static LANE_CODE float load(const ra_view &view, int64_t batch, int64_t head, int64_t row,
                                int d)
    {
        const char *const from = linear_head(view, batch, head);
        return linear_load(view.dtype, from, row * view.row_stride + d);
    }

    /* The state that a row sees, laid out as the pass's states. */
    static LANE_CODE float *prefix(const ra_cuda_linear &f, const linear_task &task, int64_t row)
    {
        return f.prefixes + (task.lane * f.rows + row) * ((int64_t)f.dim * (f.dim + 1));
    }

    /* Add a key to the sums of the chunk. Method cumsum also stores the state that the row sees. */
    static LANE_CODE void add_key(const ra_cuda_linear &f, const linear_task &task, int64_t row,
                                  const float *before, float *own, tiles &t)
    {
        int const e = thread_index();
        float *const to = f.stores ? prefix(f, task, row) : NULL;
        block_barrier(); /* the row before has been used */
        if (e < f.dim) {
            t.key[e] = linear_feature(load(f.k, task.batch, task.kv_head, row, e));
            t.value[e] = load(f.v, task.batch, task.kv_head, row, e);
            t.own[e] += t.key[e];
        }
        block_barrier(); /* the row is there */
        if (e >= f.dim)
            return;
        for (int d = 0; d < f.dim; d += SOME) {
            some s = take(own + e, d, f.dim);
            some seen = to != NULL ? take(before + e, d, f.dim) : some{};
#pragma unroll
            for (int i = 0; i < SOME; ++i)
                s.at[i] = fmaf(t.key[d + i], t.value[e], s.at[i]);
            give(own + e, d, f.dim, s);
#pragma unroll
            for (int i = 0; i < SOME; ++i)
                seen.at[i] += s.at[i];
            if (to != NULL)
                give(to + e, d, f.dim, seen);
        }
        if (to != NULL)
            to[f.dim * f.dim + e] = t.line[e] + t.own[e];
    }

    /* Add the chunk's sums to the longer ones, and begin anew. */
    static LANE_CODE void fold(const ra_cuda_linear &f, float *before, float *rest, float *own,
                               tiles &t)
    {
        int const e = thread_index();
        block_barrier(); /* z has been used */
        if (e >= f.dim)
            return;
        for (int d = 0; d < f.dim; d += SOME) {
            some sum = take(before + e, d, f.dim), left = take(rest + e, d, f.dim);
            some const more = take(own + e, d, f.dim);
#pragma unroll
            for (int i = 0; i < SOME; ++i)
                carry_sum(sum.at[i], left.at[i], more.at[i]);
            give(before + e, d, f.dim, sum);
            give(rest + e, d, f.dim, left);
            give(own + e, d, f.dim, some{});
        }
        carry_sum(t.line[e], t.line_rest[e], t.own[e]);
        t.own[e] = 0;
    }

    /* out = query (before + more) / (query . line + eps), the line in two parts likewise. */
    static LANE_CODE void use(const ra_cuda_linear &f, const linear_task &task, int member,
                              int64_t row, const float *before, const float *more,
                              const float *line, const float *more_line, tiles &t)
    {
        int const e = thread_index();
        int32_t const head = task.kv_head * task.ratio + member;
        block_barrier(); /* the query before has been used */
        if (e < f.dim)
            t.query[e] = linear_feature(load(f.q, task.batch, head, row, e));
        block_barrier(); /* the query is there, and z */
        float sum = 0, divisor = 0;
        for (int d = lane_index(); d < f.dim; d += 32)
            divisor = fmaf(t.query[d], line[d] + (more_line != NULL ? more_line[d] : 0), divisor);
        divisor = warp_sum(divisor) + RA_LINEAR_EPSILON;
        if (e >= f.dim)
            return;
        for (int d = 0; d < f.dim; d += SOME) {
            some const s = take(before + e, d, f.dim);
            some const m = more != NULL ? take(more + e, d, f.dim) : some{};
#pragma unroll
            for (int i = 0; i < SOME; ++i)
                if (d + i < f.dim) /* zero times what stands there may be NaN */
                    sum = fmaf(t.query[d + i], s.at[i] + m.at[i], sum);
        }
        linear_store(f.out.dtype, linear_head(f.out, task.batch, head), row * f.out.row_stride + e,
                     sum / divisor);
    }

    static LANE_CODE void begin(const ra_cuda_linear &f, const linear_task &task, float *before,
                                float *rest, float *own, tiles &t)
    {
        int const e = thread_index();
        if (e < DIM)
            t.query[e] = t.key[e] = 0; /* from dim on they stay so */
        if (e >= f.dim)
            return;
        for (int d = 0; d < f.dim; d += SOME) {
            give(before + e, d, f.dim, take(task.state + e, d, f.dim));
            give(rest + e, d, f.dim, some{});
            give(own + e, d, f.dim, some{});
        }
        t.line[e] = task.state[f.dim * f.dim + e];
        t.line_rest[e] = t.own[e] = 0;
    }

    static LANE_CODE void task(const ra_cuda_linear &f, int64_t index, tiles &t)
    {
        linear_task const task = linear_task_of(f, index);
        float *const before = linear_scratch(f, 0), *const rest = linear_scratch(f, 1);
        float *const own = linear_scratch(f, 2);
        begin(f, task, before, rest, own, t);
        for (int64_t row = task.begin; row < task.end; ++row) {
            add_key(f, task, row, before, own, t);
            for (int i = 0; i < task.ratio && !f.stores; ++i)
                use(f, task, i, row, before, own, t.line, t.own, t);
            if ((row + 1) % RA_LINEAR_CHUNK == 0)
                fold(f, before, rest, own, t);
        }
        for (int64_t row = task.begin; row < task.end && f.stores; ++row) {
            const float *const state = prefix(f, task, row);
            for (int i = 0; i < task.ratio; ++i)
                use(f, task, i, row, state, NULL, state + f.dim * f.dim, NULL, t);
        }
    }
};

#endif

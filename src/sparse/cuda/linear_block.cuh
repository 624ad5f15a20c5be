/*
 * Building blocks of linear attention's thread blocks: chunks of rows in float32 in shared memory,
 * products of small matrices, and sums that are carried from chunk to chunk.
 *
 * A warp has RA_CUDA_LINEAR_OWN rows of a product, and each of its lanes every 32nd column.
 * Products are float32 FMAs, exact in every dtype. The kernels are bound by these, and by reading
 * and writing the carried matrices, [dim][dim] in device memory, which the L2 cache holds at the
 * usual sizes. Tensor cores are not used. So few warps hide no latency: what a thread reads of
 * device memory it reads a few elements at a time, before it writes any.
 *
 * Includers bring the primitives first: lanes.cuh on a GPU, an emulation of it in tests.
 */
#ifndef RINGATTN_CUDA_LINEAR_BLOCK_CUH
#define RINGATTN_CUDA_LINEAR_BLOCK_CUH

#include "sparse/cuda/heads.cuh"
#include "sparse/cuda/linear_args.h"
#include "sparse/linear_segment.h"

#include <math.h>

/* ---- numbers --------------------------------------------------------------------------------- */

/* elu(x) + 1; NaN stays. */
LANE_CODE float linear_feature(float x)
{
    return x > 0 ? x + 1 : expf(x);
}

/* The derivative of a feature, which is the feature itself up to 1. */
LANE_CODE float linear_slope(float feature)
{
    return feature < 1 ? feature : 1;
}

LANE_CODE char *linear_head(const ra_view &view, int64_t batch, int64_t head)
{
    return head_data(view, view.dtype == RA_F32 ? 4 : 2, batch, head);
}

LANE_CODE float linear_load(ra_dtype dtype, const char *data, int64_t i)
{
    return dtype == RA_F32   ? element_f32::load(data, i)
           : dtype == RA_F16 ? element_f16::load(data, i)
                             : element_bf16::load(data, i);
}

LANE_CODE void linear_store(ra_dtype dtype, char *data, int64_t i, float value)
{
    if (dtype == RA_F32)
        element_f32::store(data, i, value);
    else if (dtype == RA_F16)
        element_f16::store(data, i, value);
    else
        element_bf16::store(data, i, value);
}

/* ---- work ------------------------------------------------------------------------------------ */

/* What a task works on: a segment of one (batch, kv head). */
struct linear_task {
    int64_t lane, begin, end; /* lane: batch * kv_heads + kv_head */
    int32_t batch, kv_head, ratio;
    float *state, *grad; /* of the segment, in the pass */
};

LANE_CODE linear_task linear_task_of(const ra_cuda_linear &f, int64_t segment_index)
{
    linear_task t;
    int64_t const floats = (int64_t)f.dim * (f.dim + 1);
    t.lane = segment_index / f.segments;
    int32_t const segment = (int32_t)(segment_index - t.lane * f.segments);
    t.begin = ra_linear_segment_begin(f.rows, f.segments, segment);
    t.end = ra_linear_segment_begin(f.rows, f.segments, segment + 1);
    t.batch = (int32_t)(t.lane / f.kv_heads);
    t.kv_head = (int32_t)(t.lane - (int64_t)t.batch * f.kv_heads);
    t.ratio = f.q_heads / f.kv_heads;
    t.state = f.states + segment_index * floats;
    t.grad = f.grads == NULL ? NULL : f.grads + segment_index * floats;
    return t;
}

/* A whole kernel: tasks are dealt in turn, because all take equally long. */
template <class Work> LANE_CODE void linear_all(const ra_cuda_linear &f, char *shared)
{
    typename Work::tiles &t = *(typename Work::tiles *)shared;
    for (int64_t i = block_index(); i < f.tasks; i += block_count()) {
        Work::task(f, i, t);
        block_barrier(); /* shared memory and scratch are free again */
    }
}

/* The thread block's scratch: matrices one after the other. */
LANE_CODE float *linear_scratch(const ra_cuda_linear &f, int matrix)
{
    return f.scratch + block_index() * f.scratch_floats + (int64_t)matrix * f.dim * f.dim;
}

/* 1 / d and c of a query row, in pairs. */
LANE_CODE float *linear_lines(const ra_cuda_linear &f, const linear_task &t, int member,
                              int64_t row)
{
    int64_t const head = (int64_t)t.batch * f.q_heads + t.kv_head * t.ratio + member;
    return f.lines + 2 * (head * f.rows + row);
}

LANE_CODE void linear_clear(float *values, int64_t count)
{
    for (int64_t i = thread_index(); i < count; i += thread_count())
        values[i] = 0;
}

/* to[place(i)] = from[i]. A thread reads a few elements before it writes any of them: a read would
   wait for the writes before it, which might be to the same place. */
template <class Place>
LANE_CODE void linear_move(float *to, const float *from, int count, const Place &place)
{
    constexpr int SOME = 8;
    int const step = thread_count();
    for (int i = thread_index(); i < count; i += SOME * step) {
        float values[SOME];
#pragma unroll
        for (int j = 0; j < SOME; ++j)
            values[j] = i + j * step < count ? from[i + j * step] : 0;
#pragma unroll
        for (int j = 0; j < SOME; ++j)
            if (i + j * step < count)
                to[place(i + j * step)] = values[j];
    }
}

LANE_CODE void linear_copy(float *to, const float *from, int count)
{
    linear_move(to, from, count, [](int i) { return i; });
}

LANE_CODE void linear_copy_transposed(float *to, const float *from, int dim)
{
    linear_move(to, from, dim * dim, [dim](int i) { return i % dim * dim + i / dim; });
}

/* ---- a thread block -------------------------------------------------------------------------- */

template <int DIM> struct linear_block {
    static constexpr ra_cuda_tile TILE = ra_cuda_linear_tile(DIM);
    static constexpr int THREADS = 32 * TILE.warps, ROWS = TILE.q_rows, OWN = RA_CUDA_LINEAR_OWN;
    static constexpr int PITCH = DIM + 1, COLUMNS = DIM / 32;
    static_assert(OWN * TILE.warps == ROWS && ROWS == 32, "a lane has one column of the weights");

    typedef float tile[ROWS][PITCH];
    struct tiles {
        tile query, key, value, dout;              /* query and key as features */
        float weight[ROWS][ROWS + 1];              /* of pairs */
        float line[DIM], line_rest[DIM];           /* z, or w; what it cannot hold */
        float grad_line[DIM], grad_line_rest[DIM]; /* w */
        float inverse[ROWS], c[ROWS];              /* of the query rows at hand */
    };
    static_assert(sizeof(tiles) == TILE.shared_bytes, "as the table has it");

    /* A thread's part of a product: rows own_row() + r, columns lane + 32 * n. */
    template <int N> struct sums {
        float at[OWN][N];
    };
    typedef sums<COLUMNS> wide;

    static LANE_CODE int own_row()
    {
        return warp_index() * OWN;
    }

    template <int N> static LANE_CODE void clear(sums<N> &s)
    {
#pragma unroll
        for (int r = 0; r < OWN; ++r)
#pragma unroll
            for (int n = 0; n < N; ++n)
                s.at[r][n] = 0;
    }

    /* Rows [row, row + count) of a head and zeros, as they are or as features. */
    static LANE_CODE void load(const ra_view &view, int64_t batch, int64_t head, int64_t row,
                               int count, int dim, bool as_features, tile &to)
    {
        const char *const from = linear_head(view, batch, head);
#pragma unroll 4
        for (int i = thread_index(); i < ROWS * DIM; i += THREADS) {
            int const r = i / DIM, d = i % DIM;
            float x = 0;
            if (r < count && d < dim) {
                x = linear_load(view.dtype, from, (row + r) * view.row_stride + d);
                x = as_features ? linear_feature(x) : x;
            }
            to[r][d] = x;
        }
    }

    /*
     * s += sum over x in [begin, end) of a[own row * a_row + x * a_step] times b[x * b_step +
     * column * b_column], for columns below `columns`; b need not have others. AT_ONCE rows of b
     * are read at once.
     */
    template <int N, int AT_ONCE = 2>
    static LANE_CODE void product(const float *a, int a_row, int a_step, const float *b, int b_step,
                                  int b_column, int columns, int begin, int end, sums<N> &s)
    {
        int const lane = lane_index();
        a += own_row() * a_row;
        b += lane * b_column;
#pragma unroll AT_ONCE
        for (int x = begin; x < end; ++x) {
            float right[N];
#pragma unroll
            for (int n = 0; n < N; ++n)
                right[n] = lane + 32 * n < columns ? b[x * b_step + 32 * n * b_column] : 0;
#pragma unroll
            for (int r = 0; r < OWN; ++r) {
                float const left = a[r * a_row + x * a_step];
#pragma unroll
                for (int n = 0; n < N; ++n)
                    s.at[r][n] = fmaf(left, right[n], s.at[r][n]);
            }
        }
    }

    /* With a carried matrix [dim][dim] on the right: reading device memory takes long. */
    static LANE_CODE void multiply(const tile &a, const float *matrix, int dim, wide &s)
    {
        product<COLUMNS, 4>(&a[0][0], PITCH, 1, matrix, dim, 1, dim, 0, dim, s);
    }

    /* Weights of pairs: a lane has one column. */
    static LANE_CODE void multiply_transposed(const tile &a, const tile &b, int dim, sums<1> &s)
    {
        product<1>(&a[0][0], PITCH, 1, &b[0][0], 1, PITCH, ROWS, 0, dim, s);
    }

    /*
     * s += weights times rows of b, over causal pairs: rows of s are queries, x the keys up to
     * them; with FROM, rows of s are keys, x the queries from them on. Other pairs are skipped:
     * zero times their Inf or NaN is NaN.
     */
    template <bool FROM>
    static LANE_CODE void multiply_causal(const tiles &t, const tile &b, wide &s)
    {
        int const lane = lane_index(), own = own_row();
        product<COLUMNS>(&t.weight[0][0], ROWS + 1, 1, &b[0][0], PITCH, 1, DIM,
                         FROM ? own + OWN : 0, FROM ? ROWS : own, s);
#pragma unroll
        for (int x = 0; x < OWN; ++x) {
            float right[COLUMNS];
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n)
                right[n] = b[own + x][lane + 32 * n];
#pragma unroll
            for (int r = 0; r < OWN; ++r)
                if (FROM ? r <= x : r >= x)
#pragma unroll
                    for (int n = 0; n < COLUMNS; ++n)
                        s.at[r][n] = fmaf(t.weight[own + r][own + x], right[n], s.at[r][n]);
        }
    }

    static LANE_CODE void keep_weights(const sums<1> &s, tiles &t)
    {
#pragma unroll
        for (int r = 0; r < OWN; ++r)
            t.weight[own_row() + r][lane_index()] = s.at[r][0];
    }

    /* s = what queries see: own rows times the matrix carried so far, and, of the chunk's causal
       pairs, weights a b^T times rows of c. */
    static LANE_CODE void see(const ra_cuda_linear &f, const tile &a, const tile &b, const tile &c,
                              const float *matrix, tiles &t, wide &s)
    {
        clear(s);
        multiply(a, matrix, f.dim, s);
        if (f.causal) {
            sums<1> weights;
            clear(weights);
            multiply_transposed(a, b, f.dim, weights);
            keep_weights(weights, t);
            block_barrier(); /* weights are there */
            multiply_causal<false>(t, c, s);
        }
    }

    /* Every 32nd element of a few rows of sums, `dim` apart, += more, of the first `rows` of them
       and `columns` columns. All are read before any is written: a read would wait for the writes
       before it, which might be to the same place. */
    template <int SOME>
    static LANE_CODE void carry_some(float *sum, float *rest, int dim, int rows, int columns,
                                     const float (*more)[COLUMNS])
    {
        float new_sum[SOME][COLUMNS], new_rest[SOME][COLUMNS];
#pragma unroll
        for (int r = 0; r < SOME; ++r)
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n) {
                bool const there = r < rows && 32 * n < columns;
                new_sum[r][n] = there ? sum[r * dim + 32 * n] : 0;
                new_rest[r][n] = there ? rest[r * dim + 32 * n] : 0;
            }
#pragma unroll
        for (int r = 0; r < SOME; ++r)
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n) {
                carry_sum(new_sum[r][n], new_rest[r][n], more[r][n]);
                if (r < rows && 32 * n < columns) {
                    sum[r * dim + 32 * n] = new_sum[r][n];
                    rest[r * dim + 32 * n] = new_rest[r][n];
                }
            }
    }

    /* matrix += a^T b over the chunk's rows. An element always belongs to the same thread. */
    static LANE_CODE void carry_product(const tile &a, const tile &b, int dim, float *matrix,
                                        float *rest)
    {
        constexpr int SOME = 16 / COLUMNS; /* 16 elements of each matrix */
        static_assert(OWN % SOME == 0, "whole loops");
        int const lane = lane_index();
#pragma unroll 1
        for (int row = 0; row < dim; row += ROWS) {
            wide s;
            clear(s);
            product<COLUMNS>(&a[0][row], 1, PITCH, &b[0][0], PITCH, 1, DIM, 0, ROWS, s);
#pragma unroll
            for (int r = 0; r < OWN; r += SOME) {
                int const first = row + own_row() + r, at = first * dim + lane;
                carry_some<SOME>(matrix + at, rest + at, dim, dim - first, dim - lane, &s.at[r]);
            }
        }
    }

    /*
     * z as rows see it, in a lane's columns: first the chunk's keys before the own rows, then, by
     * line_at, those of the own rows, row by row. line_of gives the total.
     */
    static LANE_CODE void line_before(const ra_cuda_linear &f, const tiles &t,
                                      float (&own)[COLUMNS])
    {
        int const lane = lane_index(), end = f.causal ? own_row() : 0;
#pragma unroll
        for (int n = 0; n < COLUMNS; ++n) {
            own[n] = 0;
            for (int i = 0; i < end; ++i)
                own[n] += t.key[i][lane + 32 * n];
        }
    }

    static LANE_CODE void line_at(const ra_cuda_linear &f, const tiles &t, int row,
                                  float (&own)[COLUMNS])
    {
        if (f.causal)
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n)
                own[n] += t.key[row][lane_index() + 32 * n];
    }

    static LANE_CODE float line_of(const tiles &t, const float (&own)[COLUMNS], int n)
    {
        return t.line[lane_index() + 32 * n] + own[n];
    }

    /* line += sum over the chunk's rows of factor times row; without factors, of the rows. */
    static LANE_CODE void carry_rows(const tile &rows, const float *factors, int dim, float *line,
                                     float *rest)
    {
        for (int d = thread_index(); d < dim; d += THREADS) {
            float sum = 0;
            for (int i = 0; i < ROWS; ++i)
                sum = fmaf(rows[i][d], factors != NULL ? factors[i] : 1, sum);
            carry_sum(line[d], rest[d], sum);
        }
    }
};

#endif

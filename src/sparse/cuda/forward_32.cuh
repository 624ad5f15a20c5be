/*
 * Forward over one tile in float32, exact: no tensor cores, which would round to tf32. It exists to
 * check the fast kernels, and is written to be read.
 *
 * Four threads share a query row: thread q of them has keys q, q + 4, ... of a block's scores, and
 * dims q, q + 4, ... of the sums. Sums run within a block of 32 keys first, then across blocks.
 */
#ifndef RINGATTN_CUDA_FORWARD_32_CUH
#define RINGATTN_CUDA_FORWARD_32_CUH

#include "sparse/cuda/forward_chunk.cuh"

template <int DIM> struct forward_32 {
    typedef element_f32 element;
    static constexpr ra_cuda_tile TILE = ra_cuda_tile_of(RA_F32, DIM);
    static constexpr int FIRST_THREAD = 0, THREADS = 32 * TILE.warps, ROWS = TILE.q_rows,
                         KEYS = TILE.k_rows;
    static constexpr int PITCH = DIM + 1; /* rows begin in different banks */
    static constexpr int OWN_KEYS = KEYS / 4, OWN_DIMS = DIM / 4;
    static constexpr int SIDE_BY_SIDE = 8; /* dims that are summed in one loop over keys */
    static_assert(THREADS == 4 * ROWS, "four threads share a query row");
    static_assert(OWN_DIMS % SIDE_BY_SIDE == 0, "whole loops");

    struct tiles {
        float query[ROWS][PITCH], key[KEYS][PITCH], value[KEYS][PITCH];
        float weight[ROWS][KEYS + 1];
    };
    static_assert(sizeof(tiles) + RA_CUDA_FORWARD_HEAD_BYTES == TILE.shared_bytes,
                  "as the table has it");

    struct sums {
        float acc[OWN_DIMS], top, sum; /* sum: of this thread's keys */
    };

    static LANE_CODE void load_sums(const ra_cuda_forward &f, const forward_head &h,
                                    const ra_tile &tile, sums &s)
    {
        int const a = thread_index() / 4, q = thread_index() % 4;
        int64_t const at = tile.q_begin + (int64_t)tile.q_stride * a - h.state_row;
        bool const there = !h.tiles_begin && a < tile.q_count;
        s.top = there ? h.top[at] : -INFINITY;
        s.sum = there && q == 0 ? h.sum[at] : 0;
#pragma unroll
        for (int j = 0; j < OWN_DIMS; ++j)
            s.acc[j] = there && q + 4 * j < f.dim ? h.acc[at * f.dim + q + 4 * j] : 0;
    }

    static LANE_CODE void store_sums(const ra_cuda_forward &f, const forward_head &h,
                                     const ra_tile &tile, const sums &s)
    {
        int const a = thread_index() / 4, q = thread_index() % 4;
        int64_t const row = tile.q_begin + (int64_t)tile.q_stride * a, at = row - h.state_row;
        bool const there = a < tile.q_count;
        float const sum = quad_sum(s.sum), factor = h.tiles_end ? row_factor(sum) : 1.0f;
        int const dims = there ? f.dim - q : 0;
        float delta = 0;
        char *const out = h.tiles_end ? h.out + (row * f.out.row_stride + q) * 4
                                      : (char *)(h.acc + at * f.dim + q);
#pragma unroll
        for (int j = 0; j < OWN_DIMS; ++j) {
            if (4 * j >= dims)
                continue;
            element_f32::store(out, 4 * j, s.acc[j] * factor);
            if (h.tiles_end && h.delta != NULL)
                delta += s.acc[j] * factor *
                         element_f32::load(h.dout, row * f.dout.row_stride + q + 4 * j);
        }
        delta = quad_sum(delta);
        if (!there || q != 0)
            return;
        if (!h.tiles_end) {
            h.top[at] = s.top;
            h.sum[at] = sum;
            return;
        }
        if (h.lse != NULL)
            h.lse[row] = row_lse(s.top, sum);
        if (h.delta != NULL)
            h.delta[row] = delta;
    }

    /* Scores, new top, weights. */
    static LANE_CODE void soften(const ra_key_cursor &c, float factor, int dim, tiles &t, sums &s)
    {
        int const a = thread_index() / 4, q = thread_index() % 4;
        float score[OWN_KEYS], most = -INFINITY;
#pragma unroll
        for (int i = 0; i < OWN_KEYS; ++i) {
            int const k = q + 4 * i;
            float sum = 0;
            for (int d = 0; d < dim; ++d)
                sum = fmaf(t.query[a][d], t.key[k][d], sum);
            score[i] = ra_key_cursor_live(&c, a, c.b + k) ? sum * factor : -INFINITY;
            most = fmaxf(most, score[i]);
        }
        float const top = fmaxf(s.top, quad_max(most));
        /* A row that has seen nothing: -Inf - -Inf must not become NaN. */
        float const base = top == -INFINITY ? 0 : top, alpha = exp2f(s.top - base);
        float sum = 0;
#pragma unroll
        for (int i = 0; i < OWN_KEYS; ++i) {
            float const p = exp2f(score[i] - base);
            t.weight[a][q + 4 * i] = p;
            sum += p;
        }
        s.top = top;
        s.sum = s.sum * alpha + sum;
#pragma unroll
        for (int j = 0; j < OWN_DIMS; ++j)
            s.acc[j] *= alpha;
    }

    /* Skip keys that a row does not see: zero times their Inf or NaN is NaN. */
    static LANE_CODE void weigh(const ra_key_cursor &c, const tiles &t, sums &s)
    {
        int const a = thread_index() / 4, q = thread_index() % 4;
        ra_run_keys const seen =
            ra_run_band_seen(c.band, a, a + 1, c.b, ra_hd_min(c.b + KEYS, c.end));
#pragma unroll
        for (int j = 0; j < OWN_DIMS; j += SIDE_BY_SIDE) {
            float sum[SIDE_BY_SIDE] = {};
#pragma unroll 1
            for (int k = seen.begin - c.b; k < seen.end - c.b; ++k) {
                float const weight = t.weight[a][k];
#pragma unroll
                for (int i = 0; i < SIDE_BY_SIDE; ++i)
                    sum[i] = fmaf(weight, t.value[k][q + 4 * (j + i)], sum[i]);
            }
#pragma unroll
            for (int i = 0; i < SIDE_BY_SIDE; ++i)
                s.acc[j + i] += sum[i];
        }
    }

    static LANE_CODE void meet()
    {
        block_barrier();
    }

    static LANE_CODE void tile(const ra_cuda_forward &f, forward_block &block, char *shared)
    {
        forward_head const &h = block.work.head;
        ra_tile const &tile = block.work.tile;
        ra_key_cursor &c = block.cursor[0];
        tiles &t = *(tiles *)shared;
        sums s;
        if (thread_index() == 0)
            c = block.work.cursor;
        copy_floats<THREADS>(h.q, f.q.row_stride, tile.q_begin, tile.q_stride, tile.q_count, f.dim,
                             t.query);
        load_sums(f, h, tile, s);
        block_barrier(); /* the cursor is set */
        while (!ra_key_cursor_is_over(&c)) {
            int64_t const begin = ra_key_cursor_row(&c, c.b);
            copy_floats<THREADS>(h.k, f.k.row_stride, begin, c.k_stride, c.end - c.b, f.dim, t.key);
            copy_floats<THREADS>(h.v, f.v.row_stride, begin, c.k_stride, c.end - c.b, f.dim,
                                 t.value);
            block_barrier(); /* queries, keys and values are there */
            soften(c, f.factor, f.dim, t, s);
            block_barrier(); /* weights are there */
            weigh(c, t, s);
            block_barrier(); /* keys, values, weights and the cursor have been read */
            if (thread_index() == 0)
                ra_key_cursor_next(&c, KEYS);
            block_barrier(); /* the cursor has moved on */
        }
        store_sums(f, h, tile, s);
    }
};

#endif

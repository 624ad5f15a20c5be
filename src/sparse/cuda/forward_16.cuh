/*
 * Forward over one tile in 16-bit elements on tensor cores (mma.m16n8k16, sm_80 and newer).
 *
 * Warp w has query rows 16 ROW_TILES w and on; a lane holds fragments of their sums in float32
 * registers. Per block of 64 keys: scores by mma, mask where the band cuts, new top, weights
 * rounded to 16 bits, values by mma. Keys of the next block are copied (cp.async) while this one's
 * values are multiplied, and its values while scores are computed.
 */
#ifndef RINGATTN_CUDA_FORWARD_16_CUH
#define RINGATTN_CUDA_FORWARD_16_CUH

#include "sparse/cuda/forward_chunk.cuh"
#include "sparse/cuda/fragments.h"

template <class Element, int DIM> struct forward_16 {
    typedef Element element;
    static constexpr ra_cuda_tile TILE = ra_cuda_tile_of(RA_BF16, DIM);
    static constexpr int WARPS = TILE.warps, ROW_TILES = TILE.row_tiles, KEYS = TILE.k_rows;
    static constexpr int THREADS = 32 * WARPS, Q_ROWS = TILE.q_rows;
    static constexpr int PIECES = DIM / RA_PIECE, K_TILES = KEYS / 8, O_TILES = DIM / 8;
    static_assert(THREADS % PIECES == 0, "a thread copies the same piece of every row");

    /* What a lane holds: rows lane / 4 and lane / 4 + 8 of each of its row tiles. */
    struct sums {
        float acc[ROW_TILES][O_TILES][4];
        float top[ROW_TILES][2], sum[ROW_TILES][2]; /* sum: of this lane's columns */
    };

    static LANE_CODE char *query_tile(char *shared)
    {
        return shared;
    }

    static LANE_CODE char *key_tile(char *shared)
    {
        return shared + Q_ROWS * DIM * 2;
    }

    static LANE_CODE char *value_tile(char *shared)
    {
        return shared + (Q_ROWS + KEYS) * DIM * 2;
    }

    /* ---- into shared memory ---- */

    /* Elements of a row of `dim` that lie in a piece. */
    static LANE_CODE int piece_elements(int piece, int dim)
    {
        return ra_hd_max(0, ra_hd_min(RA_PIECE, dim - piece * RA_PIECE));
    }

    /* Where rows do not begin at multiples of 16 bytes: `count` elements, and zeros. */
    static LANE_CODE void copy_elements(char *to, const char *from, int count)
    {
        uint16_t values[RA_PIECE];
#pragma unroll
        for (int i = 0; i < RA_PIECE; ++i)
            values[i] = i < count ? ((const uint16_t *)from)[i] : (uint16_t)0;
        store_piece(to, values);
    }

    /*
     * Rows r of `rows` of a tile that begins at `to`: row q of the tensor is begin + stride * r for
     * r < count, and there are zeros for the others and beyond dim. Where nothing is read, the
     * address is that of row 0, which exists.
     */
    template <int ROWS>
    static LANE_CODE void copy_rows(const ra_cuda_forward &f, const char *data, int64_t row_stride,
                                    int64_t begin, int64_t stride, int count, char *to)
    {
        int const thread = thread_index(), piece = thread % PIECES, first = thread / PIECES;
        int const elements = piece_elements(piece, f.dim);
        const char *from = data + (begin * row_stride + (elements > 0 ? piece * RA_PIECE : 0)) * 2;
        int64_t const row_bytes = stride * row_stride * 2;
        if (f.aligned) {
#pragma unroll
            for (int i = 0; i < ROWS * PIECES / THREADS; ++i) {
                int const r = first + i * (THREADS / PIECES);
                bool const there = r < count;
                copy_async(to + ra_piece_offset(DIM, r, piece), from + (there ? r : 0) * row_bytes,
                           there ? 2 * elements : 0);
            }
            return;
        }
#pragma unroll 1
        for (int r = first; r < ROWS; r += THREADS / PIECES)
            copy_elements(to + ra_piece_offset(DIM, r, piece),
                          from + (r < count ? r : 0) * row_bytes, r < count ? elements : 0);
    }

    static LANE_CODE void copy_keys(const ra_cuda_forward &f, const char *data, int64_t row_stride,
                                    const ra_key_cursor &c, char *to)
    {
        copy_rows<KEYS>(f, data, row_stride, ra_key_cursor_row(&c, c.b), c.k_stride, c.end - c.b,
                        to);
    }

    /* ---- the softmax state ---- */

    /* The first query of the tile that a lane holds; others are 8 and multiples of 16 further. */
    static LANE_CODE int first_row()
    {
        int const thread = thread_index();
        return 16 * ROW_TILES * (thread / 32) + ra_fragment_row(thread % 32);
    }

    static LANE_CODE int first_column()
    {
        return ra_fragment_column(lane_index());
    }

    static LANE_CODE void begin_sums(sums &s)
    {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int n = 0; n < O_TILES; ++n)
                s.acc[m][n][0] = s.acc[m][n][1] = s.acc[m][n][2] = s.acc[m][n][3] = 0;
            s.top[m][0] = s.top[m][1] = -INFINITY;
            s.sum[m][0] = s.sum[m][1] = 0;
        }
    }

    static LANE_CODE void load_sums(const ra_cuda_forward &f, const forward_head &h,
                                    const ra_tile &tile, sums &s)
    {
        int const row = first_row(), column = first_column();
        begin_sums(s);
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int const a = row + 16 * m + 8 * half;
                if (a >= tile.q_count)
                    continue;
                int64_t const at = tile.q_begin + (int64_t)tile.q_stride * a - h.state_row;
                s.top[m][half] = h.top[at];
                /* One lane of the four that share a row brings its sum. */
                s.sum[m][half] = column == 0 ? h.sum[at] : 0;
                const float *const acc = h.acc + at * f.dim + column;
#pragma unroll
                for (int n = 0; n < O_TILES; ++n) {
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        if (8 * n + e < f.dim - column)
                            s.acc[m][n][2 * half + e] = acc[8 * n + e];
                }
            }
        }
    }

    static LANE_CODE float quad_sum(float x)
    {
        x += shuffle_xor(x, 1);
        return x + shuffle_xor(x, 2);
    }

    static LANE_CODE float quad_max(float x)
    {
        x = fmaxf(x, shuffle_xor(x, 1));
        return fmaxf(x, shuffle_xor(x, 2));
    }

    static LANE_CODE void store_state_row(const ra_cuda_forward &f, const forward_head &h,
                                          int64_t at, const sums &s, int m, int half, float sum)
    {
        int const column = first_column();
        if (column == 0) {
            h.top[at] = s.top[m][half];
            h.sum[at] = sum;
        }
        float *const acc = h.acc + at * f.dim + column;
#pragma unroll
        for (int n = 0; n < O_TILES; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (8 * n + e < f.dim - column)
                    acc[8 * n + e] = s.acc[m][n][2 * half + e];
        }
    }

    static LANE_CODE void store_output_row(const ra_cuda_forward &f, const forward_head &h,
                                           int64_t row, bool there, const sums &s, int m, int half,
                                           float sum)
    {
        float const factor = row_factor(sum);
        int const column = first_column();
        int const dims = there ? f.dim - column : 0;
        float delta = 0;
        if (h.delta != NULL) {
            const char *const dout = h.dout + (row * f.dout.row_stride + column) * 2;
#pragma unroll
            for (int n = 0; n < O_TILES; ++n) {
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    if (8 * n + e < dims)
                        delta += s.acc[m][n][2 * half + e] * Element::load(dout, 8 * n + e);
            }
            delta = quad_sum(delta * factor);
        }
        char *const out = h.out + (row * f.out.row_stride + column) * 2;
#pragma unroll
        for (int n = 0; n < O_TILES; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (8 * n + e < dims)
                    Element::store(out, 8 * n + e, s.acc[m][n][2 * half + e] * factor);
        }
        if (there && column == 0) {
            if (h.lse != NULL)
                h.lse[row] = row_lse(s.top[m][half], sum);
            if (h.delta != NULL)
                h.delta[row] = delta;
        }
    }

    static LANE_CODE void store_sums(const ra_cuda_forward &f, const forward_head &h,
                                     const ra_tile &tile, const sums &s)
    {
        int const first = first_row();
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int const a = first + 16 * m + 8 * half;
                bool const there = a < tile.q_count;
                float const sum = quad_sum(s.sum[m][half]);
                int64_t const row = tile.q_begin + (int64_t)tile.q_stride * a;
                if (h.tiles_end)
                    store_output_row(f, h, row, there, s, m, half, sum);
                else if (there)
                    store_state_row(f, h, row - h.state_row, s, m, half, sum);
            }
        }
    }

    /* ---- one block of keys ---- */

    typedef float scores[ROW_TILES][K_TILES][4];

    static LANE_CODE void score(const char *query, const char *key, scores &s)
    {
        int const thread = thread_index(), lane = thread % 32, row = thread / 32 * 16 * ROW_TILES;
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int n = 0; n < K_TILES; ++n)
                s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
#pragma unroll
        for (int step = 0; step < DIM / 16; ++step) {
            uint32_t a[ROW_TILES][4];
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
                ra_piece_at const at = ra_ldmatrix_query(lane, row + 16 * m, step);
                load_matrices(query + ra_piece_offset(DIM, at.row, at.piece), a[m]);
            }
#pragma unroll
            for (int n = 0; n < K_TILES; n += 2) {
                uint32_t b[4];
                ra_piece_at const at = ra_ldmatrix_key(lane, 8 * n, step);
                load_matrices(key + ra_piece_offset(DIM, at.row, at.piece), b);
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m) {
                    Element::multiply(s[m][n], a[m], b[0], b[1]);
                    Element::multiply(s[m][n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

    static LANE_CODE void mask(const ra_key_cursor &c, scores &s)
    {
        int const row = first_row(), key = c.b + first_column();
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int n = 0; n < K_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (!ra_key_cursor_live(&c, row + 16 * m + (i >> 1) * 8, key + 8 * n + (i & 1)))
                        s[m][n][i] = -INFINITY;
    }

    /* Scores become weights 2^(score * factor - top); what was summed so far is scaled to the new
       top. */
    static LANE_CODE void soften(float factor, scores &w, sums &s)
    {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float most = -INFINITY;
#pragma unroll
                for (int n = 0; n < K_TILES; ++n)
                    most = fmaxf(most, fmaxf(w[m][n][2 * half], w[m][n][2 * half + 1]));
                float const top = fmaxf(s.top[m][half], quad_max(most) * factor);
                /* A row that has seen nothing: -Inf - -Inf must not become NaN. */
                float const base = top == -INFINITY ? 0 : top;
                float const alpha = exp2_fast(s.top[m][half] - base);
                float sum = 0;
#pragma unroll
                for (int n = 0; n < K_TILES; ++n) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float const p = exp2_fast(fmaf(w[m][n][2 * half + e], factor, -base));
                        w[m][n][2 * half + e] = p;
                        sum += p;
                    }
                }
                s.top[m][half] = top;
                s.sum[m][half] = s.sum[m][half] * alpha + sum;
#pragma unroll
                for (int n = 0; n < O_TILES; ++n) {
                    s.acc[m][n][2 * half] *= alpha;
                    s.acc[m][n][2 * half + 1] *= alpha;
                }
            }
        }
    }

    static LANE_CODE void weigh(const char *value, const scores &w, sums &s)
    {
        int const lane = lane_index();
#pragma unroll
        for (int step = 0; step < KEYS / 16; ++step) {
            uint32_t a[ROW_TILES][4];
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    a[m][i] = Element::pack(w[m][2 * step + (i >> 1)][2 * (i & 1)],
                                            w[m][2 * step + (i >> 1)][2 * (i & 1) + 1]);
#pragma unroll
            for (int n = 0; n < O_TILES; n += 2) {
                uint32_t b[4];
                ra_piece_at const at = ra_ldmatrix_value(lane, step, n / 2);
                load_matrices_transposed(value + ra_piece_offset(DIM, at.row, at.piece), b);
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m) {
                    Element::multiply(s.acc[m][n], a[m], b[0], b[1]);
                    Element::multiply(s.acc[m][n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

    static LANE_CODE void tile(const ra_cuda_forward &f, forward_block &block, const ra_tile &tile,
                               uint32_t run_end, char *shared)
    {
        forward_head const &h = block.head;
        sums s;
        if (thread_index() == 0)
            ra_key_cursor_begin(&tile, run_end, f.map.runs, &block.cursor[0]);
        copy_rows<Q_ROWS>(f, h.q, f.q.row_stride, tile.q_begin, tile.q_stride, tile.q_count,
                          query_tile(shared));
        block_barrier(); /* the cursor is set */
        copy_keys(f, h.k, f.k.row_stride, block.cursor[0], key_tile(shared));
        copies_commit();
        if (h.tiles_begin)
            begin_sums(s);
        else
            load_sums(f, h, tile, s);
        for (int turn = 0; !ra_key_cursor_is_over(&block.cursor[turn]); turn ^= 1) {
            scores w;
            ra_key_cursor const &c = block.cursor[turn];
            ra_key_cursor &next = block.cursor[turn ^ 1];
            copies_wait();
            block_barrier(); /* queries and keys are there; values and the other cursor are read */
            if (thread_index() == 0) {
                next = c;
                ra_key_cursor_next(&next, KEYS);
            }
            copy_keys(f, h.v, f.v.row_stride, c, value_tile(shared));
            copies_commit();
            score(query_tile(shared), key_tile(shared), w);
            if (ra_key_cursor_masked(&c, KEYS))
                mask(c, w);
            copies_wait();
            block_barrier(); /* values and the next cursor are there; keys have been read */
            if (!ra_key_cursor_is_over(&next))
                copy_keys(f, h.k, f.k.row_stride, next, key_tile(shared));
            copies_commit();
            soften(f.factor, w, s);
            weigh(value_tile(shared), w, s);
        }
        store_sums(f, h, tile, s);
    }
};

#endif

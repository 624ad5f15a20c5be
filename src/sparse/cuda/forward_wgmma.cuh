/*
 * Forward over one tile in 16-bit elements by warpgroups (wgmma, sm_90a), 64 rows each.
 *
 * Per block of 64 keys: scores, mask if the band cuts the block, new top, weights rounded to 16
 * bits, values. A warpgroup waits for each of its products; meanwhile the multiprocessor's others
 * keep the tensor cores busy. Keys and values of the next block are copied (cp.async) all the
 * while, to where those of the block before were.
 *
 * Includers bring the primitives first: lanes.cuh and warpgroup.cuh on a GPU, an emulation of them
 * in tests.
 */
#ifndef RINGATTN_CUDA_FORWARD_WGMMA_CUH
#define RINGATTN_CUDA_FORWARD_WGMMA_CUH

#include "sparse/cuda/forward_cut.cuh"
#include "sparse/cuda/forward_rows_16.cuh"
#include "sparse/cuda/wgmma_layout.h"

template <class Element, int DIM> struct forward_wgmma {
    typedef Element element;
    static constexpr bool CUTS = true;
    static constexpr ra_cuda_tile TILE = ra_cuda_warpgroup_tile_of(DIM);
    static constexpr int WARPS = TILE.warps, KEYS = TILE.k_rows;
    static constexpr int THREADS = 32 * WARPS, Q_ROWS = TILE.q_rows;
    static constexpr int GROUP_ROWS = 64, GROUP_THREADS = 128;
    typedef forward_rows_16<Element, DIM, WARPS, 1, KEYS> rows;
    typedef products_16<Element, DIM, THREADS, RA_PANEL> products;
    typedef typename rows::scores scores;
    typedef typename rows::sums sums;
    typedef typename rows::tops tops;
    typedef warpgroup<Element> group;
    static_assert(KEYS == RA_PANEL && DIM % RA_PANEL == 0, "what a product has columns for");
    static_assert(THREADS == 2 * GROUP_THREADS, "one for keys, one for values: see copy_block");

    /* ---- shared memory: tops, three blocks of keys, of which two have rows, queries ---- */

    static LANE_CODE tops &own_tops(char *shared)
    {
        return ((tops *)shared)[thread_index()];
    }

    static LANE_CODE char *query_tile(char *shared)
    {
        return shared + ra_cuda_warpgroup_tiles_at(THREADS) - RA_CUDA_FORWARD_HEAD_BYTES;
    }

    static LANE_CODE char *key_tile(char *shared, int place)
    {
        return query_tile(shared) + (Q_ROWS + 2 * place * KEYS) * DIM * 2;
    }

    static LANE_CODE char *value_tile(char *shared, int place)
    {
        return key_tile(shared, place) + KEYS * DIM * 2;
    }

    /* ---- blocks of keys ---- */

    /* A block, and where its rows lie: said by one thread, because to find it takes all of them
       longer than to copy. */
    struct key_block {
        ra_key_cursor cursor;
        const char *rows[2];  /* keys, values: the first of the block, */
        int64_t row_bytes[2]; /* and from one to the next */
        int32_t left;         /* blocks of the task, this one included */
        bool there, masked;
    };

    static LANE_CODE key_block *blocks(char *shared)
    {
        return (key_block *)(shared + THREADS * sizeof(tops));
    }
    static_assert(3 * sizeof(key_block) == RA_CUDA_KEY_BLOCKS_BYTES, "as the table has it");

    static LANE_CODE int following(int at)
    {
        return at == 2 ? 0 : at + 1;
    }

    static LANE_CODE void say_block(const ra_cuda_forward &f, const forward_head &h,
                                    const ra_key_cursor &c, int32_t left, key_block &b)
    {
        b.cursor = c;
        b.left = left;
        b.there = !ra_key_cursor_is_over(&c) && left > 0;
        if (!b.there)
            return;
        b.masked = ra_key_cursor_masked(&c, KEYS);
        int64_t const row = ra_key_cursor_row(&c, c.b);
        b.row_bytes[0] = c.k_stride * f.k.row_stride * 2;
        b.row_bytes[1] = c.k_stride * f.v.row_stride * 2;
        b.rows[0] = h.k + row * f.k.row_stride * 2;
        b.rows[1] = h.v + row * f.v.row_stride * 2;
    }

    static LANE_CODE void say_next(const ra_cuda_forward &f, const forward_head &h,
                                   const key_block &c, key_block &b)
    {
        ra_key_cursor next = c.cursor;
        ra_key_cursor_next(&next, KEYS);
        say_block(f, h, next, c.left - 1, b);
    }

    /* Each warpgroup copies one of keys and values: see products_16.copy_rows. */
    static LANE_CODE void copy_block(const ra_cuda_forward &f, const key_block &b, char *shared,
                                     int place)
    {
        typedef products_16<Element, DIM, GROUP_THREADS, RA_PANEL> copies;
        static_assert(copies::ROUNDS == 1, "a row's pieces are copied side by side");
        int const group = warpgroup_index();
        ra_piece_at const at = ra_copy_at(DIM, thread_index() & (GROUP_THREADS - 1));
        int64_t const row_bytes = b.row_bytes[group];
        int const elements = ra_hd_min(RA_PIECE, f.dim - at.piece * RA_PIECE);
        int const count = b.cursor.end - b.cursor.b - at.row;
        char *const to = group == 0 ? key_tile(shared, place) : value_tile(shared, place);
        copies::template copy_column<KEYS>(
            f.aligned, b.rows[group] + at.row * row_bytes + at.piece * RA_PIECE_BYTES,
            copies::ROWS_AT_ONCE * row_bytes, elements, elements > 0 ? count : 0,
            to + ra_panel_offset(RA_PANEL, KEYS, at.row, at.piece));
    }

    /* ---- products ---- */

    static LANE_CODE int first_group_row()
    {
        return warpgroup_index() * GROUP_ROWS;
    }

    /* Scores of the warpgroup's rows, to be waited for. */
    static LANE_CODE void begin_scores(const char *queries, const char *keys, scores &s)
    {
        uint32_t const left =
            ra_wgmma_at(shared_address(queries) + first_group_row() * RA_PANEL_ROW_BYTES);
        uint32_t const right = ra_wgmma_at(shared_address(keys));
        warpgroup_begin();
#pragma unroll
        for (int step = 0; step < DIM / 16; ++step) {
            int const panel = 16 * step / RA_PANEL, along = 16 * step % RA_PANEL * 2;
            uint32_t const a = left + ra_wgmma_at(panel * Q_ROWS * RA_PANEL_ROW_BYTES + along);
            uint32_t const b = right + ra_wgmma_at(panel * KEYS * RA_PANEL_ROW_BYTES + along);
            if (step == 0)
                group::template product<false>(s[0], ra_wgmma_descriptor(a, 0),
                                               ra_wgmma_descriptor(b, 0));
            else
                group::template product<true>(s[0], ra_wgmma_descriptor(a, 0),
                                              ra_wgmma_descriptor(b, 0));
        }
        warpgroup_commit();
    }

    /* acc += w * values, w rounded to 16 bits. */
    static LANE_CODE void add_weighted(const scores &w, const char *values, sums &s)
    {
        uint32_t const right = ra_wgmma_at(shared_address(values));
        uint32_t a[KEYS / 16][4];
#pragma unroll
        for (int step = 0; step < KEYS / 16; ++step)
            products::pack_left(w[0], step, a[step]);
        warpgroup_pin(a);
        warpgroup_pin(s.acc[0]);
        warpgroup_begin();
#pragma unroll
        for (int step = 0; step < KEYS / 16; ++step)
            group::add_product(
                s.acc[0], a[step],
                ra_wgmma_descriptor(right + ra_wgmma_at(16 * step * RA_PANEL_ROW_BYTES), KEYS));
        warpgroup_commit();
        warpgroup_wait();
        warpgroup_pin(s.acc[0]);
    }

    /* ---- tasks ---- */

    static LANE_CODE void look_ahead(const ra_cuda_forward &f, forward_block &block)
    {
        forward_draw(f, Element::bytes, KEYS, block);
    }

    static LANE_CODE void end_task(const ra_cuda_forward &f, const forward_work &work, char *shared)
    {
        if (work.cut != FORWARD_WHOLE)
            forward_end_part<forward_wgmma>(f, work, (uint32_t *)query_tile(shared));
    }

    /* ---- one tile ---- */

    /* Whether some row of the warpgroup sees a key of the block. */
    static LANE_CODE bool group_sees(const key_block &b)
    {
        int const row = first_group_row();
        return row < b.cursor.q_count &&
               (!b.masked || ra_key_cursor_sees(&b.cursor, row, GROUP_ROWS, KEYS));
    }

    /* Begin to copy the block after that of slot `at`, and say which comes then. */
    static LANE_CODE void bring_next(const ra_cuda_forward &f, const forward_head &h, char *shared,
                                     int at, int place)
    {
        int const then = following(at);
        const key_block &next = blocks(shared)[then];
        if (next.there) {
            copy_block(f, next, shared, place ^ 1);
            if (thread_index() == 0)
                say_next(f, h, next, blocks(shared)[following(then)]);
            warp_barrier(); /* all lanes do what follows together, as products ask for */
        }
        copies_commit();
    }

    static LANE_CODE void tile(const ra_cuda_forward &f, forward_block &block, char *shared)
    {
        forward_head const &h = block.work.head;
        ra_tile const &tile = block.work.tile;
        sums s;
        if (thread_index() == 0)
            say_block(f, h, block.work.cursor,
                      block.work.cut == FORWARD_WHOLE ? INT32_MAX : f.cuts.part_steps,
                      blocks(shared)[0]);
        products::template copy_rows<Q_ROWS>(f.aligned, f.dim, h.q, f.q.row_stride, tile.q_begin,
                                             tile.q_stride, tile.q_count, query_tile(shared));
        block_barrier(); /* the first block is known */
        copy_block(f, blocks(shared)[0], shared, 0);
        copies_commit();
        if (thread_index() == 0) { /* while queries and keys arrive */
            say_next(f, h, blocks(shared)[0], blocks(shared)[1]);
            if (!block.looked)
                look_ahead(f, block);
        }
        warp_barrier();
        if (h.tiles_begin)
            rows::begin_sums(own_tops(shared), s);
        else
            rows::load_sums(f, h, tile, own_tops(shared), s);
        int at = 0, place = 0; /* of the block, of its rows */
        for (bool more = true; more; at = following(at), place ^= 1) {
            const key_block &b = blocks(shared)[at];
            const key_block &next = blocks(shared)[following(at)];
            copies_wait();
            shared_publish();
            block_barrier(); /* the block's keys and values are there, and those before were read;
                                the next block is known, and the one before was read */
            more = next.there;
            bool const masked = b.masked;
            if (group_sees(b)) {
                scores w;
                begin_scores(query_tile(shared), key_tile(shared, place), w);
                bring_next(f, h, shared, at, place);
                warpgroup_wait();
                warpgroup_pin(w[0]);
                if (masked)
                    products::mask(b.cursor, w);
                rows::soften(f, own_tops(shared), w, s);
                add_weighted(w, value_tile(shared, place), s);
            } else {
                bring_next(f, h, shared, at, place);
            }
        }
        block_barrier(); /* queries have been read: rows of output lie otherwise in their place */
        rows::store_sums(f, h, tile, own_tops(shared), s, query_tile(shared));
    }
};

#endif

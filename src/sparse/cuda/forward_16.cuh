/*
 * Forward over one tile in 16-bit elements on tensor cores (mma.m16n8k16, sm_80 and newer).
 *
 * Per block of 64 keys: scores by mma, mask if the band cuts the block, new top, weights rounded to
 * 16 bits, values by mma; a warp whose rows see none of the block only copies. Keys of the next
 * block are copied (cp.async) while this one's values are multiplied, and its values while scores
 * are computed.
 */
#ifndef RINGATTN_CUDA_FORWARD_16_CUH
#define RINGATTN_CUDA_FORWARD_16_CUH

#include "sparse/cuda/forward_rows_16.cuh"

template <class Element, int DIM> struct forward_16 {
    typedef Element element;
    static constexpr ra_cuda_tile TILE = ra_cuda_tile_of(RA_BF16, DIM);
    static constexpr int WARPS = TILE.warps, ROW_TILES = TILE.row_tiles, KEYS = TILE.k_rows;
    static constexpr int FIRST_THREAD = 0, THREADS = 32 * WARPS, Q_ROWS = TILE.q_rows;
    typedef forward_rows_16<Element, DIM, WARPS, ROW_TILES, KEYS> rows;
    typedef typename rows::products products;
    typedef typename rows::scores scores;
    typedef typename rows::tops tops;

    static LANE_CODE void meet()
    {
        block_barrier();
    }

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

    static LANE_CODE tops &own_tops(char *shared)
    {
        return ((tops *)(shared + (Q_ROWS + 2 * KEYS) * DIM * 2))[thread_index()];
    }

    /* Whether some row of the warp sees a key of the block. */
    static LANE_CODE bool warp_sees(const ra_key_cursor &c)
    {
        constexpr int ROWS = 16 * ROW_TILES;
        return warp_vote(ra_key_cursor_sees(&c, ROWS * warp_index(), ROWS, KEYS)) != 0;
    }

    /* Scores of a warp that sees no key. They are not read, but without them compilers keep the
       previous block's; without the barrier they write these before the branch, always. */
    static LANE_CODE void hide(scores &s)
    {
        warp_barrier();
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int n = 0; n < rows::K_TILES; ++n)
                s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = -INFINITY;
    }

    static LANE_CODE void tile(const ra_cuda_forward &f, forward_block &block, char *shared)
    {
        forward_head const &h = block.work.head;
        ra_tile const &tile = block.work.tile;
        typename rows::sums s;
        if (thread_index() == 0)
            block.cursor[0] = block.work.cursor;
        products::template copy_rows<Q_ROWS>(f.aligned, f.dim, h.q, f.q.row_stride, tile.q_begin,
                                             tile.q_stride, tile.q_count, query_tile(shared));
        products::template copy_keys<KEYS>(f, h.k, f.k.row_stride, block.work.cursor,
                                           key_tile(shared));
        copies_commit();
        if (thread_index() == 0 && !block.looked)
            forward_look_ahead(f, element::bytes, block); /* while queries and keys arrive */
        warp_barrier();
        if (h.tiles_begin)
            rows::begin_sums(own_tops(shared), s);
        else
            rows::load_sums(f, h, tile, own_tops(shared), s);
        int turn = 0;
        do { /* a tile has a block of keys at least */
            scores w;
            ra_key_cursor const &c = block.cursor[turn];
            ra_key_cursor &next = block.cursor[turn ^ 1];
            copies_wait();
            block_barrier(); /* queries and keys are there; values and the other cursor are read */
            if (thread_index() == 0) {
                next = c;
                ra_key_cursor_next(&next, KEYS);
            }
            warp_barrier(); /* all lanes do what follows together, as products ask for */
            bool const masked = ra_key_cursor_masked(&c, KEYS);
            bool const sees = !masked || warp_sees(c);
            products::template copy_keys<KEYS>(f, h.v, f.v.row_stride, c, value_tile(shared));
            copies_commit();
            if (sees) {
                products::score(query_tile(shared), key_tile(shared), w);
                if (masked)
                    products::mask(c, w);
            } else {
                hide(w);
            }
            copies_wait();
            block_barrier(); /* values and the next cursor are there; keys have been read */
            if (!ra_key_cursor_is_over(&next))
                products::template copy_keys<KEYS>(f, h.k, f.k.row_stride, next, key_tile(shared));
            copies_commit();
            if (sees) {
                rows::soften(f, own_tops(shared), w, s);
                products::add_weighted(w, value_tile(shared), s.acc);
            }
            turn ^= 1;
        } while (!ra_key_cursor_is_over(&block.cursor[turn]));
        rows::store_sums(f, h, tile, own_tops(shared), s, query_tile(shared));
    }
};

#endif

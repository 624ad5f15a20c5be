/*
 * Forward over tiles in 16-bit elements by warpgroups (wgmma, sm_90a). Two of them compute, 64 rows
 * each; a third, which needs few registers, brings what they read: it draws tasks, finds their
 * tiles and blocks of keys, and copies rows (cp.async). So the next tile's queries and keys are on
 * their way while this one is computed.
 *
 * Per block of 128 keys: scores, mask if the band cuts the block, new top, weights rounded to 16
 * bits, values; all of that of half a block, where a warpgroup's queries see keys of no more. The
 * product with a block's values runs during the softmax of the block after it (FlashAttention-3,
 * arXiv:2407.08608, section 3.2).
 *
 * Includers bring the primitives first: lanes.cuh and warpgroup.cuh on a GPU, an emulation of them
 * in tests.
 */
#ifndef RINGATTN_CUDA_FORWARD_WGMMA_CUH
#define RINGATTN_CUDA_FORWARD_WGMMA_CUH

#include "sparse/cuda/forward_cut.cuh"
#include "sparse/cuda/forward_rows_16.cuh"
#include "sparse/cuda/panel_products.cuh"

/* The whole kernel, for a dtype and a head_dim. */
template <class Element, int DIM> struct forward_wgmma {
    typedef Element element;
    static constexpr ra_cuda_tile TILE = ra_cuda_warpgroup_tile_of(DIM);
    static constexpr int KEYS = TILE.k_rows, Q_ROWS = TILE.q_rows;
    static constexpr int GROUP_ROWS = 64, GROUP_THREADS = 128, PLACES = 2;
    static constexpr int GROUPS = Q_ROWS / GROUP_ROWS; /* that compute; one more brings */
    static constexpr int THREADS = (GROUPS + 1) * GROUP_THREADS;
    static constexpr int WARPS = GROUPS * 4; /* that compute */
    typedef forward_rows_16<Element, DIM, WARPS, 1, KEYS, RA_PANEL> rows;
    typedef typename rows::products products;
    typedef products_16<Element, DIM, GROUP_THREADS, RA_PANEL> copies;
    typedef typename rows::sums sums;
    typedef typename rows::tops tops;
    typedef panel_products<Element> panels;
    typedef uint32_t weights[KEYS / 16][4]; /* of a block, rounded: left operands */
    static_assert(32 * TILE.warps == THREADS && DIM % RA_PANEL == 0, "as the table has it");

    /* Barriers of some of the threads, by number; 0 is that of all. */
    enum { COMPUTING = 1, BRINGING = 2, TURNS = 3 };

    /* Threads that do the same, to forward_chunk.cuh. */
    template <int BARRIER, int FIRST, int COUNT> struct some_threads {
        typedef Element element;
        static constexpr ra_cuda_tile TILE = forward_wgmma::TILE;
        static constexpr int FIRST_THREAD = FIRST, THREADS = COUNT;
        static LANE_CODE void meet()
        {
            threads_barrier(BARRIER, COUNT);
        }
    };
    typedef some_threads<COMPUTING, 0, 32 * WARPS> computing;
    typedef some_threads<BRINGING, 32 * WARPS, GROUP_THREADS> bringing;

    /* ---- shared memory: board, two tiles of queries, two blocks of keys and values ---- */

    /* A block of keys, where its rows lie, and of which half a warpgroup's queries see keys. */
    enum { KEY_ROWS, VALUE_ROWS, KINDS };
    enum { LOWER, UPPER, BOTH };
    struct key_block {
        ra_key_cursor cursor;
        const char *rows[KINDS];  /* the first of the block, */
        int64_t row_bytes[KINDS]; /* and from one to the next */
        int32_t left;             /* blocks of the task, this one included */
        bool last, masked;        /* of the tile */
        uint8_t half[GROUPS];
    };

    /* A tile of a task, or a task without one. */
    struct unit {
        forward_work work;
        bool begins, ends; /* the task */
    };

    /*
     * Units, blocks and rows have places by turns. Something is there, or has been read, so that
     * its place is free; that of queries, once the output that took it is stored. What a thread
     * says is there comes after all that it copied before: with queries the first block's keys are
     * there, with a block's values the next block's keys. Units have more places than queries: one
     * is needed until its task has ended, when its queries' place may be another's.
     */
    struct board {
        unit units[2 * PLACES];
        key_block blocks[2 * PLACES];
        mbarrier queries_there[PLACES], queries_read[PLACES];
        mbarrier values_there[PLACES], rows_read[KINDS][PLACES];
        ra_key_cursor cursor; /* the block after the last that is known */
        uint32_t last_part;   /* see forward_end_part */
    };
    static_assert(sizeof(board) <= RA_CUDA_WARPGROUP_BOARD_BYTES, "it has its place");

    /* Unit n's queries, and then its output: a warp's rows of both have one place, and when a
       warp has waited for scores, the product has read the queries: what it waits for, a
       wgmma-group, is of the warpgroup. */
    static LANE_CODE char *query_tile(char *shared, uint32_t n)
    {
        return shared + RA_CUDA_WARPGROUP_BOARD_BYTES + n % PLACES * Q_ROWS * DIM * 2;
    }

    static LANE_CODE char *block_tile(char *shared, int kind, uint32_t n)
    {
        int const place = n % PLACES;
        return query_tile(shared, 0) + (PLACES * Q_ROWS + (2 * place + kind) * KEYS) * DIM * 2;
    }

    static LANE_CODE unit &known_unit(board &on, uint32_t n)
    {
        return on.units[n % (2 * PLACES)];
    }

    static LANE_CODE key_block &known(board &on, uint32_t n)
    {
        return on.blocks[n % (2 * PLACES)];
    }

    static LANE_CODE void begin(board &b)
    {
        int const copied = GROUP_THREADS + GROUP_THREADS / 32; /* see tell_copied */
        for (int i = 0; i < PLACES; ++i) {
            mbarrier_begin(b.queries_there[i], copied);
            mbarrier_begin(b.queries_read[i], WARPS);
            mbarrier_begin(b.values_there[i], copied);
            mbarrier_begin(b.rows_read[KEY_ROWS][i], WARPS);
            mbarrier_begin(b.rows_read[VALUE_ROWS][i], WARPS);
        }
    }

    /* Until the n-th is there; */
    static LANE_CODE void wait_there(mbarrier (&there)[PLACES], uint32_t n)
    {
        mbarrier_wait(there[n % PLACES], n / PLACES % 2);
    }

    /* until its place is free: the one before it there was read. */
    static LANE_CODE void wait_free(mbarrier (&read)[PLACES], uint32_t n)
    {
        mbarrier_wait(read[n % PLACES], (n / PLACES + 1) % 2);
    }

    /* By all lanes of a warp: what they read before, or wrote, is behind them. */
    static LANE_CODE void tell(mbarrier &m)
    {
        warp_barrier();
        if (lane_index() == 0)
            mbarrier_arrive(m);
    }

    /* Likewise, once this thread's copies have arrived. */
    static LANE_CODE void tell_copied(mbarrier &m)
    {
        mbarrier_arrive_copied(m);
        tell(m);
    }

    /* Warpgroups that compute begin products by turns: those of one run during the softmax of the
       other. */
    static LANE_CODE void wait_turn(int own)
    {
        threads_barrier(TURNS + own, 2 * GROUP_THREADS);
    }

    static LANE_CODE void pass_turn(int own)
    {
        threads_arrive(TURNS + (own + 1) % GROUPS, 2 * GROUP_THREADS);
    }

    /* ---- bringing: by the last warpgroup ---- */

    /* Of its threads this one looks for what comes next. */
    static LANE_CODE bool is_first_bringing()
    {
        return thread_index() == 32 * WARPS;
    }

    static LANE_CODE void find_task(const ra_cuda_forward &f, forward_work &w)
    {
        do
            forward_draw(f, Element::bytes, KEYS, w);
        while (w.there && w.head.skipped && !f.yields);
        w.there = w.there && !w.head.skipped;
    }

    static LANE_CODE int half_seen(const ra_key_cursor &c, int group)
    {
        ra_run_keys const seen = ra_key_cursor_seen(&c, group * GROUP_ROWS, GROUP_ROWS, KEYS);
        int const middle = c.b + KEYS / 2;
        return seen.end <= middle ? LOWER : seen.begin >= middle ? UPPER : BOTH;
    }

    /* Block n, of `left` of the task, at the cursor, which moves on. */
    static LANE_CODE void say_block(const ra_cuda_forward &f, const forward_head &h, board &on,
                                    uint32_t n, int32_t left)
    {
        ra_key_cursor &c = on.cursor;
        key_block &b = known(on, n);
        b.cursor = c;
        b.left = left;
        b.masked = ra_key_cursor_masked(&c, KEYS);
        for (int group = 0; group < GROUPS; ++group)
            b.half[group] = b.masked ? half_seen(c, group) : BOTH;
        int64_t const row = ra_key_cursor_row(&c, c.b);
        b.row_bytes[KEY_ROWS] = c.k_stride * f.k.row_stride * 2;
        b.row_bytes[VALUE_ROWS] = c.k_stride * f.v.row_stride * 2;
        b.rows[KEY_ROWS] = h.k + row * f.k.row_stride * 2;
        b.rows[VALUE_ROWS] = h.v + row * f.v.row_stride * 2;
        ra_key_cursor_next(&c, KEYS);
        b.last = left == 1 || ra_key_cursor_is_over(&c);
    }

    /* The unit after another one, if there is one before it, and its first block. */
    static LANE_CODE void say_unit(const ra_cuda_forward &f, const unit *before, board &on, unit &u,
                                   uint32_t block)
    {
        forward_work &w = u.work;
        u.begins = before == NULL || before->ends;
        if (!u.begins) {
            w = before->work;
            forward_next_tile(f, w);
        } else if (before == NULL || !f.yields) {
            find_task(f, w);
        } else {
            w.there = false;
        }
        u.ends = w.layer >= f.map.layer_count;
        if (!w.there || !w.has_tile)
            return;
        on.cursor = w.cursor;
        say_block(f, w.head, on, block, w.cut == FORWARD_WHOLE ? INT32_MAX : f.cuts.part_steps);
    }

    /* Rows to a tile of so many; those from `count` on become zeros. */
    template <int ROWS>
    static LANE_CODE void copy_tile(const ra_cuda_forward &f, const char *from, int64_t row_bytes,
                                    int count, char *to)
    {
        static_assert(copies::ROUNDS == 1, "a row's pieces are copied side by side");
        ra_piece_at const at = ra_copy_at(DIM, thread_index() & (GROUP_THREADS - 1));
        int const elements = ra_hd_min(RA_PIECE, f.dim - at.piece * RA_PIECE);
        copies::template copy_column<ROWS>(
            f.aligned, from + at.row * row_bytes + at.piece * RA_PIECE_BYTES,
            copies::ROWS_AT_ONCE * row_bytes, elements, elements > 0 ? count - at.row : 0,
            to + ra_panel_offset(RA_PANEL, ROWS, at.row, at.piece));
    }

    /* A block's keys or values, once their place is free. */
    static LANE_CODE void bring_rows(const ra_cuda_forward &f, char *shared, int kind, uint32_t n)
    {
        board &on = *(board *)shared;
        const key_block &b = known(on, n);
        wait_free(on.rows_read[kind], n);
        copy_tile<KEYS>(f, b.rows[kind], b.row_bytes[kind], b.cursor.end - b.cursor.b,
                        block_tile(shared, kind, n));
    }

    /* A tile's queries, and its first block's keys, which may be there before. */
    static LANE_CODE void bring_queries(const ra_cuda_forward &f, const forward_work &w,
                                        char *shared, uint32_t n, uint32_t block)
    {
        board &on = *(board *)shared;
        bool const has_tile = w.there && w.has_tile;
        if (has_tile)
            bring_rows(f, shared, KEY_ROWS, block);
        wait_free(on.queries_read, n);
        if (has_tile)
            copy_tile<Q_ROWS>(f, w.head.q + (int64_t)w.tile.q_begin * f.q.row_stride * 2,
                              (int64_t)w.tile.q_stride * f.q.row_stride * 2, w.tile.q_count,
                              query_tile(shared, n));
        tell_copied(on.queries_there[n % PLACES]);
    }

    static LANE_CODE void bring_values(const ra_cuda_forward &f, char *shared, uint32_t n)
    {
        board &on = *(board *)shared;
        bring_rows(f, shared, VALUE_ROWS, n);
        tell_copied(on.values_there[n % PLACES]);
    }

    /* A tile's keys but the first block's, and its values but the last block's, from block n on:
       keys of a block are needed, and their place is free, before the values of the block before
       it. @return the last block */
    static LANE_CODE uint32_t bring_blocks(const ra_cuda_forward &f, const forward_head &h,
                                           char *shared, uint32_t n)
    {
        board &on = *(board *)shared;
        if (is_first_bringing() && !known(on, n).last)
            say_block(f, h, on, n + 1, known(on, n).left - 1);
        bringing::meet(); /* the next block is known */
        for (; !known(on, n).last; ++n) {
            bring_rows(f, shared, KEY_ROWS, n + 1);
            if (is_first_bringing() && !known(on, n + 1).last)
                say_block(f, h, on, n + 2, known(on, n + 1).left - 1);
            warp_barrier();
            bring_values(f, shared, n);
            bringing::meet(); /* the next block is known */
        }
        return n;
    }

    /* A unit is looked for before the last values of the one before it are brought, whose place is
       not free yet; a tile's only values, which are waited for sooner, come first. */
    static LANE_CODE void bring(const ra_cuda_forward &f, char *shared)
    {
        board &on = *(board *)shared;
        uint32_t blocks = 0;
        bool late = false; /* the last values are to be brought */
        for (uint32_t n = 0;; ++n) {
            unit &u = known_unit(on, n);
            if (is_first_bringing())
                say_unit(f, n == 0 ? NULL : &known_unit(on, n - 1), on, u, blocks);
            warp_barrier();
            if (late)
                bring_values(f, shared, blocks - 1);
            bringing::meet(); /* the unit and its first block are known */
            bring_queries(f, u.work, shared, n, blocks);
            if (!u.work.there)
                break;
            if (u.begins) /* tiles write after it, since they wait for values, which come after */
                forward_missed_rows<bringing, FORWARD_OUTPUT>(f, u.work);
            late = false;
            if (!u.work.has_tile)
                continue;
            uint32_t const last = bring_blocks(f, u.work.head, shared, blocks);
            late = last != blocks;
            if (!late)
                bring_values(f, shared, last);
            blocks = last + 1;
        }
        copies_commit();
        copies_wait(); /* no thread ends before what it copies is there */
    }

    /* ---- products: of all keys of a block, or of a half of them ---- */

    /* The first key of a half. */
    static LANE_CODE int first_of(int half)
    {
        return half == UPPER ? KEYS / 2 : 0;
    }

    /* Keys or values of block n. */
    static LANE_CODE uint32_t place_of(char *shared, int kind, uint32_t n, int half)
    {
        return warp_uniform(panels::place_of(block_tile(shared, kind, n), first_of(half)));
    }

    /* Scores of the warpgroup's queries with keys, to be waited for. */
    template <int TILES>
    static LANE_CODE void begin_scores(uint32_t queries, uint32_t keys, float (&s)[1][TILES][4])
    {
        panels::template begin_scores<DIM, Q_ROWS, KEYS>(queries, keys, s[0]);
    }

    /* acc += w * values, to be waited for. */
    template <int SEEN> static LANE_CODE void begin_weighted(weights &w, uint32_t values, sums &s)
    {
        panels::template begin_weighted<KEYS>(of_keys<SEEN>(w), values, s.acc[0]);
    }

    static LANE_CODE void end_weighted(board &on, uint32_t n, sums &s)
    {
        warpgroup_wait<0>();
        warpgroup_pin(s.acc[0]);
        tell(on.rows_read[VALUE_ROWS][n % PLACES]);
    }

    /* The weights of so many keys. */
    template <int SEEN> static LANE_CODE uint32_t (&of_keys(weights &w))[SEEN / 16][4]
    {
        return (uint32_t(&)[SEEN / 16][4]) w;
    }

    /* ---- computing: by the other warpgroups ---- */

    /* The values of block n, and the keys of the next one. */
    static LANE_CODE void await_values(board &on, uint32_t n)
    {
        wait_there(on.values_there, n);
        shared_publish();
    }

    /* Scores of block n are there. */
    template <int TILES>
    static LANE_CODE void take_scores(board &on, uint32_t n, bool masked, int half,
                                      float (&s)[1][TILES][4])
    {
        warpgroup_pin(s[0]);
        tell(on.rows_read[KEY_ROWS][n % PLACES]); /* before a branch, or ptxas puts it off */
        if (masked)
            products::mask(known(on, n).cursor, s, first_of(half));
    }

    /* Of a warpgroup's tile. */
    struct progress {
        uint32_t queries; /* where they lie */
        sums s;
        tops top;
        weights w; /* of the block at hand, */
        int half;  /* or of a half of it */
    };

    /* Weights of the tile's first block, of SEEN keys. */
    template <int SEEN>
    static LANE_CODE void begin_tile(const ra_cuda_forward &f, char *shared, uint32_t n,
                                     progress &t)
    {
        board &on = *(board *)shared;
        float fresh[1][SEEN / 8][4];
        begin_scores(warp_uniform(t.queries), place_of(shared, KEY_ROWS, n, t.half), fresh);
        warpgroup_wait<0>();
        take_scores(on, n, known(on, n).masked, t.half, fresh);
        rows::soften(f, t.top, fresh, t.s);
        products::pack_rows(fresh[0], of_keys<SEEN>(t.w));
    }

    /* The values of block n, of which SEEN_BEFORE keys have weights, and weights of the next one.
     */
    template <int SEEN, int SEEN_BEFORE>
    static LANE_CODE void next_block(const ra_cuda_forward &f, char *shared, int own, uint32_t n,
                                     int half, progress &t)
    {
        board &on = *(board *)shared;
        float fresh[1][SEEN / 8][4], left[1][2], sum[1][2];
        bool const masked = known(on, n + 1).masked;
        uint32_t const queries = warp_uniform(t.queries);
        uint32_t const keys = place_of(shared, KEY_ROWS, n + 1, half);
        uint32_t const values = place_of(shared, VALUE_ROWS, n, t.half);
        wait_turn(own); /* with all places known: the other warpgroup waits for these products */
        begin_scores(queries, keys, fresh);
        begin_weighted<SEEN_BEFORE>(t.w, values, t.s);
        pass_turn(own);
        warpgroup_wait<1>();
        take_scores(on, n + 1, masked, half, fresh);
        bool const raised = rows::raise(f, fresh, t.top, left);
        rows::weigh(f, t.top, fresh, sum);
        /* Weights are computed before values are waited for. The branch is there for nothing else:
           ptxas moves few past it. */
        warpgroup_pin(fresh[0]);
        if (raised)
            warp_barrier();
        end_weighted(on, n, t.s);
        if (raised)
            rows::scale_sums(left, t.s);
        rows::add_sums(sum, t.s);
        products::pack_rows(fresh[0], of_keys<SEEN>(t.w));
        t.half = half;
    }

    /* `tile`: its queries, whose place takes its output. Blocks from n on. @return the next tile's
       first */
    static LANE_CODE uint32_t compute_tile(const ra_cuda_forward &f, const forward_work &work,
                                           char *shared, char *tile, int own, uint32_t n)
    {
        board &on = *(board *)shared;
        progress t;
        t.queries = panels::place_of(tile, own * GROUP_ROWS);
        if (work.head.tiles_begin)
            rows::begin_sums(t.top, t.s);
        else
            rows::load_sums(f, work.head, work.tile, t.top, t.s);
        t.half = known(on, n).half[own];
        if (t.half == BOTH)
            begin_tile<KEYS>(f, shared, n, t);
        else
            begin_tile<KEYS / 2>(f, shared, n, t);
        /* Products that are under way together must be of one branch, or ptxas serializes them. */
        for (bool more = !known(on, n).last; more; ++n) {
            await_values(on, n);
            more = !known(on, n + 1).last;
            int const half = known(on, n + 1).half[own];
            if (t.half == BOTH && half == BOTH)
                next_block<KEYS, KEYS>(f, shared, own, n, BOTH, t);
            else if (t.half == BOTH)
                next_block<KEYS / 2, KEYS>(f, shared, own, n, half, t);
            else if (half == BOTH)
                next_block<KEYS, KEYS / 2>(f, shared, own, n, BOTH, t);
            else
                next_block<KEYS / 2, KEYS / 2>(f, shared, own, n, half, t);
        }
        await_values(on, n);
        uint32_t const values = place_of(shared, VALUE_ROWS, n, t.half);
        if (t.half == BOTH)
            begin_weighted<KEYS>(t.w, values, t.s);
        else
            begin_weighted<KEYS / 2>(t.w, values, t.s);
        end_weighted(on, n, t.s);
        rows::store_sums(f, work.head, work.tile, t.top, t.s, tile);
        return n + 1;
    }

    static LANE_CODE void compute(const ra_cuda_forward &f, char *shared)
    {
        board &on = *(board *)shared;
        int const own = warpgroup_index();
        uint32_t blocks = 0;
        if (own == GROUPS - 1)
            pass_turn(own);
        for (uint32_t n = 0;; ++n) {
            const unit &u = known_unit(on, n);
            wait_there(on.queries_there, n);
            shared_publish();
            if (!u.work.there)
                return;
            if (f.map.shared_rows)
                computing::meet(); /* rows of state are written, or were read */
            if (u.begins)
                forward_missed_rows<computing, FORWARD_STATE>(f, u.work);
            if (u.work.has_tile)
                blocks = compute_tile(f, u.work, shared, query_tile(shared, n), own, blocks);
            tell(on.queries_read[n % PLACES]); /* and its output is stored */
            if (u.ends && u.work.cut != FORWARD_WHOLE)
                forward_end_part<computing>(f, u.work, &on.last_part);
            if (u.ends)
                forward_end_rows<computing>(f, u.work);
        }
    }

    static LANE_CODE void all(const ra_cuda_forward &f, char *shared)
    {
        if (thread_index() == 0)
            begin(*(board *)shared);
        block_barrier(); /* mbarriers are made */
        if (warpgroup_index() == GROUPS) {
            registers_leave<RA_CUDA_REGISTERS_BRINGING>();
            bring(f, shared);
        } else {
            registers_take<RA_CUDA_REGISTERS_COMPUTING>();
            compute(f, shared);
        }
    }
};

#endif

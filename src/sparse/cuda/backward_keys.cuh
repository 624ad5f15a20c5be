/*
 * A task of the pass for dk and dv: some consecutive key rows of one kv head of one batch, in one
 * thread block. Their gradients are summed a block of keys at a time, over the queries of all heads
 * that read them. No two tasks share a row of dk or dv, and the order of a task is fixed.
 *
 * The map's index tells which tiles see a block of keys: the runs of all spans that reach the block
 * are checked, and those that meet it are listed.
 *
 * Includers bring the primitives first: lanes.cuh on a GPU, an emulation of it in tests.
 */
#ifndef RINGATTN_CUDA_BACKWARD_KEYS_CUH
#define RINGATTN_CUDA_BACKWARD_KEYS_CUH

#include "sparse/cuda/backward_queries.cuh"

/* What is to be visited. */
struct key_visit {
    const ra_tile_layer *layer;
    const uint32_t *chunk_tile;   /* of the layer */
    uint32_t tile, tile_end;      /* tiles that are searched for */
    uint32_t run, run_end;        /* their runs */
    uint32_t place, place_end;    /* in the index: the layer's runs that were not checked yet */
    int32_t head_begin, head_end; /* the group's heads, in this launch, from the layer's first on */
    int32_t listed;               /* runs in the list */
};

/*
 * A thread block's work, all in shared memory, because registers are scarce in the loop over steps.
 * Query cursors take turns: one is worked on, rows of the next are being copied, and the one after
 * that is being found.
 */
struct backward_keys_block {
    ra_query_cursor cursor[3];
    ra_cuda_key_task task;
    int32_t layer;                  /* map.layer_count: there are no more blocks of keys */
    int32_t block_next, block_last; /* of the task's rows, in this layer, at this stride: */
    int32_t stride;
    ra_key_block keys; /* the one at hand */
    key_visit visit;
    uint32_t votes[8]; /* of warps */
};
static_assert(sizeof(backward_keys_block) <= RA_CUDA_KEYS_HEAD_BYTES, "it has its place");

/* Runs that meet the block of keys, and the tiles that they are of: they follow in shared memory.
 */
LANE_CODE uint32_t *listed_runs(backward_keys_block &block)
{
    return (uint32_t *)((char *)&block + RA_CUDA_KEYS_HEAD_BYTES);
}

LANE_CODE uint32_t *listed_tiles(backward_keys_block &block)
{
    return listed_runs(block) + RA_CUDA_LIST_ENTRIES;
}

/* ---- finding runs ---------------------------------------------------------------------------- */

LANE_CODE void visit_tiles(const ra_cuda_map &map, int32_t chunk_begin, int32_t chunk_end,
                           key_visit &v)
{
    v.tile = v.chunk_tile[chunk_begin];
    v.tile_end = v.chunk_tile[chunk_end];
    v.run = map.tiles[v.tile].run_begin;
    v.run_end = map.tiles[v.tile_end].run_begin;
    v.place = map.tiles[v.chunk_tile[0]].run_begin;
    v.place_end = map.tiles[v.chunk_tile[map.chunk_count]].run_begin;
}

/* The tile of a run: the last one that begins no later. */
LANE_CODE uint32_t tile_of_run(const ra_tile *tiles, uint32_t begin, uint32_t end, uint32_t run)
{
    while (end - begin > 1) {
        uint32_t const middle = begin + (end - begin) / 2;
        if (tiles[middle].run_begin <= run)
            begin = middle;
        else
            end = middle;
    }
    return begin;
}

/* The bits of all warps' votes, in shared memory until the next barrier. */
LANE_CODE void publish_vote(bool holds, backward_keys_block &block)
{
    uint32_t const vote = warp_vote(holds);
    if (lane_index() == 0)
        block.votes[warp_index()] = vote;
    block_barrier(); /* votes are there */
}

/* The first place of the index, from `place` on, in a span that reaches the block of keys; `end`:
   none. Runs after a span begin no earlier than the section of its first key. */
template <int THREADS>
LANE_CODE uint32_t next_place(const ra_cuda_map &map, backward_keys_block &block, uint32_t place,
                              uint32_t end)
{
    if (place == end)
        return end;
    uint32_t const span_end = (end - 1) / RA_SPAN_RUNS + 1;
    uint32_t span = place / RA_SPAN_RUNS;
    for (; span < span_end && !ra_key_block_precedes(&block.keys, &map.spans[span]);
         span += THREADS) {
        uint32_t const mine = span + (uint32_t)thread_index();
        publish_vote(mine < span_end && ra_key_block_reaches(&block.keys, &map.spans[mine]), block);
        uint32_t first = span_end;
        for (int w = THREADS / 32 - 1; w >= 0; --w) {
            uint32_t const vote = block.votes[w];
            if (vote != 0)
                first = span + 32 * (uint32_t)w + (uint32_t)count_bits((vote & -vote) - 1);
        }
        block_barrier(); /* votes have been read */
        if (first < span_end)
            return first == place / RA_SPAN_RUNS ? place : first * RA_SPAN_RUNS;
    }
    return end;
}

/* List runs, in the order of the index, until the list might be too short for another round. */
template <int THREADS> LANE_CODE void list_runs(const ra_cuda_map &map, backward_keys_block &block)
{
    static_assert(THREADS >= RA_CUDA_LOOK_RUNS, "a thread looks at a run");
    static_assert(THREADS / 32 <= sizeof(block.votes) / sizeof(block.votes[0]), "a vote per warp");
    int const warp = warp_index(), lane = lane_index();
    uint32_t *const runs = listed_runs(block), *const tiles = listed_tiles(block);
    uint32_t const run_begin = block.visit.run, run_end = block.visit.run_end;
    uint32_t const end = block.visit.place_end;
    uint32_t place = next_place<THREADS>(map, block, block.visit.place, end);
    int listed = 0;
    while (place < end && listed + RA_CUDA_LOOK_RUNS <= RA_CUDA_LIST_ENTRIES) {
        uint32_t const span_left = RA_SPAN_RUNS - place % RA_SPAN_RUNS;
        uint32_t const left = end - place < span_left ? end - place : span_left;
        uint32_t const count = (uint32_t)ra_hd_min((int)left, RA_CUDA_LOOK_RUNS);
        uint32_t const own = (uint32_t)thread_index();
        uint32_t const run = own < count ? map.by_keys[place + own] : run_end;
        bool const meets =
            run >= run_begin && run < run_end && ra_key_block_meets(&block.keys, &map.runs[run]);
        publish_vote(meets, block);
        int at = listed + count_bits(block.votes[warp] & ((1u << lane) - 1u));
        for (int w = 0; w < THREADS / 32; ++w) {
            int const found = count_bits(block.votes[w]);
            at += w < warp ? found : 0;
            listed += found;
        }
        if (meets)
            runs[at] = run;
        block_barrier(); /* votes have been read; runs are listed */
        place = next_place<THREADS>(map, block, place + count, end);
    }
    for (int i = thread_index(); i < listed; i += THREADS)
        tiles[i] = tile_of_run(map.tiles, block.visit.tile, block.visit.tile_end, runs[i]);
    block_barrier(); /* everyone has read visit.place: next_place may have met no barrier */
    if (thread_index() == 0) {
        block.visit.place = place;
        block.visit.listed = listed;
    }
    block_barrier(); /* tiles are listed, and how many */
}

/* ---- the way through the list ---------------------------------------------------------------- */

LANE_CODE bool visit_is_over(const backward_keys_block &block, const ra_query_cursor &c)
{
    return c.entry == block.visit.listed;
}

/* The next head of the group, after c.head, that the layer has. */
LANE_CODE bool visit_head(const ra_cuda_backward &f, const key_visit &v, ra_query_cursor &c)
{
    while (++c.head < v.head_end)
        if (layer_has(*v.layer, f.q_head_begin + c.head))
            return true;
    return false;
}

/* The first listed run, from c.entry on, that some query of its tile sees keys of the block in. */
LANE_CODE void visit_enter(const ra_cuda_backward &f, backward_keys_block &block,
                           ra_query_cursor &c)
{
    for (; c.entry < block.visit.listed; ++c.entry) {
        c.head = block.visit.head_begin;
        if (ra_query_cursor_enter(&block.keys, f.map.tiles[listed_tiles(block)[c.entry]],
                                  f.map.runs[listed_runs(block)[c.entry]], &c))
            return;
    }
}

LANE_CODE void visit_next(const ra_cuda_backward &f, backward_keys_block &block, int32_t q_rows,
                          ra_query_cursor &c)
{
    if (visit_is_over(block, c))
        return;
    c.a += q_rows;
    if (c.a < c.a_end)
        return;
    c.a = c.a_begin;
    if (visit_head(f, block.visit, c))
        return;
    ++c.entry;
    visit_enter(f, block, c);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/* Go through some of the layer's tiles: those of chunks [chunk_begin, chunk_end). Keys and values
   are loaded when the first query that sees some is found; `any`: one was found. */
template <class Block>
LANE_CODE bool backward_keys_visit(const ra_cuda_backward &f, int32_t chunk_begin,
                                   int32_t chunk_end, bool any, backward_keys_block &block,
                                   char *tiles, typename Block::sums &sums)
{
    if (thread_index() == 0)
        visit_tiles(f.map, chunk_begin, chunk_end, block.visit);
    block_barrier(); /* tiles to be looked at are known */
    while (block.visit.place < block.visit.place_end) {
        list_runs<Block::THREADS>(f.map, block);
        if (thread_index() == 0) {
            ra_query_cursor &first = block.cursor[0], &second = block.cursor[1];
            first.entry = 0;
            visit_enter(f, block, first);
            second = first;
            visit_next(f, block, Block::QUERIES, second);
        }
        block_barrier(); /* cursors are set */
        if (!any && !visit_is_over(block, block.cursor[0])) {
            Block::load(f, block, tiles);
            any = true;
        }
        Block::visit(f, block, tiles, sums);
        block_barrier(); /* cursors and the list have been read */
    }
    return any;
}

/* All that a layer's queries add to a block of keys. */
template <class Block> LANE_CODE void backward_keys_sum(const ra_cuda_backward &f, char *shared)
{
    int32_t const chunks = f.map.chunk_count;
    backward_keys_block &block = *(backward_keys_block *)shared;
    char *const tiles = shared + RA_CUDA_KEYS_HEAD_BYTES + RA_CUDA_LIST_BYTES;
    typename Block::sums sums;
    bool any = false;
    Block::begin(sums);
#pragma unroll 1 /* the loop over steps is large: one copy of it */
    for (int32_t turn = 0; turn < (f.ends_only ? 2 : 1); ++turn) {
        int32_t const begin = turn == 0 ? 0 : chunks - 1;
        int32_t const end = f.ends_only ? begin + 1 : chunks;
        any = backward_keys_visit<Block>(f, begin, end, any, block, tiles, sums);
        block_barrier(); /* everyone has seen that there are no more runs */
    }
    Block::end(f, block, any, sums);
    block_barrier(); /* keys have been read, and rows of gradients are written */
}

/* What a task visits in a layer; false: none of the group's heads is in it. */
LANE_CODE bool visit_layer(const ra_cuda_backward &f, int32_t layer, int32_t kv_head, key_visit &v)
{
    int32_t const group = (int32_t)f.sharing.value;
    v.layer = &f.map.layers[layer];
    v.chunk_tile = f.map.chunk_tile + (int64_t)layer * (f.map.chunk_count + 1);
    v.head_begin = kv_head * group;
    v.head_end = v.head_begin + group;
    visit_tiles(f.map, 0, f.map.chunk_count, v);
    while (v.head_begin < v.head_end && !layer_has(*v.layer, f.q_head_begin + v.head_begin))
        ++v.head_begin;
    return v.head_begin < v.head_end;
}

/* The next block with keys, over all layers that a head of the group is in. */
LANE_CODE void backward_keys_next(const ra_cuda_backward &f, int32_t keys, backward_keys_block &b)
{
    int64_t const begin = b.task.row_begin, end = b.task.row_end;
    do {
        while (b.block_next == b.block_last) {
            if (++b.layer == f.map.layer_count)
                return;
            if (!visit_layer(f, b.layer, b.task.kv_head, b.visit))
                continue;
            b.stride = ra_cuda_key_stride(f.map.runs, b.visit.run, b.visit.run_end);
            b.block_next = 0;
            b.block_last = ra_key_block_count(begin, end, b.stride, keys);
        }
        b.keys = ra_key_block_of(begin, end, b.stride, keys, b.block_next++);
    } while (b.keys.count == 0);
}

template <class Block>
LANE_CODE void backward_keys_task(const ra_cuda_backward &f, const ra_cuda_key_task &task,
                                  char *shared)
{
    backward_keys_block &block = *(backward_keys_block *)shared;
    if (thread_index() == 0) {
        block.task = task;
        block.layer = -1;
        block.block_next = block.block_last = 0;
    }
    for (;;) {
        if (thread_index() == 0)
            backward_keys_next(f, Block::KEYS, block);
        block_barrier(); /* the block of keys is known */
        if (block.layer == f.map.layer_count)
            return;
        backward_keys_sum<Block>(f, shared);
    }
}

/* The whole kernel: thread blocks take tasks until none are left, or one each. */
template <class Block> struct keys_pass : Block {
    static LANE_CODE void all(const ra_cuda_backward &f, char *shared)
    {
        do {
            int64_t const index = take_ticket(&f.tickets[1], shared);
            if (index >= f.k_tasks)
                return;
            backward_keys_task<Block>(f, ra_cuda_key_task_of(&f, index), shared);
        } while (!f.yields);
    }
};

#endif

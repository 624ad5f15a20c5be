/*
 * A task of the forward pass: one chunk of queries of one head of one batch, in one thread block.
 * This file has what all instances share: where tensors and state lie, rows that no tile reaches,
 * and the order of tiles. An instance computes a tile.
 *
 * Includers bring the primitives first: lanes.cuh on a GPU, an emulation of it in tests.
 */
#ifndef RINGATTN_CUDA_FORWARD_CHUNK_CUH
#define RINGATTN_CUDA_FORWARD_CHUNK_CUH

#include "sparse/chunk_turn.h"
#include "sparse/cuda/forward_args.h"
#include "sparse/cuda/heads.cuh"
#include "sparse/cuda/key_cursor.h"

#include <math.h>

/*
 * A chunk of one head of one batch, as a thread block sees it; rows of state begin at state_row. It
 * lies in shared memory, because registers are scarce in the loop over blocks of keys.
 */
struct forward_head {
    const char *q, *k, *v, *dout;
    char *out;
    float *lse, *delta, *acc, *top, *sum;
    int64_t state_row;
    bool skipped, begins, ends;  /* as in ra_chunk_turn */
    bool tiles_begin, tiles_end; /* a tile begins the state, ends in output: no row is shared */
};

/*
 * All of a thread block's work, so that it takes no thread's registers in the loop over blocks of
 * keys. Key cursors take turns: one is read while the other is moved on.
 */
struct forward_block {
    forward_head head;
    ra_key_cursor cursor[2];
    ra_cuda_task task;
    int32_t layer;                /* map.layer_count: there are no more tiles */
    uint32_t tile_next, tile_end; /* of the layer, in this chunk */
    ra_tile tile;                 /* the one at hand, */
    uint32_t run_end;             /* and the end of its runs */
};
static_assert(sizeof(forward_block) <= RA_CUDA_HEAD_BYTES, "it has its place in shared memory");

LANE_CODE void forward_head_begin(const ra_cuda_forward &f, const ra_cuda_task &task,
                                  int element_bytes, forward_head &h)
{
    int32_t const kv_head = task.head / (f.q_heads / f.kv_heads);
    int64_t const rows = f.map.q_rows;
    h.q = head_data(f.q, element_bytes, task.batch, task.head);
    h.k = head_data(f.k, element_bytes, task.batch, kv_head);
    h.v = head_data(f.v, element_bytes, task.batch, kv_head);
    ra_chunk_turn const turn =
        ra_chunk_turn_of(f.state.chunks, f.step, f.first, f.last, task.chunk, f.map.chunk_rows);
    h.lse = h.delta = h.acc = h.top = h.sum = NULL;
    if (turn.ends) {
        int64_t const at = task.batch * f.lse_batch_stride + task.head * rows;
        h.out = head_data(f.out, element_bytes, task.batch, task.head);
        if (f.lse != NULL)
            h.lse = f.lse + at;
        if (f.delta != NULL) {
            h.delta = f.delta + at;
            h.dout = head_data(f.dout, element_bytes, task.batch, task.head);
        }
    }
    if (turn.carried) {
        int64_t const at = ((int64_t)task.batch * f.q_heads + task.head) * f.state.rows;
        h.acc = f.state.acc + at * f.dim;
        h.top = f.state.top + at;
        h.sum = f.state.sum + at;
    } else if (f.map.shared_rows) {
        h.acc = f.scratch + block_index() * f.scratch_floats;
        h.top = h.acc + (int64_t)RA_SHARED_CHUNK_ROWS_MAX * f.dim;
        h.sum = h.top + RA_SHARED_CHUNK_ROWS_MAX;
    }
    h.state_row = turn.state_row;
    h.skipped = turn.skipped;
    h.begins = turn.begins;
    h.ends = turn.ends;
    h.tiles_begin = turn.begins && !f.map.shared_rows;
    h.tiles_end = turn.ends && !f.map.shared_rows;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* A row that has seen no key has sum 0, and becomes 0. */
LANE_CODE float row_factor(float sum)
{
    return sum == 0 ? 0.0f : 1.0f / sum;
}

LANE_CODE float row_lse(float top, float sum)
{
    return sum == 0 ? -INFINITY : (top + log2f(sum)) * 0.693147180559945f;
}

template <int THREADS>
LANE_CODE void begin_state_rows(const forward_head &h, int dim, int64_t begin, int64_t end)
{
    for (int64_t i = (begin - h.state_row) * dim + thread_index(); i < (end - h.state_row) * dim;
         i += THREADS)
        h.acc[i] = 0;
    for (int64_t row = begin - h.state_row + thread_index(); row < end - h.state_row;
         row += THREADS) {
        h.top[row] = -INFINITY;
        h.sum[row] = 0;
    }
}

/* What a row's output is made from, as it lies in memory: a lane has dims lane, lane + 32, ... */
template <int PARTS> struct row_state {
    float acc[PARTS], dout[PARTS], top, sum;
};

/* A row that has no state, or is not `there`, has seen no key. */
template <class Element, int PARTS>
LANE_CODE void load_row_state(const ra_cuda_forward &f, const forward_head &h, int64_t row,
                              bool there, row_state<PARTS> &s)
{
    int64_t const at = row - h.state_row;
    bool const has_state = there && h.acc != NULL, has_dout = there && h.delta != NULL;
    s.top = has_state ? h.top[at] : -INFINITY;
    s.sum = has_state ? h.sum[at] : 0;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        int const d = lane_index() + 32 * i;
        s.acc[i] = has_state && d < f.dim ? h.acc[at * f.dim + d] : 0;
        s.dout[i] = has_dout && d < f.dim ? Element::load(h.dout, row * f.dout.row_stride + d) : 0;
    }
}

template <class Element, int PARTS>
LANE_CODE void store_row_output(const ra_cuda_forward &f, const forward_head &h, int64_t row,
                                const row_state<PARTS> &s)
{
    float const factor = row_factor(s.sum);
    float delta = 0;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        int const d = lane_index() + 32 * i;
        if (d >= f.dim)
            continue;
        Element::store(h.out, row * f.out.row_stride + d, s.acc[i] * factor);
        delta += s.acc[i] * factor * s.dout[i];
    }
    delta = warp_sum(delta);
    if (lane_index() != 0)
        return;
    if (h.lse != NULL)
        h.lse[row] = row_lse(s.top, s.sum);
    if (h.delta != NULL)
        h.delta[row] = delta;
}

/*
 * Write the output of rows from their state; rows without state have no key. A warp reads several
 * rows before it writes any of them, so that memory latencies overlap.
 */
template <class Block>
LANE_CODE void store_rows_output(const ra_cuda_forward &f, const forward_head &h, int64_t begin,
                                 int64_t end)
{
    typedef typename Block::element element;
    constexpr int PARTS = Block::TILE.dim / 32, ROWS = PARTS <= 4 ? 4 : 2;
    for (int64_t row = begin + ROWS * warp_index(); row < end; row += ROWS * Block::THREADS / 32) {
        row_state<PARTS> state[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            load_row_state<element>(f, h, row + r, row + r < end, state[r]);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (row + r < end)
                store_row_output<element>(f, h, row + r, state[r]);
    }
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* How many rows of the chunk tiles of this head reach; a row counts once per tile. */
LANE_CODE int64_t chunk_tile_rows(const ra_cuda_map &map, int32_t head, int32_t chunk)
{
    int64_t rows = 0;
    for (int32_t i = 0; i < map.layer_count; ++i) {
        if (!layer_has(map.layers[i], head))
            continue;
        const uint32_t *tiles = map.chunk_tile + (int64_t)i * (map.chunk_count + 1) + chunk;
        for (uint32_t t = tiles[0]; t < tiles[1]; ++t)
            rows += map.tiles[t].q_count;
    }
    return rows;
}

LANE_CODE void forward_next_tile(const ra_cuda_forward &f, forward_block &b)
{
    const ra_cuda_map &map = f.map;
    while (b.tile_next == b.tile_end) {
        if (++b.layer == map.layer_count)
            return;
        if (!layer_has(map.layers[b.layer], f.q_head_begin + b.task.head))
            continue;
        const uint32_t *const tiles =
            map.chunk_tile + (int64_t)b.layer * (map.chunk_count + 1) + b.task.chunk;
        b.tile_next = tiles[0];
        b.tile_end = tiles[1];
    }
    b.tile = map.tiles[b.tile_next++];
    b.run_end = map.tiles[b.tile_next].run_begin;
}

LANE_CODE void forward_chunk_begin(const ra_cuda_forward &f, const ra_cuda_task &task,
                                   int element_bytes, forward_block &b)
{
    forward_head_begin(f, task, element_bytes, b.head);
    b.task = task;
    b.layer = -1;
    b.tile_next = b.tile_end = 0;
}

/* Rows of the chunk that no tile of the head may reach. */
template <class Block>
LANE_CODE void forward_missed_rows(const ra_cuda_forward &f, const forward_block &b)
{
    const ra_cuda_map &map = f.map;
    int64_t const begin = (int64_t)b.task.chunk * map.chunk_rows;
    int64_t const end = begin + map.chunk_rows < map.q_rows ? begin + map.chunk_rows : map.q_rows;
    if (!map.shared_rows &&
        chunk_tile_rows(map, f.q_head_begin + b.task.head, b.task.chunk) == end - begin)
        return;
    if (b.head.begins && b.head.acc != NULL)
        begin_state_rows<Block::THREADS>(b.head, f.dim, begin, end);
    if (b.head.ends && !map.shared_rows)
        store_rows_output<Block>(f, b.head, begin, end);
}

/* A chunk in which the step has a part. */
template <class Block>
LANE_CODE void forward_turn(const ra_cuda_forward &f, forward_block &block, char *shared)
{
    forward_missed_rows<Block>(f, block);
    for (;;) {
        if (thread_index() == 0)
            forward_next_tile(f, block);
        block_barrier(); /* the tile is known; rows of state and output that others wrote */
        if (block.layer == f.map.layer_count)
            break;
        Block::tile(f, block, shared + RA_CUDA_HEAD_BYTES);
        block_barrier(); /* shared memory has been read, and rows of state are written */
    }
    if (block.head.ends && f.map.shared_rows) {
        int64_t const begin = (int64_t)block.task.chunk * f.map.chunk_rows;
        int64_t const end =
            begin + f.map.chunk_rows < f.map.q_rows ? begin + f.map.chunk_rows : f.map.q_rows;
        store_rows_output<Block>(f, block.head, begin, end);
    }
}

template <class Block>
LANE_CODE void forward_chunk(const ra_cuda_forward &f, const ra_cuda_task &task, char *shared)
{
    forward_block &block = *(forward_block *)shared;
    if (thread_index() == 0)
        forward_chunk_begin(f, task, Block::element::bytes, block);
    block_barrier(); /* what to do is known */
    if (!block.head.skipped)
        forward_turn<Block>(f, block, shared);
    block_barrier(); /* the block's work has been read, before the next task */
}

/* The whole kernel: thread blocks take tasks until none are left, or one each. */
template <class Block> struct forward_pass : Block {
    static LANE_CODE void all(const ra_cuda_forward &f, char *shared)
    {
        do {
            int64_t const index = take_ticket(f.ticket, shared);
            if (index >= f.tasks)
                return;
            forward_chunk<Block>(f, ra_cuda_task_of(&f, index), shared);
        } while (!f.yields);
    }
};

#endif

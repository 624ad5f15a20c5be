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

/* What a thread block works on: a chunk, and of its tiles the one at hand. */
struct alignas(16) forward_work {
    forward_head head;
    ra_cuda_task task;
    bool there, has_tile;
    int16_t cut;                  /* see forward_cut.cuh */
    int32_t layer;                /* map.layer_count: there are no more tiles */
    uint32_t tile_next, tile_end; /* of the layer, in this chunk */
    ra_tile tile;                 /* the one at hand, */
    ra_key_cursor cursor;         /* and its first block of keys */
};

/*
 * All that a thread block knows, so that it takes no thread's registers in the loop over blocks of
 * keys. Key cursors take turns: one is read while the other is moved on. Likewise, the next work is
 * looked for while one is done: see forward_look_ahead.
 */
struct forward_block {
    forward_work work, next;
    bool looked; /* the next work is known */
    ra_key_cursor cursor[2];
};
static_assert(sizeof(forward_block) <= RA_CUDA_FORWARD_HEAD_BYTES, "it has its place");

LANE_CODE void forward_head_begin(const ra_cuda_forward &f, const ra_cuda_task &task,
                                  int element_bytes, forward_head &h)
{
    int32_t const kv_head = (int32_t)ra_divide((uint32_t)task.head, f.sharing);
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

/* A chunk's rows. */
LANE_CODE int64_t forward_chunk_begin(const ra_cuda_map &map, int32_t chunk)
{
    return (int64_t)chunk * map.chunk_rows;
}

LANE_CODE int64_t forward_chunk_end(const ra_cuda_map &map, int64_t begin)
{
    return begin + map.chunk_rows < map.q_rows ? begin + map.chunk_rows : map.q_rows;
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

/* Rows of a chunk are written by a Block: the threads of an instance, or some of them, from
   FIRST_THREAD on, which meet. */
template <class Block> LANE_CODE int block_thread()
{
    return thread_index() - Block::FIRST_THREAD;
}

template <class Block> LANE_CODE int block_warp()
{
    return warp_index() - Block::FIRST_THREAD / 32;
}

template <class Block>
LANE_CODE void begin_state_rows(const forward_head &h, int dim, int64_t begin, int64_t end)
{
    for (int64_t i = (begin - h.state_row) * dim + block_thread<Block>();
         i < (end - h.state_row) * dim; i += Block::THREADS)
        h.acc[i] = 0;
    for (int64_t row = begin - h.state_row + block_thread<Block>(); row < end - h.state_row;
         row += Block::THREADS) {
        h.top[row] = -INFINITY;
        h.sum[row] = 0;
    }
}

/* What a row's output is made from, as it lies in memory: a lane has dims lane, lane + 32, ... */
template <int PARTS> struct row_state {
    float acc[PARTS], dout[PARTS], top, sum;
};

/* A row that is not `there` has seen no key. */
template <class Element, int PARTS>
LANE_CODE void load_row_state(const ra_cuda_forward &f, const forward_head &h, int64_t row,
                              bool there, row_state<PARTS> &s)
{
    int64_t const at = row - h.state_row;
    bool const has_dout = there && h.delta != NULL;
    s.top = there ? h.top[at] : -INFINITY;
    s.sum = there ? h.sum[at] : 0;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        int const d = lane_index() + 32 * i;
        s.acc[i] = there && d < f.dim ? h.acc[at * f.dim + d] : 0;
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
 * Write the output of rows from their state. A warp reads several rows before it writes any of
 * them, so that memory latencies overlap.
 */
template <class Block>
LANE_CODE void store_rows_output(const ra_cuda_forward &f, const forward_head &h, int64_t begin,
                                 int64_t end)
{
    typedef typename Block::element element;
    constexpr int PARTS = Block::TILE.dim / 32, ROWS = PARTS <= 4 ? 4 : 2;
    for (int64_t row = begin + ROWS * block_warp<Block>(); row < end;
         row += ROWS * Block::THREADS / 32) {
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

/* Write the output of rows that have no state: they have no key. Threads side by side write pieces
   of a row; from one row to its next a thread has one addition. */
template <class Block>
LANE_CODE void clear_rows_output(const ra_cuda_forward &f, const forward_head &h, int64_t begin,
                                 int64_t end)
{
    typedef typename Block::element element;
    constexpr int PIECE = 16 / element::bytes, PIECES = Block::TILE.dim / PIECE;
    constexpr int COLUMNS = PIECES & -PIECES, ROWS_AT_ONCE = Block::THREADS / COLUMNS;
    static_assert(Block::THREADS % COLUMNS == 0, "threads write as much as each other");
    float const zeros[4] = {0, 0, 0, 0};
    int const first = block_thread<Block>() / COLUMNS, rows = (int)(end - begin);
    int const left = f.dim - block_thread<Block>() % COLUMNS * PIECE;
    int64_t const step = ROWS_AT_ONCE * f.out.row_stride * element::bytes;
    char *to = h.out + ((begin + first) * f.out.row_stride + f.dim - left) * element::bytes;
    for (int row = first; f.out_aligned && row < rows; row += ROWS_AT_ONCE, to += step)
#pragma unroll
        for (int d = 0; d < PIECES * PIECE; d += COLUMNS * PIECE)
            if (d < left)
                store_floats(to + d * element::bytes, zeros);
    for (int row = first; !f.out_aligned && row < rows; row += ROWS_AT_ONCE, to += step)
        for (int d = 0; d < left; d += COLUMNS * PIECE)
            for (int e = d; e < ra_hd_min(d + PIECE, left); ++e)
                element::store(to, e, 0);
    for (int64_t row = begin + block_thread<Block>(); row < end; row += Block::THREADS) {
        if (h.lse != NULL)
            h.lse[row] = -INFINITY;
        if (h.delta != NULL)
            h.delta[row] = 0;
    }
}

/* ---- work ------------------------------------------------------------------------------------ */

/* From the layer's last tile to the next layer of the head that has some. */
LANE_CODE void forward_find_tiles(const ra_cuda_forward &f, forward_work &w)
{
    const ra_cuda_map &map = f.map;
    while (w.tile_next == w.tile_end) {
        if (++w.layer == map.layer_count)
            return;
        if (!layer_has(map.layers[w.layer], f.q_head_begin + w.task.head))
            continue;
        const uint32_t *const tiles =
            map.chunk_tile + (int64_t)w.layer * (map.chunk_count + 1) + w.task.chunk;
        w.tile_next = tiles[0];
        w.tile_end = tiles[1];
    }
}

LANE_CODE void forward_next_tile(const ra_cuda_forward &f, forward_work &w)
{
    const ra_cuda_map &map = f.map;
    w.has_tile = w.layer < map.layer_count;
    if (!w.has_tile)
        return;
    w.tile = map.tiles[w.tile_next++];
    ra_key_cursor_begin(&w.tile, map.tiles[w.tile_next].run_begin, map.runs, &w.cursor);
    forward_find_tiles(f, w);
}

LANE_CODE void forward_begin_task(const ra_cuda_forward &f, const ra_cuda_task &task,
                                  int element_bytes, forward_work &w)
{
    forward_head_begin(f, task, element_bytes, w.head);
    w.task = task;
    w.layer = -1;
    w.tile_next = w.tile_end = 0;
    forward_find_tiles(f, w);
}

/* By one thread: draw the next task, and find its first tile. Both wait for memory several times:
   best done where there is something else to wait for. */
LANE_CODE void forward_look_ahead(const ra_cuda_forward &f, int element_bytes, forward_block &b)
{
    uint32_t const ticket = draw_ticket(f.ticket);
    b.looked = true;
    b.next.there = ticket < f.tasks;
    if (!b.next.there)
        return;
    forward_begin_task(f, ra_cuda_task_of(&f, ticket), element_bytes, b.next);
    forward_next_tile(f, b.next);
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

/* Which rows some threads write: those with state, those without, or both. */
enum { FORWARD_STATE = 1, FORWARD_OUTPUT = 2 };

/* Rows of the chunk that no tile of the head may reach. */
template <class Block, int ROWS = FORWARD_STATE | FORWARD_OUTPUT>
LANE_CODE void forward_missed_rows(const ra_cuda_forward &f, const forward_work &w)
{
    const ra_cuda_map &map = f.map;
    if (ROWS == FORWARD_STATE && w.head.acc == NULL)
        return;
    if (ROWS == FORWARD_OUTPUT && w.head.acc != NULL)
        return;
    int64_t const begin = forward_chunk_begin(map, w.task.chunk);
    int64_t const end = forward_chunk_end(map, begin);
    bool const reached = w.has_tile && w.tile.q_count == end - begin;
    if (!map.shared_rows && (reached || chunk_tile_rows(map, f.q_head_begin + w.task.head,
                                                        w.task.chunk) == end - begin))
        return;
    if ((ROWS & FORWARD_STATE) != 0 && w.head.begins && w.head.acc != NULL)
        begin_state_rows<Block>(w.head, f.dim, begin, end);
    if ((ROWS & FORWARD_STATE) != 0 && w.head.ends && !map.shared_rows && w.head.acc != NULL)
        store_rows_output<Block>(f, w.head, begin, end);
    if ((ROWS & FORWARD_OUTPUT) != 0 && w.head.ends && !map.shared_rows && w.head.acc == NULL)
        clear_rows_output<Block>(f, w.head, begin, end);
    Block::meet(); /* tiles write after it what others wrote here */
}

/* The output of rows whose state tiles share. */
template <class Block>
LANE_CODE void forward_end_rows(const ra_cuda_forward &f, const forward_work &work)
{
    if (!work.head.ends || !f.map.shared_rows)
        return;
    int64_t const begin = forward_chunk_begin(f.map, work.task.chunk);
    int64_t const end = forward_chunk_end(f.map, begin);
    Block::meet(); /* rows of state are written */
    store_rows_output<Block>(f, work.head, begin, end);
}

/* A chunk in which the step has a part. */
template <class Block>
LANE_CODE void forward_turn(const ra_cuda_forward &f, forward_block &block, char *shared)
{
    forward_work &work = block.work;
    forward_missed_rows<Block>(f, work);
    for (bool more = work.has_tile; more;) {
        Block::tile(f, block, shared + RA_CUDA_FORWARD_HEAD_BYTES);
        more = work.layer < f.map.layer_count;
        if (!more)
            break;
        block_barrier(); /* the tile and shared memory have been read */
        if (thread_index() == 0)
            forward_next_tile(f, work);
        block_barrier(); /* the next tile is known, and rows of state are written */
    }
    forward_end_rows<Block>(f, work);
}

/* By one thread. What lies between members is copied with them. */
LANE_CODE void forward_begin(forward_block &block)
{
    float const zeros[4] = {0, 0, 0, 0};
    for (int i = 0; i < (int)sizeof(forward_work); i += 16)
        store_floats((char *)&block.next + i, zeros);
    block.looked = false;
}

/* By all threads: the next work becomes the one at hand. Of thread blocks with one task each nobody
   looks for another. */
template <class Block> LANE_CODE void forward_enter(const ra_cuda_forward &f, forward_block &block)
{
    constexpr int PIECES = sizeof(forward_work) / 16;
    static_assert(PIECES <= Block::THREADS, "a thread copies a piece");
    int const at = 16 * thread_index();
    if (thread_index() < PIECES)
        copy_piece((char *)&block.work + at, (const char *)&block.next + at);
    block_barrier(); /* the work is known */
    if (thread_index() == 0) {
        block.next.there = false;
        block.looked = f.yields;
    }
}

/* The whole kernel: thread blocks take tasks until none are left, or one each. */
template <class Block> struct forward_pass : Block {
    static LANE_CODE void all(const ra_cuda_forward &f, char *shared)
    {
        forward_block &block = *(forward_block *)shared;
        if (thread_index() == 0)
            forward_begin(block);
        for (;;) {
            if (thread_index() == 0 && !block.looked)
                forward_look_ahead(f, Block::element::bytes, block);
            block_barrier(); /* the next work is known; the block's has been read */
            if (!block.next.there)
                return;
            forward_enter<Block>(f, block);
            if (!block.work.head.skipped)
                forward_turn<Block>(f, block, shared);
        }
    }
};

#endif

/*
 * Forward tasks that are cut into parts (ra_cuda_cuts): where a part begins, and how the parts of a
 * chunk become its output. Kernels that have them draw tasks by forward_draw.
 */
#ifndef RINGATTN_CUDA_FORWARD_CUT_CUH
#define RINGATTN_CUDA_FORWARD_CUT_CUH

#include "sparse/cuda/forward_chunk.cuh"

/* forward_work.cut of a task that is none of a cut chunk. */
enum { FORWARD_WHOLE = -1 };

/* The head's state is that of a part. */
LANE_CODE void forward_take_slot(const ra_cuda_forward &f, int64_t slot, forward_head &h)
{
    int64_t const rows = f.map.chunk_rows;
    h.acc = f.cuts.states + slot * ra_cuda_part_floats(f.dim, f.map.chunk_rows);
    h.top = h.acc + rows * f.dim;
    h.sum = h.top + rows;
}

/* Its rows begin a state, and leave it where it is merged from. */
LANE_CODE void forward_begin_part(const ra_cuda_forward &f, const ra_cuda_part &part,
                                  int element_bytes, int k_rows, forward_work &w)
{
    ra_cuda_task task;
    task.batch = (int32_t)(part.head / f.q_heads);
    task.head = (int32_t)(part.head % f.q_heads);
    task.chunk = f.cuts.of[part.cut].chunk;
    forward_begin_task(f, task, element_bytes, w);
    forward_next_tile(f, w);
    ra_key_cursor_skip(&w.cursor, k_rows, part.part * f.cuts.part_steps);
    forward_take_slot(f, ra_cuda_part_slot(&f.cuts, part), w.head);
    w.cut = (int16_t)part.cut;
    w.head.ends = w.head.tiles_end = false;
}

/* As forward_look_ahead: first the parts, then the tasks of all chunks but those that are cut. */
LANE_CODE void forward_draw(const ra_cuda_forward &f, int element_bytes, int k_rows,
                            forward_work &next)
{
    int64_t const ticket = draw_ticket(f.ticket);
    next.there = ticket < f.cuts.tasks + f.tasks;
    next.cut = FORWARD_WHOLE;
    if (!next.there)
        return;
    if (ticket < f.cuts.tasks) {
        forward_begin_part(f, ra_cuda_part_of(&f.cuts, ticket), element_bytes, k_rows, next);
        return;
    }
    forward_begin_task(f, ra_cuda_task_of(&f, ticket - f.cuts.tasks), element_bytes, next);
    if (ra_cuda_is_cut(&f.cuts, next.task.chunk))
        next.head.skipped = true;
    else
        forward_next_tile(f, next);
}

/* What a part knows of a row joins what those before it know. */
template <int PARTS>
LANE_CODE void forward_join(const row_state<PARTS> &s, row_state<PARTS> &merged)
{
    float const top = fmaxf(merged.top, s.top);
    float const base = top == -INFINITY ? 0 : top; /* -Inf - -Inf must not become NaN */
    float const kept = exp2_fast(merged.top - base), added = exp2_fast(s.top - base);
    merged.top = top;
    merged.sum = merged.sum * kept + s.sum * added;
#pragma unroll
    for (int i = 0; i < PARTS; ++i)
        merged.acc[i] = merged.acc[i] * kept + s.acc[i] * added;
}

/* The states of a chunk's parts, from the first slot on, become its output: a warp per row. It
   reads several parts before it uses any of them: reads take long, and nobody else is left. */
template <class Block>
LANE_CODE void forward_merge(const ra_cuda_forward &f, const forward_work &w, int64_t slot)
{
    typedef typename Block::element element;
    constexpr int PARTS = Block::TILE.dim / 32, AT_ONCE = 4;
    int64_t const begin = forward_chunk_begin(f.map, w.task.chunk);
    int64_t const end = forward_chunk_end(f.map, begin);
    int const parts = f.cuts.of[w.cut].parts;
    for (int64_t row = begin + block_warp<Block>(); row < end; row += Block::THREADS / 32) {
        row_state<PARTS> merged;
        forward_head h = w.head;
        forward_take_slot(f, slot, h);
        load_row_state<element>(f, h, row, true, merged);
        h.delta = NULL; /* one row of dout serves all */
#pragma unroll 1
        for (int part = 1; part < parts; part += AT_ONCE) {
            row_state<PARTS> s[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                forward_take_slot(f, slot + part + i, h);
                load_row_state<element>(f, h, row, part + i < parts, s[i]);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                forward_join(s[i], merged);
        }
        store_row_output<element>(f, w.head, row, merged);
    }
}

/* When a part has been computed: whoever is the last of its chunk merges them. `last` is in shared
   memory. */
template <class Block>
LANE_CODE void forward_end_part(const ra_cuda_forward &f, const forward_work &w, uint32_t *last)
{
    int64_t const head = (int64_t)w.task.batch * f.q_heads + w.task.head;
    ra_cuda_part const first = {head, w.cut, 0};
    Block::meet(); /* the part's rows are written */
    if (block_thread<Block>() == 0) {
        device_fence(); /* they are there for other thread blocks, */
        *last = count_arrival(f.cuts.arrived + head * f.cuts.count + w.cut) ==
                (uint32_t)f.cuts.of[w.cut].parts - 1;
        device_fence(); /* and theirs for this one */
    }
    Block::meet();
    if (*last == 0)
        return;
    forward_merge<Block>(f, w, ra_cuda_part_slot(&f.cuts, first));
}

#endif

/*
 * Forward over a whole map: tasks as blocking_cpu.h cuts them, in the order of balance_cpu.h; and
 * the tiles of a task, side by side.
 */
#ifndef RINGATTN_CPU_FORWARD_TASKS_H
#define RINGATTN_CPU_FORWARD_TASKS_H

#include "sparse/cpu/balance_cpu.h"
#include "sparse/cpu/forward_cpu.h"

#include <float.h>

/* Tiles of one thread that go side by side. */
typedef struct forward_file {
    forward_head tiles[RA_TILES_AT_ONCE_MAX];
    int32_t most, count;
    forward_head rows; /* of the current chunk and head: for rows outside of tiles */
} forward_file;

static void flush_tiles(forward_file *file)
{
    forward_tiles(file->tiles, file->count);
    file->count = 0;
}

static bool start_together(const forward_head *a, const forward_head *b)
{
    if (!forward_has_keys(a) || !forward_has_keys(b))
        return false;
    packed_keys const a_keys = forward_next(a), b_keys = forward_next(b);
    return same_keys(&a_keys, &b_keys);
}

/* Place a tile of the current chunk before its first key. */
static void forward_tile_begin(const forward_file *file, forward_head *tile, int64_t batch,
                               int32_t head, uint32_t index)
{
    tile->turn = file->rows.turn;
    forward_head_begin(tile, batch, head);
    forward_tile_place(tile, index);
}

/* Only tiles that begin with the same keys go together: others share too few keys to be worth the
   cache that they take from each other. */
static void add_tile(forward_file *file, int64_t batch, int32_t head, uint32_t index)
{
    forward_head *tile = &file->tiles[file->count];
    forward_tile_begin(file, tile, batch, head, index);
    if (file->count > 0 && !start_together(&file->tiles[0], tile)) {
        flush_tiles(file);
        tile = &file->tiles[0];
        forward_tile_begin(file, tile, batch, head, index);
    }
    forward_tile_load(tile);
    if (++file->count == file->most)
        flush_tiles(file);
}

/* Add all tiles of a chunk, for the heads of [begin, end) that a layer holds. */
static void add_chunk(forward_file *file, int64_t batch, int32_t begin, int32_t end, int32_t chunk)
{
    const ra_forward_step *step = file->rows.step;
    for (int32_t i = 0; i < step->map->layer_count; ++i) {
        const ra_tile_layer *layer = &step->map->layers[i];
        for (uint32_t t = layer->chunk_tile[chunk]; t < layer->chunk_tile[chunk + 1]; ++t) {
            for (int32_t head = begin; head < end; ++head) {
                if (ra_heads_contain(layer->heads, step->shape.q_head_begin + head))
                    add_tile(file, batch, head, t);
            }
        }
    }
}

typedef struct row_span {
    int64_t begin, end;
} row_span;

static row_span chunk_rows_of(const ra_tilemap *map, int32_t chunk)
{
    int64_t const begin = (int64_t)chunk * map->chunk_rows, end = begin + map->chunk_rows;
    return (row_span){begin, end < map->q_rows ? end : map->q_rows};
}

/* Rows that no tile reaches; tiles overwrite theirs. */
static void begin_missed_rows(forward_file *file, int64_t batch, int32_t head, int32_t chunk)
{
    const ra_forward_step *step = file->rows.step;
    row_span const rows = chunk_rows_of(step->map, chunk);
    int64_t const reached = chunk_tile_rows(step->map, step->shape.q_head_begin + head, chunk);
    if (reached == rows.end - rows.begin)
        return;
    forward_head_begin(&file->rows, batch, head);
    if (file->rows.turn.begins && file->rows.acc != NULL)
        begin_state_rows(&file->rows, rows.begin, rows.end);
    if (file->rows.turn.ends)
        store_rows_output(&file->rows, rows.begin, rows.end);
}

/* A chunk of one head whose tiles share rows: each continues the state of the one before. */
static void forward_shared_chunk(forward_file *file, int64_t batch, int32_t head, int32_t chunk)
{
    const ra_forward_step *step = file->rows.step;
    row_span const rows = chunk_rows_of(step->map, chunk);
    forward_head_begin(&file->rows, batch, head);
    if (file->rows.turn.begins)
        begin_state_rows(&file->rows, rows.begin, rows.end);
    add_chunk(file, batch, head, head + 1, chunk);
    if (file->rows.turn.ends)
        store_rows_output(&file->rows, rows.begin, rows.end);
}

/* Heads [head, head_end) of chunks [chunk, chunk_end), or only of those at the map's ends. */
typedef struct forward_part {
    int64_t batch;
    int32_t head, head_end, chunk, chunk_end;
} forward_part;

static void run_part(forward_file *file, const forward_part *part)
{
    const ra_forward_step *step = file->rows.step;
    bool const shared = step->map->shared_rows;
    for (int32_t chunk = part->chunk; chunk < part->chunk_end; ++chunk) {
        if (step->ends_only && chunk != 0 && chunk != step->map->chunk_count - 1)
            continue;
        file->rows.turn = ra_chunk_turn_of(step->state.chunks, step->pair.step, step->first,
                                           step->last, chunk, step->map->chunk_rows);
        if (file->rows.turn.skipped)
            continue;
        for (int32_t head = part->head; head < part->head_end; ++head) {
            if (shared)
                forward_shared_chunk(file, part->batch, head, chunk);
            else
                begin_missed_rows(file, part->batch, head, chunk);
        }
        if (!shared)
            add_chunk(file, part->batch, part->head, part->head_end, chunk);
    }
    flush_tiles(file);
}

static void forward_file_begin(ra_kernel *kernel, const ra_forward_step *step, float *workspace,
                               forward_file *file)
{
    const ra_kernel_shape *shape = &step->shape;
    bool const shared = step->map->shared_rows;
    forward_scratch scratch[RA_TILES_AT_ONCE_MAX];
    forward_head f = {.kernel = kernel,
                      .step = step,
                      .dim = shape->dim,
                      .dim_pad = padded(shape->dim),
                      .factor = (float)((double)shape->scale * LOG2_E)};
    f.pairs_wanted = PAIRS && step->q.dtype == RA_BF16 && step->k.dtype == RA_BF16 &&
                     step->v.dtype == RA_BF16 && f.factor >= FLT_MIN && f.factor <= FLT_MAX;
    forward_scratch_carve(workspace, shape->dim, scratch);
    for (int32_t i = 0; i < RA_TILES_AT_ONCE_MAX; ++i) {
        f.scratch = scratch[i];
        file->tiles[i] = f;
    }
    file->rows = file->tiles[0];
    file->count = 0;
    file->most =
        shared ? 1 : ra_cpu_tiles_at_once(kernel->caches.second_bytes, f.dim, f.pairs_wanted);
}

/* The parts of a forward pass, as tasks. */
typedef struct forward_work {
    const ra_forward_step *step;
    ra_cpu_tasks tasks;
    int32_t group; /* query heads per key head */
} forward_work;

static forward_part part_at(const forward_work *work, int64_t index)
{
    const ra_cpu_tasks *tasks = &work->tasks;
    int32_t const kv_heads = work->step->shape.kv_heads;
    int64_t const heads = index / tasks->chunk_parts, lane = heads / tasks->head_parts;
    int32_t const first = (int32_t)(heads % tasks->head_parts) * tasks->heads;
    int32_t const kv_begin = (int32_t)(lane % kv_heads) * work->group;
    int32_t const chunk = (int32_t)(index % tasks->chunk_parts) * tasks->chunks;
    return (forward_part){.batch = lane / kv_heads,
                          .head = kv_begin + first,
                          .head_end = kv_begin + ra_hd_min(work->group, first + tasks->heads),
                          .chunk = chunk,
                          .chunk_end =
                              ra_hd_min(work->step->map->chunk_count, chunk + tasks->chunks)};
}

static int64_t part_work(const forward_work *work, int64_t index)
{
    forward_part const part = part_at(work, index);
    int32_t const begin = work->step->shape.q_head_begin;
    int64_t pairs = 0;
    for (int32_t chunk = part.chunk; chunk < part.chunk_end; ++chunk)
        pairs +=
            ra_cpu_chunk_work(work->step->map, begin + part.head, begin + part.head_end, chunk);
    return pairs;
}

/* In the first batch; the others are alike. */
static int64_t longest_part(const forward_work *work)
{
    int64_t most = 0;
    for (int64_t index = 0; index < work->tasks.count / work->step->shape.batch; ++index) {
        int64_t const pairs = part_work(work, index);
        most = pairs > most ? pairs : most;
    }
    return most;
}

/* Long tasks first; a free thread takes the next one. With one thread the order is irrelevant. */
static void forward_thread(ra_kernel *kernel, const ra_forward_step *step, float *workspace)
{
    const ra_kernel_shape *shape = &step->shape;
    forward_file file;
    forward_file_begin(kernel, step, workspace, &file);
    forward_work work = {.step = step, .group = shape->q_heads / shape->kv_heads};
    work.tasks = ra_cpu_cut_tasks(shape->batch * shape->kv_heads, work.group,
                                  step->map->chunk_count, file.most, thread_count());
    int64_t const count = work.tasks.count;
    int32_t const classes = thread_count() > 1 ? RA_TASK_CLASSES : 1;
    int64_t const most = classes > 1 && count > 0 ? longest_part(&work) : 0;
    RA_OMP(omp for schedule(dynamic))
    for (int64_t i = 0; i < classes * count; ++i) {
        int64_t const index = count - 1 - i % count; /* under a causal mask, last ones are long */
        if (classes > 1 && ra_cpu_task_class(part_work(&work, index), most) != i / count)
            continue;
        forward_part const part = part_at(&work, index);
        run_part(&file, &part);
    }
    pairs_end();
}

#endif

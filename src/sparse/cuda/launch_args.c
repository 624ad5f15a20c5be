#include "sparse/cuda/launch_args.h"

#include "internal.h"
#include "sparse/cuda/key_cursor.h"
#include "sparse/cuda/linear_args.h"
#include "sparse/kernel_request.h"
#include "sparse/view_at.h"

#include <float.h>
#include <math.h>

/* Where an array of a map lies on the device; NULL: the map has none. */
static const void *moved(const ra_tilemap *map, const void *array, const void *base)
{
    return array == NULL ? NULL
                         : (const char *)base + ((const char *)array - (const char *)map->layers);
}

ra_cuda_map ra_cuda_map_at(const ra_tilemap *map, const void *base)
{
    return (ra_cuda_map){
        .layers = base,
        .chunk_tile = map->layer_count > 0 ? moved(map, map->layers[0].chunk_tile, base) : NULL,
        .tiles = moved(map, map->tiles, base),
        .runs = moved(map, map->runs, base),
        .by_keys = moved(map, map->by_keys, base),
        .spans = moved(map, map->spans, base),
        .q_rows = (int32_t)map->q_rows,
        .chunk_rows = map->chunk_rows,
        .chunk_count = map->chunk_count,
        .layer_count = map->layer_count,
        .shared_rows = map->shared_rows};
}

bool ra_cuda_takes_scratch(const ra_forward_step *step)
{
    bool const all_carried = step->state.chunks != NULL ? step->state.rows == step->map->q_rows
                                                        : !(step->first && step->last);
    return step->map->shared_rows && !all_carried;
}

size_t ra_cuda_shared_scratch_bytes(int32_t blocks, int32_t dim)
{
    return (size_t)(blocks * ra_cuda_scratch_floats(dim)) * sizeof(float);
}

/* Row-by-row linear attention gets as much, though a GPU may hold more of its thread blocks. */
size_t ra_cuda_workspace_bytes(const ra_kernel_use *use)
{
    size_t scratch = 0;
    if (use->linear != RA_LINEAR_NONE)
        scratch = (size_t)(use->threads * ra_cuda_linear_tile(use->dim).blocks_per_sm *
                           ra_cuda_linear_scratch_floats(use->dim)) *
                  sizeof(float);
    else if (use->shares_rows)
        scratch =
            ra_cuda_shared_scratch_bytes(use->threads * ra_cuda_blocks_most(use->dim), use->dim);
    return scratch + RA_CUDA_TAIL_BYTES;
}

/* Sums of segments use the tile of chunks, whatever the method. */
int32_t ra_cuda_shared_bytes(const ra_kernel_use *use)
{
    int32_t const forward = ra_cuda_tile_of(use->dtype, use->dim).shared_bytes;
    int32_t const keys = ra_cuda_keys_of(use->dtype, use->dim).shared_bytes;
    int32_t const queries = ra_cuda_queries_of(use->dtype, use->dim).shared_bytes;
    if (use->linear != RA_LINEAR_NONE)
        return ra_cuda_linear_tile(use->dim).shared_bytes;
    return use->backward ? ra_hd_max(forward, ra_hd_max(keys, queries)) : forward;
}

/* Tasks of a launch, and the few numbers more that thread blocks draw, have 32 bits. */
#define TASKS_MOST 2147483648.0

/* Of a head, in each pass: a task has a chunk, or at least so many key rows, four times as many
   where it has two parts. */
static int64_t tasks_most(const ra_tilemap *map)
{
    enum { KEY_ROWS_LEAST = 16 };
    return ra_max_i64(map->chunk_count, ra_div_ceil(map->k_rows, KEY_ROWS_LEAST) + 1);
}

/* Of scores, whose exponentials are powers of two. */
static float factor_of(const ra_kernel_shape *shape)
{
    return (float)((double)shape->scale * 1.44269504088896340736);
}

ra_status ra_cuda_step_check(const ra_kernel_shape *shape, const ra_tilemap *map, ra_dtype dtype)
{
    float const factor = factor_of(shape);
    ra_status status = ra_kernel_validate_heads("cuda", shape);
    if (status == RA_OK)
        status = ra_kernel_validate_map("cuda", map, ra_cuda_tile_of(dtype, shape->dim).q_rows);
    if (status != RA_OK)
        return status;
    if (map->k_rows > RA_CUDA_KEY_ROWS_MAX)
        return ra_kernel_refuse("cuda", RA_ERR_UNSUPPORTED,
                                "more than 2^31 - 257 key rows: use more ranks");
    if ((double)shape->batch * shape->q_heads * (double)tasks_most(map) > TASKS_MOST)
        return ra_kernel_refuse("cuda", RA_ERR_UNSUPPORTED,
                                "more than 2^31 blocks of rows, of all heads and batches");
    if (!(factor >= FLT_MIN && factor <= FLT_MAX))
        return ra_kernel_refuse("cuda", RA_ERR_UNSUPPORTED, "the scale must be a positive number");
    return RA_OK;
}

/* Where `single` may run, on whichever GPU, dq is summed in float32. */
ra_stored_grads ra_cuda_stores_grads(const ra_kernel_use *use)
{
    bool const single = !use->deterministic && ra_cuda_has_single(use->dtype, use->dim, INT64_MAX);
    bool const stores = use->dtype != RA_F32 && use->linear == RA_LINEAR_NONE;
    return (ra_stored_grads){.dq = stores && !single && !use->shares_rows,
                             .dkv = stores && !use->shares_keys};
}

/* Layers that query heads [begin, end) are in. */
static int32_t layers_of(const ra_tilemap *map, int32_t begin, int32_t end)
{
    int32_t count = 0;
    for (int32_t i = 0; i < map->layer_count; ++i) {
        int32_t head = begin;
        while (head < end && !ra_heads_contain(map->layers[i].heads, head))
            ++head;
        count += head < end;
    }
    return count;
}

/* Whether a row of a 16-bit gradient is stored once: rows of dq that several tiles have, and keys
   that several layers have, would be stored for each. */
static bool stores_once(const ra_backward_step *step)
{
    const ra_kernel_shape *shape = &step->shape;
    int32_t const group = shape->q_heads / shape->kv_heads;
    bool const sums_keys = step->dk.dtype == RA_F32 && step->dv.dtype == RA_F32;
    bool once = step->dq.dtype == RA_F32 || !step->map->shared_rows;
    for (int32_t h = 0; h < shape->kv_heads && once && !sums_keys; ++h) {
        int32_t const begin = shape->q_head_begin + h * group;
        once = layers_of(step->map, begin, begin + group) <= 1;
    }
    return once;
}

ra_status ra_cuda_backward_check(const ra_backward_step *step)
{
    const ra_view *const grads[] = {&step->dq, &step->dk, &step->dv};
    ra_status const status = ra_cuda_step_check(&step->shape, step->map, step->q.dtype);
    if (status != RA_OK)
        return status;
    if (step->map->by_keys == NULL)
        return ra_kernel_refuse("cuda", RA_ERR_INVALID,
                                "the tile map of a backward step has no index of runs by keys");
    for (int i = 0; i < 3; ++i)
        if (grads[i]->dtype != RA_F32 && grads[i]->dtype != step->q.dtype)
            return ra_kernel_refuse("cuda", RA_ERR_INVALID,
                                    "gradients have neither float32 nor the dtype of q");
    if (!stores_once(step))
        return ra_kernel_refuse("cuda", RA_ERR_INVALID,
                                "a row of gradients would be stored twice: shares_rows or "
                                "shares_keys of ra_kernel_use was not set");
    return RA_OK;
}

bool ra_cuda_goes_single(const ra_backward_step *step, bool deterministic, int64_t shared_bytes)
{
    return !deterministic && step->dq.dtype == RA_F32 &&
           ra_cuda_has_single(step->q.dtype, step->shape.dim, shared_bytes);
}

/* Whether rows of all heads of a 16-bit tensor are whole, aligned pieces of 16 bytes. */
static bool is_aligned(const ra_view *view, int32_t dim)
{
    return dim % 8 == 0 && ra_view_is_aligned(view, 8);
}

/* What concurrent tasks may read: most of the L2 cache of an H100 (50 MB); and how many they are.
 */
enum { CACHED_BYTES = 44 << 20, TASKS_AT_ONCE = 256 };

/* Keys that tiles go through: each as often as it is read; and about how many there are, found by
   how many of BUCKETS equal parts of all keys the runs reach. */
typedef struct key_reach {
    double read, distinct;
} key_reach;

enum { BUCKETS = 1024 };

/* Of chunks [begin, end), in all layers, or those of one head. */
static key_reach key_reach_of(const ra_tilemap *map, const int32_t *head, int32_t begin,
                              int32_t end)
{
    int32_t edges[BUCKETS + 1] = {0}; /* runs that begin in a bucket, less those that have ended */
    int64_t const width = ra_max_i64(ra_div_ceil(map->k_rows, BUCKETS), 1);
    double read = 0, spanned = 0;
    for (int32_t i = 0; i < map->layer_count; ++i) {
        const uint32_t *const tiles = map->layers[i].chunk_tile;
        if (head != NULL && !ra_heads_contain(map->layers[i].heads, *head))
            continue;
        for (uint32_t t = tiles[begin]; t < tiles[end]; ++t)
            for (uint32_t r = map->tiles[t].run_begin; r < map->tiles[t + 1].run_begin; ++r) {
                const ra_run *const run = &map->runs[r];
                int32_t const queries = map->tiles[t].q_count;
                ra_run_keys const seen =
                    ra_run_band_seen(ra_run_band_of(run, queries), 0, queries, 0, run->k_count);
                int64_t const first = run->k_begin + (int64_t)run->k_stride * seen.begin;
                int64_t const last = run->k_begin + (int64_t)run->k_stride * (seen.end - 1);
                read += seen.end - seen.begin;
                spanned += (double)(last - first + 1);
                ++edges[first / width];
                --edges[last / width + 1];
            }
    }
    int64_t reached = 0;
    for (int32_t b = 0, open = 0; b < BUCKETS; ++b) {
        open += edges[b];
        reached += open > 0;
    }
    /* Of strided runs a part of what they span. */
    double const density = spanned > 0 ? read / spanned : 0;
    return (key_reach){read, density * (double)ra_min_i64(reached * width, map->k_rows)};
}

/* Bytes of two tensors' rows. */
static double rows_bytes(double rows, const ra_view *view, int32_t dim)
{
    return 2 * rows * dim * (double)ra_dtype_bytes(view->dtype);
}

/*
 * Heads of a group run side by side, TASKS_AT_ONCE chunks in all, and read what those see: heads of
 * one kv head the same keys. As many heads as the cache holds the keys of; where it does not hold
 * one head's, as many as together read the fewest: chunks far from each other may see the same keys
 * (strided blocks), so that a head alone reads its keys once where several would read them anew.
 */
static int64_t query_groups(const ra_kernel_shape *shape, const ra_tilemap *map,
                            const ra_view *keys)
{
    int64_t const heads = (int64_t)shape->batch * shape->q_heads;
    int32_t const sharing = shape->q_heads / shape->kv_heads, chunks = map->chunk_count;
    double least = INFINITY;
    int64_t best = 0;
    for (int64_t together = heads; together > 0; together /= 2) {
        int32_t const at_once =
            (int32_t)ra_min_i64(ra_max_i64(TASKS_AT_ONCE / together, 1), chunks);
        int32_t const begin = (chunks - at_once) / 2;
        key_reach const reach = key_reach_of(map, &shape->q_head_begin, begin, begin + at_once);
        double const bytes =
            (double)ra_div_ceil(together, sharing) * rows_bytes(reach.distinct, keys, shape->dim);
        if (bytes < least) {
            least = bytes;
            best = ra_div_ceil(heads, together);
        }
        if (bytes <= CACHED_BYTES)
            break;
    }
    return best;
}

/* A task reads about as many queries as see a key, of all heads that read it. A map may be of more
   heads than are launched. */
static int64_t key_groups(const ra_kernel_shape *shape, const ra_tilemap *map,
                          const ra_view *queries)
{
    int64_t const heads = (int64_t)shape->batch * shape->kv_heads;
    double const read = (double)map->k_rows * map->q_heads * shape->kv_heads / shape->q_heads;
    double const seen = (double)map->live_pairs / read;
    double const bytes = rows_bytes(seen, queries, shape->dim);
    double const fit = bytes > 0 ? CACHED_BYTES / bytes : (double)heads;
    int64_t const together = fit < 1 ? 1 : fit < (double)heads ? (int64_t)fit : heads;
    return heads > 0 ? ra_div_ceil(heads, together) : 0;
}

/* Whether the first chunks are the long ones, as when some tokens at the start see all. */
static bool is_ascending(const ra_tilemap *map)
{
    int32_t const last = map->chunk_count - 1;
    return last > 0 &&
           key_reach_of(map, NULL, 0, 1).read > key_reach_of(map, NULL, last, last + 1).read;
}

static ra_divisor sharing_of(const ra_kernel_shape *shape)
{
    return ra_divisor_of((uint32_t)(shape->q_heads / shape->kv_heads));
}

/* A launch has at most INT32_MAX thread blocks. */
static bool may_yield(bool yields, int64_t tasks)
{
    return yields && tasks <= INT32_MAX;
}

/* A weight of 2^8 is far from what float16 holds, and few scores exceed the first ones by more. */
#define TOP_SLACK 8.0f

ra_cuda_forward ra_cuda_forward_args(const ra_forward_step *step, const void *map_base,
                                     float *scratch, uint32_t *ticket)
{
    const ra_kernel_shape *shape = &step->shape;
    int64_t const chunks = step->map->chunk_count;
    int64_t const computed = step->ends_only && chunks > 2 ? 2 : chunks;
    int64_t const tasks = shape->batch * shape->q_heads * computed;
    bool const aligned = is_aligned(&step->q, shape->dim) && is_aligned(&step->k, shape->dim) &&
                         is_aligned(&step->v, shape->dim);
    ra_cuda_order const order = ra_cuda_order_of(
        shape->batch, shape->q_heads, query_groups(shape, step->map, &step->k), computed);
    return (ra_cuda_forward){.map = ra_cuda_map_at(step->map, map_base),
                             .q = step->q,
                             .k = step->k,
                             .v = step->v,
                             .out = step->out,
                             .dout = step->dout,
                             .lse = step->lse,
                             .delta = step->delta,
                             .lse_batch_stride = step->lse_batch_stride,
                             .state = step->state,
                             .scratch = scratch,
                             .scratch_floats = ra_cuda_scratch_floats(shape->dim),
                             .ticket = ticket,
                             .tasks = tasks,
                             .order = order,
                             .sharing = sharing_of(shape),
                             .q_heads = shape->q_heads,
                             .q_head_begin = shape->q_head_begin,
                             .dim = shape->dim,
                             .factor = factor_of(shape),
                             .slack = step->delta != NULL ? 0 : TOP_SLACK,
                             .step = step->pair.step,
                             .first = step->first,
                             .last = step->last,
                             .ends_only = step->ends_only,
                             .ascending = is_ascending(step->map),
                             .yields =
                                 may_yield(step->yields && !ra_cuda_takes_scratch(step), tasks),
                             .aligned = aligned,
                             .out_aligned = is_aligned(&step->out, shape->dim),
                             .dout_aligned = is_aligned(&step->dout, shape->dim)};
}

/* The widest key stride that suits a layer. */
static int32_t key_stride_of(const ra_tilemap *map)
{
    int32_t widest = 1;
    for (int32_t i = 0; i < map->layer_count; ++i) {
        const uint32_t *const tiles = map->layers[i].chunk_tile;
        int32_t const stride = ra_cuda_key_stride(map->runs, map->tiles[tiles[0]].run_begin,
                                                  map->tiles[tiles[map->chunk_count]].run_begin);
        widest = ra_hd_max(widest, stride);
    }
    return widest;
}

/* Whether rows of all heads have all dims of the instance, and are aligned to four elements. */
static bool is_whole(const ra_view *view, int32_t dim)
{
    return dim == ra_cuda_dim_of(dim) && ra_view_is_aligned(view, 4);
}

ra_cuda_backward ra_cuda_backward_args(const ra_backward_step *step, const void *map_base,
                                       bool single, uint32_t *tickets)
{
    const ra_kernel_shape *shape = &step->shape;
    ra_dtype const dtype = step->q.dtype;
    int64_t const chunks = step->map->chunk_count;
    bool const ends_only = step->ends_only && chunks > 2;
    int32_t const keys =
        single ? ra_cuda_single_of(shape->dim).k_rows : ra_cuda_keys_of(dtype, shape->dim).k_rows;
    int32_t const task_rows = keys * key_stride_of(step->map);
    int64_t const key_blocks = ra_div_ceil(step->map->k_rows, task_rows);
    int32_t const parts = single ? 1 : ra_cuda_key_parts(dtype, shape->dim);
    int64_t const computed = ends_only ? 2 : chunks;
    int64_t const q_tasks = shape->batch * shape->q_heads * computed;
    int64_t const k_tasks = shape->batch * shape->kv_heads * key_blocks * parts;
    RA_ASSERT(!single || ra_cuda_goes_single(step, false, INT64_MAX));
    bool const aligned = is_aligned(&step->q, shape->dim) && is_aligned(&step->k, shape->dim) &&
                         is_aligned(&step->v, shape->dim) && is_aligned(&step->dout, shape->dim);
    ra_cuda_order const q_order = ra_cuda_order_of(
        shape->batch, shape->q_heads, query_groups(shape, step->map, &step->k), computed);
    ra_cuda_order const k_order = ra_cuda_order_of(
        shape->batch, shape->kv_heads, key_groups(shape, step->map, &step->q), key_blocks);
    return (ra_cuda_backward){.map = ra_cuda_map_at(step->map, map_base),
                              .q = step->q,
                              .k = step->k,
                              .v = step->v,
                              .dout = step->dout,
                              .dq = step->dq,
                              .dk = step->dk,
                              .dv = step->dv,
                              .lse = step->lse,
                              .delta = step->delta,
                              .lse_batch_stride = step->lse_batch_stride,
                              .tickets = tickets,
                              .q_tasks = q_tasks,
                              .k_tasks = k_tasks,
                              .q_order = q_order,
                              .k_order = k_order,
                              .sharing = sharing_of(shape),
                              .k_rows = (int32_t)step->map->k_rows,
                              .task_rows = task_rows,
                              .parts = parts,
                              .q_head_begin = shape->q_head_begin,
                              .dim = shape->dim,
                              .scale = shape->scale,
                              .factor = factor_of(shape),
                              .ascending = is_ascending(step->map),
                              .ends_only = ends_only,
                              .yields = may_yield(step->yields, ra_max_i64(q_tasks, k_tasks)),
                              .aligned = aligned,
                              .single = single,
                              .whole = is_whole(&step->dq, shape->dim) &&
                                       is_whole(&step->dk, shape->dim) &&
                                       is_whole(&step->dv, shape->dim)};
}

/* Arguments of a forward launch. Pointers are the device's; the struct is passed by value. */
#ifndef RINGATTN_CUDA_FORWARD_ARGS_H
#define RINGATTN_CUDA_FORWARD_ARGS_H

#include "sparse/cuda/task_order.h"
#include "sparse/cuda/tile_table.h"

/* A tile map whose arrays were copied as one block: pointers inside are the host's. */
typedef struct ra_cuda_map {
    const ra_tile_layer *layers; /* of these only heads are used */
    const uint32_t *chunk_tile;  /* [layer_count][chunk_count + 1] */
    const ra_tile *tiles;
    const ra_run *runs;
    const uint32_t *by_keys; /* or NULL, as the map has them */
    const ra_key_span *spans;
    int32_t q_rows, chunk_rows, chunk_count, layer_count;
    bool shared_rows;
} ra_cuda_map;

/*
 * Tasks that would outlast the rest of a launch (a few rows that see all keys) are cut into parts,
 * each with so many steps. A part leaves its state; the last one of a chunk to end merges them, in
 * their order. Kernels by warpgroups alone do so.
 */
enum { RA_CUDA_CUTS_MAX = 16 };

typedef struct ra_cuda_cut {
    int32_t chunk, parts;
} ra_cuda_cut;

typedef struct ra_cuda_cuts {
    int64_t tasks; /* of all heads and batches; they come first */
    float *states; /* [tasks][ra_cuda_part_floats] */
    uint32_t
        *arrived; /* [heads of all batches][count]: parts that have ended; 0 before the launch */
    int32_t count, parts, part_steps; /* of a head: cuts, their parts together; steps of a part */
    ra_cuda_cut of[RA_CUDA_CUTS_MAX];
} ra_cuda_cuts;

/* Of a part's state: acc, top and sum of a chunk's rows. */
RA_HD int64_t ra_cuda_part_floats(int32_t dim, int32_t rows)
{
    return (int64_t)rows * (dim + 2);
}

/* Of `arrived`. */
RA_HD size_t ra_cuda_arrived_bytes(const ra_cuda_cuts *cuts)
{
    return (size_t)(cuts->tasks / cuts->parts * cuts->count) * sizeof(uint32_t);
}

/* A part; `cut` is the number among the cuts. */
typedef struct ra_cuda_part {
    int64_t head; /* of all batches */
    int32_t cut, part;
} ra_cuda_part;

/* Parts of all heads by turns. */
RA_HD ra_cuda_part ra_cuda_part_of(const ra_cuda_cuts *cuts, int64_t index)
{
    int64_t const heads = cuts->tasks / cuts->parts;
    ra_cuda_part part = {0, 0, 0};
    part.head = index % heads;
    part.part = (int32_t)(index / heads);
    while (part.part >= cuts->of[part.cut].parts)
        part.part -= cuts->of[part.cut++].parts;
    return part;
}

/* Where its state lies, as a number of states. */
RA_HD int64_t ra_cuda_part_slot(const ra_cuda_cuts *cuts, ra_cuda_part part)
{
    int64_t slot = part.head * cuts->parts + part.part;
    for (int32_t i = 0; i < part.cut; ++i)
        slot += cuts->of[i].parts;
    return slot;
}

/* Whether a chunk's task is cut. */
RA_HD bool ra_cuda_is_cut(const ra_cuda_cuts *cuts, int32_t chunk)
{
    bool is_cut = false;
    for (int32_t i = 0; i < cuts->count; ++i)
        is_cut |= cuts->of[i].chunk == chunk;
    return is_cut;
}

typedef struct ra_cuda_forward {
    ra_cuda_map map;
    ra_view q, k, v, out, dout;
    float *lse, *delta; /* or NULL */
    int64_t lse_batch_stride;
    ra_softmax_state state; /* as in ra_forward_step, with step, first and last */
    /* State of a chunk whose rows are shared, one piece per thread block; NULL: not needed. */
    float *scratch;
    int64_t scratch_floats; /* from one to the next */
    uint32_t *ticket;       /* the next task; 0 before the launch */
    int64_t tasks;          /* of each head its chunks, or those at the ends */
    ra_cuda_order order;
    ra_divisor sharing; /* query heads of a kv head */
    int32_t q_heads, q_head_begin, dim;
    float factor; /* of scores: scale * log2(e), positive */
    float slack;  /* 16 bits: how far a score may exceed its row's top before the top rises */
    int32_t step;
    bool first, last, ends_only;
    bool ascending;                 /* see ra_cuda_task_at */
    bool yields;                    /* one thread block per task: none uses scratch */
    bool aligned;                   /* rows of q, k and v are whole pieces of 16 bytes, aligned */
    bool out_aligned, dout_aligned; /* rows of these */
    bool warpgroups;                /* by wgmma: a GPU of sm_90a, and ra_cuda_has_warpgroups */
    ra_cuda_cuts cuts;
} ra_cuda_forward;

RA_STATIC_ASSERT(sizeof(ra_cuda_forward) <= 4096, "kernel parameters are at most 4 KiB");

/* Floats of scratch per thread block if rows are shared: acc, top and sum. */
RA_HD int64_t ra_cuda_scratch_floats(int32_t dim)
{
    return (int64_t)RA_SHARED_CHUNK_ROWS_MAX * (dim + 2);
}

/* What a task is about. Under a causal mask the last chunks are the long ones; `ascending`: the
   first ones are. */
typedef struct ra_cuda_task {
    int32_t batch, head; /* of this launch */
    int32_t chunk;
} ra_cuda_task;

RA_HD ra_cuda_task ra_cuda_task_at(ra_cuda_turn turn, int32_t chunk_count, bool ends_only,
                                   bool ascending)
{
    bool const at_end = ends_only && turn.turn > 0;
    int32_t const from_begin = at_end ? chunk_count - 1 : turn.turn;
    ra_cuda_task task = {0, 0, 0};
    task.batch = turn.batch;
    task.head = turn.head;
    task.chunk = ascending ? from_begin : chunk_count - 1 - from_begin;
    return task;
}

RA_HD ra_cuda_task ra_cuda_task_of(const ra_cuda_forward *f, int64_t index)
{
    return ra_cuda_task_at(ra_cuda_turn_of(&f->order, (uint32_t)index), f->map.chunk_count,
                           f->ends_only, f->ascending);
}

#endif

/* What a forward launch is given. Pointers are the device's; the struct travels by value. */
#ifndef RINGATTN_CUDA_FORWARD_ARGS_H
#define RINGATTN_CUDA_FORWARD_ARGS_H

#include "sparse/cuda/tile_table.h"

/* A tile map whose block of arrays was copied as it is: pointers inside it are the host's. */
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

typedef struct ra_cuda_forward {
    ra_cuda_map map;
    ra_view q, k, v, out, dout;
    float *lse, *delta; /* or NULL */
    int64_t lse_batch_stride;
    float *acc, *top, *sum; /* the softmax state, or NULL */
    /* State of a chunk whose rows are shared, one piece per thread block; NULL where not needed. */
    float *scratch;
    int64_t scratch_floats; /* from one to the next */
    uint32_t *ticket;       /* the next task; 0 before the launch */
    int64_t tasks;          /* batch * q_heads * chunks_computed */
    int32_t chunks_computed;
    int32_t q_heads, kv_heads, q_head_begin, dim;
    float factor; /* of scores: scale * log2(e), positive */
    float slack;  /* how far a score may be above its row's top before the top rises; 16 bits */
    bool first, last, ends_only;
    bool aligned;     /* rows of q, k and v are whole pieces of 16 bytes, aligned */
    bool out_aligned; /* rows of out */
} ra_cuda_forward;

RA_STATIC_ASSERT(sizeof(ra_cuda_forward) <= 4096, "kernel parameters are at most 4 KiB");

/* Floats of scratch that a thread block needs where rows are shared: acc, top and sum. */
RA_HD int64_t ra_cuda_scratch_floats(int32_t dim)
{
    return (int64_t)RA_SHARED_CHUNK_ROWS_MAX * (dim + 2);
}

/* What a task is about: last chunks first, because under a causal mask these are the long ones. */
typedef struct ra_cuda_task {
    int32_t batch, head; /* of this launch */
    int32_t chunk;
} ra_cuda_task;

RA_HD ra_cuda_task ra_cuda_task_at(int32_t q_heads, int32_t chunk_count, int32_t chunks_computed,
                                   bool ends_only, int64_t index)
{
    int64_t const lane = index / chunks_computed;
    int32_t const turn = (int32_t)(index - lane * chunks_computed);
    bool const at_begin = ends_only && turn == chunks_computed - 1;
    ra_cuda_task task = {0, 0, 0};
    task.batch = (int32_t)(lane / q_heads);
    task.head = (int32_t)(lane - (int64_t)task.batch * q_heads);
    task.chunk = at_begin ? 0 : chunk_count - 1 - turn;
    return task;
}

RA_HD ra_cuda_task ra_cuda_task_of(const ra_cuda_forward *f, int64_t index)
{
    return ra_cuda_task_at(f->q_heads, f->map.chunk_count, f->chunks_computed, f->ends_only, index);
}

#endif

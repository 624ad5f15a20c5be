/* Arguments of a backward launch. Pointers are the device's; the struct is passed by value. */
#ifndef RINGATTN_CUDA_BACKWARD_ARGS_H
#define RINGATTN_CUDA_BACKWARD_ARGS_H

#include "sparse/cuda/backward_table.h"
#include "sparse/cuda/forward_args.h"
#include "sparse/cuda/query_cursor.h"

typedef struct ra_cuda_backward {
    ra_cuda_map map;
    ra_view q, k, v, dout;
    ra_view dq, dk, dv; /* float32: added to; 16 bits: stored */
    const float *lse, *delta;
    int64_t lse_batch_stride;
    uint32_t *tickets; /* [2]: the next task of each kernel; 0 before the launch. `single` has the
                          tasks and the ticket of `keys` */
    int64_t q_tasks;   /* as tasks of forward */
    int64_t k_tasks;   /* batch * kv heads * blocks of task_rows * parts */
    ra_cuda_order q_order,
        k_order;        /* of heads, of kv heads and blocks: a block's parts follow each other */
    ra_divisor sharing; /* query heads of a kv head */
    int32_t k_rows;
    int32_t task_rows, parts; /* consecutive key rows of a task; tasks for each */
    int32_t q_head_begin, dim;
    float scale, factor; /* factor: scale * log2(e), positive */
    bool ascending;      /* of chunks: see ra_cuda_task_at */
    bool ends_only;      /* and there are chunks between the ends */
    bool yields;         /* one thread block per task */
    bool aligned;        /* rows of q, k, v and dout are whole pieces of 16 bytes, aligned */
    bool single;         /* one kernel: `single` */
    bool whole;          /* rows of gradients have all dims of the instance, aligned in fours */
    bool warpgroups;     /* `single` by wgmma: a GPU of sm_90a, and ra_cuda_has_warpgroup_single */
} ra_cuda_backward;

RA_STATIC_ASSERT(sizeof(ra_cuda_backward) <= 4096, "kernel parameters are at most 4 KiB");

/* A task of `keys` or `single`: some consecutive key rows of one kv head. First rows come first:
   under a causal mask more queries see them. */
typedef struct ra_cuda_key_task {
    int32_t batch, kv_head, part; /* part 1: dk, if dv has a task of its own */
    int64_t row_begin, row_end;
} ra_cuda_key_task;

RA_HD ra_cuda_key_task ra_cuda_key_task_of(const ra_cuda_backward *f, int64_t index)
{
    int64_t const rows = f->task_rows;
    ra_cuda_turn const turn = ra_cuda_turn_of(&f->k_order, (uint32_t)(index / f->parts));
    ra_cuda_key_task task = {0, 0, 0, 0, 0};
    task.part = (int32_t)(index % f->parts);
    task.batch = turn.batch;
    task.kv_head = turn.head;
    task.row_begin = turn.turn * rows;
    task.row_end = task.row_begin + rows < f->k_rows ? task.row_begin + rows : f->k_rows;
    return task;
}

/* A task of the pass for dq, as in the forward pass. */
RA_HD ra_cuda_task ra_cuda_query_task_of(const ra_cuda_backward *f, int64_t index)
{
    return ra_cuda_task_at(ra_cuda_turn_of(&f->q_order, (uint32_t)index), f->map.chunk_count,
                           f->ends_only, f->ascending);
}

#endif

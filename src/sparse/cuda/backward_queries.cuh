/*
 * A task of the pass for dq: one chunk of queries of one head of one batch, in one thread block, as
 * in the forward pass. No two tasks share a row of dq, and a task's tiles come one after another.
 *
 * Includers bring the primitives first: lanes.cuh on a GPU, an emulation of it in tests.
 */
#ifndef RINGATTN_CUDA_BACKWARD_QUERIES_CUH
#define RINGATTN_CUDA_BACKWARD_QUERIES_CUH

#include "sparse/cuda/backward_args.h"
#include "sparse/cuda/heads.cuh"
#include "sparse/cuda/key_cursor.h"

#include <math.h>

/* Gradients are added to in float32, or stored in 16 bits. */
LANE_CODE int grad_bytes(const ra_view &view)
{
    return view.dtype == RA_F32 ? 4 : 2;
}

/* A thread block's work, in shared memory. Key cursors take turns. */
struct backward_queries_block {
    const char *q, *k, *v, *dout;
    char *dq;
    const float *lse, *delta;
    ra_key_cursor cursor[2];
};
static_assert(sizeof(backward_queries_block) <= RA_CUDA_HEAD_BYTES, "it has its place");

LANE_CODE void backward_queries_begin(const ra_cuda_backward &f, const ra_cuda_task &task,
                                      int element_bytes, backward_queries_block &block)
{
    int32_t const kv_head = (int32_t)ra_divide((uint32_t)task.head, f.sharing);
    int64_t const at = task.batch * f.lse_batch_stride + (int64_t)task.head * f.map.q_rows;
    block.q = head_data(f.q, element_bytes, task.batch, task.head);
    block.k = head_data(f.k, element_bytes, task.batch, kv_head);
    block.v = head_data(f.v, element_bytes, task.batch, kv_head);
    block.dout = head_data(f.dout, element_bytes, task.batch, task.head);
    block.dq = head_data(f.dq, grad_bytes(f.dq), task.batch, task.head);
    block.lse = f.lse + at;
    block.delta = f.delta + at;
}

/* From a row's LSE, what to subtract from its scores times `factor` to get the logarithms of its
   weights; a row without a key has weights 0. */
LANE_CODE float weight_base(float lse)
{
    return lse == -INFINITY ? INFINITY : lse * 1.44269504088896341f;
}

template <class Block>
LANE_CODE void backward_queries_chunk(const ra_cuda_backward &f, const ra_cuda_task &task,
                                      char *shared)
{
    const ra_cuda_map &map = f.map;
    backward_queries_block &block = *(backward_queries_block *)shared;
    if (thread_index() == 0)
        backward_queries_begin(f, task, Block::element::bytes, block);
    for (int32_t i = 0; i < map.layer_count; ++i) {
        if (!layer_has(map.layers[i], f.q_head_begin + task.head))
            continue;
        const uint32_t *tiles = map.chunk_tile + (int64_t)i * (map.chunk_count + 1) + task.chunk;
        for (uint32_t t = tiles[0]; t < tiles[1]; ++t) {
            block_barrier(); /* the head; rows of dq that another thread wrote; and shared */
            Block::tile(f, block, map.tiles[t], map.tiles[t + 1].run_begin,
                        shared + RA_CUDA_HEAD_BYTES);
        }
    }
    block_barrier(); /* shared has been read, before the next task */
}

/* The whole kernel: thread blocks take tasks until none are left, or one each. */
template <class Block> struct queries_pass : Block {
    static LANE_CODE void all(const ra_cuda_backward &f, char *shared)
    {
        do {
            int64_t const index = take_ticket(&f.tickets[0], shared);
            if (index >= f.q_tasks)
                return;
            backward_queries_chunk<Block>(f, ra_cuda_query_task_of(&f, index), shared);
        } while (!f.yields);
    }
};

#endif

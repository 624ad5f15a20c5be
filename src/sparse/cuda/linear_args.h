/* Arguments of linear attention's launches, and their tiles. Pointers are the device's. */
#ifndef RINGATTN_CUDA_LINEAR_ARGS_H
#define RINGATTN_CUDA_LINEAR_ARGS_H

#include "ringattn/linear.h"
#include "sparse/cuda/tile_table.h"

/* Rows of a chunk, whose terms are summed before they are added to a longer sum; and rows of a
   warp's products. */
enum { RA_CUDA_LINEAR_ROWS = 32, RA_CUDA_LINEAR_OWN = 8 };

/* Threads of the segments kernel, and thread blocks that keep a multiprocessor busy. */
enum { RA_CUDA_LINEAR_FLAT_THREADS = 256, RA_CUDA_LINEAR_FLAT_BLOCKS = 8 };

/* Segments are cut for so many workers whatever the GPU: results are the same on every GPU, and a
   plan need not know it. */
enum { RA_CUDA_LINEAR_WORKERS = 128 };

typedef enum ra_cuda_linear_work {
    RA_CUDA_LINEAR_SUM,
    RA_CUDA_LINEAR_FORWARD,
    RA_CUDA_LINEAR_ROWWISE, /* forward, recurrent or cumsum */
    RA_CUDA_LINEAR_QUERIES,
    RA_CUDA_LINEAR_KEYS,
    RA_CUDA_LINEAR_WORKS
} ra_cuda_linear_work;

typedef struct ra_cuda_linear {
    ra_view q, k, v, out, dout, dq, dk, dv;
    float *states, *grads, *prefixes, *lines; /* as ra_linear_pass has them */
    float *scratch;                           /* one piece per thread block */
    int64_t scratch_floats;                   /* from one to the next */
    int64_t rows, tasks;                      /* tasks: of keys, two per segment; else one */
    int32_t segments, q_heads, kv_heads, dim;
    bool causal, stores; /* stores: method cumsum */
} ra_cuda_linear;

RA_STATIC_ASSERT(sizeof(ra_cuda_linear) <= 4096, "kernel parameters are at most 4 KiB");

/* States of segments: added up, or turned from own sums into what each segment sees. */
typedef struct ra_cuda_segments {
    const float *before, *after; /* [lanes][floats]; or NULL */
    float *states;               /* [lanes][segments][floats] */
    float *totals;               /* [lanes][floats], written; else NULL */
    int64_t lanes, floats;       /* (batch, kv head) pairs; floats of a state */
    int32_t segments;
    ra_linear_reach reach;
} ra_cuda_segments;

/*
 * Shared memory: a chunk's queries, keys, values and dout in float32, rows padded by one float
 * against bank conflicts; weights of pairs; sums over rows, compensated (sum and rounding error);
 * two floats per row (`lines`).
 */
RA_HD ra_cuda_tile ra_cuda_linear_tile(int32_t head_dim)
{
    int32_t const dim = head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
    int32_t const rows = RA_CUDA_LINEAR_ROWS;
    ra_cuda_tile tile = {0, 0, 0, 0, 0, 0, 0, 0};
    tile.dim = dim;
    tile.q_rows = tile.k_rows = rows;
    tile.warps = rows / RA_CUDA_LINEAR_OWN;
    tile.blocks_per_sm = dim <= 128 ? 2 : 1;
    tile.registers = ra_cuda_registers(32 * tile.warps, tile.blocks_per_sm);
    tile.shared_bytes = 4 * (4 * rows * (dim + 1) + rows * (rows + 1) + 4 * dim + 2 * rows);
    return tile;
}

/* Row by row: a query, a key and a value; the state's sum of keys, compensated (two floats), and
   the chunk's. */
RA_HD ra_cuda_tile ra_cuda_linear_rowwise_tile(void)
{
    ra_cuda_tile tile = {0, 0, 0, 0, 0, 0, 0, 0};
    tile.dim = 256;
    tile.warps = 8;
    tile.blocks_per_sm = 2;
    tile.registers = ra_cuda_registers(32 * tile.warps, tile.blocks_per_sm);
    tile.shared_bytes = 4 * 6 * 256;
    return tile;
}

RA_HD ra_cuda_tile ra_cuda_linear_tile_of(ra_cuda_linear_work work, int32_t head_dim)
{
    return work == RA_CUDA_LINEAR_ROWWISE ? ra_cuda_linear_rowwise_tile()
                                          : ra_cuda_linear_tile(head_dim);
}

/* Matrices of scratch per thread block: at most three are carried at a time. */
RA_HD int64_t ra_cuda_linear_scratch_floats(int32_t dim)
{
    return (int64_t)3 * dim * dim;
}

#endif

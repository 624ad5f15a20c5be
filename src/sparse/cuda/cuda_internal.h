/* Private to src/sparse/cuda: what the table keeps for a kernel, and its parts. */
#ifndef RINGATTN_CUDA_INTERNAL_H
#define RINGATTN_CUDA_INTERNAL_H

#include "internal.h"
#include "pool/cuda_error.h"
#include "ringattn/linear.h"
#include "sparse/cuda/tile_table.h"
#include "sparse/cuda/watch_cuda.h"

#include <cuda_runtime_api.h>

/* A tile map's arrays on the device. */
typedef struct ra_cuda_taken {
    const ra_tilemap *map;
    ra_block block;
} ra_cuda_taken;

typedef struct ra_cuda_standard ra_cuda_standard; /* see standard_cuda.h */

/* ra_kernel.self */
typedef struct ra_cuda_kernel {
    int index; /* of the GPU */
    ra_memory memory;
    int64_t shared_bytes; /* most shared memory of a thread block */
    cudaStream_t stream;  /* the kernel's, as ra_kernel.stream */
    ra_cuda_taken *taken;
    int32_t taken_count, taken_room;
    bool said_occupancy; /* that this GPU holds fewer thread blocks than kernels are made for */
    ra_cuda_standard *standard; /* of the table `standard`; NULL in others */
    ra_cuda_watch watch;
} ra_cuda_kernel;

/* ra_kernel_cuda; tables that compute in another way take the rest from it. */
extern const ra_kernel_ops ra_cuda_ops;

static inline ra_cuda_kernel *ra_cuda_self(ra_kernel *kernel)
{
    return (ra_cuda_kernel *)kernel->self;
}

/** ra_cuda_status_of_work, on the ledger of the kernel's pool. */
static inline RA_CHECKED ra_status ra_cuda_kernel_status(const ra_kernel *kernel, cudaError_t error,
                                                         const char *what)
{
    return ra_cuda_status_of_work(ra_pool_ledger(kernel->pool), error, what);
}

/**
 * Make the GPU the calling thread's current one. The work enqueued before counts as one call, whose
 * end is watched (watch_cuda.h).
 */
RA_CHECKED ra_status ra_cuda_enter(ra_kernel *kernel);

/* A stream's queue takes about so many launches; the next one blocks, unheard and without a
   deadline. */
enum { RA_CUDA_QUEUE = 1024 };

/** Thread blocks of `block_threads` for so much work, as many as keep a multiprocessor's memory
   busy at most. */
static inline int ra_cuda_block_count(const ra_kernel *kernel, int64_t threads, int block_threads)
{
    enum { PER_MULTIPROCESSOR = 8 };
    return (int)ra_min_i64(ra_div_ceil(threads, block_threads),
                           (int64_t)kernel->threads * PER_MULTIPROCESSOR);
}

/** Refuse, with one line, a kernel that takes more shared memory than the GPU has. */
RA_CHECKED ra_status ra_cuda_check_shared(ra_kernel *kernel, const ra_cuda_tile *tile);

/** See ra_kernel_finish. */
RA_CHECKED ra_status ra_cuda_finish(ra_kernel *kernel);

/**
 * A map's arrays on the device: if the map was taken, those (*own_out is empty); else a copy in
 * *own_out, which the caller gives back by ra_cuda_give_map.
 */
RA_CHECKED ra_status ra_cuda_map_data(ra_kernel *kernel, const ra_tilemap *map, ra_block *own_out,
                                      const void **data_out);
/** Give back what ra_cuda_map_data has brought, after waiting for the step under the deadline:
    returning a block would wait without one. The step's status, or else that of the wait. */
RA_CHECKED ra_status ra_cuda_give_map(ra_kernel *kernel, ra_status status, ra_block *own);
RA_CHECKED ra_status ra_cuda_take_map(ra_kernel *kernel, const ra_tilemap *map);
void ra_cuda_drop_map(ra_kernel *kernel, const ra_tilemap *map);

/* Operations of the table; see ra_kernel_ops. */
RA_CHECKED ra_status ra_cuda_delta_rows(ra_kernel *kernel, const ra_kernel_shape *shape,
                                        int64_t q_rows, const ra_view *out, const ra_view *dout,
                                        float *delta_out);
RA_CHECKED ra_status ra_cuda_gather(ra_kernel *kernel, const ra_kernel_shape *shape,
                                    const ra_rowset *rows, const ra_view *from, const ra_view *to);
RA_CHECKED ra_status ra_cuda_add(ra_kernel *kernel, const ra_kernel_shape *shape,
                                 const ra_rowset *rows, const ra_view *from, const ra_view *to);
RA_CHECKED ra_status ra_cuda_store(ra_kernel *kernel, const ra_kernel_shape *shape, int64_t count,
                                   const ra_view *from, const ra_view *to);
RA_CHECKED ra_status ra_cuda_zero(ra_kernel *kernel, void *data, size_t bytes);
extern const ra_linear_ops ra_cuda_linear_ops;

#endif

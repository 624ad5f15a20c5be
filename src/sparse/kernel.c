/* Common to all kernel tables: a kernel's life, and which requests are refused. */
#include "sparse/kernel_request.h"

#include "internal.h"
#include "sparse/sparse_internal.h"

#include <stdio.h>

ra_status ra_kernel_init(const ra_kernel_ops *ops, const ra_kernel_use *use, ra_pool *pool,
                         ra_kernel *kernel_out)
{
    RA_ASSERT(ops != NULL && use->threads >= 1 && use->dim >= 1 && use->dim <= RA_HEAD_DIM_MAX);
    int64_t const timeout_ms = use->timeout_ms > 0 ? use->timeout_ms : RA_KERNEL_TIMEOUT_MS;
    ra_kernel_use here = *use;
    ra_kernel kernel = {.ops = ops,
                        .threads = use->threads,
                        .pool = pool,
                        .timeout_ms = ra_clamp_timeout(timeout_ms),
                        .deterministic = use->deterministic};
    if (ops->stores_grads != NULL)
        kernel.stores = ops->stores_grads(use);
#ifndef _OPENMP
    kernel.threads = 1;
#endif
    ra_status status = ops->init != NULL ? ops->init(&kernel) : RA_OK;
    if (status != RA_OK)
        return status;
    here.threads = kernel.threads;
    status = ra_pool_alloc(pool, RA_MEM_WORKSPACE, ops->workspace_bytes(&here), kernel.stream,
                           &kernel.workspace);
    if (status != RA_OK) {
        ra_kernel_fini(&kernel);
        return status;
    }
    *kernel_out = kernel;
    return RA_OK;
}

void ra_kernel_fini(ra_kernel *kernel)
{
    if (kernel->ops != NULL)
        ra_kernel_end(kernel, &(ra_kernel_pass){.backward = true}, true); /* nothing stays */
    if (kernel->pool != NULL)
        ra_pool_free(kernel->pool, kernel->stream, &kernel->workspace);
    if (kernel->ops != NULL && kernel->ops->fini != NULL)
        kernel->ops->fini(kernel);
    *kernel = (ra_kernel){0};
}

ra_status ra_kernel_take_chunk_steps(ra_kernel *kernel, const ra_tilemap *const *maps,
                                     int32_t steps, ra_pool *host_pool, ra_block *chunks_out,
                                     int64_t *rows_out)
{
    const ra_tilemap *const any = ra_chunk_steps_map(maps, steps);
    ra_block found;
    *chunks_out = (ra_block){0};
    *rows_out = maps[0]->q_rows;
    if (!kernel->ops->takes_chunk_steps || any == NULL)
        return RA_OK;
    ra_memory const memory = kernel->ops->memory();
    if (memory.ops == NULL)
        return RA_ERR_CUDA; /* it was said why */
    size_t const bytes = (size_t)any->chunk_count * sizeof(ra_chunk_steps);
    ra_status status = ra_pool_alloc(host_pool, RA_MEM_TILEMAP, bytes, NULL, &found);
    if (status != RA_OK)
        return status;
    *rows_out = ra_chunk_steps_find(maps, steps, found.data);
    status = ra_kernel_finish(kernel); /* the copy waits for the stream, and has no deadline */
    if (status == RA_OK)
        status = ra_pool_alloc(kernel->pool, RA_MEM_TILEMAP, bytes, kernel->stream, chunks_out);
    if (status == RA_OK)
        status = ra_memory_write(&memory, kernel->stream, chunks_out->data, found.data, bytes);
    if (status != RA_OK) /* first: a copy that failed may still be on its way */
        ra_pool_free(kernel->pool, kernel->stream, chunks_out);
    ra_pool_free(host_pool, NULL, &found);
    return status;
}

/* ---- requests -------------------------------------------------------------------------------- */

ra_status ra_kernel_refuse(const char *name, ra_status status, const char *what)
{
    ra_log(RA_LOG_ERROR, "kernel %s: %s", name, what);
    return status;
}

ra_status ra_kernel_validate_heads(const char *name, const ra_kernel_shape *shape)
{
    if (shape->dim < 1 || shape->dim > RA_HEAD_DIM_MAX)
        return ra_kernel_refuse(name, RA_ERR_INVALID, "head_dim must be 1 to 256");
    if (shape->batch < 0 || shape->kv_heads < 1 || shape->q_heads < 1 ||
        shape->q_heads % shape->kv_heads != 0)
        return ra_kernel_refuse(name, RA_ERR_INVALID,
                                "query heads must be a multiple of kv heads, at least 1 each");
    return RA_OK;
}

ra_status ra_kernel_validate_shape(const ra_kernel *kernel, const ra_kernel_shape *shape)
{
    const ra_kernel_ops *const ops = kernel->ops;
    ra_kernel_use const use = {.threads = kernel->threads, .dim = shape->dim};
    ra_status const status = ra_kernel_validate_heads(ops->name, shape);
    if (status == RA_OK && kernel->workspace.bytes < ops->workspace_bytes(&use))
        return ra_kernel_refuse(ops->name, RA_ERR_INVALID,
                                "its workspace was made for a smaller head_dim");
    return status;
}

ra_status ra_kernel_validate_map(const char *name, const ra_tilemap *map, int32_t tile_rows)
{
    char what[64];
    if (map->tile_rows > tile_rows) {
        snprintf(what, sizeof(what), "the tile map's tiles have more than %d queries",
                 (int)tile_rows);
        return ra_kernel_refuse(name, RA_ERR_INVALID, what);
    }
    if (map->shared_rows && map->chunk_rows > RA_SHARED_CHUNK_ROWS_MAX)
        return ra_kernel_refuse(name, RA_ERR_INVALID,
                                "chunks of shared rows have more than 1024 queries");
    return RA_OK;
}

ra_status ra_kernel_validate_state(const ra_kernel *kernel, const ra_forward_step *step)
{
    const char *const name = kernel->ops->name;
    const ra_softmax_state *const state = &step->state;
    bool const by_chunks = state->chunks != NULL;
    if (by_chunks && !kernel->ops->takes_chunk_steps)
        return ra_kernel_refuse(name, RA_ERR_INVALID, "its steps are of all chunks alike");
    if (!by_chunks && step->first && step->last)
        return RA_OK;
    if ((!by_chunks && state->rows != step->map->q_rows) || (state->rows > 0 && state->acc == NULL))
        return ra_kernel_refuse(name, RA_ERR_INVALID,
                                "the softmax state is not that of the map's rows");
    return RA_OK;
}

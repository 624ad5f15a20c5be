/* The stand-in's stream-ordered allocator: a pool grows by units. A freed block is its stream's,
   which may use it again, until the host has waited for that stream, as strictly as a driver may
   take it: questions do not count. */
#include "support/standin_cudart.h"

#include <stdlib.h>
#include <string.h>

typedef struct piece {
    struct piece *next;
    void *data;
    int64_t bytes;
    int is_freed, is_over; /* over: the work before that is done, but nobody may have seen it */
    cudaStream_t stream;   /* that has freed it */
    struct CUmemPoolHandle_st *pool;
} piece;

struct CUmemPoolHandle_st {
    struct CUmemPoolHandle_st *next;
    int64_t held_bytes, used_bytes;
    int is_destroyed; /* but holds what is used */
    uint64_t threshold;
};

static piece *pieces;
static struct CUmemPoolHandle_st *pools;

/* A pool that was destroyed holds its memory until its last block is over. */
static void end_unused(cudaMemPool_t pool)
{
    struct CUmemPoolHandle_st **at = &pools;
    for (const piece *p = pieces; p != NULL; p = p->next) {
        if (p->pool == pool)
            return;
    }
    while (*at != pool)
        at = &(*at)->next;
    *at = pool->next;
    standin.used_bytes -= pool->held_bytes;
    free(pool);
}

static void piece_end(piece *p)
{
    cudaMemPool_t const pool = p->pool;
    piece **at = &pieces;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    pool->used_bytes -= p->bytes;
    (void)standin_give(p->data);
    free(p);
    if (pool->is_destroyed)
        end_unused(pool);
}

void standin_see_pieces(void)
{
    for (piece *p = pieces, *next; p != NULL; p = next) {
        next = p->next;
        if (p->is_over)
            piece_end(p);
    }
}

void standin_reset_pools(void)
{
    while (pieces != NULL)
        piece_end(pieces);
    while (pools != NULL)
        end_unused(pools);
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool_out, const struct cudaMemPoolProps *properties)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && (properties->allocType != cudaMemAllocationTypePinned ||
                                 properties->location.type != cudaMemLocationTypeDevice ||
                                 properties->location.id >= standin.device_count))
        error = cudaErrorInvalidValue;
    cudaMemPool_t const pool = error == cudaSuccess ? calloc(1, sizeof(*pool)) : NULL;
    if (pool != NULL) {
        pool->next = pools;
        pools = pool;
        standin.pools++;
        *pool_out = pool;
    } else if (error == cudaSuccess) {
        error = cudaErrorMemoryAllocation;
    }
    return standin_leave(error);
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess) {
        standin.pools--;
        pool->is_destroyed = 1;
        end_unused(pool);
    }
    return standin_leave(error);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    cudaError_t error = standin_enter();
    if (error == cudaSuccess && attribute != cudaMemPoolAttrReleaseThreshold)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        memcpy(&pool->threshold, value, sizeof(pool->threshold));
    return standin_leave(error);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    cudaError_t error = standin_enter();
    uint64_t const held = (uint64_t)pool->held_bytes;
    if (error == cudaSuccess && attribute != cudaMemPoolAttrReservedMemCurrent)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        memcpy(value, &held, sizeof(held));
    return standin_leave(error);
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep_bytes)
{
    int64_t const unit = STANDIN_POOL_UNIT_BYTES;
    cudaError_t const error = standin_enter();
    while (error == cudaSuccess && pool->held_bytes > (int64_t)keep_bytes &&
           pool->held_bytes - unit >= pool->used_bytes) {
        pool->held_bytes -= unit;
        standin.used_bytes -= unit;
    }
    return standin_leave(error);
}

/* What a stream has freed it may have again. */
static void reuse(cudaMemPool_t pool, int64_t bytes, cudaStream_t s)
{
    int64_t missing = pool->used_bytes + bytes - pool->held_bytes;
    for (piece *p = pieces; p != NULL && missing > 0; p = p->next) {
        int64_t const again = p->pool == pool && p->is_freed && p->stream == s ? p->bytes : 0;
        int64_t const taken = again < missing ? again : missing;
        p->bytes -= taken;
        pool->used_bytes -= taken;
        missing -= taken;
    }
}

static cudaError_t grow(cudaMemPool_t pool, int64_t bytes, cudaStream_t s)
{
    int64_t const unit = STANDIN_POOL_UNIT_BYTES;
    reuse(pool, bytes, s);
    int64_t const missing = pool->used_bytes + bytes - pool->held_bytes;
    int64_t const grown = missing > 0 ? (missing + unit - 1) / unit * unit : 0;
    if (standin.used_bytes + grown > standin.memory_bytes)
        return cudaErrorMemoryAllocation;
    pool->held_bytes += grown;
    standin.used_bytes += grown;
    return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void **data, size_t bytes, cudaMemPool_t pool, cudaStream_t s)
{
    cudaError_t error = standin_enter();
    piece *const p = error == cudaSuccess ? calloc(1, sizeof(*p)) : NULL;
    if (error == cudaSuccess && p == NULL)
        error = cudaErrorMemoryAllocation;
    if (error == cudaSuccess && pool->threshold != UINT64_MAX)
        error = cudaErrorInvalidValue; /* the pool must keep all, or counts would be wrong */
    if (error == cudaSuccess)
        error = grow(pool, (int64_t)bytes, s);
    if (error == cudaSuccess)
        error = standin_take(&p->data, bytes, 1);
    if (error == cudaSuccess) {
        pool->used_bytes += (int64_t)bytes;
        p->bytes = (int64_t)bytes;
        p->pool = pool;
        p->next = pieces;
        pieces = p;
        *data = p->data;
    } else {
        free(p);
    }
    return standin_leave(error);
}

void standin_run_free(void *context)
{
    (*(piece **)context)->is_over = 1;
}

cudaError_t cudaFreeAsync(void *data, cudaStream_t s)
{
    cudaError_t error = standin_enter();
    piece *p = pieces;
    while (p != NULL && p->data != data)
        p = p->next;
    if (error == cudaSuccess && (p == NULL || p->is_freed))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        p->is_freed = 1;
        p->stream = s;
        error = standin_enqueue(s, standin_run_free, &p, sizeof(p));
    }
    return standin_leave(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    cudaError_t error = cudaEventQuery(e);
    if (error != cudaSuccess)
        return error; /* not ready: a GPU would hang here */
    error = standin_enter();
    if (error == cudaSuccess)
        standin_see_pieces();
    return standin_leave(error);
}

/* The stand-in's stream-ordered allocator: a pool grows by units, and a freed block is its stream's
   until the work before it is done. */
#include "support/standin_cudart.h"

#include <stdlib.h>
#include <string.h>

typedef struct piece {
    struct piece *next;
    void *data;
    int64_t bytes;
    int is_freed; /* but the work before that may not be done */
    struct CUmemPoolHandle_st *pool;
} piece;

struct CUmemPoolHandle_st {
    struct CUmemPoolHandle_st *next;
    int64_t held_bytes, used_bytes;
    uint64_t threshold;
};

static piece *pieces;
static struct CUmemPoolHandle_st *pools;

static void piece_end(piece *p)
{
    piece **at = &pieces;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    p->pool->used_bytes -= p->bytes;
    (void)standin_give(p->data);
    free(p);
}

static void pool_end(cudaMemPool_t pool)
{
    struct CUmemPoolHandle_st **at = &pools;
    while (*at != pool)
        at = &(*at)->next;
    *at = pool->next;
    standin.used_bytes -= pool->held_bytes;
    standin.pools--;
    free(pool);
}

void standin_reset_pools(void)
{
    while (pieces != NULL)
        piece_end(pieces);
    while (pools != NULL)
        pool_end(pools);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    cudaError_t error = standin_enter();
    int const of_pools = attribute == cudaDevAttrMemoryPoolsSupported;
    if (error == cudaSuccess &&
        ((!of_pools && attribute != cudaDevAttrClockRate) || device >= standin.device_count))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        *value = of_pools ? !standin.has_no_pools : STANDIN_CLOCK_KHZ;
    return standin_leave(error);
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
    if (error == cudaSuccess)
        standin_run_all();
    if (error == cudaSuccess && pool->used_bytes > 0)
        error = cudaErrorInvalidValue; /* the runtime would wait for ever */
    if (error == cudaSuccess)
        pool_end(pool);
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

static cudaError_t grow(cudaMemPool_t pool, int64_t bytes)
{
    int64_t const unit = STANDIN_POOL_UNIT_BYTES;
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
    (void)s;
    if (error == cudaSuccess && p == NULL)
        error = cudaErrorMemoryAllocation;
    if (error == cudaSuccess && pool->threshold != UINT64_MAX)
        error = cudaErrorInvalidValue; /* the pool must keep all, or counts would be wrong */
    if (error == cudaSuccess)
        error = grow(pool, (int64_t)bytes);
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

static void run_free(void *context)
{
    piece_end(*(piece **)context);
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
        error = standin_enqueue(s, run_free, &p, sizeof(p));
    }
    return standin_leave(error);
}

/* Segments of memory: taking them, the chunks they are cut into, and returning them. */
#include "pool_internal.h"

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#ifdef HAS_ASAN
#include <sanitizer/asan_interface.h>
#endif

enum { SLAB_CHUNKS = 32 };

void ra_heap_fence(const ra_pool *pool, const void *data, size_t bytes, bool closed)
{
#ifdef HAS_ASAN
    if (pool->config.memory.ops->event_record != NULL)
        return; /* a device's addresses */
    if (closed)
        ASAN_POISON_MEMORY_REGION(data, bytes);
    else
        ASAN_UNPOISON_MEMORY_REGION(data, bytes);
#else
    (void)pool, (void)data, (void)bytes, (void)closed;
#endif
}

/* ---- chunk structures ------------------------------------------------------------------------ */

static bool spare_fill(ra_heap *heap)
{
    struct slab {
        void *next;
        ra_chunk chunks[SLAB_CHUNKS];
    } *const slab = calloc(1, sizeof(*slab));
    if (slab == NULL)
        return false;
    slab->next = heap->slabs;
    heap->slabs = slab;
    for (int i = 0; i < SLAB_CHUNKS; i++) {
        slab->chunks[i].bin_next = heap->spare;
        heap->spare = &slab->chunks[i];
    }
    return true;
}

ra_chunk *ra_chunk_make(ra_heap *heap)
{
    if (heap->spare == NULL && !spare_fill(heap))
        return NULL;
    ra_chunk *const chunk = heap->spare;
    heap->spare = chunk->bin_next;
    *chunk = (ra_chunk){0};
    return chunk;
}

void ra_chunk_drop(ra_heap *heap, ra_chunk *chunk)
{
    chunk->bin_next = heap->spare;
    heap->spare = chunk;
}

/* ---- uses on streams ------------------------------------------------------------------------- */

static void use_drop(ra_pool *pool, ra_use *use)
{
    ra_memory const *const memory = &pool->config.memory;
    if (use == NULL || --use->references > 0)
        return;
    memory->ops->event_free(memory, use->event);
    free(use);
}

ra_use *ra_use_record(ra_pool *pool, ra_stream *stream)
{
    ra_memory const *const memory = &pool->config.memory;
    ra_use *const use = calloc(1, sizeof(*use));
    if (use == NULL)
        return NULL;
    *use = (ra_use){.stream = stream, .order = pool->heap.use_order++, .references = 1};
    if (memory->ops->event_record(memory, stream, &use->event) == RA_OK)
        return use;
    free(use);
    return NULL;
}

void ra_chunk_set_use(ra_pool *pool, ra_chunk *chunk, ra_use *use)
{
    ra_heap *const heap = &pool->heap;
    if (chunk->use != NULL) {
        heap->pending_bytes -= (int64_t)chunk->bytes;
        heap->pending_count--;
        use_drop(pool, chunk->use);
    }
    chunk->use = use;
    if (use != NULL) {
        heap->pending_bytes += (int64_t)chunk->bytes;
        heap->pending_count++;
    }
}

bool ra_chunk_is_over(ra_pool *pool, ra_chunk *chunk)
{
    ra_memory const *const memory = &pool->config.memory;
    if (chunk->use != NULL && memory->ops->event_is_over(memory, chunk->use->event))
        ra_chunk_set_use(pool, chunk, NULL);
    return chunk->use == NULL && !chunk->lost;
}

/* ---- segments -------------------------------------------------------------------------------- */

static ra_bins *bins_of(ra_heap *heap, const ra_segment *segment)
{
    return segment->small ? &heap->small : &heap->large;
}

bool ra_chunk_is_whole(const ra_chunk *chunk)
{
    return chunk->idle && !chunk->lost && chunk->before == NULL && chunk->after == NULL;
}

void ra_idle_add(ra_heap *heap, ra_chunk *chunk)
{
    ra_segment *const segment = chunk->segment;
    ra_bins_add(bins_of(heap, segment), chunk);
    if (!ra_chunk_is_whole(chunk))
        return;
    segment->newer = NULL;
    segment->older = heap->newest;
    *(heap->newest != NULL ? &heap->newest->newer : &heap->oldest) = segment;
    heap->newest = segment;
    heap->whole_bytes += (int64_t)segment->bytes;
    heap->whole_count++;
}

void ra_idle_remove(ra_heap *heap, ra_chunk *chunk)
{
    ra_segment *const segment = chunk->segment;
    ra_bins_remove(bins_of(heap, segment), chunk);
    if (!ra_chunk_is_whole(chunk))
        return;
    *(segment->older != NULL ? &segment->older->newer : &heap->oldest) = segment->newer;
    *(segment->newer != NULL ? &segment->newer->older : &heap->newest) = segment->older;
    heap->whole_bytes -= (int64_t)segment->bytes;
    heap->whole_count--;
}

static ra_segment *segment_link(ra_pool *pool, ra_segment *segment, ra_chunk *chunk)
{
    ra_heap *const heap = &pool->heap;
    *chunk = (ra_chunk){
        .data = segment->data, .bytes = segment->bytes, .segment = segment, .idle = true};
    segment->first = chunk;
    segment->next = heap->segments;
    if (heap->segments != NULL)
        heap->segments->prev = segment;
    heap->segments = segment;
    if (segment->small)
        heap->small_bytes += (int64_t)segment->bytes;
    heap->idle_bytes += (int64_t)segment->bytes;
    heap->idle_count++;
    ra_pool_count(&pool->stats, RA_POOL_RESERVED, (int64_t)segment->bytes, 1);
    ra_heap_fence(pool, segment->data, segment->bytes, true);
    ra_idle_add(heap, chunk);
    return segment;
}

ra_status ra_segment_take(ra_pool *pool, size_t bytes, bool small, ra_segment **segment_out,
                          ra_refusal *refusal)
{
    ra_memory const *const memory = &pool->config.memory;
    ra_segment *const segment = calloc(1, sizeof(*segment));
    ra_chunk *const chunk = ra_chunk_make(&pool->heap);
    ra_status status = RA_ERR_NO_MEMORY;
    refusal->who = "the machine";
    if (segment == NULL || chunk == NULL)
        goto err_drop;
    refusal->who = "the memory limit";
    if (!ra_ledger_promise(pool->config.ledger, (int64_t)bytes))
        goto err_drop;
    refusal->who = "the machine";
    *segment = (ra_segment){.bytes = bytes, .small = small};
    ra_pool_unlock(pool); /* others need not wait for pages */
    status = memory->ops->alloc(memory, bytes, &segment->data);
    ra_pool_lock(pool);
    if (status != RA_OK)
        goto err_break;
    *segment_out = segment_link(pool, segment, chunk);
    return RA_OK;

err_break:
    ra_ledger_break(pool->config.ledger, (int64_t)bytes);
err_drop:
    if (chunk != NULL)
        ra_chunk_drop(&pool->heap, chunk);
    free(segment);
    return status;
}

static void segment_unlink(ra_heap *heap, ra_segment *segment)
{
    *(segment->prev != NULL ? &segment->prev->next : &heap->segments) = segment->next;
    if (segment->next != NULL)
        segment->next->prev = segment->prev;
    if (segment->small)
        heap->small_bytes -= (int64_t)segment->bytes;
}

/* Back to the memory and out of the ledger. */
static void segment_free(ra_pool *pool, ra_segment *segment, ra_category category)
{
    ra_memory const *const memory = &pool->config.memory;
    int64_t const bytes = (int64_t)segment->bytes;
    ra_heap_fence(pool, segment->data, segment->bytes, false);
    memory->ops->free(memory, segment->data, segment->bytes);
    ra_ledger_release(pool->config.ledger, category, bytes);
    ra_pool_count(&pool->stats, RA_POOL_RESERVED, -bytes, -1);
    free(segment);
}

/* One that nobody uses any part of. */
static void segment_return(ra_pool *pool, ra_segment *segment)
{
    ra_heap *const heap = &pool->heap;
    RA_ASSERT(ra_chunk_is_whole(segment->first));
    ra_idle_remove(heap, segment->first);
    ra_chunk_set_use(pool, segment->first, NULL);
    heap->idle_bytes -= (int64_t)segment->bytes;
    heap->idle_count--;
    segment_unlink(heap, segment);
    ra_chunk_drop(heap, segment->first);
    segment_free(pool, segment, RA_MEM_POOL_IDLE);
}

void ra_segment_give(ra_pool *pool, ra_chunk *chunk, ra_category category)
{
    ra_heap *const heap = &pool->heap;
    ra_segment *const segment = chunk->segment;
    RA_ASSERT(!chunk->idle && chunk->use == NULL && chunk->bytes == segment->bytes);
    segment_unlink(heap, segment);
    ra_chunk_drop(heap, chunk);
    segment_free(pool, segment, category);
    pool->stats.trimmed_segments++;
}

/* Return the longest idle segment that no stream uses; its bytes, 0: there is none. */
static int64_t oldest_return(ra_pool *pool)
{
    for (ra_segment *segment = pool->heap.oldest; segment != NULL; segment = segment->newer) {
        int64_t const bytes = (int64_t)segment->bytes;
        if (!ra_chunk_is_over(pool, segment->first))
            continue;
        segment_return(pool, segment);
        pool->stats.trimmed_segments++;
        return bytes;
    }
    return 0;
}

void ra_heap_refresh(ra_pool *pool)
{
    const ra_heap *heap = &pool->heap;
    ra_pool_stats *const stats = &pool->stats;
    ra_pool_count(
        stats, RA_POOL_INACTIVE_SPLIT,
        heap->idle_bytes - heap->whole_bytes - stats->bytes[RA_POOL_INACTIVE_SPLIT].current,
        heap->idle_count - heap->whole_count - stats->count[RA_POOL_INACTIVE_SPLIT].current);
    ra_pool_count(stats, RA_POOL_ACTIVE,
                  stats->bytes[RA_POOL_ALLOCATED].current + heap->pending_bytes -
                      stats->bytes[RA_POOL_ACTIVE].current,
                  stats->count[RA_POOL_ALLOCATED].current + heap->pending_count -
                      stats->count[RA_POOL_ACTIVE].current);
}

int64_t ra_heap_give_back(ra_pool *pool, int64_t wanted, bool refused)
{
    int64_t total = 0, returned = 1;
    (void)refused; /* every look at a segment asks its streams */
    while (total < wanted && returned > 0) {
        returned = oldest_return(pool);
        total += returned;
    }
    return total;
}

int64_t ra_heap_idle(const ra_pool *pool)
{
    return pool->heap.idle_bytes;
}

int64_t ra_heap_spare(const ra_pool *pool)
{
    return pool->heap.whole_bytes;
}

void ra_heap_fini(ra_pool *pool)
{
    ra_heap *const heap = &pool->heap;
    while (heap->segments != NULL) {
        ra_segment *const segment = heap->segments;
        /* Neighbours used on different streams, and lost chunks, were not joined. */
        for (ra_chunk *chunk = segment->first; chunk != NULL; chunk = chunk->after) {
            RA_ASSERT(chunk->idle);
            ra_chunk_set_use(pool, chunk, NULL);
        }
        heap->segments = segment->next;
        segment_free(pool, segment, RA_MEM_POOL_IDLE);
    }
    while (heap->slabs != NULL) {
        void *const next = *(void **)heap->slabs;
        free(heap->slabs);
        heap->slabs = next;
    }
}

/*
 * Which chunk serves a request, how chunks are cut and joined, and when the memory is asked for
 * more. Blocks below 64 KiB have segments of their own, so that no small block keeps a large
 * segment from being returned.
 */
#include "pool_internal.h"

enum {
    SMALL_BYTES = 64 << 10,
    SMALL_SEGMENT_MAX_BYTES = 1 << 20,
    SMALL_GROWTH = 16,    /* a new segment is at most this share of what small blocks have */
    SMALL_BLOCKS_MIN = 4, /* that such a segment has room for; else it is for one block */
    WASTE_SHARE = 32      /* of a block: most that is cut off a segment in automatic trim */
};

typedef struct request {
    ra_pool *pool;
    ra_stream *stream;
    size_t size; /* rounded */
    bool small;
} request;

/* ---- joining and cutting --------------------------------------------------------------------- */

static bool may_join(ra_pool *pool, ra_chunk *a, ra_chunk *b)
{
    if (!a->idle || !b->idle || a->lost || b->lost)
        return false;
    bool const a_over = ra_chunk_is_over(pool, a), b_over = ra_chunk_is_over(pool, b);
    return a_over || b_over || a->use->stream == b->use->stream;
}

/* Whether a chunk is all of its segment. */
static bool is_alone(const ra_chunk *chunk)
{
    return chunk->before == NULL && chunk->after == NULL;
}

/*
 * Whether a segment of so many bytes may have several chunks. With a bound on idle bytes, such
 * segments together stay within it: only they can have idle bytes that no trim returns, because the
 * rest is in use.
 */
static bool may_share(const ra_pool *pool, size_t bytes)
{
    int64_t const bound = pool->config.trim_bytes;
    return bound == 0 || pool->heap.cut_bytes + (int64_t)bytes <= bound;
}

static bool may_cut(const ra_pool *pool, const ra_chunk *chunk)
{
    return !is_alone(chunk) || may_share(pool, chunk->bytes);
}

/* `b` follows `a`, and neither is in a bin. Of two uses the later one stands for both. */
static void join(ra_pool *pool, ra_chunk *a, ra_chunk *b)
{
    ra_use *use = a->use;
    if (use == NULL || (b->use != NULL && b->use->order > use->order))
        use = b->use;
    if (use != NULL)
        use->references++;
    ra_chunk_set_use(pool, a, NULL);
    ra_chunk_set_use(pool, b, NULL);
    a->bytes += b->bytes;
    ra_chunk_set_use(pool, a, use);
    a->after = b->after;
    if (a->after != NULL)
        a->after->before = a;
    pool->heap.idle_count--;
    ra_chunk_drop(&pool->heap, b);
    if (is_alone(a))
        pool->heap.cut_bytes -= (int64_t)a->bytes;
}

/* Join an idle chunk that is in no bin with idle neighbours, which are. */
static ra_chunk *join_neighbours(ra_pool *pool, ra_chunk *chunk)
{
    ra_heap *const heap = &pool->heap;
    if (chunk->after != NULL && may_join(pool, chunk, chunk->after)) {
        ra_idle_remove(heap, chunk->after);
        join(pool, chunk, chunk->after);
    }
    ra_chunk *const before = chunk->before;
    if (before != NULL && may_join(pool, before, chunk)) {
        ra_idle_remove(heap, before);
        join(pool, before, chunk);
        chunk = before;
    }
    return chunk;
}

/* Chunks that could not be joined when freed may be joined once their streams' work is over. */
static void join_what_is_over(ra_pool *pool)
{
    ra_heap *const heap = &pool->heap;
    if (heap->pending_count == 0)
        return;
    for (ra_segment *segment = heap->segments; segment != NULL; segment = segment->next) {
        for (ra_chunk *chunk = segment->first; chunk != NULL; chunk = chunk->after) {
            if (!chunk->idle || !ra_chunk_is_over(pool, chunk) || is_alone(chunk))
                continue; /* alone, put back it would be the youngest of the idle segments */
            ra_idle_remove(heap, chunk);
            chunk = join_neighbours(pool, chunk);
            ra_idle_add(heap, chunk);
        }
    }
}

/* Cut the surplus off a chunk that is in no bin, unless that is not allowed or there is no memory
   for it. */
static void cut(ra_pool *pool, ra_chunk *chunk, size_t size)
{
    ra_heap *const heap = &pool->heap;
    ra_use *const use = chunk->use;
    ra_chunk *const rest = chunk->bytes > size && may_cut(pool, chunk) ? ra_chunk_make(heap) : NULL;
    if (rest == NULL)
        return;
    if (is_alone(chunk))
        heap->cut_bytes += (int64_t)chunk->bytes;
    *rest = (ra_chunk){.data = chunk->data + size,
                       .bytes = chunk->bytes - size,
                       .segment = chunk->segment,
                       .before = chunk,
                       .after = chunk->after,
                       .idle = true};
    if (rest->after != NULL)
        rest->after->before = rest;
    chunk->after = rest;
    if (use != NULL)
        use->references += 2; /* one of them for the chunk, which gives up its own first */
    ra_chunk_set_use(pool, chunk, NULL);
    chunk->bytes = size;
    ra_chunk_set_use(pool, chunk, use);
    ra_chunk_set_use(pool, rest, use);
    heap->idle_count++;
    ra_idle_add(heap, rest);
}

/* Take an idle chunk from its bin for the caller. */
static void hand_out(const request *r, ra_chunk *chunk)
{
    ra_heap *const heap = &r->pool->heap;
    ra_idle_remove(heap, chunk);
    cut(r->pool, chunk, r->size);
    ra_chunk_set_use(r->pool, chunk, NULL);
    chunk->idle = false;
    heap->idle_bytes -= (int64_t)chunk->bytes;
    heap->idle_count--;
}

/* ---- finding and growing --------------------------------------------------------------------- */

static bool fits(void *context, ra_chunk *chunk)
{
    const request *r = context;
    ra_memory const *const memory = &r->pool->config.memory;
    bool const same_stream = chunk->use != NULL && chunk->use->stream == r->stream;
    if (!may_cut(r->pool, chunk) && chunk->bytes != memory->ops->round(memory, r->size))
        return false;
    /* A segment cut in two can only be returned when both parts are free: peaks would grow. */
    if (!r->small && r->pool->config.trim_bytes == 0 && ra_chunk_is_whole(chunk) &&
        chunk->bytes - r->size > r->size / WASTE_SHARE)
        return false;
    return same_stream || ra_chunk_is_over(r->pool, chunk);
}

/* The size of a new segment; segments of small blocks grow with their total. */
static size_t segment_bytes(const request *r)
{
    ra_memory const *const memory = &r->pool->config.memory;
    int64_t const growth =
        ra_min_i64(r->pool->heap.small_bytes / SMALL_GROWTH, SMALL_SEGMENT_MAX_BYTES);
    size_t const shared =
        memory->ops->round(memory, (size_t)(growth / RA_POOL_UNIT_BYTES * RA_POOL_UNIT_BYTES));
    if (r->small && growth >= SMALL_BLOCKS_MIN * (int64_t)r->size && may_share(r->pool, shared))
        return shared;
    return memory->ops->round(memory, r->size);
}

/* Take a new segment; if that is refused, trim and try once more with no more than needed. */
static ra_status grow(const request *r, ra_segment **segment_out, ra_refusal *refusal)
{
    ra_pool *const pool = r->pool;
    ra_memory const *const memory = &pool->config.memory;
    size_t const wanted = segment_bytes(r), least = memory->ops->round(memory, r->size);
    refusal->bytes = (int64_t)least;
    join_what_is_over(pool);
    ra_keeping_make_room(pool, (int64_t)wanted, (int64_t)r->size);
    ra_status status = ra_segment_take(pool, wanted, r->small, segment_out, refusal);
    if (status != RA_ERR_NO_MEMORY)
        return status;
    bool const fitted = ra_ledger_headroom(pool->config.ledger) >= (int64_t)wanted;
    int64_t const returned =
        fitted ? ra_keeping_trim(pool, 0) : ra_keeping_trim_for(pool, (int64_t)least);
    if (returned == 0 && least == wanted)
        return status;
    pool->stats.retries++;
    return ra_segment_take(pool, least, r->small, segment_out, refusal);
}

/* Trim before idle bytes, which the heap has counted already, reach the ledger. */
static void keep_bound(ra_pool *pool)
{
    if (pool->config.trim_bytes > 0)
        ra_keeping_trim(pool, pool->config.trim_bytes);
}

ra_status ra_heap_alloc(ra_pool *pool, ra_category category, size_t bytes, ra_stream *stream,
                        ra_block *block_out, ra_refusal *refusal)
{
    request r = {.pool = pool, .stream = stream, .size = ra_pool_class_bytes(bytes)};
    ra_ledger *const ledger = pool->config.ledger;
    r.small = r.size < SMALL_BYTES;
    ra_chunk *chunk =
        ra_bins_find(r.small ? &pool->heap.small : &pool->heap.large, r.size, fits, &r);
    if (chunk != NULL) {
        hand_out(&r, chunk);
        ra_ledger_move(ledger, RA_MEM_POOL_IDLE, category, (int64_t)chunk->bytes);
        pool->stats.hits++;
    } else {
        ra_segment *segment;
        ra_status const status = grow(&r, &segment, refusal);
        if (status != RA_OK)
            return status;
        chunk = segment->first;
        hand_out(&r, chunk);
        keep_bound(pool);
        ra_ledger_settle(ledger, category, (int64_t)segment->bytes,
                         (int64_t)(segment->bytes - chunk->bytes));
        pool->stats.misses++;
    }
    ra_heap_fence(pool, chunk->data, bytes, false);
    *block_out = (ra_block){.data = chunk->data,
                            .bytes = bytes,
                            .reserved_bytes = chunk->bytes,
                            .category = category,
                            .chunk = chunk};
    return RA_OK;
}

/* Whether the bound has no room for this chunk beside idle bytes that no trim can return. */
static bool is_too_much(ra_pool *pool, ra_chunk *chunk)
{
    const ra_heap *heap = &pool->heap;
    int64_t const bound = pool->config.trim_bytes;
    return bound > 0 && is_alone(chunk) &&
           heap->idle_bytes - heap->whole_bytes + (int64_t)chunk->bytes > bound &&
           ra_chunk_is_over(pool, chunk);
}

void ra_heap_free(ra_pool *pool, ra_stream *stream, const ra_block *block)
{
    ra_heap *const heap = &pool->heap;
    ra_memory const *const memory = &pool->config.memory;
    ra_chunk *chunk = block->chunk;
    RA_ASSERT(!chunk->idle && chunk->data == block->data);
    ra_heap_fence(pool, chunk->data, chunk->bytes, true);
    if (stream != NULL && memory->ops->event_record != NULL) {
        ra_chunk_set_use(pool, chunk, ra_use_record(pool, stream));
        chunk->lost = chunk->use == NULL;
    }
    if (is_too_much(pool, chunk)) {
        ra_segment_give(pool, chunk, block->category);
        return;
    }
    chunk->idle = true;
    heap->idle_bytes += (int64_t)chunk->bytes;
    heap->idle_count++;
    keep_bound(pool);
    ra_ledger_move(pool->config.ledger, block->category, RA_MEM_POOL_IDLE, (int64_t)chunk->bytes);
    if (!chunk->lost)
        ra_idle_add(heap, join_neighbours(pool, chunk));
}

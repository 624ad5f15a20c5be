/*
 * Schedule shared: ranks of one host lay keys and values in one window, rank after rank, and read
 * them where they lie. Nothing is sent, and as all keys are at hand the forward pass is one step
 * without state, as on one rank.
 *
 * In step s of the backward pass, rank r alone adds to the dK and dV of rank r + s. A barrier ends
 * each step, so additions to a row come in the order of steps and repeat bit for bit.
 */
#include "internal.h"
#include "ring/ring_internal.h"

#include <time.h>

static int64_t first_row(const ra_ring *ring, int rank)
{
    int64_t first = 0;
    for (int r = 0; r < rank; ++r)
        first += ring->layout.rows[r].row_count;
    return first;
}

/* Rows from `row` on of [batch, seq, heads, dim], two such tensors one after the other. */
static ra_pair_view window_pair(const ra_ring *ring, const ra_window *window, ra_dtype dtype,
                                int32_t heads, int32_t head, int64_t row)
{
    const ra_ring_config *c = &ring->config;
    int64_t const elements = c->batch * c->seq * heads * c->dim;
    char *second = (char *)window->data + elements * (int64_t)ra_dtype_bytes(dtype);
    ra_pair_view pair = {ra_view_dense(window->data, dtype, c->seq, heads, c->dim, head),
                         ra_view_dense(second, dtype, c->seq, heads, c->dim, head)};
    int64_t const skip = row * heads * c->dim * (int64_t)ra_dtype_bytes(dtype);
    pair.first.data = (char *)pair.first.data + skip;
    pair.second.data = (char *)pair.second.data + skip;
    return pair;
}

ra_pair_view ra_shared_keys(const ra_ring *ring, int32_t head, int rank)
{
    return window_pair(ring, &ring->key_window, ring->config.dtype, ring->config.kv_heads, head,
                       first_row(ring, rank));
}

ra_pair_view ra_shared_grads(const ra_ring *ring, const ra_head_group *group, int rank)
{
    return window_pair(ring, &ring->grad_window, RA_F32, group->kv_count, 0, first_row(ring, rank));
}

ra_ring_keys ra_ring_key_memory(const ra_ring *ring)
{
    if (ring->schedule != RA_SCHEDULE_SHARED)
        return (ra_ring_keys){NULL, NULL, ra_ring_local_rows(ring)};
    ra_pair_view const own = ra_shared_keys(ring, 0, ra_comm_rank(ring->comm));
    return (ra_ring_keys){own.first.data, own.second.data, ring->config.seq};
}

/* This rank's share of a window counts as its own. */
static int64_t share_of(const ra_ring *ring, size_t bytes)
{
    return (int64_t)bytes / ring->config.seq * ra_ring_local_rows(ring);
}

ra_status ra_shared_take(ra_ring *ring, ra_category category, size_t bytes, ra_window *window)
{
    int64_t const share = share_of(ring, bytes);
    ra_status const charged = ra_pool_charge(ring->pool, category, share);
    ra_status status = ra_ring_agree(ring, charged);
    if (status == RA_OK)
        status = ra_window_create(ring->comm, bytes, window);
    if (status != RA_OK && charged == RA_OK)
        ra_pool_release(ring->pool, category, share);
    return status;
}

void ra_shared_give(ra_ring *ring, ra_category category, ra_window *window)
{
    if (window->data != NULL)
        ra_pool_release(ring->pool, category, share_of(ring, window->bytes));
    ra_window_destroy(window);
}

ra_status ra_shared_barrier(ra_ring *ring, const char *operation, int step)
{
    struct timespec begin, end;
    if (ring->mode == RA_RING_COMPUTE_ONLY)
        return RA_OK;
    int64_t const mark = ra_ring_mark(ring, RA_TRACE_BARRIER, step, -1, -1, -1);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    ra_status const status = ra_comm_barrier(ring->comm, operation);
    clock_gettime(CLOCK_MONOTONIC, &end);
    ra_ring_mark_end(ring, mark);
    /* Nothing is exchanged here: what a pass waits for others, it waits in its barriers. */
    ring->comm->stats.wait_ms +=
        1e3 * (double)(end.tv_sec - begin.tv_sec) + 1e-6 * (double)(end.tv_nsec - begin.tv_nsec);
    return status;
}

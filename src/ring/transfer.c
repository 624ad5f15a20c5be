/* Transfer of keys, values and their gradients: views, regions, and the exchange of keys. */
#include "internal.h"
#include "ring/ring_internal.h"

size_t ra_ring_keys_bytes(const ra_ring *ring, int32_t kv_heads, int64_t rows)
{
    return 2 * (size_t)(ring->config.batch * rows * kv_heads * ring->config.dim) *
           ra_dtype_bytes(ring->config.dtype);
}

size_t ra_ring_grads_bytes(const ra_ring *ring, int32_t kv_heads, int64_t rows)
{
    return 2 * (size_t)(ring->config.batch * rows * kv_heads * ring->config.dim) * sizeof(float);
}

ra_pair_view ra_ring_pair(const ra_ring *ring, int32_t kv_heads, void *data, ra_dtype dtype)
{
    int64_t const dim = ring->config.dim, row = kv_heads * dim, half = ring->config.batch * row;
    ra_view const first = {.data = data,
                           .dtype = dtype,
                           .batch_stride = row,
                           .row_stride = 2 * half,
                           .head_stride = dim};
    ra_view second = first;
    if (data != NULL)
        second.data = (char *)data + half * (int64_t)ra_dtype_bytes(dtype);
    return (ra_pair_view){first, second};
}

static void skip_rows(ra_view *view, int64_t rows)
{
    if (view->data != NULL)
        view->data =
            (char *)view->data + rows * view->row_stride * (int64_t)ra_dtype_bytes(view->dtype);
}

ra_pair_view ra_pair_skip(const ra_pair_view *pair, int64_t rows)
{
    ra_pair_view rest = *pair;
    skip_rows(&rest.first, rows);
    skip_rows(&rest.second, rows);
    return rest;
}

ra_view ra_ring_view(const ra_ring *ring, const void *data, int32_t heads, int32_t head_begin)
{
    union {
        const void *from;
        void *to;
    } const pointer = {data}; /* a view serves reading and writing; its user knows which */
    return ra_view_dense(pointer.to, ring->config.dtype, ra_ring_local_rows(ring), heads,
                         ring->config.dim, head_begin);
}

ra_pair_view ra_ring_key_views(const ra_ring *ring, const void *first, const void *second,
                               const ra_head_group *group)
{
    int32_t const heads = ring->config.kv_heads;
    return (ra_pair_view){ra_ring_view(ring, first, heads, group->kv_begin),
                          ra_ring_view(ring, second, heads, group->kv_begin)};
}

ra_view ra_ring_query_view(const ra_ring *ring, const void *data, const ra_head_group *group)
{
    ra_view view = ra_ring_view(ring, data, ring->config.heads, group->q_begin);
    skip_rows(&view, ra_head_group_begin(group, ra_ring_local_rows(ring)));
    return view;
}

int64_t ra_ring_query_rows(const ra_ring *ring, const ra_head_group *group)
{
    return ra_head_group_rows(group, ra_ring_local_rows(ring));
}

int64_t ra_ring_first_line(const ra_ring *ring, const ra_head_group *group)
{
    int64_t const rows = ra_ring_local_rows(ring);
    return group->q_begin * rows + ra_head_group_begin(group, rows);
}

ra_pair_view ra_ring_own_keys(const ra_ring *ring, const ra_ring_tensors *tensors,
                              const ra_head_group *group)
{
    if (ring->schedule == RA_SCHEDULE_SHARED) /* batches lie further apart */
        return ra_shared_keys(ring, group->kv_begin, ra_ring_place(ring));
    return ra_ring_key_views(ring, tensors->k, tensors->v, group);
}

/* A device that gives or takes back a pool's memory may wait for all its work without a deadline,
   so wait with one first; the pass's end meets a failure too. */
static void give_block(ra_ring *ring, ra_block *block)
{
    if (block->data != NULL) {
        ra_status const ignored = ra_kernel_finish(ring->kernel);
        (void)ignored;
    }
    ra_pool_free(ring->pool, ring->kernel->stream, block);
}

ra_status ra_region_take(ra_ring *ring, ra_region *region, size_t bytes)
{
    if (bytes == 0)
        return RA_OK;
    if (ring->config.comm_buffers > 0) {
        RA_ASSERT(bytes <= region->block.bytes);
        return RA_OK;
    }
    ra_status const status = ra_kernel_finish(ring->kernel);
    ra_pool_free(ring->pool, ring->kernel->stream, &region->block);
    if (status != RA_OK)
        return status;
    return ra_pool_alloc(ring->pool, RA_MEM_WORKSPACE, bytes, ring->kernel->stream, &region->block);
}

ra_status ra_region_take_shared(ra_ring *ring, ra_status mine, ra_region *region, size_t bytes)
{
    if (ring->schedule != RA_SCHEDULE_SHARED)
        return mine != RA_OK ? mine : ra_region_take(ring, region, bytes);
    if (ring->config.comm_buffers > 0) {
        RA_ASSERT(bytes <= region->window.bytes);
        return mine;
    }
    ra_shared_give(ring, RA_MEM_WORKSPACE, &region->window);
    return ra_shared_take(ring, mine, RA_MEM_WORKSPACE, bytes, &region->window);
}

void ra_region_give(ra_ring *ring, ra_region *region)
{
    if (ring->config.comm_buffers > 0)
        return;
    give_block(ring, &region->block);
    ra_shared_give(ring, RA_MEM_WORKSPACE, &region->window);
}

void *ra_region_data(const ra_region *region)
{
    return region->window.data != NULL ? region->window.data : region->block.data;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

ra_status ra_flight_start(ra_ring *ring, ra_flight *flight, const ra_exchange *exchange,
                          ra_trace_kind kind, int64_t sent_rows, int64_t recv_rows)
{
    const ra_message *send = &exchange->send, *recv = &exchange->recv;
    int64_t const sent_bytes = (int64_t)send->bytes, recv_bytes = (int64_t)recv->bytes;
    int const step = exchange->step;
    bool const receives = recv_bytes > 0;
    *flight = (ra_flight){.wait_kind = kind + 2,
                          .step = step,
                          .peer = receives ? recv->peer : send->peer,
                          .bytes = receives ? recv_bytes : sent_bytes,
                          .rows = receives ? recv_rows : sent_rows,
                          .send_mark = -1,
                          .recv_mark = -1};
    if (sent_bytes > 0)
        flight->send_mark = ra_ring_mark(ring, kind, step, send->peer, sent_bytes, sent_rows);
    if (receives)
        flight->recv_mark = ra_ring_mark(ring, kind + 1, step, recv->peer, recv_bytes, recv_rows);
    int64_t const first = flight->send_mark >= 0 ? flight->send_mark : flight->recv_mark;
    int32_t const marks = (flight->send_mark >= 0) + (flight->recv_mark >= 0);
    ra_comm_time(ring->comm, ra_ring_timed(ring, first, marks));
    return ra_comm_start(ring->comm, exchange, &flight->transfer);
}

ra_status ra_flight_wait(ra_ring *ring, ra_flight *flight)
{
    ra_transfer *transfer = flight->transfer;
    if (transfer == NULL)
        return RA_OK;
    flight->transfer = NULL;
    int64_t const mark = ra_ring_mark(ring, flight->wait_kind, flight->step, flight->peer,
                                      flight->bytes, flight->rows);
    ra_status const status = ra_comm_wait(ring->comm, transfer);
    /* From the inside out, so that each event contains the one before. */
    ra_ring_mark_end(ring, mark);
    ra_ring_mark_end(ring, flight->recv_mark);
    ra_ring_mark_end(ring, flight->send_mark);
    return status;
}

/* ---- keys and values ------------------------------------------------------------------------- */

static ra_region *held_of(ra_ring *ring, int step)
{
    return &ring->held[ra_keys_slot(&ring->config, ring->schedule, step)];
}

/*
 * Where the rows that a step sends lie. With schedule ring a block is sent on from where the step
 * before held it, and our own rows leave from the region of step 0, which holds none: step 2 is the
 * first to receive there, when they have gone.
 */
static ra_region *sent_of(ra_ring *ring, int step)
{
    return ring->schedule == RA_SCHEDULE_RING ? held_of(ring, step - 1) : &ring->sent;
}

/* Pack those of our rows that a step sends. What it sends on is packed already. */
static ra_status pack_own(ra_ring *ring, const ra_step *at, const ra_head_group *group, int step,
                          const ra_pair_view *own)
{
    const ra_kernel_ops *ops = ring->kernel->ops;
    ra_kernel_shape const shape = ra_ring_shape(ring, group);
    ra_region *sent = sent_of(ring, step);
    size_t const bytes = ra_ring_keys_bytes(ring, group->kv_count, at->sent_rows);
    if (at->sent_local.row_count == 0)
        return RA_OK;
    ra_status status = ra_region_take(ring, sent, bytes);
    if (status != RA_OK || ring->mode == RA_RING_COMPUTE_ONLY)
        return status;
    ra_pair_view const to =
        ra_ring_pair(ring, group->kv_count, ra_region_data(sent), ring->config.dtype);
    int64_t const mark =
        ra_ring_mark(ring, RA_TRACE_PACK, step, at->sent_to, (int64_t)bytes, at->sent_rows);
    status = ops->gather(ring->kernel, &shape, &at->sent_local, &own->first, &to.first);
    if (status == RA_OK)
        status = ops->gather(ring->kernel, &shape, &at->sent_local, &own->second, &to.second);
    ra_ring_mark_end(ring, mark);
    return status;
}

/*
 * Make room for the rows that a step holds, once nobody in the team reads the old ones. A rank that
 * could not pack still takes part if that is collective.
 */
static ra_status clear_held(ra_ring *ring, ra_status packed, const ra_step *at,
                            const ra_head_group *group, int step, const char *operation)
{
    ra_region *held = held_of(ring, step);
    size_t const bytes = ra_ring_keys_bytes(ring, group->kv_count, at->held_rows);
    ra_status const status = ra_region_take_shared(ring, packed, held, bytes);
    /* With two buffers, step s - 2's rows have been read: all ranks have come to step s - 1. */
    bool const is_free =
        ring->config.comm_buffers == 0 || (ring->config.comm_buffers == 2 && step > 1);
    return status != RA_OK || is_free ? status : ra_shared_barrier(ring, operation, step);
}

/* Pack our rows and start the exchange of a step. */
static ra_status post_keys(ra_ring *ring, const ra_plan *plan, const ra_head_group *group, int step,
                           const ra_pair_view *own, const char *operation)
{
    const ra_step *at = &plan->steps[step];
    const ra_region *sent = sent_of(ring, step);
    const ra_region *held = held_of(ring, step);
    size_t const sent_bytes = ra_ring_keys_bytes(ring, group->kv_count, at->sent_rows);
    size_t const recv_bytes = ra_ring_keys_bytes(ring, group->kv_count, at->fetched_rows);
    size_t const skip_bytes = ra_ring_keys_bytes(ring, group->kv_count, at->fetched_first);
    ra_status const packed = pack_own(ring, at, group, step, own);
    ra_status const status =
        ra_ring_agree_on_taken(ring, clear_held(ring, packed, at, group, step, operation));
    if (status != RA_OK || sent_bytes + recv_bytes == 0 || ring->mode == RA_RING_COMPUTE_ONLY)
        return status;
    char *const into = recv_bytes > 0 ? (char *)ra_region_data(held) + skip_bytes : NULL;
    return ra_flight_start(ring, &ring->keys_flight,
                           &(ra_exchange){.operation = operation,
                                          .step = step,
                                          .send = {at->sent_to, ra_region_data(sent), sent_bytes},
                                          .recv = {at->held_from, into, recv_bytes}},
                           RA_TRACE_SEND_KEYS, at->sent_rows, at->fetched_rows);
}

static ra_status await_keys(ra_ring *ring, const ra_head_group *group, int step,
                            ra_pair_view *held_out)
{
    ra_status status = ra_flight_wait(ring, &ring->keys_flight);
    ra_region_give(ring, sent_of(ring, step));
    if (status == RA_OK)
        status = ra_shared_barrier(ring, "keys and values of another host", step);
    if (status != RA_OK)
        return status;
    const ra_region *held = held_of(ring, step);
    *held_out = ra_ring_pair(ring, group->kv_count, ra_region_data(held), ring->config.dtype);
    return RA_OK;
}

ra_status ra_keys_bring(ra_ring *ring, const ra_plan *plan, const ra_head_group *group, int step,
                        const ra_pair_view *own, const char *operation, ra_pair_view *held_out)
{
    bool const overlap = ring->config.comm_buffers == 2;
    ra_status status = RA_OK;
    if (step == 0)
        *held_out =
            ring->schedule == RA_SCHEDULE_SHARED ? ra_shared_keys(ring, group->kv_begin, 0) : *own;
    else if (!overlap)
        status = post_keys(ring, plan, group, step, own, operation);
    if (step > 0 && status == RA_OK)
        status = await_keys(ring, group, step, held_out);
    if (status == RA_OK && overlap && step + 1 < plan->step_count)
        status = post_keys(ring, plan, group, step + 1, own, operation);
    return status;
}

void ra_keys_leave(ra_ring *ring, const ra_plan *plan, int step)
{
    bool const sent_on = ra_keys_hop(ring->schedule, step + 1) && step + 1 < plan->step_count &&
                         plan->steps[step + 1].sent_rows > 0;
    if (step > 0 && !sent_on)
        ra_region_give(ring, held_of(ring, step));
}

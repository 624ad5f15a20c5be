/* Keys, values and their gradients on their way: views, regions, and the exchange of keys. */
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

ra_pair_view ra_ring_pair(const ra_ring *ring, int32_t kv_heads, int64_t rows, void *data,
                          ra_dtype dtype)
{
    size_t const half =
        (size_t)(ring->config.batch * rows * kv_heads * ring->config.dim) * ra_dtype_bytes(dtype);
    void *second = data != NULL ? (char *)data + half : NULL;
    return (ra_pair_view){ra_view_dense(data, dtype, rows, kv_heads, ring->config.dim, 0),
                          ra_view_dense(second, dtype, rows, kv_heads, ring->config.dim, 0)};
}

ra_pair_view ra_ring_own_keys(const ra_ring *ring, const ra_ring_tensors *tensors,
                              const ra_head_group *group)
{
    const ra_ring_config *c = &ring->config;
    int64_t const rows = ra_ring_local_rows(ring);
    /* Views serve reading and writing; these two are only read. */
    union {
        const void *from;
        void *to;
    } const k = {tensors->k}, v = {tensors->v};
    return (ra_pair_view){
        ra_view_dense(k.to, c->dtype, rows, c->kv_heads, c->dim, group->kv_begin),
        ra_view_dense(v.to, c->dtype, rows, c->kv_heads, c->dim, group->kv_begin)};
}

ra_status ra_region_take(ra_ring *ring, ra_region *region, size_t bytes)
{
    if (ring->config.comm_buffers > 0) {
        RA_ASSERT(bytes <= region->block.bytes);
        return RA_OK;
    }
    ra_pool_free(ring->pool, ring->kernel->stream, &region->block);
    return ra_pool_alloc(ring->pool, RA_MEM_COMM_BUFFER, bytes, ring->kernel->stream,
                         &region->block);
}

void ra_region_give(ra_ring *ring, ra_region *region)
{
    if (ring->config.comm_buffers == 0)
        ra_pool_free(ring->pool, ring->kernel->stream, &region->block);
}

/* ---- exchanges ------------------------------------------------------------------------------- */

ra_status ra_flight_start(ra_ring *ring, ra_flight *flight, const ra_exchange *exchange,
                          ra_trace_kind kind, int64_t sent_rows, int64_t recv_rows)
{
    const ra_message *send = exchange->sends, *recv = exchange->recvs;
    int64_t const sent_bytes = (int64_t)send->bytes, recv_bytes = (int64_t)recv->bytes;
    int const step = exchange->step;
    bool const receives = exchange->recv_count > 0;
    *flight = (ra_flight){.wait_kind = kind + 2,
                          .step = step,
                          .peer = receives ? recv->peer : send->peer,
                          .bytes = receives ? recv_bytes : sent_bytes,
                          .rows = receives ? recv_rows : sent_rows,
                          .send_mark = -1,
                          .recv_mark = -1};
    if (exchange->send_count > 0)
        flight->send_mark = ra_ring_mark(ring, kind, step, send->peer, sent_bytes, sent_rows);
    if (receives)
        flight->recv_mark = ra_ring_mark(ring, kind + 1, step, recv->peer, recv_bytes, recv_rows);
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

/* Which of the buffers a step uses: two take turns, one serves all. */
static int slot_of(const ra_ring *ring, int step)
{
    return ring->config.comm_buffers == 2 ? step % 2 : 0;
}

static ra_status pack(ra_ring *ring, const ra_step *step, const ra_head_group *group,
                      const ra_pair_view *from, void *data)
{
    const ra_kernel_ops *ops = ring->kernel->ops;
    ra_kernel_shape const shape = ra_ring_shape(ring, group);
    ra_pair_view const to =
        ra_ring_pair(ring, group->kv_count, step->sent_rows, data, ring->config.dtype);
    ra_row_piece whole = {{0, 1, step->sent_rows}, 0};
    ra_rowset const all = {
        .pieces = &whole, .piece_count = 1, .row_count = step->sent_rows, .sorted = true};
    const ra_rowset *rows = step->forwards ? &all : &step->sent_local;
    ra_status const status = ops->gather(ring->kernel, &shape, rows, &from->first, &to.first);
    return status != RA_OK ? status
                           : ops->gather(ring->kernel, &shape, rows, &from->second, &to.second);
}

ra_status ra_keys_post(ra_ring *ring, const ra_plan *plan, const ra_head_group *group, int step,
                       const ra_pair_view *own, const char *operation)
{
    const ra_step *at = &plan->steps[step];
    ra_region *sent = &ring->sent[slot_of(ring, step)], *held = &ring->held[slot_of(ring, step)];
    ra_region *before = &ring->held[slot_of(ring, step - 1)];
    size_t const sent_bytes = ra_ring_keys_bytes(ring, group->kv_count, at->sent_rows);
    size_t const held_bytes = ra_ring_keys_bytes(ring, group->kv_count, at->held_rows);
    ra_status status = RA_OK;
    if (sent_bytes > 0 && (status = ra_region_take(ring, sent, sent_bytes)) != RA_OK)
        return status;
    bool const sends = ring->mode != RA_RING_COMPUTE_ONLY;
    if (sent_bytes > 0 && sends) {
        ra_pair_view const previous = ra_ring_pair(ring, group->kv_count, at->sent_rows,
                                                   before->block.data, ring->config.dtype);
        int64_t const mark = ra_ring_mark(ring, RA_TRACE_PACK, step, at->sent_to,
                                          (int64_t)sent_bytes, at->sent_rows);
        status = pack(ring, at, group, at->forwards ? &previous : own, sent->block.data);
        ra_ring_mark_end(ring, mark);
    }
    if (status == RA_OK && held_bytes > 0)
        status = ra_region_take(ring, held, held_bytes);
    if (status != RA_OK || sent_bytes + held_bytes == 0 || !sends)
        return status;
    ra_message const send = {at->sent_to, sent->block.data, sent_bytes};
    ra_message const recv = {at->held_from, held->block.data, held_bytes};
    return ra_flight_start(ring, &ring->keys_flight,
                           &(ra_exchange){.operation = operation,
                                          .step = step,
                                          .send_count = sent_bytes > 0,
                                          .recv_count = held_bytes > 0,
                                          .sends = &send,
                                          .recvs = &recv},
                           RA_TRACE_SEND_KEYS, at->sent_rows, at->held_rows);
}

ra_status ra_keys_arrive(ra_ring *ring, const ra_plan *plan, const ra_head_group *group, int step,
                         ra_pair_view *held_out)
{
    const ra_step *at = &plan->steps[step];
    ra_status const status = ra_flight_wait(ring, &ring->keys_flight);
    ra_region_give(ring, &ring->sent[slot_of(ring, step)]);
    if (status != RA_OK)
        return status;
    *held_out = ra_ring_pair(ring, group->kv_count, at->held_rows,
                             ring->held[slot_of(ring, step)].block.data, ring->config.dtype);
    return RA_OK;
}

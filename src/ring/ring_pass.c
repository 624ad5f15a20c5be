/* What passes have in common: agreeing on failures, storing, and polling while kernels run. */
#include "internal.h"
#include "ring/ring_internal.h"

/* A table without `begin` takes nothing in its steps, so that no rank fails alone. */
static bool steps_can_fail(const ra_ring *ring)
{
    return ring->kernel->ops->begin != NULL;
}

ra_status ra_ring_settle(ra_ring *ring, ra_status mine)
{
    return steps_can_fail(ring) ? ra_ring_agree(ring, mine) : mine;
}

ra_status ra_ring_rest(ra_ring *ring)
{
    if (!steps_can_fail(ring) || ring->pool == ring->host_pool)
        return RA_OK;
    ra_status const status = ra_flight_wait(ring, &ring->keys_flight);
    return status != RA_OK ? status : ra_flight_wait(ring, &ring->grads_flight);
}

ra_status ra_ring_settle_taken(ra_ring *ring, ra_status mine)
{
    return ring->config.comm_buffers > 0 ? mine : ra_ring_agree(ring, mine);
}

bool ra_ring_failed_together(const ra_ring *ring)
{
    return ring->failed_together;
}

ra_kernel_pass ra_ring_pass(const ra_ring *ring, bool backward)
{
    return (ra_kernel_pass){.backward = backward,
                            .keeps = !backward && ring->config.backward,
                            .groups = ring->group_count,
                            .steps = ring->plans[0].step_count,
                            .parts = ring->plans[0].team_size};
}

ra_status ra_ring_store(ra_ring *ring, const ra_kernel_shape *shape, const ra_view *from,
                        const ra_view *to)
{
    int64_t const rows = ra_ring_local_rows(ring);
    if (ring->mode == RA_RING_COMM_ONLY)
        return RA_OK;
    int64_t const mark = ra_ring_mark(ring, RA_TRACE_STORE, -1, -1, -1, rows);
    ra_status const status = ring->kernel->ops->store(ring->kernel, shape, rows, from, to);
    ra_ring_mark_end(ring, mark);
    return status;
}

static void poll_comm(void *context)
{
    ra_comm_poll(context);
    ra_comm_beat(context); /* others may wait: tell them that we are at work */
}

static ra_status watch_kernel(void *context)
{
    return ra_kernel_watch(context);
}

void ra_ring_begin_pass(ra_ring *ring, const char *name)
{
    ring->failed_together = false;
    ring->pass = name;
    ring->step = 0;
    ra_comm_set_stream(ring->comm, ring->kernel->stream);
    ra_comm_set_watch(ring->comm, watch_kernel, ring->kernel);
    if (ra_comm_size(ring->comm) == 1)
        return;
    ring->kernel->poll = poll_comm;
    ring->kernel->poll_context = ring->comm;
}

void ra_ring_end_pass(ra_ring *ring)
{
    ra_flight *const flights[] = {&ring->keys_flight, &ring->grads_flight};
    ra_region *const regions[] = {&ring->sent, &ring->held[0], &ring->held[1], &ring->partial[0],
                                  &ring->arriving};
    ring->pass = NULL;
    ring->kernel->poll = NULL;
    for (int i = 0; i < 2; ++i) {
        /* A transfer is left only if the pass has failed, and that failure is reported. */
        ra_status const ignored = ra_flight_wait(ring, flights[i]);
        (void)ignored;
    }
    for (int i = 0; i < 5; ++i)
        ra_region_give(ring, regions[i]);
}

/* What passes have in common: their frame, agreeing on failures, and polling while kernels run. */
#include "internal.h"
#include "ring/ring_internal.h"

/* A table without `begin` takes nothing, so that no rank fails alone. */
bool ra_ring_steps_can_fail(const ra_ring *ring)
{
    return ring->kernel->ops->begin != NULL;
}

ra_status ra_ring_agree_on_step(ra_ring *ring, ra_status mine)
{
    if (!ra_ring_steps_can_fail(ring))
        return mine;
    ra_status const waited = ra_ring_wait_flights(ring);
    return ra_ring_agree(ring, mine != RA_OK ? mine : waited);
}

ra_status ra_ring_wait_flights(ra_ring *ring)
{
    if (!ra_ring_steps_can_fail(ring) || ring->pool == ring->host_pool)
        return RA_OK;
    ra_status const status = ra_flight_wait(ring, &ring->keys_flight);
    return status != RA_OK ? status : ra_flight_wait(ring, &ring->grads_flight);
}

ra_status ra_ring_agree_on_taken(ra_ring *ring, ra_status mine)
{
    return ring->config.comm_buffers > 0 ? mine : ra_ring_agree(ring, mine);
}

bool ra_ring_failed_together(const ra_ring *ring)
{
    return ring->failed_together;
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

/* Switch polling on, in place of the caller's own, and name the pass for errors. */
static void begin_pass(ra_ring *ring, const char *name)
{
    ring->failed_together = false;
    ring->pass = name;
    ring->step = 0;
    ra_comm_set_stream(ring->comm, ring->kernel->stream);
    ra_comm_set_watch(ring->comm, watch_kernel, ring->kernel);
    ring->caller_poll = ring->kernel->poll;
    ring->caller_poll_context = ring->kernel->poll_context;
    if (ra_comm_size(ring->comm) == 1)
        return;
    ring->kernel->poll = poll_comm;
    ring->kernel->poll_context = ring->comm;
}

/* Wait for what a failed pass, whose failure is reported, has left in flight. Before a table
   returns what it took: that waits for all work of a GPU, and has no deadline. */
static void wait_for_left(ra_ring *ring)
{
    ra_flight *const flights[] = {&ring->keys_flight, &ring->grads_flight};
    for (int i = 0; i < 2; ++i) {
        ra_status const ignored = ra_flight_wait(ring, flights[i]);
        (void)ignored;
    }
}

/* Leave polling as it was, and time no more exchanges; nothing is in flight. */
static void end_pass(ra_ring *ring)
{
    ra_region *const regions[] = {&ring->sent, &ring->held[0], &ring->held[1], &ring->partial[0],
                                  &ring->arriving};
    ring->pass = NULL;
    ring->kernel->poll = ring->caller_poll;
    ring->kernel->poll_context = ring->caller_poll_context;
    for (int i = 0; i < 5; ++i)
        ra_region_give(ring, regions[i]);
    ra_comm_time(ring->comm, (ra_timed){0}); /* the trace may end before the communicator */
}

/*
 * With schedule shared the keys that are read are those in the ring's memory: a caller whose own
 * lie elsewhere would get the attention of whatever is there. Ranks agree, because one that went on
 * alone would wait for the others. Modes make no difference: tensors are the same in all.
 */
static ra_status check_keys(ra_ring *ring, const ra_ring_tensors *tensors)
{
    ra_status mine = RA_OK;
    if (ring->schedule != RA_SCHEDULE_SHARED)
        return RA_OK;
    ra_ring_keys const keys = ra_ring_key_memory(ring);
    if (ra_ring_local_rows(ring) > 0 && (tensors->k != keys.k || tensors->v != keys.v)) {
        ra_log(RA_LOG_ERROR,
               "ring: with schedule shared, k and v must lie where ra_ring_key_memory says, but "
               "those of rank %d do not",
               ra_comm_rank(ring->comm));
        mine = RA_ERR_INVALID;
    }
    return ra_ring_agree(ring, mine);
}

static void assert_tensors(const ra_ring *ring, const ra_ring_tensors *tensors, bool backward)
{
    if (ra_ring_local_rows(ring) == 0)
        return;
    RA_ASSERT(tensors->q != NULL && tensors->out != NULL);
    if (ring->schedule != RA_SCHEDULE_SHARED) /* whose keys check_keys looks at, on all ranks */
        RA_ASSERT(tensors->k != NULL && tensors->v != NULL);
    if (backward)
        RA_ASSERT(tensors->dout != NULL && tensors->dq != NULL && tensors->dk != NULL &&
                  tensors->dv != NULL);
    if (backward && ring->schedule != RA_SCHEDULE_SCAN)
        RA_ASSERT(tensors->lse != NULL);
}

ra_status ra_ring_run_pass(ra_ring *ring, const ra_ring_tensors *tensors, bool backward,
                           ra_status (*begin)(ra_ring *ring, const ra_ring_tensors *tensors),
                           ra_status (*work)(ra_ring *ring, const ra_ring_tensors *tensors,
                                             int32_t group))
{
    assert_tensors(ring, tensors, backward);
    ra_pool_mark(ring->pool, backward ? "backward start" : "forward start", -1, -1);
    begin_pass(ring, backward ? "backward" : "forward");
    int64_t const mark = ra_ring_mark_pass(ring, backward ? RA_TRACE_BACKWARD : RA_TRACE_FORWARD);
    bool const by_steps = ring->plans != NULL; /* linear attention has none that a table may keep */
    ra_kernel_pass kernel_pass = {.backward = backward,
                                  .keeps = !backward && ring->config.backward,
                                  .groups = ring->group_count,
                                  .owner = ring->number};
    ra_status status = RA_OK;
    if (by_steps) {
        kernel_pass.steps = ring->plans[0].step_count;
        kernel_pass.parts = ra_ring_team_size(ring);
        status = ra_ring_agree_on_step(ring, ra_kernel_begin(ring->kernel, &kernel_pass));
    }
    if (status == RA_OK && !backward)
        status = ra_shared_barrier(ring, "forward: all keys are in place", -1);
    if (status == RA_OK) /* after the barrier, which shows who came late */
        status = check_keys(ring, tensors);
    if (status == RA_OK && begin != NULL)
        status = begin(ring, tensors);
    for (int32_t g = 0; g < ring->group_count && status == RA_OK; ++g) {
        int64_t const group_mark = ra_ring_mark_group(ring, g);
        status = work(ring, tensors, g);
        ra_ring_mark_end(ring, group_mark);
    }
    if (status == RA_OK)
        status = ra_kernel_finish(ring->kernel);
    if (status == RA_OK && !backward)
        status = ra_shared_barrier(ring, "forward: all keys have been read", -1);
    wait_for_left(ring);
    if (by_steps)
        ra_kernel_end(ring->kernel, &kernel_pass, status != RA_OK);
    end_pass(ring);
    ring->may_compute = status != RA_OK;
    ra_ring_mark_pass_end(ring, mark, status);
    ra_pool_mark(ring->pool, backward ? "backward end" : "forward end", -1, -1);
    return status;
}

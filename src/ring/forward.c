/*
 * The forward pass: head group by head group, step by step, one online softmax over all steps.
 * With two buffers the next step's keys travel while this step computes; kernels poll for them.
 */
#include "internal.h"
#include "ring/ring_internal.h"

typedef struct forward_pass {
    ra_ring *ring;
    const ra_plan *plan;
    ra_head_group group;
    int32_t group_index;
    ra_forward_step step; /* what all steps have in common */
    ra_pair_view own;
    int first, last; /* the first and last step with a live pair; 0 without any */
} forward_pass;

static void begin_group(forward_pass *pass, const ra_ring_tensors *tensors, int32_t index)
{
    ra_ring *ring = pass->ring;
    pass->group = ra_ring_group(ring, index);
    int64_t const first_line = ra_ring_first_line(ring, &pass->group);
    pass->group_index = index;
    pass->plan = ra_ring_plan(ring, index);
    pass->own = ra_ring_own_keys(ring, tensors, &pass->group);
    pass->first = pass->last = -1;
    for (int s = 0; s < pass->plan->step_count; ++s)
        if (pass->plan->steps[s].map.run_count > 0) {
            pass->first = pass->first < 0 ? s : pass->first;
            pass->last = s;
        }
    if (pass->first < 0)
        pass->first = pass->last = 0; /* step 0 writes the zeros of rows without a key */
    pass->step =
        (ra_forward_step){.shape = ra_ring_shape(ring, &pass->group),
                          .q = ra_ring_query_view(ring, tensors->q, &pass->group),
                          .out = ra_ring_query_view(ring, tensors->out, &pass->group),
                          .lse = tensors->lse != NULL ? tensors->lse + first_line : NULL,
                          .lse_batch_stride = ring->config.heads * ra_ring_local_rows(ring)};
    if (ring->has_delta) {
        pass->step.dout = ra_ring_query_view(ring, tensors->dout, &pass->group);
        pass->step.delta = (float *)ring->delta.data + first_line;
    }
    pass->step.state =
        (ra_softmax_state){.rows = pass->plan->state_rows, .chunks = pass->plan->chunk_steps.data};
    if (pass->plan->state_rows > 0) {
        int64_t const lines = ring->config.batch * pass->group.q_count * pass->plan->state_rows;
        pass->step.state.acc = ring->state.data;
        pass->step.state.top = pass->step.state.acc + lines * ring->config.dim;
        pass->step.state.sum = pass->step.state.top + lines;
    }
}

static ra_status compute(forward_pass *pass, int s, const ra_pair_view *keys)
{
    const ra_step *at = &pass->plan->steps[s];
    const ra_tilemap *map = &at->map;
    if (pass->ring->mode == RA_RING_COMM_ONLY || (map->run_count == 0 && s != pass->first))
        return RA_OK;
    ra_forward_step step = pass->step;
    step.map = map;
    step.pair = (ra_kernel_pair){.group = pass->group_index, .step = s};
    step.k = keys->first;
    step.v = keys->second;
    step.first = s == pass->first;
    step.last = s == pass->last;
    step.ends_only = pass->ring->mode == RA_RING_ENDS_ONLY;
    ra_status status = ra_ring_wait_flights(pass->ring);
    step.yields = ra_ring_is_exchanging(pass->ring);
    size_t const bytes = ra_ring_keys_bytes(pass->ring, pass->group.kv_count, map->k_rows);
    int64_t const mark = ra_ring_mark(pass->ring, RA_TRACE_FORWARD_KERNEL, s, ra_step_owner(at),
                                      (int64_t)bytes, map->k_rows);
    if (status == RA_OK)
        status = pass->ring->kernel->ops->forward(pass->ring->kernel, &step);
    ra_ring_mark_end(pass->ring, mark);
    return status;
}

static ra_status forward_step(forward_pass *pass, int s)
{
    ra_ring *ring = pass->ring;
    int64_t const mark = ra_ring_mark_step(ring, pass->plan, s);
    ra_pair_view held;
    ring->step = s;
    ra_status status = ra_keys_bring(ring, pass->plan, &pass->group, s, &pass->own,
                                     "forward keys and values", &held);
    if (status == RA_OK)
        status = ra_ring_agree_on_step(ring, compute(pass, s, &held));
    ra_pool_mark(ring->pool, "forward step", pass->group_index, s);
    ra_keys_leave(ring, pass->plan, s);
    ra_ring_mark_end(ring, mark);
    return status;
}

static ra_status forward_group(ra_ring *ring, const ra_ring_tensors *tensors, int32_t group)
{
    forward_pass pass = {.ring = ring};
    ra_status status = RA_OK;
    begin_group(&pass, tensors, group);
    for (int s = 0; s < pass.plan->step_count && status == RA_OK; ++s)
        status = forward_step(&pass, s);
    return status;
}

ra_status ra_ring_forward(ra_ring *ring, const ra_ring_tensors *tensors)
{
    bool const linear = ring->schedule == RA_SCHEDULE_SCAN;
    ring->has_delta = ring->config.backward && tensors->dout != NULL;
    ring->linear.states_group = -1; /* the inputs may be others */
    return ra_ring_run_pass(ring, tensors, false, NULL,
                            linear ? ra_linear_forward_group : forward_group);
}

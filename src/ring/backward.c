/*
 * The backward pass. Keys and values travel as in the forward pass; each step's partial dK and dV
 * travel home in float32, at once or, with schedule ring, round it. Additions to a row happen in
 * an order that the plan fixes, whatever the timing, so that runs repeat bit for bit.
 *
 * With two buffers, step s overlaps with the keys of step s + 1 and the gradients of step s - 1.
 * The own step needs nobody's keys: some of its heads are computed while the first keys come, the
 * others while the last gradients travel.
 */
#include "internal.h"
#include "ring/backward_pass.h"

static ra_status bring_keys(ra_backward_pass *pass, int s, ra_pair_view *held_out)
{
    return ra_keys_bring(pass->ring, pass->plan, &pass->group, s, &pass->own,
                         "backward keys and values", held_out);
}

static ra_status zero(ra_ring *ring, int step, void *data, size_t bytes, int64_t rows)
{
    int64_t const mark = ra_ring_mark(ring, RA_TRACE_ZERO, step, -1, (int64_t)bytes, rows);
    ra_status const status = ring->kernel->ops->zero(ring->kernel, data, bytes);
    ra_ring_mark_end(ring, mark);
    return status;
}

/* Where a step puts gradients: outputs, a window, or accumulators of one head group. */
static void begin_grads(ra_backward_pass *pass)
{
    ra_ring *ring = pass->ring;
    const ra_ring_config *c = &ring->config;
    const ra_ring_tensors *t = pass->tensors;
    const ra_head_group *g = &pass->group;
    ra_stored_grads const direct = pass->direct;
    char *sums = ring->grads.data;
    if (direct.dkv) {
        pass->own_grads = ra_ring_key_views(ring, t->dk, t->dv, g);
    } else if (ring->schedule == RA_SCHEDULE_SHARED) {
        pass->own_grads = ra_shared_grads(ring, g, ra_ring_place(ring));
    } else {
        pass->own_grads = ra_ring_pair(ring, g->kv_count, sums, RA_F32);
        sums += ra_ring_grads_bytes(ring, g->kv_count, ra_ring_local_rows(ring));
    }
    pass->step.dq =
        direct.dq ? ra_ring_query_view(ring, t->dq, g)
                  : ra_view_dense(sums, RA_F32, ra_ring_query_rows(ring, g), g->q_count, c->dim, 0);
}

/* Zero accumulators, but for gradients of keys that an earlier group has added to. */
static ra_status zero_sums(const ra_backward_pass *pass)
{
    ra_ring *ring = pass->ring;
    bool const keeps =
        !pass->group.begins_keys && !pass->direct.dkv && ring->schedule != RA_SCHEDULE_SHARED;
    size_t const kept =
        keeps ? ra_ring_grads_bytes(ring, pass->group.kv_count, ra_ring_local_rows(ring)) : 0;
    if (ring->grads.bytes == kept)
        return RA_OK;
    return zero(ring, -1, (char *)ring->grads.data + kept, ring->grads.bytes - kept,
                ra_ring_local_rows(ring));
}

static ra_status begin_group(ra_backward_pass *pass, int32_t index)
{
    ra_ring *ring = pass->ring;
    pass->group = ra_ring_group(ring, index);
    pass->group_index = index;
    pass->plan = ra_ring_plan(ring, index);
    pass->direct = ra_ring_direct_grads(ring, pass->plan, &pass->group);
    pass->own = ra_ring_own_keys(ring, pass->tensors, &pass->group);
    ra_backward_cut_own(pass);
    int64_t const first_line = ra_ring_first_line(ring, &pass->group);
    pass->step =
        (ra_backward_step){.shape = ra_ring_shape(ring, &pass->group),
                           .q = ra_ring_query_view(ring, pass->tensors->q, &pass->group),
                           .dout = ra_ring_query_view(ring, pass->tensors->dout, &pass->group),
                           .lse = pass->tensors->lse + first_line,
                           .lse_batch_stride = ring->config.heads * ra_ring_local_rows(ring),
                           .delta = (const float *)ring->delta.data + first_line};
    begin_grads(pass);
    return zero_sums(pass);
}

/* If the forward pass did not know dout: compute delta from the outputs, which are rounded. */
static ra_status make_delta(ra_ring *ring, const ra_ring_tensors *tensors)
{
    const ra_ring_config *c = &ring->config;
    int64_t const rows = ra_ring_local_rows(ring);
    ra_head_group const all = ra_ring_group_of(c, 1, 0);
    ra_kernel_shape const shape = ra_ring_shape(ring, &all);
    if (ring->has_delta || ring->mode == RA_RING_COMM_ONLY)
        return RA_OK;
    ra_view const out = ra_ring_view(ring, tensors->out, c->heads, 0);
    ra_view const dout = ra_ring_view(ring, tensors->dout, c->heads, 0);
    int64_t const mark = ra_ring_mark(ring, RA_TRACE_DELTA, -1, -1, -1, rows);
    ra_status const status =
        ring->kernel->ops->delta(ring->kernel, &shape, rows, &out, &dout, ring->delta.data);
    ra_ring_mark_end(ring, mark);
    return status;
}

static ra_region *partial_of(ra_ring *ring, int step)
{
    return &ring->partial[ra_grads_slot(&ring->config, step)];
}

static ra_pair_view grads_view(const ra_backward_pass *pass, void *data)
{
    return ra_ring_pair(pass->ring, pass->group.kv_count, data, RA_F32);
}

/* Add what came at the end of step s. */
static ra_status add_pair(ra_backward_pass *pass, int s, const ra_rowset *rows,
                          const ra_pair_view *from, const ra_pair_view *to)
{
    ra_ring *ring = pass->ring;
    ra_kernel *kernel = ring->kernel;
    if (ring->mode == RA_RING_COMPUTE_ONLY)
        return RA_OK;
    size_t const bytes = ra_ring_grads_bytes(ring, pass->group.kv_count, rows->row_count);
    int64_t const mark = ra_ring_mark(ring, RA_TRACE_ADD, s, pass->plan->steps[s].grad_from,
                                      (int64_t)bytes, rows->row_count);
    ra_status status = kernel->ops->add(kernel, &pass->step.shape, rows, &from->first, &to->first);
    if (status == RA_OK)
        status = kernel->ops->add(kernel, &pass->step.shape, rows, &from->second, &to->second);
    ra_ring_mark_end(ring, mark);
    return status;
}

/* Add what step s's exchange brought, to our own rows or to the rows of step s + 1. */
static ra_status grads_arrive(ra_backward_pass *pass, int s)
{
    ra_ring *ring = pass->ring;
    const ra_step *step = &pass->plan->steps[s];
    ra_status status = ra_flight_wait(ring, &ring->grads_flight);
    if (status == RA_OK && step->grad_in_rows > 0) {
        ra_pair_view const from = grads_view(pass, ring->arriving.block.data);
        ra_row_piece whole = {{0, 1, step->grad_in_rows}, 0};
        ra_rowset const all = {.pieces = &whole, .piece_count = 1, .row_count = step->grad_in_rows};
        bool const is_home = step->grad_home != NULL;
        ra_pair_view const to =
            is_home ? pass->own_grads : grads_view(pass, ra_region_data(partial_of(ring, s + 1)));
        status = add_pair(pass, s, is_home ? step->grad_home : &all, &from, &to);
    }
    ra_region_give(ring, &ring->arriving);
    return status;
}

static ra_status grads_post(ra_backward_pass *pass, int s)
{
    ra_ring *ring = pass->ring;
    const ra_step *step = &pass->plan->steps[s];
    size_t const out = ra_ring_grads_bytes(ring, pass->group.kv_count, step->grad_out_rows);
    size_t const in = ra_ring_grads_bytes(ring, pass->group.kv_count, step->grad_in_rows);
    ra_status const status =
        ra_ring_agree_on_taken(ring, ra_region_take(ring, &ring->arriving, in));
    if (status != RA_OK || in + out == 0 || ring->mode == RA_RING_COMPUTE_ONLY)
        return status;
    size_t const skip = ra_ring_grads_bytes(ring, pass->group.kv_count, step->fetched_first);
    char *const from = out > 0 ? (char *)ra_region_data(partial_of(ring, s)) + skip : NULL;
    return ra_flight_start(ring, &ring->grads_flight,
                           &(ra_exchange){.operation = "backward gradients of keys and values",
                                          .step = s,
                                          .send = {step->grad_to, from, out},
                                          .recv = {step->grad_from, ring->arriving.block.data, in}},
                           RA_TRACE_SEND_GRADS, step->grad_out_rows, step->grad_in_rows);
}

/* Partial gradients of step s, complete except for those in flight from the rank before. */
static ra_status compute_partial(ra_backward_pass *pass, int s, const ra_pair_view *held)
{
    ra_ring *ring = pass->ring;
    const ra_step *step = &pass->plan->steps[s];
    ra_region *partial = partial_of(ring, s);
    int32_t const heads = pass->group.kv_count;
    size_t const bytes = ra_ring_grads_bytes(ring, heads, step->grad_rows);
    size_t const mine = ra_ring_grads_bytes(ring, heads, step->grad_out_rows);
    size_t const skip = ra_ring_grads_bytes(ring, heads, step->fetched_first);
    ra_status status =
        ra_ring_agree_on_taken(ring, ra_region_take_shared(ring, RA_OK, partial, bytes));
    if (status != RA_OK || bytes == 0)
        return status; /* nobody up to here has a live pair with this block */
    if (mine > 0)      /* each member zeroes what it fetched and sends back */
        status = zero(ring, s, (char *)ra_region_data(partial) + skip, mine, step->grad_out_rows);
    ra_backward_work const work = {.q_count = pass->group.q_count,
                                   .keys = *held,
                                   .grads = grads_view(pass, ra_region_data(partial))};
    return status != RA_OK ? status : ra_backward_compute(pass, s, &work);
}

/*
 * One step s >= 1. What arrived for it at the end of step s - 1 is added after it has computed, so
 * that the arrival overlaps with computing.
 */
static ra_status backward_step(ra_backward_pass *pass, int s)
{
    ra_ring *ring = pass->ring;
    bool const overlap = ring->config.comm_buffers == 2;
    int64_t const mark = ra_ring_mark_step(ring, pass->plan, s);
    ra_pair_view held;
    ring->step = s;
    ra_status status = bring_keys(pass, s, &held);
    if (status == RA_OK)
        status = ra_ring_agree_on_step(ring, compute_partial(pass, s, &held));
    ra_pool_mark(ring->pool, "backward step", pass->group_index, s);
    ra_keys_leave(ring, pass->plan, s);
    if (status == RA_OK && s > 1)
        status = grads_arrive(pass, s - 1);
    if (status == RA_OK)
        status = grads_post(pass, s);
    if (status == RA_OK && !overlap)
        status = ra_flight_wait(ring, &ring->grads_flight);
    ra_ring_mark_end(ring, mark);
    return status;
}

/* Round sums of rows into an output. */
static ra_status store(ra_ring *ring, const ra_kernel_shape *shape, int64_t rows,
                       const ra_view *from, const ra_view *to)
{
    if (ring->mode == RA_RING_COMM_ONLY)
        return RA_OK;
    int64_t const mark = ra_ring_mark(ring, RA_TRACE_STORE, -1, -1, -1, rows);
    ra_status const status = ring->kernel->ops->store(ring->kernel, shape, rows, from, to);
    ra_ring_mark_end(ring, mark);
    return status;
}

static ra_status store_queries(const ra_backward_pass *pass)
{
    ra_kernel_shape shape = pass->step.shape;
    ra_view const dq = ra_ring_query_view(pass->ring, pass->tensors->dq, &pass->group);
    shape.kv_heads = shape.q_heads; /* store moves kv_heads heads; dq has the query's */
    if (pass->direct.dq)
        return RA_OK;
    return store(pass->ring, &shape, ra_ring_query_rows(pass->ring, &pass->group), &pass->step.dq,
                 &dq);
}

static ra_status store_keys(const ra_backward_pass *pass)
{
    const ra_ring_tensors *t = pass->tensors;
    const ra_kernel_shape *shape = &pass->step.shape;
    int64_t const rows = ra_ring_local_rows(pass->ring);
    ra_pair_view const to = ra_ring_key_views(pass->ring, t->dk, t->dv, &pass->group);
    if (pass->direct.dkv || !pass->group.ends_keys)
        return RA_OK;
    ra_status const status = store(pass->ring, shape, rows, &pass->own_grads.first, &to.first);
    return status != RA_OK ? status
                           : store(pass->ring, shape, rows, &pass->own_grads.second, &to.second);
}

/* Zero the gradients of a group's keys, once no member still stores those of the group before from
   there. */
static ra_status begin_team_grads(ra_backward_pass *pass)
{
    ra_ring *ring = pass->ring;
    int64_t const rows = ra_ring_local_rows(ring);
    if (ring->schedule != RA_SCHEDULE_SHARED || !pass->group.begins_keys)
        return RA_OK;
    ra_status const status = ra_shared_barrier(ring, "backward: gradients of a group", -1);
    return status != RA_OK ? status
                           : zero(ring, -1, pass->own_grads.first.data,
                                  ra_ring_grads_bytes(ring, pass->group.kv_count, rows), rows);
}

/* Step 0: the own team's rows, where they lie, with the early heads or the late ones. */
static ra_status own_step(ra_backward_pass *pass, bool is_late)
{
    ra_ring *ring = pass->ring;
    bool const shared = ring->schedule == RA_SCHEDULE_SHARED;
    int64_t const mark = ra_ring_mark_step(ring, pass->plan, 0);
    ra_status status = RA_OK;
    ring->step = 0;
    if (!is_late)
        status = bring_keys(pass, 0, &pass->team_keys);
    ra_backward_work const work = {
        .q_first = is_late ? pass->q_early : 0,
        .q_count = is_late ? pass->group.q_count - pass->q_early : pass->q_early,
        .keys = pass->team_keys,
        .grads = shared ? ra_shared_grads(ring, &pass->group, 0) : pass->own_grads};
    if (status == RA_OK)
        status = ra_ring_agree_on_step(ring, ra_backward_compute(pass, 0, &work));
    ra_ring_mark_end(ring, mark);
    return status;
}

static ra_status run_group(ra_backward_pass *pass)
{
    ra_ring *ring = pass->ring;
    int const steps = pass->plan->step_count;
    ring->step = 0;
    ra_status status = begin_team_grads(pass);
    if (status == RA_OK)
        status = own_step(pass, false);
    ra_pool_mark(ring->pool, "backward step", pass->group_index, 0);
    for (int s = 1; s < steps && status == RA_OK; ++s) {
        status = backward_step(pass, s);
        if (s == pass->late && status == RA_OK)
            status = own_step(pass, true);
    }
    if (status == RA_OK)
        status = store_queries(pass); /* while the last gradients of keys travel */
    if (steps > 1 && status == RA_OK)
        status = grads_arrive(pass, steps - 1);
    ra_region_give(ring, &ring->partial[0]);
    return status != RA_OK ? status : store_keys(pass);
}

/* Those that gradients are computed in; sums are stored over the others. */
static ra_status zero_outputs(ra_ring *ring, const ra_ring_tensors *tensors)
{
    const ra_ring_config *c = &ring->config;
    ra_stored_grads direct = {0};
    int64_t const rows = ra_ring_local_rows(ring);
    size_t const row = (size_t)(c->batch * rows * c->dim) * ra_dtype_bytes(c->dtype);
    ra_status status = RA_OK;
    for (int32_t g = 0; g < ring->group_count; ++g) {
        ra_head_group const group = ra_ring_group(ring, g);
        ra_stored_grads const of_group = ra_ring_direct_grads(ring, ra_ring_plan(ring, g), &group);
        direct.dq = direct.dq || of_group.dq;
        direct.dkv = direct.dkv || of_group.dkv;
    }
    if (direct.dq)
        status = zero(ring, -1, tensors->dq, row * (size_t)c->heads, rows);
    if (direct.dkv && status == RA_OK)
        status = zero(ring, -1, tensors->dk, row * (size_t)c->kv_heads, rows);
    if (direct.dkv && status == RA_OK)
        status = zero(ring, -1, tensors->dv, row * (size_t)c->kv_heads, rows);
    return status;
}

static ra_status begin(ra_ring *ring, const ra_ring_tensors *tensors)
{
    ra_status const status = zero_outputs(ring, tensors);
    return status != RA_OK ? status : make_delta(ring, tensors);
}

static ra_status backward_group(ra_ring *ring, const ra_ring_tensors *tensors, int32_t group)
{
    ra_backward_pass pass = {.ring = ring, .tensors = tensors};
    ra_status const status = begin_group(&pass, group);
    return status != RA_OK ? status : run_group(&pass);
}

ra_status ra_ring_backward(ra_ring *ring, const ra_ring_tensors *tensors)
{
    RA_ASSERT(ring->config.backward);
    return ring->schedule == RA_SCHEDULE_SCAN
               ? ra_ring_run_pass(ring, tensors, true, NULL, ra_linear_backward_group)
               : ra_ring_run_pass(ring, tensors, true, begin, backward_group);
}

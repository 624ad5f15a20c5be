/* What a backward pass computes: the own step's heads early and late, and a step in turns. */
#include "internal.h"
#include "ring/backward_pass.h"

/* Stored gradients of 16 bits are stored once, so that one key head's are not taken apart. */
void ra_backward_cut_own(ra_backward_pass *pass)
{
    const ra_ring *ring = pass->ring;
    const ra_head_group *group = &pass->group;
    bool const stores_keys = pass->direct.dkv && ring->config.dtype != RA_F32;
    bool const may_wait = ring->config.comm_buffers == 2 && !ra_ring_steps_can_fail(ring);
    int32_t const lots = stores_keys ? group->kv_count : ra_own_lots(group);
    int32_t const early = ra_early_lots(lots, ring->config.dtype);
    pass->late = may_wait && early < lots ? pass->plan->last_grads : 0;
    pass->q_early = pass->late > 0 ? early * (group->q_count / lots) : group->q_count;
}

static void skip_heads(ra_view *view, int32_t heads)
{
    int64_t const bytes = heads * view->head_stride * (int64_t)ra_dtype_bytes(view->dtype);
    if (view->data != NULL)
        view->data = (char *)view->data + bytes;
}

/* Narrow a step to some of its heads. */
static void take_heads(ra_backward_step *step, int32_t q_first, int32_t q_count)
{
    ra_kernel_shape *const shape = &step->shape;
    int32_t const each = shape->q_heads / shape->kv_heads;
    ra_view *const of_queries[] = {&step->q, &step->dout, &step->dq};
    ra_view *const of_keys[] = {&step->k, &step->v, &step->dk, &step->dv};
    for (int i = 0; i < 3; ++i)
        skip_heads(of_queries[i], q_first);
    for (int i = 0; i < 4; ++i)
        skip_heads(of_keys[i], q_first / each);
    step->lse += q_first * step->map->q_rows;
    step->delta += q_first * step->map->q_rows;
    shape->q_head_begin += q_first;
    shape->q_heads = q_count;
    shape->kv_heads = (q_count + each - 1) / each; /* some of one key head's, or all */
}

/* What our queries add to the rows of one part of a step, or of all parts. */
static ra_status compute(ra_backward_pass *pass, ra_kernel_pair pair, int owner,
                         const ra_tilemap *map, const ra_backward_work *work)
{
    if (map->run_count == 0 || pass->ring->mode == RA_RING_COMM_ONLY)
        return RA_OK;
    ra_backward_step step = pass->step;
    step.map = map;
    step.pair = pair;
    step.k = work->keys.first;
    step.v = work->keys.second;
    step.dk = work->grads.first;
    step.dv = work->grads.second;
    take_heads(&step, work->q_first, work->q_count);
    step.ends_only = pass->ring->mode == RA_RING_ENDS_ONLY;
    ra_status status = ra_ring_wait_flights(pass->ring);
    step.yields = ra_ring_is_exchanging(pass->ring);
    size_t const bytes = ra_ring_keys_bytes(pass->ring, step.shape.kv_heads, map->k_rows);
    int64_t const mark = ra_ring_mark(pass->ring, RA_TRACE_BACKWARD_KERNEL, pair.step, owner,
                                      (int64_t)bytes, map->k_rows);
    if (status == RA_OK)
        status = pass->ring->kernel->ops->backward(pass->ring->kernel, &step);
    ra_ring_mark_end(pass->ring, mark);
    return status;
}

/* In turn j the member at place p adds to part p + j; nobody else does until the barrier. */
ra_status ra_backward_compute(ra_backward_pass *pass, int s, const ra_backward_work *work)
{
    static const char operation[] = "backward: gradients of a turn";
    const ra_step *step = &pass->plan->steps[s];
    int const turns = ra_ring_team_size(pass->ring);
    ra_kernel_pair pair = {.group = pass->group_index, .step = s};
    ra_status status = RA_OK, computed = RA_OK;
    if (work->q_count == 0)
        return RA_OK;
    if (turns == 1)
        return compute(pass, pair, ra_step_owner(step), &step->map, work);
    for (int turn = 0; turn < turns && status == RA_OK; ++turn) {
        int const at = (ra_ring_place(pass->ring) + turn) % turns;
        status = ra_shared_barrier(pass->ring, operation, s);
        /* A member that has failed still joins the barrier, because the others do not know yet. */
        if (status != RA_OK || computed != RA_OK || at >= step->part_count)
            continue;
        const ra_part *part = &step->parts[at];
        ra_backward_work part_work = *work;
        part_work.keys = ra_pair_skip(&work->keys, part->first);
        part_work.grads = ra_pair_skip(&work->grads, part->first);
        pair.part = at;
        pair.first_key = part->first;
        const ra_tilemap *map = part->map.layers != NULL ? &part->map : &step->map;
        computed = compute(pass, pair, part->owner, map, &part_work);
    }
    if (status == RA_OK)
        status = ra_shared_barrier(pass->ring, operation, s);
    return computed != RA_OK ? computed : status;
}

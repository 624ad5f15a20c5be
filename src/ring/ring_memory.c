/* Plans of a ring, and all memory of its passes, sized for the largest group and step. */
#include "internal.h"
#include "ring/ring_internal.h"

#include <string.h>

static ra_plan_request request_for(const ra_ring *ring, ra_heads heads)
{
    const ra_ring_config *c = &ring->config;
    return (ra_plan_request){.pattern = ring->pattern,
                             .layout = &ring->layout,
                             .teams = &ring->teams,
                             .schedule = ring->schedule,
                             .comm = ring->comm,
                             .rank = ra_comm_rank(ring->comm),
                             .heads = heads,
                             .rounds = c->rounds > 1 ? c->rounds : 1,
                             .cache = c->cache,
                             .dense_mask = c->dense_mask,
                             .by_keys = c->backward && ring->kernel->ops->maps_by_keys,
                             .backward = c->backward,
                             .tile_rows = ring->kernel->ops->tile_rows(c->dtype, c->dim)};
}

typedef struct ring_bytes {
    size_t state, grads, delta;                           /* accumulators */
    size_t held[RA_BUFFERS_MAX], partial[RA_BUFFERS_MAX]; /* each as its largest step needs */
    size_t sent, arriving;
    size_t team_grads; /* of all members, in a window */
} ring_bytes;

static void grow(size_t *bytes, size_t least)
{
    *bytes = *bytes > least ? *bytes : least;
}

static void add_step_bytes(const ra_ring *ring, const ra_step *step, int s, int32_t kv_heads,
                           ring_bytes *bytes)
{
    size_t *const before = &bytes->held[ra_keys_slot(ring, s - 1)];
    grow(&bytes->held[ra_keys_slot(ring, s)], ra_ring_keys_bytes(ring, kv_heads, step->held_rows));
    grow(ring->schedule == RA_SCHEDULE_RING ? before : &bytes->sent,
         ra_ring_keys_bytes(ring, kv_heads, step->sent_rows));
    if (!ring->config.backward)
        return;
    grow(&bytes->partial[ra_grads_slot(ring, s)],
         ra_ring_grads_bytes(ring, kv_heads, step->grad_rows));
    grow(&bytes->arriving, ra_ring_grads_bytes(ring, kv_heads, step->grad_in_rows));
}

/*
 * Which gradients a pass computes in the outputs: float32 ones, unless they lie in a window, and
 * 16-bit ones that the kernel stores, if only one step has pairs (dq), and if no other rank needs
 * our keys (dk, dv). Others are summed elsewhere and stored at the end.
 */
ra_stored_grads ra_ring_direct_grads(const ra_ring *ring, const ra_plan *plan)
{
    bool const shared = ring->schedule == RA_SCHEDULE_SHARED;
    ra_stored_grads direct = ring->kernel->stores;
    if (ring->config.dtype == RA_F32)
        return (ra_stored_grads){.dq = true, .dkv = !shared};
    direct.dq = direct.dq && !shared && ra_plan_live_steps(plan) <= 1;
    direct.dkv = direct.dkv && !shared;
    for (int s = 1; s < plan->step_count; ++s)
        direct.dkv = direct.dkv && plan->steps[s].sent_local.row_count == 0;
    return direct;
}

/* Raise *bytes to what one head group needs. */
static void add_group_bytes(const ra_ring *ring, const ra_plan *plan, ra_head_group g,
                            ring_bytes *bytes)
{
    const ra_ring_config *c = &ring->config;
    size_t const lines = (size_t)(c->batch * ra_ring_local_rows(ring) * g.q_count);
    size_t const kv_lines = (size_t)(c->batch * ra_ring_local_rows(ring) * g.kv_count);
    size_t const row = (size_t)c->dim * sizeof(float);
    grow(&bytes->state,
         (size_t)(c->batch * plan->state_rows * g.q_count) * (row + 2 * sizeof(float)));
    for (int s = 1; s < plan->step_count; ++s)
        add_step_bytes(ring, &plan->steps[s], s, g.kv_count, bytes);
    if (!c->backward)
        return;
    bytes->delta = (size_t)(c->batch * ra_ring_local_rows(ring) * c->heads) * sizeof(float);
    bool const shared = ring->schedule == RA_SCHEDULE_SHARED;
    if (shared)
        grow(&bytes->team_grads, ra_ring_grads_bytes(ring, g.kv_count, ra_shared_team_rows(ring)));
    ra_stored_grads const direct = ra_ring_direct_grads(ring, plan);
    grow(&bytes->grads,
         ((direct.dq ? 0 : lines) + (direct.dkv || shared ? 0 : 2 * kv_lines)) * row);
}

/* This rank's charge for a buffer that the team shares. */
static size_t count_shared(const ra_ring *ring, size_t bytes)
{
    return ring->schedule == RA_SCHEDULE_SHARED ? (size_t)ra_shared_share(ring, bytes)
                                                : ra_pool_round(ring->buffers, bytes);
}

/* As the ledger will count them. */
static int64_t total_bytes(const ra_ring *ring, const ring_bytes *b)
{
    size_t const once[] = {b->state, b->grads, b->delta};
    size_t total =
        ra_pool_round(ring->buffers, b->sent) + ra_pool_round(ring->buffers, b->arriving);
    for (int i = 0; i <= ra_keys_slot(ring, 1); ++i)
        total += count_shared(ring, b->held[i]) + count_shared(ring, b->partial[i]);
    for (int i = 0; i < 3; ++i)
        total += ra_pool_round(ring->pool, once[i]);
    return (int64_t)total + ra_shared_share(ring, b->team_grads);
}

/* Bytes to leave for the caller's tensors, as the ledger counts them. */
static int64_t room_bytes(const ra_ring *ring)
{
    const ra_ring_config *c = &ring->config;
    int64_t const rows = c->batch * ra_ring_local_rows(ring);
    int64_t const row = c->dim * (int64_t)ra_dtype_bytes(c->dtype);
    size_t const q = (size_t)(rows * c->heads * row), k = (size_t)(rows * c->kv_heads * row);
    size_t const lse = (size_t)(rows * c->heads) * sizeof(float);
    if (!c->tensors_follow)
        return 0;
    bool const has_keys = ring->key_window.data != NULL; /* k and v lie in memory of the ring */
    bool const has_lse = c->lse_follows || (c->backward && c->linear == RA_LINEAR_NONE);
    int const q_count = c->backward ? 4 : 2; /* q, out; dout, dq */
    int const k_count = (has_keys ? 0 : 2) + (c->backward ? 2 : 0);
    return q_count * (int64_t)ra_pool_round(ring->pool, q) +
           k_count * (int64_t)ra_pool_round(ring->pool, k) +
           (has_lse ? (int64_t)ra_pool_round(ring->pool, lse) : 0) +
           (int64_t)ra_pool_round(ring->pool, (size_t)c->follow_bytes[0]) +
           (int64_t)ra_pool_round(ring->pool, (size_t)c->follow_bytes[1]);
}

/* Packed keys differ by what the group's heads need; shared ones are never packed. */
static int32_t plans_for(const ra_ring *ring, int64_t groups)
{
    bool const packs = ring->schedule != RA_SCHEDULE_SHARED || ring->teams.count > 1;
    return packs && ra_pattern_differs_by_head(ring->pattern) ? (int32_t)groups : 1;
}

/* With one plan for all heads this is exact, else an upper bound, but for the state of a group
   whose own maps have larger chunks. */
static int64_t bytes_of_groups(const ra_ring *ring, int32_t groups, const void *context)
{
    const ra_plan *plan = context;
    ring_bytes bytes = {0};
    add_group_bytes(ring, plan, ra_ring_group_of(&ring->config, groups, groups - 1), &bytes);
    size_t plans = (size_t)plans_for(ring, groups) * sizeof(ra_plan);
    if (ring->host_pool != ring->pool)
        plans = 0;
    return total_bytes(ring, &bytes) + (int64_t)ra_pool_round(ring->pool, plans);
}

ra_status ra_ring_settle_groups(ra_ring *ring, ra_group_bytes *bytes_of, const void *context)
{
    const ra_ring_config *c = &ring->config;
    int64_t groups = c->head_groups, available = 0;
    if (groups == 0) {
        ra_status status = ra_ring_agree(ring, ra_pool_available(ring->pool, &available));
        if (status != RA_OK)
            return status;
        available -= room_bytes(ring);
        groups = 1;
        while (groups < c->kv_heads && bytes_of(ring, (int32_t)groups, context) > available)
            groups = ra_ring_more_groups(c, (int32_t)groups);
        status = ra_comm_reduce_i64(ring->comm, "head groups", RA_MAX, &groups, 1);
        if (status != RA_OK)
            return status;
    }
    ring->group_count = (int32_t)groups;
    return RA_OK;
}

/* All maps that steps of a plan compute with, one after the other; NULL after the last. */
static const ra_tilemap *map_of(const ra_plan *plan, int step, int at)
{
    const ra_step *s = &plan->steps[step];
    return at == 0 ? &s->map : at <= s->part_count ? &s->parts[at - 1].map : NULL;
}

/* Which rows carry state from step to step: those of chunks that several steps compute, if the
   kernel can go by chunks, else all. */
static ra_status settle_state(ra_ring *ring, ra_plan *plan)
{
    ra_block block;
    if (ra_plan_live_steps(plan) <= 1)
        return RA_OK;
    ra_status status = ra_pool_alloc(ring->host_pool, RA_MEM_TILEMAP,
                                     (size_t)plan->step_count * sizeof(void *), NULL, &block);
    if (status != RA_OK)
        return status;
    const ra_tilemap **const maps = block.data;
    for (int s = 0; s < plan->step_count; ++s)
        maps[s] = &plan->steps[s].map;
    status = ra_kernel_take_chunk_steps(ring->kernel, maps, plan->step_count, ring->host_pool,
                                        &plan->chunk_steps, &plan->state_rows);
    ra_pool_free(ring->host_pool, NULL, &block);
    return status;
}

void ra_ring_give_plan(ra_ring *ring, ra_plan *plan)
{
    const ra_tilemap *map;
    ra_pool_free(ring->pool, ring->kernel->stream, &plan->chunk_steps);
    for (int s = 0; s < plan->step_count && plan->steps != NULL; ++s)
        for (int i = 0; (map = map_of(plan, s, i)) != NULL; ++i)
            ra_kernel_drop_map(ring->kernel, map);
    ra_plan_fini(ring->host_pool, plan);
}

/* Make a plan whose maps and steps of chunks lie where kernels read them. */
static ra_status make_plan(ra_ring *ring, const ra_plan_request *request, ra_plan *plan_out)
{
    const ra_tilemap *map;
    ra_status status = ra_plan_init(request, ring->host_pool, plan_out);
    if (status != RA_OK)
        return status;
    for (int s = 0; s < plan_out->step_count && status == RA_OK; ++s)
        for (int i = 0; (map = map_of(plan_out, s, i)) != NULL && status == RA_OK; ++i)
            if (map->layers != NULL)
                status = ra_kernel_take_map(ring->kernel, map);
    if (status == RA_OK)
        status = settle_state(ring, plan_out);
    if (status != RA_OK)
        ra_ring_give_plan(ring, plan_out);
    return status;
}

ra_status ra_ring_make_plans(ra_ring *ring)
{
    ra_heads const all = {0, 1, ring->config.heads};
    ra_plan whole;
    ra_plan_request const request = request_for(ring, all);
    ra_status const mine = make_plan(ring, &request, &whole);
    ra_status status = ra_ring_agree(ring, mine);
    if (status != RA_OK) {
        if (mine == RA_OK)
            ra_ring_give_plan(ring, &whole);
        return status;
    }
    status = ra_ring_settle_groups(ring, bytes_of_groups, &whole);
    int32_t const count = plans_for(ring, ring->group_count);
    bool const split = count > 1;
    if (status == RA_OK)
        status = ra_pool_alloc(ring->host_pool, RA_MEM_TILEMAP, (size_t)count * sizeof(ra_plan),
                               NULL, &ring->plans_block);
    if (status != RA_OK || split)
        ra_ring_give_plan(ring, &whole);
    if (status != RA_OK)
        return status;
    ring->plans = memset(ring->plans_block.data, 0, ring->plans_block.bytes);
    ring->plan_count = count;
    if (!split)
        ring->plans[0] = whole;
    for (int32_t g = 0; split && g < count && status == RA_OK; ++g) {
        ra_head_group const group = ra_ring_group(ring, g);
        ra_plan_request const part = request_for(ring, (ra_heads){group.q_begin, 1, group.q_count});
        status = make_plan(ring, &part, &ring->plans[g]);
    }
    return status;
}

static ra_status take(ra_ring *ring, ra_category category, size_t bytes, ra_block *block)
{
    return ra_pool_alloc(ring->pool, category, bytes, ring->kernel->stream, block);
}

static ring_bytes needed_bytes(const ra_ring *ring)
{
    ring_bytes bytes = {0};
    for (int32_t g = 0; g < ring->group_count; ++g)
        add_group_bytes(ring, ra_ring_plan(ring, g), ra_ring_group(ring, g), &bytes);
    return bytes;
}

/* Standing buffers may lie in the communicator's memory; what steps take is the kernel's. */
ra_status ra_ring_make_buffers(ra_ring *ring)
{
    ra_memory memory;
    if (ring->config.comm_buffers == 0 || !ra_comm_memory(ring->comm, &memory))
        return RA_OK;
    ra_pool_config const config = {
        .mode = RA_POOL_OFF, .memory = memory, .ledger = ra_pool_ledger(ring->pool)};
    ra_pool *buffers = NULL;
    ra_status const status = ra_pool_create(&config, &buffers);
    if (status == RA_OK)
        ring->buffers = buffers;
    return ra_ring_agree(ring, status);
}

/* Idle memory of the kernels' pool may leave no room for another pool's blocks. */
static ra_status take_buffer(ra_ring *ring, size_t bytes, ra_block *block)
{
    int64_t available = INT64_MAX;
    ra_status const status =
        ring->buffers != ring->pool ? ra_pool_available(ring->buffers, &available) : RA_OK;
    if (status != RA_OK)
        return status;
    if (available < (int64_t)bytes)
        (void)ra_pool_trim(ring->pool, 0);
    return ra_pool_alloc(ring->buffers, RA_MEM_COMM_BUFFER, bytes, ring->kernel->stream, block);
}

static ra_status take_buffers(ra_ring *ring, const ring_bytes *bytes)
{
    bool const shared = ring->schedule == RA_SCHEDULE_SHARED; /* then these are windows */
    if (ring->config.comm_buffers == 0)
        return RA_OK;
    ra_status status = take_buffer(ring, bytes->sent, &ring->sent.block);
    for (int i = 0; i < RA_BUFFERS_MAX && status == RA_OK && !shared; ++i) {
        status = take_buffer(ring, bytes->held[i], &ring->held[i].block);
        if (status == RA_OK)
            status = take_buffer(ring, bytes->partial[i], &ring->partial[i].block);
    }
    return status != RA_OK ? status : take_buffer(ring, bytes->arriving, &ring->arriving.block);
}

ra_status ra_ring_make_memory(ra_ring *ring)
{
    ring_bytes const bytes = needed_bytes(ring);
    ra_status status;
    if ((status = take(ring, RA_MEM_ACCUMULATOR, bytes.state, &ring->state)) != RA_OK ||
        (status = take(ring, RA_MEM_ACCUMULATOR, bytes.grads, &ring->grads)) != RA_OK ||
        (status = take(ring, RA_MEM_ACCUMULATOR, bytes.delta, &ring->delta)) != RA_OK)
        return status;
    return take_buffers(ring, &bytes);
}

/* Memory that all ranks of a host reach: gradients, and buffers if there are other hosts. */
ra_status ra_ring_make_windows(ra_ring *ring)
{
    ring_bytes const bytes = needed_bytes(ring);
    int const buffers = ring->teams.count > 1 ? ring->config.comm_buffers : 0;
    bool const backward = ring->config.backward;
    ra_status status = RA_OK;
    if (ring->schedule != RA_SCHEDULE_SHARED)
        return RA_OK;
    if (backward)
        status =
            ra_shared_take(ring, RA_OK, RA_MEM_ACCUMULATOR, bytes.team_grads, &ring->grad_window);
    for (int i = 0; i < buffers && status == RA_OK; ++i) {
        status =
            ra_shared_take(ring, RA_OK, RA_MEM_COMM_BUFFER, bytes.held[i], &ring->held[i].window);
        if (status == RA_OK && backward)
            status = ra_shared_take(ring, RA_OK, RA_MEM_COMM_BUFFER, bytes.partial[i],
                                    &ring->partial[i].window);
    }
    return status;
}

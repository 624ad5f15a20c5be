/* All memory of passes, sized for the largest group and step, and how many groups fit. */
#include "internal.h"
#include "ring/ring_internal.h"

#include <string.h>

typedef struct ring_bytes {
    size_t state, grads, delta;                           /* accumulators */
    size_t held[RA_BUFFERS_MAX], partial[RA_BUFFERS_MAX]; /* each as its largest step needs */
    size_t sent, arriving;
    size_t team_grads; /* of all members, in a window */
    size_t passing;    /* what the kernel takes in a forward step and gives back, as counted */
} ring_bytes;

static void grow(size_t *bytes, size_t least)
{
    *bytes = *bytes > least ? *bytes : least;
}

static void add_step_bytes(const ra_ring *ring, const ra_step *step, int s, int32_t kv_heads,
                           ring_bytes *bytes)
{
    size_t *const before = &bytes->held[ra_keys_slot(&ring->config, ring->schedule, s - 1)];
    grow(&bytes->held[ra_keys_slot(&ring->config, ring->schedule, s)],
         ra_ring_keys_bytes(ring, kv_heads, step->held_rows));
    grow(ring->schedule == RA_SCHEDULE_RING ? before : &bytes->sent,
         ra_ring_keys_bytes(ring, kv_heads, step->sent_rows));
    if (!ring->config.backward)
        return;
    grow(&bytes->partial[ra_grads_slot(&ring->config, s)],
         ra_ring_grads_bytes(ring, kv_heads, step->grad_rows));
    grow(&bytes->arriving, ra_ring_grads_bytes(ring, kv_heads, step->grad_in_rows));
}

/*
 * Which gradients a pass computes in the outputs: float32 ones, unless they lie in a window, and
 * 16-bit ones that the kernel stores, if only one step has pairs (dq), and if neither another rank
 * nor another group needs our keys (dk, dv). Others are summed elsewhere and stored at the end.
 */
ra_stored_grads ra_ring_direct_grads(const ra_ring *ring, const ra_plan *plan,
                                     const ra_head_group *group)
{
    bool const shared = ring->schedule == RA_SCHEDULE_SHARED;
    ra_stored_grads direct = ring->kernel->stores;
    if (ring->config.dtype == RA_F32)
        return (ra_stored_grads){.dq = true, .dkv = !shared};
    direct.dq = direct.dq && !shared && ra_plan_live_steps(plan) <= 1;
    direct.dkv = direct.dkv && !shared && group->begins_keys && group->ends_keys;
    for (int s = 1; s < plan->step_count; ++s)
        direct.dkv = direct.dkv && plan->steps[s].sent_local.row_count == 0;
    return direct;
}

/* What is kept until a backward pass is over is the same in any number of groups. */
static void add_passing_bytes(const ra_ring *ring, const ra_plan *plan, const ra_head_group *g,
                              ring_bytes *bytes)
{
    RA_ASSERT(ring->kernel->ops->step_bytes == NULL || g->q_parts == 1);
    ra_kernel_shape const shape = ra_ring_shape(ring, g);
    for (int s = 0; s < plan->step_count && ring->kernel->ops->step_bytes != NULL; ++s) {
        const ra_tilemap *map = &plan->steps[s].map;
        if (map->run_count > 0)
            grow(&bytes->passing,
                 ring->kernel->ops->step_bytes(ring->kernel, &shape, map->q_rows, map->k_rows));
    }
}

/* Raise *bytes to what one head group needs. */
static void add_group_bytes(const ra_ring *ring, const ra_plan *plan, ra_head_group g,
                            ring_bytes *bytes)
{
    const ra_ring_config *c = &ring->config;
    int64_t const queries = ra_ring_query_rows(ring, &g);
    int64_t const state_rows = ra_min_i64(plan->state_rows, queries); /* a plan may be of all */
    size_t const lines = (size_t)(c->batch * queries * g.q_count);
    size_t const kv_lines = (size_t)(c->batch * ra_ring_local_rows(ring) * g.kv_count);
    size_t const row = (size_t)c->dim * sizeof(float);
    grow(&bytes->state, (size_t)(c->batch * state_rows * g.q_count) * (row + 2 * sizeof(float)));
    for (int s = 1; s < plan->step_count; ++s)
        add_step_bytes(ring, &plan->steps[s], s, g.kv_count, bytes);
    if (!c->backward) {
        add_passing_bytes(ring, plan, &g, bytes);
        return;
    }
    bytes->delta = (size_t)(c->batch * ra_ring_local_rows(ring) * c->heads) * sizeof(float);
    bool const shared = ring->schedule == RA_SCHEDULE_SHARED;
    if (shared)
        grow(&bytes->team_grads, ra_ring_grads_bytes(ring, g.kv_count, ra_shared_team_rows(ring)));
    ra_stored_grads const direct = ra_ring_direct_grads(ring, plan, &g);
    grow(&bytes->grads,
         ((direct.dq ? 0 : lines) + (direct.dkv || shared ? 0 : 2 * kv_lines)) * row);
}

/* This rank's charge for a region that its team may share: then a window, which is never empty. */
static size_t count_region(const ra_ring *ring, size_t bytes)
{
    return ring->schedule == RA_SCHEDULE_SHARED
               ? (size_t)ra_shared_share(ring, bytes > 0 ? bytes : 1)
               : ra_pool_round(ring->buffer_pool, bytes);
}

/* As the ledger will count them. */
static int64_t accumulator_bytes(const ra_ring *ring, const ring_bytes *b)
{
    return (int64_t)(ra_pool_round(ring->pool, b->state) + ra_pool_round(ring->pool, b->grads) +
                     ra_pool_round(ring->pool, b->delta)) +
           ra_shared_share(ring, b->team_grads);
}

static int64_t buffer_bytes(const ra_ring *ring, const ring_bytes *b)
{
    size_t total =
        ra_pool_round(ring->buffer_pool, b->sent) + ra_pool_round(ring->buffer_pool, b->arriving);
    for (int i = 0; i <= ra_keys_slot(&ring->config, ring->schedule, 1) && ring->teams.count > 1;
         ++i)
        total += count_region(ring, b->held[i]) +
                 (ring->config.backward ? count_region(ring, b->partial[i]) : 0);
    return (int64_t)total;
}

/* Bytes of the caller's tensors, as the ledger will count them. */
static int64_t tensor_bytes(const ra_ring *ring)
{
    const ra_ring_config *c = &ring->config;
    int64_t const rows = c->batch * ra_ring_local_rows(ring);
    int64_t const row = c->dim * (int64_t)ra_dtype_bytes(c->dtype);
    size_t const q = (size_t)(rows * c->heads * row), k = (size_t)(rows * c->kv_heads * row);
    size_t const lse = (size_t)(rows * c->heads) * sizeof(float);
    if (!c->tensors_follow)
        return 0;
    bool const has_keys = ring->key_window.data != NULL; /* k and v lie in memory of the ring */
    int const q_count = c->backward ? 4 : 2;             /* q, out; dout, dq */
    int const k_count = (has_keys ? 0 : 2) + (c->backward ? 2 : 0);
    return q_count * (int64_t)ra_pool_round(ring->pool, q) +
           k_count * (int64_t)ra_pool_round(ring->pool, k) +
           (ra_ring_has_lse(c) ? (int64_t)ra_pool_round(ring->pool, lse) : 0) +
           (int64_t)ra_pool_round(ring->pool, (size_t)c->follow_bytes[0]) +
           (int64_t)ra_pool_round(ring->pool, (size_t)c->follow_bytes[1]);
}

int64_t ra_ring_group_bytes(const ra_ring *ring, const ra_plan *plan, int32_t groups,
                            int64_t *buffer_bytes_out)
{
    ring_bytes bytes = {0};
    add_group_bytes(ring, plan, ra_ring_group_of(&ring->config, groups, groups - 1), &bytes);
    *buffer_bytes_out = buffer_bytes(ring, &bytes) + (int64_t)bytes.passing;
    return accumulator_bytes(ring, &bytes) + *buffer_bytes_out;
}

ra_status ra_ring_read_room(ra_ring *ring, int64_t *bytes_out)
{
    int64_t available = INT64_MAX;
    if (ra_ring_may_choose(&ring->config, &ring->teams)) {
        ra_status const status = ra_ring_agree(ring, ra_pool_available(ring->pool, &available));
        if (status != RA_OK)
            return status;
    }
    *bytes_out = available - tensor_bytes(ring);
    return RA_OK;
}

ra_status ra_ring_settle_groups(ra_ring *ring, ra_group_bytes *bytes_of, const void *context,
                                int64_t room, int64_t plan_bytes, int32_t fewest,
                                ra_groups_found *found_out)
{
    int64_t buffers;
    const ra_ring_config *c = &ring->config;
    const ra_kernel_ops *ops = ring->kernel->ops;
    int32_t const most = ra_ring_most_groups(
        c, ra_comm_size(ring->comm), ops->tile_rows(c->dtype, c->dim), ops->step_bytes != NULL);
    ra_groups_found const mine =
        ra_ring_find_groups(c, bytes_of, context, room, plan_bytes, fewest, most);
    int64_t numbers[] = {mine.fit, mine.could, mine.least};
    ra_status status = ra_comm_reduce_i64(ring->comm, "head groups", RA_MAX, numbers, 3);
    if (status != RA_OK)
        return status;
    ra_groups_found found = {(int32_t)numbers[0], (int32_t)numbers[1], (int32_t)numbers[2], 0};
    ring->group_count = ra_groups_taken(found);
    found.lack_bytes = ra_max_i64(0, bytes_of(context, ring->group_count, &buffers) - room);
    status = ra_comm_reduce_i64(ring->comm, "room for head groups", RA_MAX, &found.lack_bytes, 1);
    if (found.lack_bytes > 0)
        found.fit = RA_GROUPS_NONE;
    *found_out = found;
    return status;
}

static ra_status take_accumulator(ra_ring *ring, size_t bytes, ra_block *block)
{
    return ra_pool_alloc(ring->pool, RA_MEM_ACCUMULATOR, bytes, ring->kernel->stream, block);
}

static ring_bytes needed_bytes(const ra_ring *ring)
{
    ring_bytes bytes = {0};
    for (int32_t g = 0; g < ring->group_count; ++g)
        add_group_bytes(ring, ra_ring_plan(ring, g), ra_ring_group(ring, g), &bytes);
    return bytes;
}

int64_t ra_ring_pass_bytes(const ra_ring *ring)
{
    ring_bytes const bytes = needed_bytes(ring);
    return accumulator_bytes(ring, &bytes) + buffer_bytes(ring, &bytes) + (int64_t)bytes.passing;
}

/* Standing buffers may lie in the communicator's memory; what steps take is the kernel's. */
ra_status ra_ring_make_buffer_pool(ra_ring *ring)
{
    ra_memory memory;
    if (ring->config.comm_buffers == 0 || !ra_comm_memory(ring->comm, &memory))
        return RA_OK;
    ra_pool_config const config = {
        .mode = RA_POOL_OFF, .memory = memory, .ledger = ra_pool_ledger(ring->pool)};
    ra_pool *buffers = NULL;
    ra_status const status = ra_pool_create(&config, &buffers);
    if (status == RA_OK)
        ring->buffer_pool = buffers;
    return ra_ring_agree(ring, status);
}

/* Idle memory of the kernels' pool may leave no room for another pool's blocks. */
static ra_status take_buffer(ra_ring *ring, size_t bytes, ra_block *block)
{
    int64_t available = INT64_MAX;
    ra_status const status =
        ring->buffer_pool != ring->pool ? ra_pool_available(ring->buffer_pool, &available) : RA_OK;
    if (status != RA_OK)
        return status;
    if (available < (int64_t)ra_pool_round(ring->buffer_pool, bytes))
        (void)ra_pool_trim(ring->pool, 0);
    return ra_pool_alloc(ring->buffer_pool, RA_MEM_COMM_BUFFER, bytes, ring->kernel->stream, block);
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
    if ((status = take_accumulator(ring, bytes.state, &ring->state)) != RA_OK ||
        (status = take_accumulator(ring, bytes.grads, &ring->grads)) != RA_OK ||
        (status = take_accumulator(ring, bytes.delta, &ring->delta)) != RA_OK)
        return status;
    return take_buffers(ring, &bytes);
}

/* Memory that all ranks of a host reach: gradients, and buffers if there are other hosts. */
ra_status ra_ring_make_windows(ra_ring *ring)
{
    int const buffers = ring->teams.count > 1 ? ring->config.comm_buffers : 0;
    bool const backward = ring->config.backward;
    ra_status status = RA_OK;
    if (ring->schedule != RA_SCHEDULE_SHARED)
        return RA_OK;
    ring_bytes const bytes = needed_bytes(ring);
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

/* The plans of a ring, made as ra_choose_plans asks for them. */
#include "internal.h"
#include "ring/ring_internal.h"

#include <string.h>

static ra_plan_request request_for(const ra_ring *ring, ra_heads heads, const ra_rowset *queries)
{
    const ra_ring_config *c = &ring->config;
    return (ra_plan_request){.pattern = ring->pattern,
                             .layout = &ring->layout,
                             .queries = queries,
                             .teams = &ring->teams,
                             .schedule = ring->schedule,
                             .comm = ring->comm,
                             .rank = ra_comm_rank(ring->comm),
                             .heads = heads,
                             .rounds = ring->rounds,
                             .cache = c->cache,
                             .dense_mask = c->dense_mask,
                             .by_keys = c->backward && ring->kernel->ops->maps_by_keys,
                             .backward = c->backward,
                             .tile_rows = ring->kernel->ops->tile_rows(c->dtype, c->dim)};
}

static int32_t plans_for(const ra_ring *ring, int32_t groups)
{
    return ra_ring_plan_count(&ring->config, ring->pattern, ring->teams.count, groups);
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

static ra_plan_bytes bytes_of(const ra_ring *ring, const ra_plan *plan)
{
    ra_plan_bytes bytes = {.chunks = (int64_t)ra_pool_round(ring->pool, plan->chunk_steps.bytes)};
    const ra_tilemap *map;
    size_t others = ra_pool_round(ring->host_pool, plan->block.bytes);
    for (int s = 0; s < plan->step_count; ++s) {
        others += ra_pool_round(ring->host_pool, plan->steps[s].sent_local.block.bytes);
        for (int i = 0; (map = map_of(plan, s, i)) != NULL; ++i)
            bytes.maps += (int64_t)ra_pool_round(ring->pool, (size_t)map->bytes);
    }
    bytes.others = ring->host_pool == ring->pool ? (int64_t)others : 0;
    return bytes;
}

static int64_t plan_array_bytes(const ra_ring *ring, int32_t count)
{
    return (int64_t)ra_pool_round(ring->host_pool, (size_t)count * sizeof(ra_plan));
}

/* What ra_choose_plans works on. */
typedef struct plans_maker {
    ra_ring *ring;
    ra_schedule schedule; /* of one round */
    ra_plan whole;        /* of all heads and queries; zeroed: not there */
    ra_plan_bytes bytes;  /* of it */
    double stretch;
} plans_maker;

/* Of so many groups, beside that plan. If it serves all groups this is exact, else an estimate.
   The part of what more rounds make smaller goes to *buffers_out. */
static int64_t needed_bytes(const void *context, int32_t groups, int64_t *buffers_out)
{
    const plans_maker *m = context;
    const ra_ring *ring = m->ring;
    int32_t const count = plans_for(ring, groups);
    return ra_ring_group_bytes(ring, &m->whole, groups, buffers_out) +
           ra_ring_more_plan_bytes(&ring->config, groups, count, &m->bytes, m->stretch) +
           (ring->host_pool == ring->pool ? plan_array_bytes(ring, count) : 0);
}

/* Before and after a try that can be gone without. */
static void hush_refusals(ra_ring *ring, bool hushed)
{
    ra_ledger_hush(ra_pool_ledger(ring->pool), hushed);
    ra_ledger_hush(ra_pool_ledger(ring->host_pool), hushed);
}

static void set_rounds(plans_maker *m, int32_t rounds)
{
    m->ring->rounds = rounds;
    m->ring->schedule = ra_schedule_of_rounds(m->schedule, rounds);
}

static ra_status take_plans(ra_ring *ring, int32_t count)
{
    ra_status const status = ra_pool_alloc(
        ring->host_pool, RA_MEM_TILEMAP, (size_t)count * sizeof(ra_plan), NULL, &ring->plans_block);
    if (status != RA_OK)
        return status;
    ring->plans = memset(ring->plans_block.data, 0, ring->plans_block.bytes);
    ring->plan_count = count;
    return RA_OK;
}

void ra_ring_give_plans(ra_ring *ring)
{
    for (int32_t i = 0; i < ring->plan_count; ++i)
        ra_ring_give_plan(ring, &ring->plans[i]);
    ra_pool_free(ring->host_pool, NULL, &ring->plans_block);
    ring->plans = NULL;
    ring->plan_count = 0;
}

/* As of ra_plans_maker. */
static ra_status make_whole(void *context, int32_t rounds, double stretch, bool may_lack,
                            ra_groups_found *found_out)
{
    plans_maker *m = context;
    ra_ring *ring = m->ring;
    ra_heads const all = {0, 1, ring->config.heads};
    int32_t const fewest = ra_ring_fewest_groups(&ring->config, ring->pattern,
                                                 ra_comm_size(ring->comm), ring->teams.count);
    int64_t room;
    ra_ring_give_plans(ring);
    ra_ring_give_plan(ring, &m->whole);
    set_rounds(m, rounds);
    ra_plan_request const request = request_for(ring, all, ring->layout.rows);
    hush_refusals(ring, may_lack);
    ra_status status = ra_ring_agree(ring, make_plan(ring, &request, &m->whole));
    hush_refusals(ring, false);
    if (may_lack && status == RA_ERR_NO_MEMORY && ring->failed_together) {
        *found_out = (ra_groups_found){RA_GROUPS_NONE, RA_GROUPS_NONE, 0, RA_LACK_UNKNOWN};
        return RA_OK;
    }
    if (status == RA_OK)
        status = ra_ring_read_room(ring, &room);
    if (status != RA_OK)
        return status;
    m->bytes = bytes_of(ring, &m->whole);
    m->stretch = stretch;
    return ra_ring_settle_groups(ring, needed_bytes, m, room, ra_plan_bytes_sum(m->bytes), fewest,
                                 found_out);
}

/* Number `number` of several plans. */
static ra_status make_split(ra_ring *ring, int32_t number)
{
    ra_head_group const group = ra_ring_group(ring, number);
    ra_heads const heads =
        ra_ring_plan_heads(&ring->config, ring->group_count, ring->plan_count, number);
    ra_group_queries queries;
    ra_status status = ra_group_queries_init(&ring->layout, &group, ring->host_pool, &queries);
    if (status != RA_OK)
        return status;
    ra_plan_request const request = request_for(ring, heads, queries.rows);
    status = make_plan(ring, &request, &ring->plans[number]);
    ra_group_queries_fini(ring->host_pool, ring->layout.ranks, &queries);
    return status;
}

/* All of several plans. */
static ra_status make_splits(ra_ring *ring, int32_t count)
{
    ra_status status = take_plans(ring, count);
    for (int32_t i = 0; i < count && status == RA_OK; ++i)
        status = make_split(ring, i);
    return ra_ring_agree(ring, status);
}

/* What the rank that has least room for passes beside them lacks, and how much more their maps take
   than those of the one plan, at most. */
static ra_status measure_splits(ra_ring *ring, int64_t whole_maps, ra_plans_made *made_out)
{
    int64_t room, maps = 0;
    ra_status status = ra_ring_read_room(ring, &room);
    if (status != RA_OK)
        return status;
    for (int32_t i = 0; i < ring->plan_count; ++i)
        maps += bytes_of(ring, &ring->plans[i]).maps;
    int64_t numbers[] = {ra_ring_pass_bytes(ring) - room, 1000 * maps / ra_max_i64(1, whole_maps)};
    status = ra_comm_reduce_i64(ring->comm, "room beside plans", RA_MAX, numbers, 2);
    *made_out = (ra_plans_made){numbers[0], 1e-3 * (double)numbers[1]};
    return status;
}

static ra_status keep_whole(plans_maker *m)
{
    ra_status const status = take_plans(m->ring, 1);
    if (status != RA_OK)
        return status;
    m->ring->plans[0] = m->whole;
    m->whole = (ra_plan){0};
    return RA_OK;
}

/* As of ra_plans_maker. */
static ra_status make_all(void *context, ra_plans_choice choice, bool may_lack,
                          ra_plans_made *made_out)
{
    plans_maker *m = context;
    ra_ring *ring = m->ring;
    int32_t const count = plans_for(ring, choice.groups);
    ring->group_count = choice.groups;
    if (count == 1)
        return keep_whole(m);
    ra_ring_give_plan(ring, &m->whole);
    set_rounds(m, choice.rounds);
    hush_refusals(ring, may_lack);
    ra_status const status = make_splits(ring, count);
    hush_refusals(ring, false);
    if (may_lack && status == RA_ERR_NO_MEMORY && ring->failed_together) {
        made_out->lack_bytes = RA_LACK_UNKNOWN;
        return RA_OK;
    }
    return may_lack && status == RA_OK ? measure_splits(ring, m->bytes.maps, made_out) : status;
}

ra_status ra_ring_make_plans(ra_ring *ring)
{
    plans_maker made = {.ring = ring, .schedule = ring->schedule};
    ra_plans_maker const maker = {&ring->config, &ring->teams, &made, make_whole, make_all};
    ra_status const status = ra_choose_plans(&maker);
    ra_ring_give_plan(ring, &made.whole);
    return status;
}

/* The greatest of a team's numbers; collective over all ranks. */
static ra_status reduce_in_team(const ra_ring *ring, int *number)
{
    enum { AT_ONCE = 64 };
    int const team = ring->teams.team[ra_comm_rank(ring->comm)];
    ra_status status = RA_OK;
    for (int first = 0; first < ring->teams.count && status == RA_OK; first += AT_ONCE) {
        int64_t most[AT_ONCE] = {0};
        bool const has_ours = team >= first && team < first + AT_ONCE;
        if (has_ours)
            most[team - first] = *number;
        status = ra_comm_reduce_i64(ring->comm, "the last step with gradients", RA_MAX, most,
                                    (int)ra_min_i64(AT_ONCE, ring->teams.count - first));
        if (has_ours)
            *number = (int)most[team - first];
    }
    return status;
}

ra_status ra_ring_settle_last_grads(ra_ring *ring)
{
    ra_status status = RA_OK;
    if (ring->schedule != RA_SCHEDULE_SHARED || ring->teams.count == 1 || !ring->config.backward)
        return RA_OK;
    for (int32_t i = 0; i < ring->plan_count && status == RA_OK; ++i)
        status = reduce_in_team(ring, &ring->plans[i].last_grads);
    return status;
}

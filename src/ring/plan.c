/* Who holds whose rows in which step, and what is sent for it. Every rank knows all of it. */
#include "internal.h"
#include "ring/ring_internal.h"

#include <string.h>

ra_status ra_plan_init_map(const ra_plan_request *request, const ra_rowset *keys, ra_pool *pool,
                           ra_tilemap *map)
{
    ra_map_request const wanted = {.pattern = request->pattern,
                                   .heads = request->heads,
                                   .queries = &request->queries[request->rank],
                                   .keys = keys,
                                   .tile_rows = request->tile_rows,
                                   .by_keys = request->by_keys};
    ra_comm_beat(request->comm); /* maps may take long, and so may the needed rows below */
    return request->dense_mask ? ra_tilemap_init_dense(&wanted, pool, map)
                               : ra_pattern_cache_get(request->cache, &wanted, pool, map);
}

/* ---- teams: needed rows only, straight from their owners ------------------------------------- */

/* What every step of a plan by teams is made from. */
typedef struct team_plan {
    const ra_plan_request *request;
    ra_pool *pool;
    int team, place, size; /* of this rank */
    ra_rowset queries;     /* of the whole team */
    int round_steps;       /* steps of a round */
    ra_rowset *needed;     /* scratch, [size]: of each owner, in all rounds of a turn */
    ra_rowset *parts;      /* likewise: of each owner, in the step at hand */
    ra_plan *plan;
} team_plan;

/* The held rows of a step are its parts, those of each owner, one after the other; the backward
   pass adds to one part per turn. */
static ra_status init_held(const team_plan *t, ra_step *step)
{
    ra_rowset held;
    ra_status status = ra_rowset_join(t->parts, NULL, step->part_count, -1, t->pool, &held);
    if (status != RA_OK)
        return status;
    status = ra_plan_init_map(t->request, &held, t->pool, &step->map);
    int64_t const all_rows = held.row_count;
    ra_rowset_fini(t->pool, &held);
    for (int k = 0; k < step->part_count; ++k) {
        ra_part *part = &step->parts[k];
        part->first = step->held_rows;
        step->held_rows += t->parts[k].row_count;
        if (t->parts[k].row_count < all_rows && t->request->backward && status == RA_OK)
            status = ra_plan_init_map(t->request, &t->parts[k], t->pool, &part->map);
    }
    return status;
}

/* Step 0: the rows of the own team, where they lie. */
static ra_status init_own_step(const team_plan *t)
{
    ra_step *step = &t->plan->steps[0];
    step->part_count = t->size;
    for (int k = 0; k < t->size; ++k) {
        int const owner = ra_teams_member(t->request->teams, t->team, k);
        step->parts[k].owner = owner;
        t->parts[k] = t->request->layout->rows[owner]; /* borrowed */
    }
    return init_held(t, step);
}

/* Rows of a set that travel in a round. A single round has all of them, borrowed. */
static ra_status init_round(const team_plan *t, const ra_rowset *rows, int round,
                            ra_rowset *rows_out)
{
    int64_t const count = rows->row_count, rounds = t->request->rounds;
    *rows_out = *rows;
    rows_out->block = (ra_block){0};
    return rounds == 1 ? RA_OK
                       : ra_rowset_slice(t->pool, rows, ra_share_begin(count, round, rounds),
                                         ra_share_begin(count, round + 1, rounds), rows_out);
}

/* A round's part of what the members of the team fetch. */
static ra_status init_fetch_round(const team_plan *t, const int *owners, int count, int round,
                                  ra_step *step)
{
    ra_status status = RA_OK;
    int made = 0;
    for (; made < count && status == RA_OK; made += status == RA_OK) {
        status = init_round(t, &t->needed[made], round, &t->parts[made]);
        step->parts[made].owner = owners[made];
    }
    step->part_count = made;
    if (status == RA_OK)
        status = init_held(t, step);
    step->grad_rows = step->held_rows;
    if (status == RA_OK && t->place < count) {
        const ra_part *mine = &step->parts[t->place];
        step->held_from = step->grad_to = mine->owner;
        step->fetched_first = mine->first;
        step->fetched_rows = step->grad_out_rows = t->parts[t->place].row_count;
    }
    for (int k = 0; k < made; ++k)
        ra_rowset_fini(t->pool, &t->parts[k]);
    return status;
}

/* Rows of the team behind: the rank at the same place fetches what any of its team needs, in steps
   s, s + round_steps, ... */
static ra_status init_fetch(const team_plan *t, int distance, int turn, int s)
{
    const ra_plan_request *request = t->request;
    int count, made = 0;
    const int *const owners = ra_teams_owners(request->teams, t->team, distance, turn, &count);
    ra_status status = RA_OK;
    for (; made < count && status == RA_OK; made += status == RA_OK) {
        ra_comm_beat(request->comm);
        status = ra_pattern_needed_rows(request->pattern, request->heads, &t->queries,
                                        &request->layout->rows[owners[made]], t->pool,
                                        &t->needed[made], NULL);
    }
    for (int round = 0; round < request->rounds && status == RA_OK; ++round)
        status =
            init_fetch_round(t, owners, count, round, &t->plan->steps[s + round * t->round_steps]);
    for (int k = 0; k < made; ++k)
        ra_rowset_fini(t->pool, &t->needed[k]);
    return status;
}

/* What the team ahead needs of our rows goes to one member, in one turn of this distance. */
static ra_status init_offer(const team_plan *t, int distance, int turn, int s)
{
    const ra_plan_request *request = t->request;
    const ra_teams *teams = request->teams;
    int const readers = ra_teams_ahead(teams, t->team, distance);
    int const size = ra_teams_size(teams, readers);
    ra_rowset queries, local;
    if (t->place / size != turn)
        return RA_OK;
    ra_status status = ra_teams_rows(teams, readers, request->queries, t->pool, &queries);
    if (status != RA_OK)
        return status;
    ra_comm_beat(request->comm);
    status = ra_pattern_needed_rows(request->pattern, request->heads, &queries,
                                    &request->layout->rows[request->rank], t->pool, NULL, &local);
    ra_rowset_fini(t->pool, &queries);
    if (status != RA_OK)
        return status;
    for (int round = 0; round < request->rounds && status == RA_OK; ++round) {
        ra_step *const step = &t->plan->steps[s + round * t->round_steps];
        status = init_round(t, &local, round, &step->sent_local);
        step->sent_to = step->grad_from = ra_teams_member(teams, readers, t->place % size);
        step->sent_rows = step->grad_in_rows = step->sent_local.row_count;
        step->grad_home = &step->sent_local;
    }
    if (request->rounds == 1)
        t->plan->steps[s].sent_local.block = local.block; /* it is the step's */
    else
        ra_rowset_fini(t->pool, &local);
    return status;
}

static ra_status init_team_steps(const team_plan *t)
{
    int s = 1;
    ra_status status = init_own_step(t);
    for (int distance = 1; distance < t->request->teams->count; ++distance)
        for (int turn = 0; turn < t->request->teams->turns[distance]; ++turn, ++s) {
            if (status == RA_OK)
                status = init_fetch(t, distance, turn, s);
            if (status == RA_OK)
                status = init_offer(t, distance, turn, s);
        }
    return status;
}

static ra_status init_teams(const ra_plan_request *request, ra_pool *pool, ra_plan *plan)
{
    const ra_teams *teams = request->teams;
    team_plan t = {.request = request,
                   .pool = pool,
                   .team = teams->team[request->rank],
                   .place = teams->place[request->rank],
                   .size = ra_teams_size(teams, teams->team[request->rank]),
                   .round_steps = (plan->step_count - 1) / request->rounds,
                   .plan = plan};
    ra_block scratch;
    size_t const bytes = 2 * (size_t)t.size * sizeof(ra_rowset);
    ra_status status = ra_pool_alloc(pool, RA_MEM_TILEMAP, bytes, NULL, &scratch);
    if (status != RA_OK)
        return status;
    t.needed = scratch.data;
    t.parts = t.needed + t.size;
    status = ra_teams_rows(teams, t.team, request->queries, pool, &t.queries);
    if (status == RA_OK)
        status = init_team_steps(&t);
    ra_rowset_fini(pool, &t.queries);
    ra_pool_free(pool, NULL, &scratch);
    return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

int ra_plan_count_steps(const ra_teams *teams, int rounds)
{
    int count = 0;
    for (int distance = 1; distance < teams->count; ++distance)
        count += teams->turns[distance];
    return 1 + rounds * count;
}

ra_status ra_plan_init(const ra_plan_request *request, ra_pool *pool, ra_plan *plan_out)
{
    const ra_teams *teams = request->teams;
    RA_ASSERT(request->schedule != RA_SCHEDULE_AUTO && request->rounds >= 1);
    RA_ASSERT(request->schedule == RA_SCHEDULE_SHARED || teams->largest == 1);
    ra_plan plan = {.step_count = ra_plan_count_steps(teams, request->rounds)};
    size_t const size = (size_t)ra_teams_size(teams, teams->team[request->rank]);
    size_t const steps = (size_t)plan.step_count, parts = steps * size;
    ra_status status = ra_pool_alloc(
        pool, RA_MEM_TILEMAP, steps * sizeof(ra_step) + parts * sizeof(ra_part), NULL, &plan.block);
    if (status != RA_OK)
        return status;
    plan.steps = memset(plan.block.data, 0, plan.block.bytes);
    for (size_t s = 0; s < steps; ++s)
        plan.steps[s].parts = (ra_part *)(plan.steps + steps) + s * size;
    status = request->schedule == RA_SCHEDULE_RING ? ra_plan_init_ring(request, pool, &plan)
                                                   : init_teams(request, pool, &plan);
    if (status != RA_OK) {
        ra_plan_fini(pool, &plan);
        return status;
    }
    for (int s = 1; s < plan.step_count; ++s)
        if (plan.steps[s].grad_out_rows > 0 || plan.steps[s].grad_in_rows > 0)
            plan.last_grads = s;
    *plan_out = plan;
    return RA_OK;
}

void ra_plan_fini(ra_pool *pool, ra_plan *plan)
{
    for (int s = 0; s < plan->step_count && plan->steps != NULL; ++s) {
        ra_step *step = &plan->steps[s];
        ra_pattern_cache_put(pool, &step->map);
        ra_rowset_fini(pool, &step->sent_local);
        for (int k = 0; k < step->part_count; ++k)
            ra_pattern_cache_put(pool, &step->parts[k].map);
    }
    ra_pool_free(pool, NULL, &plan->block);
    *plan = (ra_plan){0};
}

ra_status ra_plan_is_full(const ra_pattern *pattern, const ra_layout *layout, ra_comm *comm,
                          ra_pool *pool, bool *full_out)
{
    *full_out = true;
    for (int rank = 0; rank < layout->ranks && *full_out; ++rank) {
        const ra_rowset *rows = &layout->rows[rank];
        int64_t fetched;
        ra_comm_beat(comm);
        ra_status const status = ra_pattern_count_fetched(pattern, rows, pool, &fetched);
        if (status != RA_OK)
            return status;
        *full_out = fetched == ra_pattern_seq(pattern) - rows->row_count;
    }
    return RA_OK;
}

int ra_step_owner(const ra_step *step)
{
    return step->part_count == 1 ? step->parts[0].owner : -1;
}

int ra_plan_live_steps(const ra_plan *plan)
{
    int live = 0;
    for (int s = 0; s < plan->step_count; ++s)
        live += plan->steps[s].map.run_count > 0;
    return live;
}
